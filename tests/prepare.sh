#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# prepare.sh: what the tests need beside the build: packages, demo models, a virtual environment with requirements.txt; with
# KT_TEST_EVERYTHING=1 also an emulator of whole machines and a kernel for it.
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

# The kernel is unpacked, not installed: this machine goes on booting its own.
if [[ ${KT_TEST_EVERYTHING:-} ]]; then
  run "installing packages" deploy/install_packages.sh deploy/packages-guest.txt
  if [[ ! -e build/guest/vmlinuz ]]; then
    say "Fetching the kernel of the emulated machine"
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-\)/\1/p;T;q')
    (cd "$unpacked" && run "apt-get download" apt-get download "$kernel" && dpkg-deb -x linux-image-*.deb .)
    mkdir -p build/guest
    cp "$unpacked"/boot/vmlinuz-* build/guest/vmlinuz
  fi
fi
