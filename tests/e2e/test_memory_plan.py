# SPDX-License-Identifier: Apache-2.0
"""kt plan foretells what every process takes; what does not fit is refused before anything is loaded, with changes that do fit."""
import json
import os
import re

import pytest

from server import SOURCE, Server, kt, model

NAMES = sorted(entry.name for entry in os.scandir(os.path.join(SOURCE, "tests/data/models")) if entry.is_dir())
FLAGS = ["--kt-gpu-experts-ratio", "0.5", "--max-total-tokens", "4096", "--kt-cpuinfer", "2", "--device-threads", "1"]


def plan(name, *flags):
    done = kt("plan", model(name), "--json", *FLAGS, *flags)
    assert done.returncode in (0, 5), done.stderr
    return json.loads(done.stdout)


def pss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return int(re.search(r"^Pss:\s+(\d+) kB", file.read(), re.MULTILINE)[1]) * 1024


@pytest.mark.parametrize("name", NAMES)
def test_pools(name):
    foretold = {process["name"]: process["pools"] for process in plan(name)["processes"]}
    with Server(model(name), *FLAGS) as server:
        workers = server.status()["health"]["workers"]
        assert {worker["name"] for worker in workers} == {p for p in foretold if "worker" in p}
        for worker in workers:
            pools = {pool["name"]: pool["bytes"] for pool in foretold[worker["name"]]}
            for pool in worker["pools"]:
                assert 0.98 * pool["bytes"] <= pools[pool["name"]] <= 1.1 * pool["bytes"] + 8192, (worker["name"], pool, pools)


@pytest.mark.parametrize("name", ["mirror", "int4"])
def test_processes(name):
    """What the processes of a demo model really hold after a long prompt is no more than was foretold."""
    foretold = plan(name)
    with Server(model(name), *FLAGS) as server:
        server.post("/v1/completions", {"prompt": [7] * 3900, "max_tokens": 100})
        held = sum(pss(pid) for pid in server.processes())
    assert held <= 1.02 * foretold["host_bytes"], (held, foretold["host_bytes"])
    assert held >= 0.85 * foretold["host_bytes"], (held, foretold["host_bytes"])  # pages nobody has touched yet are promised all the same


def test_refused_with_what_fits():
    (rank,) = [p for p in plan("qwen3_moe")["processes"] if p["name"] == "kt-gpu-worker-0"]
    small = rank["device_bytes"] - 100_000
    done = kt("run", model("qwen3_moe"), "--port", 0, *FLAGS, "--device-memory-bytes", small)
    assert done.returncode == 5 and "kt-gpu-worker-0" in done.stderr and "what would fit" in done.stderr, done.stderr
    fixes = plan("qwen3_moe", "--device-memory-bytes", small)["fixes"]
    assert fixes
    for fix in fixes:
        flags = [flag for flag in FLAGS]
        for change in fix:
            if change["flag"] in flags:
                flags[flags.index(change["flag"]) + 1] = str(change["to"])
            elif change["flag"] == "--kt-num-gpu-experts":
                at = flags.index("--kt-gpu-experts-ratio")
                flags[at:at + 2] = [change["flag"], str(change["to"])]
            else:
                flags += [change["flag"], str(change["to"])]
        with Server(model("qwen3_moe"), *flags, "--device-memory-bytes", small) as server:
            assert server.post("/v1/completions", {"prompt": [7] * 64, "max_tokens": 4})["usage"]["completion_tokens"] == 4
