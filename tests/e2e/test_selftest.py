# SPDX-License-Identifier: Apache-2.0
"""`kt selftest`: golden logits, hidden states, routing and greedy tokens through all processes, for every way to place the experts."""
import json

import pytest

from server import kt, model

EXPERTS = 16  # of both models


def check(name, *flags):
    done = kt("selftest", model(name), "--json", *flags)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    result = json.loads(done.stdout)
    failed = [row for row in result["checks"] if not row["ok"]]
    assert not failed and result["ok"] and done.returncode == 0, failed
    return {row["name"] for row in result["checks"]}


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("on_device", [0, EXPERTS // 2, EXPERTS])
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe"])
def test_placement(name, on_device, workers, dtype):
    checks = check(name, "--activation-dtype", dtype, "--kt-num-gpu-experts", on_device, "--kt-threadpool-count", workers,
                   "--kt-cpuinfer", 2)
    assert {f"{prompt} greedy" for prompt in ("short", "medium", "long")} <= checks
    assert any(c.endswith("expert_ids") for c in checks) == (dtype == "float32")


@pytest.mark.parametrize("flags", [("--expert-transport", "grpc"), ("--chunked-prefill-size", "16")])
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe"])
def test_other_ways(name, flags):
    check(name, "--activation-dtype", "float32", "--kt-threadpool-count", 2, "--kt-cpuinfer", 2, *flags)


def test_notices_a_difference(tmp_path):
    """Another model's golden values must not pass."""
    for file in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).symlink_to(f"{model('qwen3_moe')}/{file}")
    done = kt("selftest", tmp_path, "--golden", model("glm4_moe"), "--activation-dtype", "float32")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout or "expected" in done.stderr, done.stdout + done.stderr
