# SPDX-License-Identifier: Apache-2.0
"""CPUs without AVX-512 and without AVX2: every process runs under an emulator of one, and the results are the golden ones.

The emulator gets one CPU: qemu-user 7.2 loses its way now and then when threads of a program translate code at the same time."""
import os
import shutil
import subprocess

import pytest

from golden import Golden
from server import KT, kt, model

QEMU = shutil.which("qemu-x86_64")
assert QEMU, "qemu-x86_64 was not found; run tests/prepare.sh"
KERNELS = {"Haswell": "avx2", "Nehalem": "scalar"}


def emulator(cpu):
    return ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), QEMU, "-cpu", cpu]


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("cpu", KERNELS)
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe"])
def test_selftest(tmp_path, monkeypatch, name, cpu, dtype):
    golden = Golden(model(name))
    golden.keep(lambda tensor: tensor.startswith("short."))
    golden.write(tmp_path)
    monkeypatch.setenv("KT_EXEC_PREFIX", " ".join(emulator(cpu)))
    done = kt("selftest", model(name), "--golden", tmp_path, "--activation-dtype", dtype, "--kt-cpuinfer", 1, "--show-log")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "short greedy" in done.stdout
    assert "ended with signal" not in done.stderr, done.stderr  # no process had to be started again


@pytest.mark.parametrize("cpu", KERNELS)
def test_doctor_names_the_kernel(cpu):
    done = subprocess.run([*emulator(cpu), KT, "doctor"], capture_output=True, text=True, timeout=120)
    lines = [line.split()[1:] for line in done.stdout.splitlines()]
    assert ["kernels", "BF16", KERNELS[cpu]] in lines, done.stdout + done.stderr


def test_a_kernel_that_the_cpu_lacks_is_refused(monkeypatch):
    """In one sentence; no process dies of an illegal instruction."""
    monkeypatch.setenv("KT_EXEC_PREFIX", " ".join(emulator("Nehalem")))
    monkeypatch.setenv("KT_FORCE_ISA", "avx2")
    done = kt("run", model("qwen3_moe"), "--host", "127.0.0.1", "--port", 0, "--kt-cpuinfer", 1)
    assert done.returncode == 6, done.stderr
    assert "Illegal" not in done.stderr, done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert all(word in line for word in ("KT_FORCE_ISA=avx2", "Nehalem", "lacks avx2", "unset it")), line
