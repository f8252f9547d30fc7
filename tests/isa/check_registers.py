#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disassembles archives and programs and fails if a function uses instructions beyond the instruction set that its name states.

A function whose mangled name contains avx2, avx512f or avx512bf16 (kernel files define everything in a namespace of that name) may use
that set; every other function must run on any x86-64. An inline function that leaked out of a kernel file in its wide form is found
too, since its own name states no set.

usage: check_registers.py [--require SET]... FILE...
--require SET: fail too if no function of SET uses a register of SET, which shows that the check sees what it is about.
"""
import argparse
import re
import subprocess
import sys

LEVELS = ["x86-64", "avx2", "avx512f", "avx512bf16"]
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\s+(?:(?:lock|rep\w*|bnd|notrack|data16|cs|ds|es|[{]\w+[}])\s+)*(\S+)\s*(.*)$")
BMI2 = re.compile(r"^(?:mulx|pdep|pext|bzhi|rorx|sarx|shlx|shrx)[lq]?$")
BF16 = re.compile(r"^v(?:dpbf16ps|cvtne2?ps2?bf16)")
EVEX = re.compile(r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])|%k[0-7]")


def level_of_name(symbol):
    for level in (3, 2, 1):
        if LEVELS[level] in symbol.lower():
            return level
    return 0


def level_of_instruction(mnemonic, operands):
    if BF16.match(mnemonic):
        return 3
    if EVEX.search(operands):
        return 2
    if "%ymm" in operands or (mnemonic.startswith("v") and "%xmm" in operands) or BMI2.match(mnemonic):
        return 1
    return 0


def check(path, used):
    violations = {}
    symbol, allowed = "?", 0
    dump = subprocess.Popen(["objdump", "-d", "-w", "--no-show-raw-insn", path], stdout=subprocess.PIPE, text=True)
    for line in dump.stdout:
        if match := FUNCTION.match(line):
            symbol, allowed = match[1], level_of_name(match[1])
        elif match := INSTRUCTION.match(line):
            level = level_of_instruction(match[1], match[2])
            used[allowed] |= level == allowed
            if level > allowed:
                violations.setdefault(symbol, f"{match[1]} {match[2]} needs {LEVELS[level]}")
    if dump.wait() != 0:
        sys.exit(f"{path}: objdump failed")
    for symbol, what in violations.items():
        print(f"{path}: {symbol} may use {LEVELS[level_of_name(symbol)]}: {what}")
    return not violations


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--require", action="append", default=[], choices=LEVELS[1:])
    parser.add_argument("files", nargs="+", metavar="FILE")
    args = parser.parse_args()
    used = [False] * len(LEVELS)
    clean = all([check(path, used) for path in args.files])
    for name in args.require:
        if not used[LEVELS.index(name)]:
            clean = False
            print(f"no function of {name} uses a register of {name}")
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
