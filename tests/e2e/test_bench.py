# SPDX-License-Identifier: Apache-2.0
"""`kt bench model`: every row through all processes, on a tiny model; what does not fit is refused before anything starts."""
import json

import pytest

from server import kt, model

SMALL = ["--prompt-tokens", "24,40", "--streams", "1,3", "--decode-prompt-tokens", 8, "--output-tokens", 12, "--repeats", 2]


@pytest.mark.parametrize("deterministic", ["on", "off"])
def test_rows(deterministic):
    done = kt("bench", "model", model("qwen3_moe"), *SMALL, "--deterministic", deterministic, "--kt-cpuinfer", 2, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["model"]
    shapes = [(row["what"], row["prompt_tokens"], row["streams"], row["output_tokens"]) for row in result["rows"]]
    assert shapes == [("prefill", 24, 1, 1), ("prefill", 40, 1, 1), ("decode", 8, 1, 12), ("decode", 8, 3, 12)]
    for row in result["rows"]:
        assert row["tokens_per_s"] >= row["tokens_per_s_median"] > 0
        assert ("ttft_s" in row) == (row["what"] == "prefill")
        if "ttft_s" in row:
            assert 0 < row["ttft_s"] <= row["ttft_s_median"]
            assert row["tokens_per_s"] == pytest.approx(row["prompt_tokens"] / row["ttft_s"])
        assert ("determinism_cost" in row) == (deterministic == "on")
        if "determinism_cost" in row:
            assert row["determinism_cost"] == pytest.approx(row["not_deterministic_tokens_per_s"] / row["tokens_per_s"])


def test_table():
    done = kt("bench", "model", model("qwen3_moe"), *SMALL, "--deterministic", "off")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["prefill", "prefill", "decode", "decode"]


@pytest.mark.parametrize("flags,message", [
    (["--prompt-tokens", 100000000], "--prompt-tokens"),
    (["--prompt-tokens", 1000000], "1000001 tokens are longer than the context"),
    (["--streams", 40], "--streams 40: --max-running-requests 32 lets no more run at once"),
    (["--output-tokens", 1], "--output-tokens"),
])
def test_refusals(flags, message):
    done = kt("bench", "model", model("qwen3_moe"), *flags)
    assert done.returncode == 2 and message in done.stderr and not done.stdout
