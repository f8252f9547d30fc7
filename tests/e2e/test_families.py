# SPDX-License-Identifier: Apache-2.0
"""`kt selftest` on every model family and weight format: logits, hidden states, routing, indexer selections and greedy tokens through all
processes, for ways to place the experts and to cut the prompt (KT_TEST_EVERYTHING=1: all of them). Models: tests/data/models, and the
rest of ../shared/fixtures where that is there."""
import itertools
import json
import os

import pytest

from server import EVERYTHING, SOURCE, kt

OWN = os.path.join(SOURCE, "tests/data/models")
SHARED = os.path.join(SOURCE, "../shared/fixtures")


def directories():
    found = {}
    for root in (OWN, SHARED):
        for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
            if os.path.exists(os.path.join(root, name, "golden.safetensors")):
                found.setdefault(name, os.path.join(root, name))
    return found


MODELS = directories()
EVERY = list(itertools.product((0, 0.5, 1), (1, 2), (None, 16)))
SOME = [(0, 1, None), (0.5, 2, 16), (1, 1, 16)]


def selftest(name, *flags):
    done = kt("selftest", MODELS[name], "--json", "--kt-cpuinfer", 2, *flags)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    result = json.loads(done.stdout)
    failed = [row for row in result["checks"] if not row["ok"]]
    assert not failed and result["ok"] and done.returncode == 0, failed
    return {row["name"] for row in result["checks"]}


@pytest.mark.parametrize("share,workers,chunk", EVERY if EVERYTHING else SOME)
@pytest.mark.parametrize("name", MODELS)
def test_float32(name, share, workers, chunk):
    flags = ("--chunked-prefill-size", chunk) if chunk else ()
    checks = selftest(name, "--activation-dtype", "float32", "--kt-gpu-experts-ratio", share, "--kt-threadpool-count", workers, *flags)
    assert {f"{prompt} greedy" for prompt in ("short", "medium", "long")} <= checks
    assert any(c.endswith("expert_ids") for c in checks)
    indexed = any("indexer" in key for key in golden_keys(name))
    assert any(c.endswith("last_topk") for c in checks) == indexed


@pytest.mark.parametrize("name", MODELS)
def test_bf16(name):
    selftest(name, "--activation-dtype", "bf16", "--kt-gpu-experts-ratio", 0.5, "--kt-threadpool-count", 2)


def golden_keys(name):
    with open(os.path.join(MODELS[name], "golden.safetensors"), "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size))


def test_fp8_index_keys():
    """Another rounding of the indexer's scores: what it does not choose by is as before."""
    done = kt("selftest", MODELS["deepseek_v32-fp8"], "--json", "--kt-cpuinfer", 2, "--activation-dtype", "float32", "--fp8-index-keys")
    rows = {row["name"]: row["ok"] for row in json.loads(done.stdout)["checks"]}
    assert rows["short logits max"] and rows["short.hidden.norm"], done.stdout


@pytest.mark.parametrize("name", ["deepseek_v3-fp8", "kimi_k25-int4", "qwen3_next-fp8", "qwen3_5_moe"])
def test_not_deterministic_forms(name):
    selftest(name, "--activation-dtype", "float32", "--deterministic", "off", "--kt-gpu-experts-ratio", 0.5)
