# SPDX-License-Identifier: Apache-2.0
"""Ranks that share every layer: golden values for every model and degree that its heads allow, refusals, the same bits for any cut of a
prompt, and what happens when a rank dies or hangs in the midst of an answer."""
import json
import os
import signal

import pytest

from server import EVERYTHING, Server, eventually, kt, model

# Of 2, 4 and 8; 6 where heads are 6.
DEGREES = {
    "deepseek_v3-fp8": [2, 4],
    "deepseek_v32-fp8": [2, 4],
    "glm4_moe": [2, 6],
    "glm4_moe-fp8": [2, 6],
    "glm4_moe_lite": [2, 4],
    "glm_moe_dsa": [2, 4],
    "gpt_oss-mxfp4": [2, 6],
    "kimi_k25-int4": [2, 4],
    "minimax_m2-fp8": [2, 6],
    "qwen3_5_moe": [2, 4],
    "qwen3_moe": [2, 4, 8],
    "qwen3_moe-tp8-fp8": [2, 4, 8],
    "qwen3_moe-w4a16": [2, 4],
    "qwen3_moe-w8a16": [2, 4, 8],
    "qwen3_next-fp8": [2, 4],
}
PAIRS = [(name, degree) for name, degrees in DEGREES.items() for degree in degrees]
KINDS = ["deepseek_v32-fp8", "minimax_m2-fp8", "qwen3_5_moe", "qwen3_moe-tp8-fp8", "qwen3_next-fp8"]


def selftest(name, degree, *flags):
    done = kt("selftest", model(name), "--json", "--kt-cpuinfer", 2, "--tensor-parallel-size", degree, *flags)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    result = json.loads(done.stdout)
    failed = [row for row in result["checks"] if not row["ok"]]
    assert not failed and result["ok"] and done.returncode == 0, failed
    return {row["name"] for row in result["checks"]}


def rank_pids(server):
    return {p["name"]: p["pid"] for p in server.status()["node"]["processes"] if p["name"].startswith("kt-gpu-worker-")}


def greedy(server, tokens):
    """Tokens and log-probabilities of a long greedy answer."""
    answer = server.post("/v1/completions", request(tokens))["choices"][0]["logprobs"]
    return list(zip(answer["tokens"], answer["token_logprobs"]))


def request(tokens):
    return {"prompt": "The quick brown fox", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0}


# Prefill: where experts are, on the device layer by layer, both in turn, and with residents that change.
MODES = {
    "hybrid": [],
    "layerwise": ["--kt-gpu-prefill-token-threshold", 1],
    "chunks": ["--kt-gpu-prefill-token-threshold", 24, "--chunked-prefill-size", 24],
    "dynamic": ["--kt-gpu-prefill-token-threshold", 20, "--chunked-prefill-size", 24, "--kt-enable-dynamic-expert-update"],
}
MATRIX = [(*pair, share, mode) for pair in PAIRS for share in (0, 0.5, 1) for mode in MODES if mode != "dynamic" or share == 0.5]
if not EVERYTHING:  # each pair once, all shares and modes in turn
    MATRIX = [(*pair, *[(0, "layerwise"), (0.5, "dynamic"), (1, "hybrid"), (0.5, "layerwise"), (0, "chunks")][i % 5]) for i, pair in enumerate(PAIRS)]


@pytest.mark.parametrize("name,degree,share,mode", MATRIX)
def test_float32(name, degree, share, mode):
    checks = selftest(name, degree, "--activation-dtype", "float32", "--kt-gpu-experts-ratio", share, *MODES[mode])
    assert {f"{prompt} greedy" for prompt in ("short", "medium", "long")} <= checks


@pytest.mark.parametrize("name,degree", PAIRS if EVERYTHING else [(name, 2) for name in KINDS])
def test_bf16(name, degree):
    selftest(name, degree, "--activation-dtype", "bf16", "--kt-gpu-experts-ratio", 0.5)


@pytest.mark.parametrize("flags", [("--expert-transport", "grpc"), ("--chunked-prefill-size", 16, "--kt-threadpool-count", 2),
                                   ("--deterministic", "off")])
@pytest.mark.parametrize("name", ["deepseek_v3-fp8", "qwen3_next-fp8"])
def test_other_ways(name, flags):
    selftest(name, 4, "--activation-dtype", "float32", "--kt-gpu-experts-ratio", 0.5, *flags)


@pytest.mark.parametrize("name", DEGREES)
def test_refuses_other_degrees(name):
    for degree in set(range(2, 9)) - set(DEGREES[name]):
        done = kt("run", model(name), "--tp", degree, "--print-config")
        allowed = ", ".join(map(str, [1, *DEGREES[name]]))
        assert done.returncode == 2 and f"--tensor-parallel-size {degree}: " in done.stderr and f"give {allowed}" in done.stderr, done.stderr


def prompt_logprobs(name, *flags):
    with Server(model(name), "--tp-size", 2, "--kt-cpuinfer", 2, "--kt-gpu-experts-ratio", 0.5, *flags) as server:
        prompt = [5 + 7 * i % 480 for i in range(170)]
        answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 3})
        return answer["choices"][0]["logprobs"]


@pytest.mark.parametrize("name", KINDS)
def test_chunks_change_no_bit(name):
    whole = prompt_logprobs(name)
    for chunk in (16, 7):
        assert prompt_logprobs(name, "--chunked-prefill-size", chunk) == whole, chunk


def stream_while(server, tokens, harm):
    """A streamed answer during which `harm` is done once, after some tokens."""
    got = []
    for event in server.stream("/v1/completions", request(tokens)):
        logprobs = event["choices"][0]["logprobs"]
        if not logprobs:
            continue
        got += zip(logprobs["tokens"], logprobs["token_logprobs"])
        if len(got) > 20 and harm:
            harm()
            harm = None
    assert harm is None
    return got


@pytest.mark.parametrize("rank", [0, 3])
def test_rank_killed(rank):
    """The stream goes on with the same tokens and log-probabilities; the other ranks live on."""
    with Server(model("qwen3_moe"), "--tp", 4, "--kt-cpuinfer", 2, "--kt-num-gpu-experts", 8) as server:
        want = greedy(server, 800)
        before = rank_pids(server)
        assert len(before) == 4
        victim = f"kt-gpu-worker-{rank}"
        assert stream_while(server, 800, lambda: os.kill(before[victim], signal.SIGKILL)) == want
        after = rank_pids(server)
        assert {name for name in before if before[name] != after[name]} == {victim}
        eventually(lambda: server.get("/health").status == 200, server.log)
        workers = server.get("/health?verbose=1").json()["workers"]
        assert [w["losses"] for w in workers if w["name"].startswith("kt-gpu-worker-")] == [int(r == rank) for r in range(4)]


def test_rank_hangs():
    """The watchdog ends the ranks that do not answer: here the one that is stopped and the one that waits for it."""
    with Server(model("qwen3_moe"), "--tp", 2, "--kt-cpuinfer", 2, "--watchdog-timeout", 2) as server:
        want = greedy(server, 400)
        before = rank_pids(server)
        assert stream_while(server, 400, lambda: os.kill(before["kt-gpu-worker-1"], signal.SIGSTOP)) == want
        assert rank_pids(server)["kt-gpu-worker-1"] != before["kt-gpu-worker-1"]


def test_stops_while_a_rank_is_missing():
    """SIGTERM while the others wait for a rank that is gone: nobody has to be killed."""
    with Server(model("qwen3_moe"), "--tp", 2, "--kt-cpuinfer", 2, "--drain-timeout-ms", 100) as server:
        def harm():
            os.kill(rank_pids(server)["kt-gpu-worker-1"], signal.SIGKILL)
            server.process.send_signal(signal.SIGTERM)
        try:
            stream_while(server, 4000, harm)
        except (AssertionError, OSError):
            pass  # the stream breaks off
        assert server.process.wait(30) == 0, server.log()
        ends = [line for line in server.log().splitlines() if "signal 9" in line and "kt-gpu-worker-0" in line]
        assert not ends, ends
