#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [--quick] [ctest options]: builds everything in build/release and runs all tests, after those of tests/sanitize.sh;
# --quick leaves out these and the label slow. Its exit code and its last lines are those of ctest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

options=()
quick=
if [[ ${1:-} == --quick ]]; then
  quick=yes
  options=(--label-exclude '^slow$')
  shift
fi

tests/prepare.sh
say "Building build/release"
run "configuring" cmake --preset release -DKT_BUILD_TESTS=ON
run "building" cmake --build build/release --parallel "$(build_jobs)"
[[ $quick ]] || tests/sanitize.sh

say "Testing"
exec ctest --test-dir build/release --output-on-failure --parallel 2 "${options[@]}" "$@"
