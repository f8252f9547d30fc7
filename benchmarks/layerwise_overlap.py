#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts `kt run` twice, and prints how well layerwise prefill hides copies behind computing.

    tools/make_synthetic_moe.py --out DIR --layers 24 --hidden 512 --inter 256 --heads 8
    benchmarks/layerwise_overlap.py --kt build/release/bin/kt DIR [run flags...]

One prompt of --prompt-tokens is one layerwise step. First with copies at the speed of memory: that gives the time of computing (the step less what it
waited for copies). Then with copies slowed so that copying all experts takes as long as that. overlap: time of such a step, against the longer of
copying and computing; without_overlap: what copying and computing take one after the other, against the same. Medians of --rounds prompts.
Exit code 1 when overlap exceeds --max-overlap."""
import argparse
import http.client
import json
import random
import statistics
import sys

from idle_cpu import start, stop


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            sys.exit(f"HTTP {response.status}: {data.decode()}")
        return json.loads(data)
    finally:
        connection.close()


def figures(port):
    state = ask(port, "GET", "/server_info")["internal_states"][0]
    return {"total": state["step_ms"]["total"], "copy": state["layerwise"]["copy_ms"], "stall": state["layerwise"]["copy_stall_ms"],
            "bytes": state["layerwise"]["copied_bytes"], "steps": state["layerwise"]["steps"]}


def measure(o, flags, copy_gbps):
    """Of each prompt: what its step took, all in ms."""
    command = ["--chunked-prefill-size", o.prompt_tokens, "--max-running-requests", 1, "--max-total-tokens", o.prompt_tokens + 16,
               "--kt-gpu-prefill-token-threshold", 2, "--device-copy-gbps", copy_gbps, *flags]
    process, _, _ = start(o, [str(word) for word in command])
    draw = random.Random(1)
    rounds = []
    try:
        for _ in range(o.rounds + 1):
            before = figures(o.port)
            prompt = [draw.randrange(256) for _ in range(o.prompt_tokens)]
            ask(o.port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True})
            after = figures(o.port)
            rounds.append({key: after[key] - before[key] for key in before})
            if rounds[-1]["steps"] != 1:
                sys.exit(f"a prompt took {rounds[-1]['steps']} layerwise steps")
    finally:
        stop(process)
    return rounds[1:]  # the first one touches all pages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kt", default="build/release/bin/kt")
    parser.add_argument("--port", type=int, default=31999)
    parser.add_argument("--start-timeout", type=float, default=600)
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-overlap", type=float, default=0)
    parser.add_argument("model")
    o, flags = parser.parse_known_args()

    fast = measure(o, flags, 0)
    compute = statistics.median(r["total"] - r["stall"] for r in fast)
    gbps = fast[0]["bytes"] / compute / 1e6
    slow = measure(o, flags, f"{gbps:.6f}")
    total, copy = (statistics.median(r[key] for r in slow) for key in ("total", "copy"))
    longer = max(compute, copy)
    result = {"prompt_tokens": o.prompt_tokens, "copied_bytes": slow[0]["bytes"], "copy_gbytes_per_s": round(gbps, 3), "compute_ms": round(compute, 1),
              "copy_ms": round(copy, 1), "step_ms": round(total, 1), "overlap": round(total / longer, 3),
              "without_overlap": round((compute + copy) / longer, 3)}
    print(json.dumps(result))
    sys.exit(1 if 0 < o.max_overlap < result["overlap"] else 0)


if __name__ == "__main__":
    main()
