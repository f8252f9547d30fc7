# SPDX-License-Identifier: Apache-2.0
"""A server in a control group of its own: it computes on no more cores than the group pays for, and says when that was too many all the same."""
import os
import re
import tempfile

import pytest

from server import Server, eventually, model

PERIOD_US = 100_000


def cpu_mount():
    """(version, directory) of the control groups for CPUs; None: not mounted."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields, filesystem = line.split(" - ")
            kind, _, options = filesystem.split(maxsplit=2)
            if kind == "cgroup" and "cpu" in options.strip().split(","):
                return 1, fields.split()[4]
            if kind == "cgroup2" and os.path.exists(f"{fields.split()[4]}/cgroup.controllers"):
                with open(f"{fields.split()[4]}/cgroup.subtree_control") as controllers:
                    if "cpu" in controllers.read().split():
                        return 2, fields.split()[4]
    return None


def own_group(version):
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.strip().split(":", 2)
            if controllers == "" if version == 2 else "cpu" in controllers.split(","):
                return path.lstrip("/")
    raise AssertionError("this process is in no group")


@pytest.fixture(name="quota")
def make_quota():
    """A function that puts this process and all it starts into a new group with that many CPUs."""
    found = cpu_mount()
    if not found:
        pytest.skip("no control groups for CPUs are mounted")
    version, mount = found
    former = os.path.join(mount, own_group(version))
    try:
        group = tempfile.mkdtemp(prefix="kt-test-", dir=mount)
    except OSError as error:
        pytest.skip(f"control groups are not ours to make: {error}")

    def write(path, text):
        with open(path, "w") as file:
            file.write(text)

    def enter(cpus):
        if version == 2:
            write(f"{group}/cpu.max", f"{int(cpus * PERIOD_US)} {PERIOD_US}")
        else:
            write(f"{group}/cpu.cfs_period_us", str(PERIOD_US))
            write(f"{group}/cpu.cfs_quota_us", str(int(cpus * PERIOD_US)))
        write(f"{group}/cgroup.procs", str(os.getpid()))
    yield enter
    write(f"{former}/cgroup.procs", str(os.getpid()))
    os.rmdir(group)


def test_threads_fit_into_the_quota(quota):
    quota(1.9)
    with Server(model("qwen3_moe")) as server:
        assert [worker["threads"] for worker in server.status()["health"]["workers"]] == [1, 1]


def test_throttling_is_told(quota):
    quota(0.2)
    with Server(model("qwen3_moe")) as server:
        server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 200, "ignore_eos": True})
        eventually(lambda: server.status()["health"]["cpu_throttled_periods"] > 0, server.log)
        eventually(lambda: server.metrics()["cpu_throttled_periods"] > 0, server.log)
        assert re.search(r"the quota of 0\.20 CPUs \(/.*(cpu\.max|cpu\.cfs_quota_us)\) has stopped this runtime in \d+ periods; raise it", server.log())
