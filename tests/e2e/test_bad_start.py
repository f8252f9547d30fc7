# SPDX-License-Identifier: Apache-2.0
"""Starts that must not succeed: an exit code of docs/errors.md, and a sentence that names what is wrong with its value."""
import json
import os
import shutil
import socket

import pytest

from server import Server, kt, model

USAGE, BAD_MODEL, PORT, OUT_OF_MEMORY = 2, 3, 4, 5


@pytest.fixture
def broken(tmp_path):
    """A copy of a model to spoil."""
    return shutil.copytree(model("qwen3_moe"), tmp_path / "model")


def refuse(code, *args):
    """The last line on stderr of a start that ends with this code."""
    done = kt("run", *args, "--host", "127.0.0.1", timeout=60)
    assert done.returncode == code, (done.returncode, done.stderr[-2000:])
    assert "ready:" not in done.stderr and done.stdout == ""
    return done.stderr.strip().splitlines()[-1]


def refuse_model(directory, *flags):
    return refuse(BAD_MODEL, directory, "--port", 0, *flags)


def edit_config(directory, **changes):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps(config))


def test_busy_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refuse(PORT, model("qwen3_moe"), "--port", port)


@pytest.mark.parametrize("args, says", [
    (("--kt-cpuinfer", 0), "--kt-cpuinfer"), (("--kt-cpuinfer", 100000), "--kt-cpuinfer"), (("--kt-cpuinfer", 4096), "4096"),
    (("--device-threads", 4096), "4096"), (("--kt-threadpool-count", 0), "--kt-threadpool-count"),
    (("--kt-cpuinfer", 1, "--kt-threadpool-count", 2), "--kt-cpuinfer 1"), (("--port", 65536), "--port"), (("--port", "x"), "--port"),
    (("--chunked-prefill-size", 0), "--chunked-prefill-size"), (("--activation-dtype", "fp8"), "fp8"),
    (("--nonsense",), "--nonsense"), (("--max-total-tokens", 1), "--max-total-tokens"), (("--expert-transport", "pigeon"), "pigeon"),
    (("--chat-template", "/nowhere.jinja"), "/nowhere.jinja"),
    # contradicts the checkpoint
    (("--kt-method", "FP8_PERCHANNEL"), "FP8_PERCHANNEL"), (("--kt-method", "FP8"), "FP8"), (("--kt-method", "RAWINT4"), "RAWINT4"),
    # what the tutorials' launch lines ask for and this release refuses
    (("--tensor-parallel-size", 3), "--tensor-parallel-size"), (("--kt-gpu-prefill-token-threshold", "some"), "must be auto or a number"),
    (("--kt-max-deferred-experts-per-token", 2), "--kt-max-deferred-experts-per-token"), (("--kt-weight-path", "/nowhere"), "--kt-weight-path")])
def test_flags(args, says):
    line = refuse(USAGE, model("qwen3_moe"), *args)
    assert line.startswith("kt") and says in line and len(line) < 400, line


def test_no_model():
    assert "--model" in refuse(USAGE)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_file(broken, file):
    os.remove(broken / file)
    assert file in refuse_model(broken) or file.endswith("safetensors")


def test_no_directory(tmp_path):
    assert str(tmp_path / "none") in refuse_model(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    assert str(tmp_path / "file") in refuse_model(tmp_path / "file")


@pytest.mark.parametrize("bytes_kept", [0, 4, 1000, 1_000_000])
def test_truncated_weights(broken, bytes_kept):
    os.truncate(broken / "model.safetensors", bytes_kept)
    assert "model.safetensors" in refuse_model(broken)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_truncated_json(broken, file):
    os.truncate(broken / file, os.path.getsize(broken / file) // 2)
    assert file in refuse_model(broken)


def test_missing_shard(broken):
    (broken / "model.safetensors").unlink()
    (broken / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}))
    assert "model-00002-of-00002.safetensors" in refuse_model(broken)


def test_shard_outside(broken):
    (broken / "model.safetensors").unlink()
    (broken / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": "../../../etc/passwd"}}))
    assert "../../../etc/passwd" in refuse_model(broken)


@pytest.mark.parametrize("changes, says", [
    ({"model_type": "gpt9", "architectures": ["Gpt9ForCausalLM"]}, "gpt9"), ({"hidden_size": 64}, "expected BF16"), ({"hidden_size": "big"}, "hidden_size"),
    ({"num_hidden_layers": 5}, "model.layers.4"), ({"num_experts": 32}, "experts"), ({"num_experts_per_tok": 17}, "num_experts_per_tok"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"), ({"head_dim": 0}, "head_dim"), ({"vocab_size": -5}, "vocab_size"),
    ({"num_hidden_layers": 10**12}, "num_hidden_layers"), ({"moe_intermediate_size": 48}, ""), ({"hidden_act": "tanh"}, "tanh"),
    ({"rope_scaling": {"rope_type": "spiral", "factor": 2}}, "spiral"),
    ({"quantization_config": {"quant_method": "quantum", "bits": 3}}, "quantum")])
def test_contradictory_config(broken, changes, says):
    edit_config(broken, **changes)
    assert says in refuse_model(broken)


def fill(directory, tensor, value):
    """Overwrites a BF16 tensor with one value, given as its two bytes."""
    path = directory / "model.safetensors"
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:8 + header])[tensor]["data_offsets"]
    data[8 + header + begin:8 + header + end] = value * ((end - begin) // 2)
    path.write_bytes(data)


NAN = b"\xc0\x7f"


@pytest.mark.parametrize("tensor, part", [("model.layers.0.mlp.experts.0.up_proj.weight", "layer 0, experts"),
                                          ("model.layers.0.self_attn.o_proj.weight", "layer 0, attention")])
def test_damaged_weights(broken, tensor, part):
    fill(broken, tensor, NAN)
    line = refuse_model(broken)
    assert "self-check" in line and part in line and "--selftest off" in line


def test_not_finite_fails_the_request(broken):
    """With the check off the server starts, says so when a token cannot be trusted, and goes on."""
    fill(broken, "model.norm.weight", NAN)
    with Server(broken, "--selftest", "off") as server:
        for _ in range(2):
            answer = server.ask("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 4})
            assert answer.status == 500 and b"not finite" in answer.body
        assert server.get("/health").status == 200


@pytest.mark.parametrize("flags, says", [(("--device-memory-bytes", 1_000_000), "--device-memory-bytes"),
                                         (("--max-total-tokens", 2_000_000_000), "--max-total-tokens")])
def test_out_of_memory(flags, says):
    assert says in refuse(OUT_OF_MEMORY, model("qwen3_moe"), "--port", 0, *flags)
