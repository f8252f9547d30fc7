#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts `kt run`, or looks at a running one, and prints as JSON what it takes while nobody asks anything.

    benchmarks/idle_cpu.py --kt build/release/bin/kt MODEL_DIR [run flags...]
    benchmarks/idle_cpu.py --pid PID

start_s: from the start to a good answer of /health. cpu_percent_of_one_core: CPU time of all processes together over --seconds.
pss_bytes: memory of all processes together, shared pages counted once; pss_peak_bytes: the most that was seen while starting.
Exit code 1 when --max-cpu-percent or --max-pss-bytes is exceeded."""
import argparse
import glob
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request


def tree(root):
    """The process and all its descendants that are alive."""
    children = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                pid, rest = file.read().split(" (", 1)
        except OSError:
            continue
        children.setdefault(int(rest.rsplit(") ", 1)[1].split()[1]), []).append(int(pid))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def name(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "gone"


def cpu_ns(pid):
    """Time on a CPU of all threads, in nanoseconds (the clock ticks of /proc/PID/stat are too coarse for an idle server)."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as file:
                total += int(file.read().split()[0])
        except OSError:
            pass
    return total


def pss_bytes(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def checkpoint_bytes(directory):
    return sum(os.path.getsize(path) for path in glob.glob(os.path.join(directory, "*.safetensors")))


def healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def start(options, flags):
    """Returns the process, the seconds until it was ready and the peak of its memory meanwhile."""
    command = [options.kt, "run", options.model, "--host", "127.0.0.1", "--port", str(options.port), *flags]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=sys.stderr)
    peak = 0
    while not healthy(options.port):
        if process.poll() is not None:
            sys.exit(f"{' '.join(command)}: ended with code {process.returncode} before it was ready")
        if time.monotonic() - began > options.start_timeout:
            stop(process)
            sys.exit(f"{' '.join(command)}: not ready after {options.start_timeout} s")
        peak = max(peak, sum(map(pss_bytes, tree(process.pid))))
        time.sleep(0.05)
    return process, time.monotonic() - began, peak


def stop(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def measure(root, seconds):
    before = {pid: cpu_ns(pid) for pid in tree(root)}
    began = time.monotonic()
    time.sleep(seconds)
    after = {pid: cpu_ns(pid) for pid in tree(root)}
    elapsed_ns = (time.monotonic() - began) * 1e9
    processes = [
        {"pid": pid, "name": name(pid), "cpu_percent": round(100 * (ns - before.get(pid, 0)) / elapsed_ns, 3), "pss_bytes": pss_bytes(pid)}
        for pid, ns in sorted(after.items())
    ]
    return {
        "seconds": seconds,
        "cpu_percent_of_one_core": round(sum(p["cpu_percent"] for p in processes), 3),
        "pss_bytes": sum(p["pss_bytes"] for p in processes),
        "processes": processes,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="model directory for kt run; further flags are passed to it")
    parser.add_argument("--kt", default="build/release/bin/kt", help="the program (default %(default)s)")
    parser.add_argument("--pid", type=int, help="measure this process and its descendants instead")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--settle", type=float, default=2, help="seconds between ready and the measurement (default %(default)s)")
    parser.add_argument("--start-timeout", type=float, default=120)
    parser.add_argument("--max-cpu-percent", type=float)
    parser.add_argument("--max-pss-bytes", type=float)
    options, flags = parser.parse_known_args()
    if (options.model is None) == (options.pid is None):
        parser.error("give a model directory or --pid")
    if options.pid is not None:
        if not os.path.exists(f"/proc/{options.pid}"):
            parser.error(f"--pid {options.pid}: there is no such process")
        report = measure(options.pid, options.seconds)
    else:
        process, start_s, peak = start(options, flags)
        try:
            time.sleep(options.settle)
            report = measure(process.pid, options.seconds)
        finally:
            stop(process)
        report.update(start_s=round(start_s, 3), pss_peak_bytes=max(peak, report["pss_bytes"]),
                      checkpoint_bytes=checkpoint_bytes(options.model))
    print(json.dumps(report, indent=2))
    over = [
        limit is not None and report[key] > limit
        for key, limit in (("cpu_percent_of_one_core", options.max_cpu_percent), ("pss_bytes", options.max_pss_bytes))
    ]
    return 1 if any(over) else 0


if __name__ == "__main__":
    sys.exit(main())
