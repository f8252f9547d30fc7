#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# py_test.sh FILE: runs one pytest file in the tests' virtual environment; registered by kt_py_test (cmake/py_test.cmake).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"
python=build/venv-tests/bin/python
[[ -x $python ]] || die "$python is not there; run tests/prepare.sh once"
exec "$python" -m pytest -p no:cacheprovider -q --tb=short "$@"
