# SPDX-License-Identifier: Apache-2.0
"""kt-methods AMXINT8 and AMXINT4: experts rounded as they are loaded, whatever they are stored in."""
import json
import os

import pytest

from server import GOLDENS, Server, golden_chats, kt, model
from test_placements import prompt_logprobs

PRECISIONS = {"AMXINT8": "INT8 per row (AMXINT8)", "AMXINT4": "INT4 per row (AMXINT4)"}
BYTES = {"AMXINT8": 16 * (2 * 32 * (128 + 4) + 128 * (32 + 4)), "AMXINT4": 16 * (2 * 32 * (64 + 4) + 128 * (16 + 4))}


@pytest.mark.parametrize("method", PRECISIONS)
def test_what_is_held(method):
    """CPU experts are rounded, those of the device keep what they are stored in."""
    with Server(model("qwen3_moe"), "--kt-method", method.lower(), "--kt-num-gpu-experts", 4) as server:
        info = server.get("/get_model_info").json()
        assert info["kt_method"] == method
        for layer in info["layers"]:
            held = {part["precision"]: (part["experts"], part["bytes"]) for part in layer["experts"]}
            assert held["BF16"][0] == 4 and held[PRECISIONS[method]][0] == 12
            stored = BYTES[method] * 12 / 16
            assert stored <= held[PRECISIONS[method]][1] < 1.5 * stored  # tiles are rounded up
        server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4})


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("method", PRECISIONS)
@pytest.mark.parametrize("name", ["qwen3_moe", "minimax_m2-fp8", "kimi_k25-int4", "gpt_oss-mxfp4"])
def test_selftest(name, method, dtype):
    done = kt("selftest", model(name), "--json", "--kt-method", method, "--activation-dtype", dtype, "--kt-threadpool-count", 2, "--kt-cpuinfer", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert any(PRECISIONS[method] in row["note"] for row in checks)
    assert [row["note"] for row in checks if row["name"] == "golden results"] == [
        f"not compared: kt-method {method} rounds the experts' weights and activations"]


def test_golden_results_are_refused():
    done = kt("selftest", model("qwen3_moe"), "--golden", model("qwen3_moe"), "--kt-method", "AMXINT8")
    assert done.returncode == 2 and "AMXINT8 rounds" in done.stderr, done.stderr


@pytest.mark.parametrize("method", PRECISIONS)
def test_chunks(method):
    """How a prompt is cut changes no bit."""
    whole = prompt_logprobs("qwen3_moe", "bf16", 0, 2, "--kt-method", method)
    assert prompt_logprobs("qwen3_moe", "bf16", 0, 2, "--kt-method", method, "--chunked-prefill-size", 7) == whole


@pytest.mark.parametrize("method, share", [("AMXINT8", 0.01), ("AMXINT4", 0.25)])
def test_perplexity(method, share):
    """Of a model that chats: what rounding its experts costs."""
    done = kt("perplexity", model("bf16"), os.path.join(GOLDENS, "ppl-text.txt"), "--json", "--kt-method", method)
    assert done.returncode == 0, done.stderr
    assert abs(json.loads(done.stdout)["perplexity"] / golden_chats("bf16")["perplexity"]["perplexity"] - 1) < share


def test_predicted_memory():
    def expert_bytes(*flags):
        done = kt("doctor", "--json", "--model", model("qwen3_moe"), *flags)
        return next(row["value"] for row in json.loads(done.stdout)["checks"] if row["subject"] == "model memory")

    assert expert_bytes() != expert_bytes("--kt-method", "AMXINT4")
    done = kt("doctor", "--model", model("qwen3_moe"), "--kt-method", "FP8")
    assert done.returncode != 0 and "kt-method FP8 contradicts the checkpoint" in done.stdout
