# SPDX-License-Identifier: Apache-2.0
"""A Linux guest with several NUMA nodes, emulated by qemu-system-x86_64 in software: programs with the libraries they need, a directory and a script go in
as its initial file system, what the script prints comes out."""
import os
import re
import shutil
import stat
import subprocess

from server import MODELS

GUEST = os.path.join(os.path.dirname(MODELS), "guest")  # made by tests/prepare.sh with KT_TEST_EVERYTHING=1
QEMU = shutil.which("qemu-system-x86_64")
BUSYBOX = "/bin/busybox"
INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
ip link set lo up
export PATH=/bin HOME=/tmp
sh /script 2>&1
poweroff -f
"""


def libraries(program):
    """Absolute paths of all shared libraries of a program, the loader among them."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", listed)


def make_initrd(path, root, programs, directory, script):
    """Copies everything below `root` and packs it. `programs` lie in /bin of the guest, `directory` is /model."""
    os.makedirs(f"{root}/bin")
    shutil.copy(BUSYBOX, f"{root}/bin/busybox")
    for program in programs:
        subprocess.run(["strip", "-o", f"{root}/bin/{os.path.basename(program)}", program], check=True)
        for library in libraries(program):
            os.makedirs(root + os.path.dirname(library), exist_ok=True)
            shutil.copy(library, root + library)
    shutil.copytree(directory, f"{root}/model")
    for name, text in (("init", INIT), ("script", script)):
        with open(f"{root}/{name}", "w") as file:
            file.write(text)
        os.chmod(f"{root}/{name}", stat.S_IRWXU)
    names = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
    with open(path, "wb") as file:
        subprocess.run([BUSYBOX, "cpio", "-o", "-H", "newc"], cwd=root, input=names, stdout=file, stderr=subprocess.DEVNULL, check=True)


def run_guest(initrd, nodes, timeout):
    """Boots; `nodes`: for each NUMA node its memory in MiB and its CPUs (0: memory only). Returns the text of its console."""
    assert QEMU and os.path.exists(f"{GUEST}/vmlinuz"), "run KT_TEST_EVERYTHING=1 tests/prepare.sh"
    command = [QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-kernel", f"{GUEST}/vmlinuz", "-initrd", initrd, "-no-reboot", "-display", "none",
               "-serial", "stdio", "-monitor", "none", "-nic", "none", "-append", "console=ttyS0 quiet panic=-1",
               "-m", f"{sum(memory for memory, _ in nodes)}M", "-smp", str(sum(cpus for _, cpus in nodes))]
    first = 0
    for i, (memory, cpus) in enumerate(nodes):
        command += ["-object", f"memory-backend-ram,id=m{i},size={memory}M"]
        command += ["-numa", f"node,nodeid={i},memdev=m{i}" + (f",cpus={first}-{first + cpus - 1}" if cpus else "")]
        first += cpus
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout)
    return (done.stdout + done.stderr).decode(errors="replace").replace("\r\n", "\n")
