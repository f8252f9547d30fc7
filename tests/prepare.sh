#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# prepare.sh: what the tests need beside the build: packages, demo models, a virtual environment with requirements.txt.
# Does nothing where all is there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

run "installing packages" deploy/install_packages.sh deploy/packages.txt deploy/packages-test.txt
python=$(find_python)
run "preparing the demo models" "$python" tools/make_demo_model.py mirror bf16 fp8-block fp8-channel int4

venv=build/venv-tests
if ! cmp -s tests/requirements.txt "$venv/requirements.txt" || ! "$venv/bin/python" -c 'import pytest' 2>/dev/null; then
  say "Making $venv"
  run "python3 -m venv" "$python" -m venv --clear "$venv"
  run "pip install" "$venv/bin/python" -m pip install --disable-pip-version-check --quiet -r tests/requirements.txt
  cp tests/requirements.txt "$venv/"
fi
