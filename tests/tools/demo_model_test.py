# SPDX-License-Identifier: Apache-2.0
"""tools/make_demo_model.py: what it makes is what the manifest says, and it is made once."""
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ['KT_SOURCE_DIR'])
MODELS = pathlib.Path(os.environ['KT_MODELS_DIR'])
MANIFEST = json.loads((SOURCE / 'tests/data/smol-moe/manifest.json').read_text())


def make(*arguments):
    return subprocess.run([sys.executable, SOURCE / 'tools/make_demo_model.py', *arguments], capture_output=True, text=True,
                          check=False)


@pytest.mark.parametrize('variant', ['mirror', 'bf16', 'fp8-block', 'fp8-channel', 'int4'])
def test_every_file_has_the_sum_of_the_manifest(variant):
    sums = MANIFEST['variants'][variant]['sha256']
    found = {name: hashlib.sha256((MODELS / f'smol-moe-{variant}' / name).read_bytes()).hexdigest() for name in sums}
    assert found == sums


def test_second_call_changes_nothing():
    config = MODELS / 'smol-moe-mirror/config.json'
    before = config.stat()
    result = make('mirror')
    assert result.returncode == 0 and 'smol-moe-mirror is there' in result.stdout
    assert (config.stat().st_ino, config.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_unknown_variant_lists_the_known_ones():
    result = make('nonsense')
    assert result.returncode == 2
    assert 'unknown variant nonsense; there are bf16, mirror' in result.stderr
