#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the default number of compute threads with every number set by hand, on all CPUs and on one (as under taskset -c 0).

    benchmarks/thread_bench.py --kt build/release/bin/kt MODEL_DIR [run flags...]

A figure is the decode rate of one client (serve_bench.py), the best of --repeats servers, which take turns so that a slow minute of the
machine meets all of them. ratio: the default's rate over the best hand-set one's. Exit code 1 when a ratio is below --least. Run it on
a quiet machine."""
import argparse
import json
import os
import random
import sys

from idle_cpu import start, stop
from serve_bench import get, serve


def decode_rate(options, flags):
    process, _, _ = start(options, flags)
    try:
        vocab = get(options.port, "/model_info")["vocab_size"]
        draw = random.Random(1)
        serve(options.port, 1, options, draw, vocab)  # warm-up: first touches of memory
        return serve(options.port, 1, options, draw, vocab)["decode_tokens_per_s"]
    finally:
        stop(process)


def compare(options, flags, cpus):
    """Best rates of the default ("default") and of each number of threads, on these CPUs."""
    os.sched_setaffinity(0, cpus)  # inherited by all processes of the server
    settings = {"default": []} | {str(n): ["--kt-cpuinfer", str(n)] for n in range(1, len(cpus) + 1)}
    rates = dict.fromkeys(settings, 0.0)
    for _ in range(options.repeats):
        for name, setting in settings.items():
            rates[name] = max(rates[name], decode_rate(options, flags + setting))
    best = max(rate for name, rate in rates.items() if name != "default")
    return {"cpus": sorted(cpus), "decode_tokens_per_s": rates, "ratio": round(rates["default"] / best, 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory for kt run; further flags are passed to it")
    parser.add_argument("--kt", default="build/release/bin/kt", help="the program (default %(default)s)")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--start-timeout", type=float, default=120)
    parser.add_argument("--least", type=float, default=0.85, help="smallest ratio that is good (default %(default)s)")
    parser.add_argument("--json", action="store_true")
    options, flags = parser.parse_known_args()
    if options.max_tokens < 2:
        parser.error("--max-tokens: a rate needs at least 2")
    allowed = os.sched_getaffinity(0)
    reports = [compare(options, flags, cpus) for cpus in ([allowed, {min(allowed)}] if len(allowed) > 1 else [allowed])]
    if options.json:
        print(json.dumps(reports, indent=2))
    else:
        for report in reports:
            rates = ", ".join(f"{name}: {rate:.1f}" for name, rate in report["decode_tokens_per_s"].items())
            print(f"{len(report['cpus'])} CPUs: decode tokens/s by threads {rates}; default / best {report['ratio']:.3f}")
    return 0 if all(report["ratio"] >= options.least for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
