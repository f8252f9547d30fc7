# SPDX-License-Identifier: Apache-2.0
"""deploy/quickstart.sh in a tree of its own, where the build and the demo model are stand-ins and kt is fake_kt.py."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import pytest

SOURCE = pathlib.Path(os.environ['KT_SOURCE_DIR'])


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def tree(tmp_path):
    shutil.copytree(SOURCE / 'deploy', tmp_path / 'deploy')
    executable(tmp_path / 'bin/cmake', '#!/bin/sh\necho "cmake $*" >>cmake-calls\n')
    executable(tmp_path / 'tools/make_demo_model.py', 'import sys; assert sys.argv[1:] == ["mirror"]\n')
    executable(tmp_path / 'build/release/bin/kt', (SOURCE / 'tests/tools/fake_kt.py').read_text())
    return tmp_path


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def start(tree, *arguments, mode=''):
    environment = dict(os.environ, PATH=f'{tree}/bin:{os.environ["PATH"]}', FAKE_KT=mode)
    return subprocess.Popen([tree / 'deploy/quickstart.sh', *arguments], env=environment, cwd='/', text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def once(tree, mode=''):
    process = start(tree, '--once', '--port', str(free_port()), mode=mode)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_once_shows_the_answer_and_stops_the_server(tree):
    code, out, err = once(tree)
    assert (code, err) == (0, '')
    assert 'answer:   Paris it is.\n' in out
    assert (tree / 'drained').exists()
    assert '--build build/release' in (tree / 'cmake-calls').read_text()


def test_ctrl_c_drains_a_server_that_serves_on(tree):
    port = free_port()
    process = start(tree, '--port', str(port))
    lines = []
    for line in process.stdout:
        lines.append(line)
        if 'until Ctrl-C' in line:
            break
    text = ''.join(lines)
    assert f'curl http://127.0.0.1:{port}/v1/chat/completions' in text and 'from openai import OpenAI' in text
    with socket.create_connection(('127.0.0.1', port)):
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    assert (tree / 'drained').exists()
    process.stdout.close()
    process.stderr.close()


@pytest.mark.parametrize('mode, sentence', [
    ('broken', 'kt run: no memory for a segment'),
    ('error', 'unexpected answer: {"error": {"message": "out of order"}}'),
    ('dirty', 'the server ended with exit code 3'),
])
def test_what_goes_wrong_is_said(tree, mode, sentence):
    code, _, err = once(tree, mode)
    assert code == 1
    assert sentence in err


def test_busy_port_is_named(tree):
    with socket.create_server(('127.0.0.1', 0)) as busy:
        port = busy.getsockname()[1]
        process = start(tree, '--once', '--port', str(port))
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f'port {port} is in use; choose another with --port N' in err


@pytest.mark.parametrize('arguments', [['--port'], ['--port', '0'], ['--port', '70000'], ['--port', 'x'], ['--twice']])
def test_bad_options_are_refused_before_anything_is_done(tree, arguments):
    process = start(tree, *arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and len(err.splitlines()) == 1
    assert not (tree / 'cmake-calls').exists()


def test_a_failing_build_is_said(tree):
    executable(tree / 'bin/cmake', '#!/bin/sh\nexit 7\n')
    code, _, err = once(tree)
    assert code == 1
    assert 'configuring failed with exit code 7' in err
