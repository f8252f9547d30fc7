# SPDX-License-Identifier: Apache-2.0
"""`kt selftest`: golden logits, hidden states, routing and greedy tokens through all processes, for every way to place the experts."""
import json

import pytest

from golden import Golden
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
    assert any(c.endswith("router_logits") for c in checks) == (dtype == "float32")


@pytest.mark.parametrize("flags", [("--expert-transport", "grpc"), ("--chunked-prefill-size", "16")])
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe"])
def test_other_ways(name, flags):
    check(name, "--activation-dtype", "float32", "--kt-threadpool-count", 2, "--kt-cpuinfer", 2, *flags)


@pytest.mark.parametrize("tensor,index,change,row,place", [
    ("long.logits", 1234, lambda x: x + 0.01, "long logits max", "long.logits["),
    ("medium.logits", 0, lambda x: x - 0.01, "medium logits max", "medium.logits[0, 0]"),
    ("short.greedy_logits", 4000, lambda x: x + 0.01, "short continuation logits max", "short.greedy_logits["),
    ("short.hidden.1", 5, lambda x: x + 0.01, "short.hidden.1", "short.hidden.1[0, 5]"),
    ("short.routing.1.weights", 0, lambda x: x + 0.001, "short.routing.1.weights", "short.routing.1.weights[0, 0]"),
    ("short.routing.1.router_logits", 17, lambda x: x + 0.01, "short.routing.1.router_logits", "short.routing.1.router_logits[1, 1]"),
    ("short.routing.1.expert_ids", 0, lambda e: (e + 1) % EXPERTS, "short.routing.1.expert_ids", "short.routing.1.expert_ids[0]"),
    ("medium.greedy_ids", 23, lambda i: i + 1, "medium greedy", "first 23 of 24 tokens equal"),
    ("short.greedy_ids", 3, lambda i: i + 1, "short greedy", "first 3 of 24 tokens equal"),
])
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe"])
def test_notices_one_changed_value(tmp_path, name, tensor, index, change, row, place):
    golden = Golden(model(name))
    golden.change(tensor, index, change)
    golden.write(tmp_path)
    done = kt("selftest", model(name), "--golden", tmp_path, "--activation-dtype", "float32", "--json")
    assert done.returncode == 1 and done.stdout, done.stderr
    failed = {r["name"]: r["note"] for r in json.loads(done.stdout)["checks"] if not r["ok"]}
    assert place in failed[row], failed
    # A changed token also changes what follows it; everything else still holds.
    assert set(failed) == {row} or tensor.endswith("greedy_ids"), failed


def test_refuses_another_models_golden_values():
    done = kt("selftest", model("qwen3_moe"), "--golden", model("glm4_moe"), "--activation-dtype", "float32")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout or "expected" in done.stderr, done.stdout + done.stderr
