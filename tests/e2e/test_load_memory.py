# SPDX-License-Identifier: Apache-2.0
"""benchmarks/load_bench.py, half of the experts on the device: loading takes little more than what stays, which was foretold. On demo models, and on
checkpoints of 200 MB of tools/make_synthetic_moe.py, whose experts have the size of real ones."""
import json
import os
import socket
import subprocess
import sys

import pytest

from server import KT, MODELS, SOURCE, model

TOOLS_PYTHON = os.path.join(MODELS, "../venv-tools/bin/python")  # made with the demo models; has numpy


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def report_of(directory, runtime_dir, *flags):
    command = [sys.executable, os.path.join(SOURCE, "benchmarks/load_bench.py"), "--kt", KT, "--port", free_port(), "--max-peak-ratio", 1.15,
               "--max-prediction-error", 0.1, directory, "--kt-gpu-experts-ratio", 0.5, "--max-total-tokens", 4096, *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=dict(os.environ, XDG_RUNTIME_DIR=str(runtime_dir)))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["pss_stays_bytes"] > 0.95 * report["checkpoint_bytes"]  # everything was loaded
    return report


@pytest.mark.parametrize("name, workers", [("mirror", 1), ("mirror", 2), ("fp8-block", 1), ("int4", 1)])
def test_demo(name, workers, tmp_path):
    report = report_of(model(name), tmp_path, "--kt-threadpool-count", workers, "--kt-cpuinfer", 2)
    assert report["listed_by_model_info_bytes"].keys() == {"kt-gpu-worker-0", *(f"kt-cpu-expert-worker-{i}" for i in range(workers))}


@pytest.mark.parametrize("weights, experts", [("bf16", 32), ("int4", 112)])
def test_synthetic(weights, experts, tmp_path):
    directory = tmp_path / "model"
    subprocess.run([TOOLS_PYTHON, os.path.join(SOURCE, "tools/make_synthetic_moe.py"), "--out", directory, "--format", weights, "--layers", "1",
                    "--hidden", "1024", "--inter", "512", "--experts", str(experts)], check=True)
    report = report_of(directory, tmp_path, "--device-memory-bytes", 300_000_000)
    assert 150e6 < report["checkpoint_bytes"] < 250e6
