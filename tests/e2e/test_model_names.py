# SPDX-License-Identifier: Apache-2.0
"""Models by name, and what comes from a model's text files: Kimi's vocabulary, end tokens from three places."""
import base64
import json
import os
import shutil

import pytest

from server import Server, kt, model

BAD_MODEL = 3
TINY = "qwen3_moe"


@pytest.fixture(autouse=True)
def registry(tmp_path, monkeypatch):
    """The file of names, in a place of the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config/kt/models.json"


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(model(TINY), tmp_path / "model")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_served_by_another_of_its_names():
    added = kt("model", "add", "MiniMax-M2", model(TINY))
    assert added.returncode == 0, added.stderr
    with Server("M2", "--fp8-gemm-backend", "cutlass", "--activation-dtype", "float32") as server:
        assert server.get("/v1/models").json()["data"][0]["id"] == "MiniMax-M2"
        assert server.get("/get_model_info").json()["model_path"] == os.path.realpath(model(TINY))
        assert server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4})["usage"]["completion_tokens"] > 0
        log = server.log()
        for flag in ("--tool-call-parser minimax-m2", "--reasoning-parser minimax-append-think", "--kt-gpu-prefill-token-threshold 4096"):
            assert any("preset MiniMax-M2: " in line and flag in line for line in log.splitlines()), flag
        assert "preset MiniMax-M2: --fp8-gemm-backend" not in log


def test_a_directory_comes_first(registry, tmp_path, monkeypatch):
    assert kt("model", "add", "here", model("glm4_moe")).returncode == 0
    (tmp_path / "here").symlink_to(model(TINY))
    monkeypatch.chdir(tmp_path)
    done = kt("run", "here", "--print-config")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["path"] == os.path.realpath(model(TINY))


def test_known_name_without_a_directory(registry):
    done = kt("run", "V3.2")
    assert done.returncode == BAD_MODEL and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "DeepSeek-V3.2" in line and "`kt model add V3.2 DIR`" in line


def test_broken_names_stop_names_only(registry):
    registry.parent.mkdir(parents=True)
    registry.write_text('{"models": [{"name": "x", "path": 5}]}')
    done = kt("run", "x")
    assert done.returncode == 2 and str(registry) in done.stderr and "models[0]" in done.stderr
    assert kt("run", model(TINY), "--dry-run").returncode == 0


def test_every_end_token_ends_an_answer(copy):
    edit(copy / "config.json", eos_token_id=490)
    edit(copy / "generation_config.json", eos_token_id=[488])
    edit(copy / "tokenizer_config.json", eos_token="<tool_call>")
    with Server(copy) as server:
        def finish(token):
            answer = server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 3, "temperature": 0, "logit_bias": {token: 100}})
            return answer["choices"][0]["finish_reason"]
        assert {token: finish(str(token)) for token in (490, 488, 493, 489)} == {490: "stop", 488: "stop", 493: "stop", 489: "length"}


def test_kimi_vocabulary(copy):
    os.remove(copy / "tokenizer.json")
    tokens = [bytes([byte]) for byte in range(256)] + [b"He", b"llo", b"Hello", b" wor", b"ld"] + [b"x%d" % i for i in range(59)]
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (copy / "tiktoken.model").write_text("".join(lines))
    edit(copy / "tokenizer_config.json", tokenizer_class="TikTokenTokenizer")  # names 488 to 494, of the ids 320 to 575
    with Server(copy) as server:
        ids = server.post("/tokenize", {"prompt": "Hello<|im_end|>"})["tokens"]
        assert ids == [258, 490]
        chat = [{"role": "user", "content": "Hello"}]
        answer = server.post("/v1/chat/completions", {"messages": chat, "temperature": 0, "max_tokens": 3, "logit_bias": {"490": 100}})
        assert answer["choices"][0]["finish_reason"] == "stop"
        refused = server.ask("POST", "/v1/completions", {"prompt": "<|reserved_token_540|>"})
        assert refused.status == 400 and "540" in refused.error()["message"] and "511" in refused.error()["message"]
    (copy / "tiktoken.model").write_text("".join(lines[:200]))
    done = kt("run", copy, "--host", "127.0.0.1", "--port", 0)
    assert done.returncode == BAD_MODEL and "tiktoken.model" in done.stderr


def test_other_commands_take_names_too():
    assert kt("model", "add", "mine", model(TINY)).returncode == 0
    assert kt("tokenize", "mine", stdin="Hello").stdout == kt("tokenize", model(TINY), stdin="Hello").stdout != ""
    done = kt("doctor", "--model", "mine", "--verbose")
    assert "qwen3_moe" in done.stdout, done.stderr
    done = kt("doctor", "--model", "V3.2")
    assert done.returncode == BAD_MODEL and "kt model add V3.2" in done.stderr
