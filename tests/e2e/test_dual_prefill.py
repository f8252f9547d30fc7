# SPDX-License-Identifier: Apache-2.0
"""Layerwise steps give what hybrid ones give: bit for bit where experts stay where they are, up to rounding where they change places."""
import json
import os
import random
import signal
import threading

import pytest

from server import EVERYTHING, SOURCE, Server, eventually, kt, model

ALL = sorted(entry.name for entry in os.scandir(os.path.join(SOURCE, "tests/data/models")) if entry.is_dir())
KINDS = ["gpt_oss-mxfp4", "kimi_k25-int4", "qwen3_moe", "qwen3_moe-tp8-fp8"]
NAMES = ALL if EVERYTHING else KINDS
THRESHOLD = "--kt-gpu-prefill-token-threshold"
FLOAT32 = ["--activation-dtype", "float32", "--kt-cpuinfer", 2]
TOP = 20


def prompts(lengths=(9, 64, 170)):
    draw = random.Random(5)
    return [[draw.randrange(5, 480) for _ in range(length)] for length in lengths]


def logprobs(server, prompt):
    answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": TOP})
    got = answer["choices"][0]["logprobs"]
    return [got["token_logprobs"][1:], got["top_logprobs"][1:]]


def tokens(server, prompt, count=12):
    answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "logprobs": 1})
    return answer["choices"][0]["logprobs"]["tokens"]


def layerwise(server, steps):
    """Its figures, once the last of so many steps is in them; an answer may be there before."""
    eventually(lambda: server.state()["layerwise"]["steps"] >= steps, lambda: server.state()["layerwise"])
    return server.state()["layerwise"]


def run(name, *flags, dtype="float32", steps=0):
    """Log-probabilities of all prompts, and the figures of the layerwise steps they took."""
    with Server(model(name), "--activation-dtype", dtype, "--kt-cpuinfer", 2, *flags) as server:
        rows = [logprobs(server, prompt) for prompt in prompts()]
        return rows, layerwise(server, steps)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("share", [0, 0.5])
def test_layerwise_has_the_bits_of_hybrid(name, workers, share):
    flags = ["--kt-gpu-experts-ratio", share, "--kt-threadpool-count", workers]
    for dtype in ("float32", "bf16") if workers == 2 else ("float32",):
        hybrid, none = run(name, *flags, dtype=dtype)
        assert none["steps"] == 0
        copied, figures = run(name, *flags, THRESHOLD, 1, dtype=dtype, steps=3)
        assert figures["steps"] == 3 and figures["copied_bytes"] > 0 and figures["staged_copies"] == 0, figures
        assert copied == hybrid
    # In chunks of 40: one and a tail of 24, four and a tail of 10. The first prompt and the tails are hybrid.
    mixed, figures = run(name, *flags, THRESHOLD, 40, "--chunked-prefill-size", 40, dtype=dtype, steps=5)
    assert figures["steps"] == 5 and mixed == hybrid, figures


@pytest.mark.parametrize("method", ["AMXINT8", "AMXINT4"])
def test_rounded_experts(method):
    flags = ["--kt-method", method, "--kt-threadpool-count", 2, "--kt-gpu-experts-ratio", 0.5]
    hybrid, _ = run("qwen3_moe-tp8-fp8", *flags)
    copied, figures = run("qwen3_moe-tp8-fp8", *flags, THRESHOLD, 1, steps=3)
    assert figures["steps"] == 3 and copied == hybrid


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0, 0.5])
def test_golden_results(name, share):
    done = kt("selftest", model(name), "--activation-dtype", "float32", "--kt-gpu-experts-ratio", share, THRESHOLD, 30, "--kt-cpuinfer", 2)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [1, 2])
def test_dynamic_update_changes_places_and_no_token(name, workers):
    """Prompts whose lengths alternate around the threshold, on a server whose experts change places and on one where they stay."""
    flags = [*FLOAT32, "--kt-gpu-experts-ratio", 0.5, "--kt-threadpool-count", workers]
    lengths = [20 + 25 * (i % 3) + i for i in range(12)]
    with Server(model(name), *flags) as server:
        want = [tokens(server, prompt) for prompt in prompts(lengths)]
    with Server(model(name), *flags, THRESHOLD, 40, "--kt-enable-dynamic-expert-update") as server:
        for prompt, expected in zip(prompts(lengths), want):
            assert tokens(server, prompt) == expected
        figures = layerwise(server, 8)
        assert figures["steps"] == 8 and figures["residents_changed"] > 0, figures


@pytest.mark.parametrize("method", ["AMXINT8", "AMXINT4"])
def test_dynamic_update_of_rounded_experts(method):
    """An expert is rounded wherever it is: what does not change with its place is the same with none resident."""
    flags = [*FLOAT32, "--kt-method", method]
    lengths = [30 + 5 * i for i in range(8)]
    with Server(model("qwen3_moe"), *flags) as server:
        want = [tokens(server, prompt) for prompt in prompts(lengths)]
    with Server(model("qwen3_moe"), *flags, "--kt-gpu-experts-ratio", 0.5, THRESHOLD, 40, "--kt-enable-dynamic-expert-update") as server:
        assert [tokens(server, prompt) for prompt in prompts(lengths)] == want
        assert server.state()["layerwise"]["residents_changed"] > 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_streams_go_on_when_an_expert_worker_dies_in_layerwise_steps(dynamic):
    flags = [*FLOAT32, "--kt-gpu-experts-ratio", 0.5, "--kt-threadpool-count", 2]
    long = prompts([400, 410, 420])
    with Server(model("qwen3_moe"), *flags) as server:
        want = [tokens(server, prompt, 30) for prompt in long]
    # Each chunk takes some 0.1 s to copy.
    slow = [THRESHOLD, 8, "--chunked-prefill-size", 16, "--device-copy-gbps", 0.005]
    dynamically = ["--kt-enable-dynamic-expert-update"] if dynamic else []
    with Server(model("qwen3_moe"), *flags, *slow, *dynamically) as server:
        got = [None] * len(long)

        def ask(i):
            got[i] = tokens(server, long[i], 30)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(long))]
        for thread in threads:
            thread.start()
        for deaths in range(2):
            before = server.state()["layerwise"]["steps"]
            eventually(lambda: server.state()["layerwise"]["steps"] > before + 2, "layerwise steps")
            pid = server.pid_of("kt-cpu-expert-worker")
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: server.get("/health?verbose=1").json()["state"] != "ready", server.log)
            eventually(lambda: server.get("/health?verbose=1").json()["state"] == "ready", server.log)
        for thread in threads:
            thread.join()
        assert got == want
        assert server.state()["layerwise"]["steps"] > 0


def test_a_restarted_gpu_worker_begins_at_the_first_placement():
    flags = [*FLOAT32, "--kt-gpu-experts-ratio", 0.5]
    with Server(model("qwen3_moe"), *flags) as server:
        want = [tokens(server, prompt) for prompt in prompts([60, 70, 80])]
    with Server(model("qwen3_moe"), *flags, THRESHOLD, 40, "--kt-enable-dynamic-expert-update") as server:
        for round in range(2):
            assert [tokens(server, prompt) for prompt in prompts([60, 70, 80])] == want
            os.kill(server.pid_of("kt-gpu-worker"), signal.SIGKILL)


def test_buffers_that_do_not_fit_are_refused_with_the_flags():
    directory = model("qwen3_moe")
    done = kt("run", directory, "--port", 0, "--device-memory-bytes", 1_000_000, THRESHOLD, 8)
    assert done.returncode != 0
    assert THRESHOLD in done.stderr + done.stdout, done.stdout + done.stderr


def test_a_threshold_above_every_step_is_off_with_a_warning():
    with Server(model("qwen3_moe"), THRESHOLD, 100, "--chunked-prefill-size", 64) as server:
        assert f"{THRESHOLD} 100: a step has 64 rows at most" in server.log()
        tokens(server, prompts()[2])
        assert server.state()["layerwise"]["steps"] == 0


def test_auto_measures_and_says_what():
    with Server(model("qwen3_moe"), *FLOAT32, THRESHOLD, "auto") as server:
        for prompt in prompts([200] * 6):
            tokens(server, prompt, 2)
        figures = server.state()["layerwise"]
        assert "ms a row on the device" in figures["evidence"], figures
        eventually(lambda: "layerwise prefill from" in server.log(), server.log)
        metrics = server.metrics()
        assert metrics["layerwise_threshold_rows"] > 0


def test_metrics_say_what_was_read_and_copied():
    with Server(model("qwen3_moe"), "--kt-gpu-experts-ratio", 0.5, THRESHOLD, 40) as server:
        tokens(server, prompts()[1], 4)
        copied = layerwise(server, 1)["copied_bytes"]
        assert copied > 0
        eventually(lambda: server.metrics()["expert_bytes_copied_total"] == copied, server.metrics)
        metrics = server.metrics()
        assert metrics["layerwise_steps_total"] == 1 and metrics["expert_staged_copies_total"] == 0
        assert metrics["expert_bytes_read_device_total"] > 0 and metrics["expert_bytes_read_cpu_total"] > 0
