#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts `kt run`, and prints what its processes take while the weights are loaded, against what stays and what was predicted.

    benchmarks/load_bench.py --kt build/release/bin/kt MODEL_DIR [run flags...]

Memory is PSS: shared pages count once. peak: the most that all processes together were seen to take at one time; stays: what they take some seconds after
they are ready, before any request (so of the cache only what is touched). rss_peak is the kernel's own high-water mark of one process, shared libraries
in full. Predicted are the bytes of weights, by `kt doctor --model` before the start and by the workers in the log and in /get_model_info; they are held
against what stays in the workers but for WORKER_BYTES of code and buffers each. The other processes, some 35 MB, are in nobody's prediction.
Without MODEL_DIR a checkpoint of 1.4 GB is made for the time of the run, half of its experts on a device of 1 GB; that needs numpy.
Exit code 1 when --max-peak-ratio or --max-prediction-error is exceeded."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from idle_cpu import checkpoint_bytes, healthy, name, pss_bytes, stop, tree

SYNTHETIC = ["--layers", "2"]
SYNTHETIC_FLAGS = ["--kt-gpu-experts-ratio", "0.5", "--device-memory-bytes", "1000000000", "--max-total-tokens", "4096"]
WORKERS = {"kt-gpu-worker", "kt-cpu-expert-w"}  # as the kernel cuts them
WORKER_BYTES = 8 << 20
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


def sample(root):
    """PSS of each process, by pid."""
    return {pid: pss_bytes(pid) for pid in tree(root)}


def rss_peak_bytes(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return int(re.search(r"VmHWM:\s*(\d+) kB", file.read())[1]) * 1024
    except OSError:
        return 0


def load(options, flags, log):
    """The process, seconds until ready, the names by pid, and the sample with the highest sum."""
    command = [options.kt, "run", options.model, "--host", "127.0.0.1", "--port", str(options.port), *flags]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=log, stderr=log)
    peak, names = {}, {}
    while not healthy(options.port):
        if process.poll() is not None:
            log.seek(0)
            sys.exit(f"{log.read()}{' '.join(command)}: ended with code {process.returncode} before it was ready")
        for _ in range(10):
            now = sample(process.pid)
            names.update({pid: name(pid) for pid in now})
            peak = max(peak, now, key=lambda s: sum(s.values()))
            time.sleep(options.sample_seconds)
    return process, time.monotonic() - began, names, peak


def doctor_bytes(options):
    """The weights' bytes as `kt doctor` foretells them."""
    done = subprocess.run([options.kt, "doctor", "--model", options.model, "--json"], capture_output=True, text=True, check=False)
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["subject"] == "model memory"]
    number, unit = re.match(r"([\d.]+) (MiB|GiB) of weights", check["value"]).groups()
    return round(float(number) * UNITS[unit])


def logged_bytes(log):
    """The workers' weights as their log lines state them."""
    return round(sum(float(mb) for mb in re.findall(r"(?:dense weights|resident experts|threads,) ([\d.]+) MB", log)) * 1e6)


def listed_bytes(port):
    """The bytes of /get_model_info, by engine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/get_model_info", timeout=10) as answer:
        layers = json.load(answer)["layers"]
    engines = {}
    for layer in layers:
        for part in [layer.get("attention"), layer.get("ffn"), *layer.get("experts", [])]:
            if part:
                engines[part["engine"]] = engines.get(part["engine"], 0) + part["bytes"]
    return engines


def measure(options, flags):
    with tempfile.TemporaryFile("w+") as log:
        process, seconds, names, peak = load(options, flags, log)
        try:
            time.sleep(options.settle)
            stays = sample(process.pid)
            high_water = {pid: rss_peak_bytes(pid) for pid in stays}
            listed = listed_bytes(options.port)
        finally:
            stop(process)
        log.seek(0)
        logged = logged_bytes(log.read())
    doctor, stay_bytes = doctor_bytes(options), sum(stays.values())
    peak_bytes = max(sum(peak.values()), stay_bytes)
    workers = [pss for pid, pss in stays.items() if names[pid] in WORKERS]
    in_workers = sum(workers) - WORKER_BYTES * len(workers)
    return {
        "checkpoint_bytes": checkpoint_bytes(options.model),
        "load_s": round(seconds, 2),
        "pss_peak_bytes": peak_bytes,
        "pss_stays_bytes": stay_bytes,
        "peak_ratio": round(peak_bytes / stay_bytes, 4),
        "processes": [{"name": names[pid], "pss_at_peak_bytes": peak.get(pid, 0), "pss_stays_bytes": pss, "rss_peak_bytes": high_water[pid]}
                      for pid, pss in sorted(stays.items())],
        "pss_of_weights_bytes": in_workers,
        "predicted_by_doctor_bytes": doctor,
        "predicted_in_log_bytes": logged,
        "listed_by_model_info_bytes": listed,
        "prediction_error": round(max(abs(predicted / in_workers - 1) for predicted in (doctor, logged)), 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="model directory for kt run; further flags are passed to it")
    parser.add_argument("--kt", default="build/release/bin/kt", help="the program (default %(default)s)")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--settle", type=float, default=2, help="seconds between ready and the measurement of what stays (default %(default)s)")
    parser.add_argument("--sample-seconds", type=float, default=0.01, help="pause between two samples (default %(default)s)")
    parser.add_argument("--max-peak-ratio", type=float, help="of the peak to what stays")
    parser.add_argument("--max-prediction-error", type=float, help="of the worse prediction, as a share")
    options, flags = parser.parse_known_args()
    if options.model is not None:
        report = measure(options, flags)
    else:
        with tempfile.TemporaryDirectory(prefix="kt-load-", dir="/var/tmp") as made:
            maker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tools/make_synthetic_moe.py")
            subprocess.run([sys.executable, maker, "--out", made, *SYNTHETIC], check=True)
            options.model = made
            report = measure(options, [*SYNTHETIC_FLAGS, *flags])
    print(json.dumps(report, indent=2))
    over = [limit is not None and report[key] > limit for key, limit in (("peak_ratio", options.max_peak_ratio),
                                                                       ("prediction_error", options.max_prediction_error))]
    return 1 if any(over) else 0


if __name__ == "__main__":
    sys.exit(main())
