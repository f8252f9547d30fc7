# SPDX-License-Identifier: Apache-2.0
"""Where the experts lie changes log-probabilities by rounding only, how the prompt is cut changes no bit of them; on models of each
kind of attention and weight format (KT_TEST_EVERYTHING=1: on all of them)."""
import json
import os
import random

import pytest

from server import EVERYTHING, GOLDENS, SOURCE, Server, golden_chats, kt, model

PLACEMENTS = [(share, workers) for share in (0, 0.5, 1) for workers in (1, 2)]
CHUNKS = [16, 7, 1] if EVERYTHING else [7]
TOP = 20
BOUND = 1e-3  # float32, between any two placements

KINDS = ["deepseek_v32-fp8", "gpt_oss-mxfp4", "minimax_m2-fp8", "qwen3_next-fp8"]  # more of them in test_dual_prefill.py
NAMES = KINDS if not EVERYTHING else sorted(entry.name for entry in os.scandir(os.path.join(SOURCE, "tests/data/models")) if entry.is_dir())


def prompts():
    draw = random.Random(5)
    return [[draw.randrange(5, 480) for _ in range(length)] for length in (9, 64, 170)]


def prompt_logprobs(name, dtype, share, workers, *flags):
    """Of each token of each prompt after its first: its log-probability and those of the likeliest there, descending."""
    with Server(model(name), "--activation-dtype", dtype, "--kt-gpu-experts-ratio", share, "--kt-threadpool-count", workers, "--kt-cpuinfer", 2,
                *flags) as server:
        rows = []
        for prompt in prompts():
            answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": TOP})
            got = answer["choices"][0]["logprobs"]
            assert len(got["tokens"]) == len(prompt)
            rows += [[own, *sorted(top.values(), reverse=True)] for own, top in zip(got["token_logprobs"][1:], got["top_logprobs"][1:])]
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_placements(name):
    results = [prompt_logprobs(name, "float32", *placement) for placement in PLACEMENTS]
    for row in zip(*results):
        for values in zip(*row):
            assert max(values) - min(values) < BOUND, values


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_chunks(name, dtype):
    whole = prompt_logprobs(name, dtype, 0.5, 2)
    for chunk in CHUNKS:
        assert prompt_logprobs(name, dtype, 0.5, 2, "--chunked-prefill-size", chunk) == whole, chunk


def test_experts_of_another_directory():
    """--kt-weight-path: the INT4 demo differs from the BF16 one in its experts alone, so these with the other's dense part are the INT4 model."""
    done = kt("perplexity", model("bf16"), os.path.join(GOLDENS, "ppl-text.txt"), "--json", "--activation-dtype", "float32", "--kt-weight-path",
              model("int4"), "--kt-method", "RAWINT4")
    assert done.returncode == 0, done.stderr
    assert abs(json.loads(done.stdout)["perplexity"] / golden_chats("int4")["perplexity"]["perplexity"] - 1) < 1e-4

    done = kt("run", model("bf16"), "--kt-weight-path", model("mirror"), "--port", 0)
    assert done.returncode == 3 and "the number of experts is 16, the model's is 8" in done.stderr, done.stderr
