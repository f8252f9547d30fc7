# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts of deploy/ and tests/: short ways of saying, doing and failing. Sets `root` and goes there.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

say() { printf '\n== %s\n' "$*"; }

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# run WHAT COMMAND...: runs it, or ends with one sentence.
run() {
  local what=$1 rc=0
  shift
  "$@" || rc=$?
  [[ $rc == 0 ]] || die "$what failed with exit code $rc; the lines above say why"
}

# Jobs for the compiler: one a core, as far as 1.5 GB of memory each are there.
build_jobs() {
  local cores memory_kb
  cores=$(nproc)
  memory_kb=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
  local fit=$((memory_kb / 1500000))
  echo $((fit < 1 ? 1 : fit < cores ? fit : cores))
}

# A python3 that is new enough: the first in PATH, else Debian's.
find_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  die "Python 3.11 or newer was not found (Debian 12: apt-get install python3)"
}
