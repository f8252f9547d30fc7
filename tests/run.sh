#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [--quick] [ctest options]: builds everything in build/release and runs all tests; --quick leaves out the label slow.
# tests/sanitize.sh runs what matters most under sanitizers.
# Its exit code and its last lines are those of ctest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

options=()
if [[ ${1:-} == --quick ]]; then
  options=(--label-exclude '^slow$')
  shift
fi

tests/prepare.sh
say "Building build/release"
run "configuring" cmake --preset release -DKT_BUILD_TESTS=ON
run "building" cmake --build build/release --parallel "$(build_jobs)"

say "Testing"
exec ctest --test-dir build/release --output-on-failure --parallel 2 "${options[@]}" "$@"
