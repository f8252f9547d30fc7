# SPDX-License-Identifier: Apache-2.0
"""benchmarks/load_bench.py on demo models, half of the experts on the device: loading takes little more than what stays, which was foretold."""
import json
import os
import socket
import subprocess
import sys

import pytest

from server import KT, SOURCE, model


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["mirror", "fp8-block", "int4"])
def test_peak_and_prediction(name, workers, tmp_path):
    command = [sys.executable, os.path.join(SOURCE, "benchmarks/load_bench.py"), "--kt", KT, "--port", free_port(), "--max-peak-ratio", 1.15,
               "--max-prediction-error", 0.1, model(name), "--kt-gpu-experts-ratio", 0.5, "--kt-threadpool-count", workers, "--kt-cpuinfer", 2]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=dict(os.environ, XDG_RUNTIME_DIR=str(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["pss_stays_bytes"] > 0.9 * report["checkpoint_bytes"]  # everything was loaded
    assert report["listed_by_model_info_bytes"].keys() == {"kt-gpu-worker-0", *(f"kt-cpu-expert-worker-{i}" for i in range(workers))}
