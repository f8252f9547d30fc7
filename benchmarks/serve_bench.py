#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts `kt run`, and prints how fast it starts and serves, and what it takes while idle.

    benchmarks/serve_bench.py --kt build/release/bin/kt MODEL_DIR [run flags...]

For each number of --streams: so many clients at once send a random prompt of --prompt-tokens each and read --max-tokens streamed
tokens. ttft_s: until the first token, median of the clients. prefill: prompt tokens of all clients per second until the last of them has its first
token. decode: tokens of all clients per second from there on. Where a step's time goes is the workers' own account of the steps after the last first token;
expert_wait_share is the part of it that the device waited for the expert workers (hand-over and their work that nothing hides)."""
import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time

from idle_cpu import checkpoint_bytes, measure, start, stop


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def steps(port):
    return get(port, "/server_info")["internal_states"][0]


class Client(threading.Thread):
    def __init__(self, port, prompt, max_tokens, all_started):
        super().__init__(daemon=True)
        self.port, self.all_started, self.first, self.last, self.tokens = port, all_started, None, None, 0
        self.body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0, "stream": True})

    def run(self):
        try:
            self.stream()
        finally:
            if self.first is None:
                self.all_started.abort()

    def stream(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        self.began = time.monotonic()
        connection.request("POST", "/v1/completions", self.body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"HTTP {response.status}: {response.read().decode()}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            logprobs = json.loads(line[6:])["choices"][0]["logprobs"]
            self.tokens += len(logprobs["tokens"]) if logprobs else 0
            self.last = time.monotonic()
            if self.first is None:
                self.first = self.last
                self.all_started.wait()
        connection.close()


def serve(port, streams, options, draw, vocab):
    at_start = {}
    all_started = threading.Barrier(streams, action=lambda: at_start.update(steps(port)))
    clients = [Client(port, [draw.randrange(vocab) for _ in range(options.prompt_tokens)], options.max_tokens, all_started) for _ in range(streams)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if any(client.tokens != options.max_tokens for client in clients):
        sys.exit("a client did not get all its tokens")
    at_end = steps(port)
    began, first, last = min(c.began for c in clients), max(c.first for c in clients), max(c.last for c in clients)
    count = at_end["steps"] - at_start["steps"]
    step_ms = {part: (at_end["step_ms"][part] - ms) / count for part, ms in at_start["step_ms"].items()}
    generated = at_end["tokens_generated"] - at_start["tokens_generated"]
    return {
        "streams": streams,
        "ttft_s": round(statistics.median(c.first - c.began for c in clients), 4),
        "prefill_tokens_per_s": round(streams * options.prompt_tokens / (first - began), 1),
        "decode_tokens_per_s": round(generated / (last - first), 1),
        "decode_step_ms": {part: round(ms, 3) for part, ms in step_ms.items()},
        "expert_wait_share": round(step_ms["expert_wait"] / step_ms["total"], 4),
        "hand_overs_per_step": (at_end["expert_hand_overs"] - at_start["expert_hand_overs"]) / count,
    }


def text(report):
    mib = 1 << 20
    lines = [f"ready in {report['start_s']:.2f} s, PSS {report['pss_bytes'] / mib:.0f} MiB (peak at start {report['pss_peak_bytes'] / mib:.0f}, "
             f"checkpoint {report['checkpoint_bytes'] / mib:.0f}), idle {report['idle_cpu_percent_of_one_core']:.2f} % of one core"]
    for run in report["runs"]:
        parts = ", ".join(f"{part} {ms:.2f}" for part, ms in run["decode_step_ms"].items())
        lines.append(f"{run['streams']} streams: first token {run['ttft_s'] * 1000:.0f} ms, prefill {run['prefill_tokens_per_s']:.0f} tokens/s, decode "
                     f"{run['decode_tokens_per_s']:.1f} tokens/s; {100 * run['expert_wait_share']:.1f} % of a decode step waits on expert workers ({parts} ms)")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory for kt run; further flags are passed to it")
    parser.add_argument("--kt", default="build/release/bin/kt", help="the program (default %(default)s)")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--idle-seconds", type=float, default=10)
    parser.add_argument("--start-timeout", type=float, default=120)
    parser.add_argument("--json", action="store_true")
    options, flags = parser.parse_known_args()
    if options.max_tokens < 2:
        parser.error("--max-tokens: a rate needs at least 2")
    process, start_s, peak = start(options, flags)
    try:
        vocab = get(options.port, "/model_info")["vocab_size"]
        draw = random.Random(1)
        serve(options.port, 1, options, draw, vocab)  # warm-up: first touches of memory
        runs = [serve(options.port, streams, options, draw, vocab) for streams in options.streams]
        time.sleep(2)
        idle = measure(process.pid, options.idle_seconds)
    finally:
        stop(process)
    report = {"start_s": round(start_s, 3), "pss_bytes": idle["pss_bytes"], "pss_peak_bytes": max(peak, idle["pss_bytes"]),
              "checkpoint_bytes": checkpoint_bytes(options.model), "idle_cpu_percent_of_one_core": idle["cpu_percent_of_one_core"], "runs": runs}
    print(json.dumps(report, indent=2) if options.json else text(report))


if __name__ == "__main__":
    main()
