# SPDX-License-Identifier: Apache-2.0
"""A machine with two NUMA nodes and a third of memory alone, emulated (KT_TEST_EVERYTHING=1 only: it needs packages and a kernel of its own): each expert
worker runs on its node, and so lies its memory."""
import json
import os
import re
import subprocess

import pytest

from numa_guest import make_initrd, run_guest
from server import BIN, EVERYTHING, MODELS, SOURCE

TOOLS_PYTHON = os.path.join(MODELS, "../venv-tools/bin/python")
NODES = [(768, 2), (768, 2), (128, 0)]  # MiB, CPUs
PROGRAMS = ["kt", "kt-node", "kt-coordinator", "kt-gpu-worker", "kt-cpu-expert-worker"]
# Each part of what it prints begins with a line "@@ name".
SCRIPT = """
echo @@ doctor
kt doctor --verbose
kt run /model --port 30000 --max-total-tokens 512 --selftest off > /tmp/log 2>&1 &
run=$!
while kill -0 $run && ! grep -q ^ready: /tmp/log; do sleep 1; done
echo @@ log
cat /tmp/log
echo @@ answer
wget -q -O - --header 'Content-Type: application/json' --post-data '{"prompt": "Hello", "max_tokens": 3, "ignore_eos": true}' http://127.0.0.1:30000/v1/completions
echo
echo @@ status
kt status --json
for pid in $(pidof kt-cpu-expert-worker); do
  echo @@ maps $pid
  grep kt-expert-weights /proc/$pid/numa_maps
  for task in /proc/$pid/task/*; do echo "thread $(cat $task/comm): $(grep Cpus_allowed_list $task/status)"; done
done
echo @@ end
"""


def parts_of(console):
    pieces = re.split(r"^@@ (.*)\n", console, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2]))


@pytest.mark.skipif(not EVERYTHING, reason="KT_TEST_EVERYTHING=1 is not set")
def test_weights_lie_on_the_node_of_their_worker(tmp_path):
    subprocess.run([TOOLS_PYTHON, f"{SOURCE}/tools/make_synthetic_moe.py", "--out", tmp_path / "model", "--layers", "1", "--hidden", "512", "--inter", "256",
                    "--experts", "32"], check=True)
    tokenizer = tmp_path / "model/tokenizer_config.json"
    config = json.loads(tokenizer.read_text())
    del config["chat_template"]  # needs Python to render it
    tokenizer.write_text(json.dumps(config))
    make_initrd(tmp_path / "initrd", str(tmp_path / "root"), [os.path.join(BIN, program) for program in PROGRAMS], tmp_path / "model", SCRIPT)
    console = run_guest(tmp_path / "initrd", NODES, 280)
    print(console)  # shown when the test fails
    parts = parts_of(console)
    assert "end" in parts, console[-4000:]

    assert "NUMA node 2" in parts["doctor"] and "--kt-threadpool-count 2" in parts["doctor"], parts["doctor"]
    assert json.loads(parts["answer"])["usage"]["completion_tokens"] == 3, parts["answer"]
    (run,) = json.loads(parts["status"])
    workers = [worker for worker in run["health"]["workers"] if "expert" in worker["name"]]
    assert [worker["numa_node"] for worker in workers] == [0, 1]
    for worker in workers:
        node = worker["numa_node"]
        assert worker["cpus"] == [2 * node, 2 * node + 1], worker
        assert worker["memory"]["node_share"] >= 0.99 and worker["memory"]["pages"] == "transparent huge pages", worker
        maps = parts[f"maps {worker['pid']}"]
        pages = {int(n): int(count) for n, count in re.findall(r" N(\d+)=(\d+)", maps)}
        assert re.search(rf"^thread kt-expert/1: .*\t{2 * node + 1}$", maps, re.MULTILINE) and re.search(rf"^thread kt-ring: .*\t{2 * node}$", maps, re.MULTILINE), maps
        assert sum(pages.values()) * 4096 >= 10e6, maps
        assert pages[node] >= 0.99 * sum(pages.values()), maps
    assert run["health"]["warnings"] == []
