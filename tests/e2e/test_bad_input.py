# SPDX-License-Identifier: Apache-2.0
"""Hostile HTTP requests: each gets an error in OpenAI's shape that names field and value, and the server goes on."""
import json
import os
import socket
import time

import pytest

from server import Server, eventually, model

CONTEXT = 256
BODY_BYTES_MAX = 1 << 20
HEADER_TIMEOUT_MS, BODY_TIMEOUT_MS = 700, 1200
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def shared_server():
    with Server(model("qwen3_moe"), "--context-length", CONTEXT, "--body-bytes-max", BODY_BYTES_MAX, "--header-timeout-ms", HEADER_TIMEOUT_MS,
                "--body-timeout-ms", BODY_TIMEOUT_MS) as server:
        server.expected = answer_of(server)
        yield server


@pytest.fixture
def server(shared_server):
    """Afterwards the same processes give the same answer as before."""
    before = set(shared_server.processes())
    yield shared_server
    assert answer_of(shared_server) == shared_server.expected
    assert before == set(shared_server.processes()), "a process was lost or started again"


def answer_of(server):
    return server.post(COMPLETION, {"prompt": "The quick brown fox", "max_tokens": 8, "temperature": 0, "ignore_eos": True})["choices"]


def fail(server, path, body, status=400):
    answer = server.ask("POST", path, body)
    assert answer.status == status, (answer.status, answer.body[:300])
    error = answer.error()
    assert len(error["message"]) < 2000
    return error


@pytest.mark.parametrize("field, value, says", [
    ("temperature", "hot", "hot"), ("temperature", -1, "-1"), ("temperature", True, "true"), ("temperature", [1], "[1]"),
    ("top_p", 1.5, "1.5"), ("top_k", 1.5, "1.5"), ("min_p", 2, "2"), ("presence_penalty", -3, "-3"), ("frequency_penalty", {}, "{}"),
    ("repetition_penalty", 0, "0"), ("n", 100000, "100000"), ("n", "3", "3"), ("max_tokens", -1, "-1"), ("max_tokens", 1e30, "e+30"),
    ("seed", 0.5, "0.5"), ("seed", 2**64, "1.8446744073709552e+19"), ("stream", "yes", "yes"), ("stream_options", 1, "1"), ("logprobs", 3, "3"),
    ("top_logprobs", 2, "logprobs"), ("stop", 5, "5"), ("stop", [1], "1"), ("stop", ["a"] * 10000, "10000"), ("stop", "", "0"),
    ("stop", "x" * 100000, "100000"), ("logit_bias", [1], "[1]"), ("logit_bias", {"512": 1}, "512"), ("logit_bias", {"1": 101}, "101"),
    ("model", 1, "1"), ("stop_token_ids", [512], "512"), ("ignore_eos", 0, "0"), ("chat_template_kwargs", [], "[]")])
def test_wrong_values(server, field, value, says):
    error = fail(server, CHAT, {"messages": HELLO, field: value})
    assert error["param"] == field and field in error["message"] and says in error["message"], error


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "nan"])
def test_not_finite(server, number):
    error = fail(server, CHAT, b'{"messages": [{"role": "user", "content": "x"}], "temperature": %s}' % number.encode())
    assert error["param"] == "temperature" and number in error["message"], error


@pytest.mark.parametrize("messages, says", [
    (None, "messages"), ([], "[]"), ("hello", "hello"), ([1], "messages[0]"), ([{"content": "x"}], "messages[0].role"),
    ([{"role": "wizard", "content": "x"}], "wizard"), ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "null"), ([{"role": "user", "content": 5}], "5"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "image_url"),
    (HELLO + [{"role": ["user"], "content": "x"}], "messages[1].role")])
def test_messages(server, messages, says):
    assert says in fail(server, CHAT, {"messages": messages})["message"]


@pytest.mark.parametrize("prompt, says", [
    (None, "prompt"), ("", "empty"), ([], "0"), (5, "5"), ([512], "512"), ([-1], "-1"), ([1.5], "1.5"), (["a", 1], "prompt[1]"), ([[]], "prompt[0]")])
def test_prompts(server, prompt, says):
    error = fail(server, COMPLETION, {"prompt": prompt})
    assert error["param"] == "prompt" and says in error["message"], error


@pytest.mark.parametrize("field, value", [("tools", [{"type": "function"}]), ("tool_choice", "auto"), ("response_format", {"type": "json_object"}),
                                          ("best_of", 2)])
def test_not_served(server, field, value):
    assert fail(server, CHAT, {"messages": HELLO, field: value})["code"] == "unsupported_parameter"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\x00", b'{"prompt": "x",}', b'{"prompt": "\xff\xfe"}', b'{"prompt": "\xed\xa0\x80"}',
                                  b"[" * 100000, b'{"a":' * 5000 + b"1" + b"}" * 5000])
def test_not_json(server, body):
    for path in (COMPLETION, CHAT, "/tokenize", "/detokenize", "/abort_request"):
        assert fail(server, path, body)["code"] == "invalid_json"


def test_too_long(server):
    """400 with both numbers; one token less is served."""
    def prompt(tokens):
        return {"prompt": [7] * tokens, "max_tokens": 1, "temperature": 0}

    for tokens in (CONTEXT, CONTEXT + 1, 100 * CONTEXT):
        error = fail(server, COMPLETION, prompt(tokens))
        assert error["code"] == "context_length_exceeded" and str(CONTEXT) in error["message"] and str(tokens) in error["message"], error
    server.post(COMPLETION, prompt(CONTEXT - 1))
    error = fail(server, COMPLETION, {"prompt": [7] * 200, "max_tokens": 57})
    assert error["code"] == "context_length_exceeded" and "257" in error["message"] and str(CONTEXT) in error["message"]
    for text in ("x" * 900_000, "word " * 5000):
        assert fail(server, CHAT, {"messages": [{"role": "user", "content": text}]})["code"] == "context_length_exceeded"


def test_huge_bodies(server):
    body = json.dumps({"prompt": "x" * BODY_BYTES_MAX}).encode()
    assert fail(server, COMPLETION, body, 413)["code"] == "body_too_large"
    with socket.create_connection(("127.0.0.1", server.port), 20) as client:  # refused from its header alone
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n")
        assert b" 413 " in client.recv(4096).split(b"\r\n")[0]
    with socket.create_connection(("127.0.0.1", server.port), 20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000)
        assert b" 431 " in client.recv(4096).split(b"\r\n")[0]


def test_paths_and_methods(server):
    assert server.get("/nowhere").error()["code"] == "path_not_found"
    wrong = server.get(CHAT)
    assert wrong.status == 405 and wrong.error()["code"] == "method_not_allowed" and "POST" in wrong.headers["Allow"]


def test_not_http(server):
    for text in (b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(64) + b"\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), 20) as client:
            client.sendall(text)
            assert b" 400 " in client.recv(4096).split(b"\r\n")[0]


def test_pipelining(server):
    """Three requests in one packet: three answers, in order."""
    def request(path, body):
        return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        client.sendall(request(COMPLETION, '{"prompt": "a", "max_tokens": 3}') + request("/tokenize", '{"prompt": 1}')
                       + b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    positions = [data.index(text) for text in ("text_completion", "invalid_value", "max_model_len")]
    assert positions == sorted(positions) and data.count("HTTP/1.1 ") == 3


@pytest.mark.parametrize("start, limit_ms", [
    (b"GET /health HT", HEADER_TIMEOUT_MS), (b"", HEADER_TIMEOUT_MS),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", BODY_TIMEOUT_MS)])
def test_slow_loris(server, start, limit_ms):
    """Clients that send a byte now and then are cut off in time, however many there are; others are answered meanwhile."""
    began = time.monotonic()
    clients = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(50)]
    for client in clients:
        client.sendall(start)
    assert server.get("/health").status == 200
    open_clients = list(clients)
    while open_clients:
        assert time.monotonic() - began < limit_ms / 1000 + 15
        time.sleep(0.1)
        for client in list(open_clients):
            try:
                client.sendall(b"x" if start else b"")
                client.setblocking(False)
                data = client.recv(4096)
                assert not data or b" 408 " in data.split(b"\r\n")[0], data
                open_clients.remove(client)
            except BlockingIOError:
                client.settimeout(20)
            except OSError:  # closed by the server
                open_clients.remove(client)
    for client in clients:
        client.close()
    eventually(lambda: server.metrics()["http_connections"] <= 1, "connections closed")


@pytest.mark.parametrize("template, says", [
    ("{{ raise_exception('only poems') }}", "only poems"),
    ("{% for i in range(10 ** 9) %}{% endfor %}", ""),
    ("{% set ns = namespace(i=0) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.i = ns.i + 1 %}{% endfor %}{% endfor %}", "ms"),
    ("{{ 'x' * 1000000000 }}", ""),
    ("{{ messages[0].content.nothing.there }}", "Undefined"),
    ("{{ ''.__class__.__mro__ }}", "unsafe")])
def test_template(tmp_path, template, says):
    """A template that raises, loops, or allocates a gigabyte costs that request only: 'plain' takes another branch."""
    path = tmp_path / "template.jinja"
    path.write_text("{% if messages[0].content == 'plain' %}ok{% else %}" + template + "{% endif %}")
    with Server(model("qwen3_moe"), "--chat-template", path) as server:
        for _ in range(2):
            began = time.monotonic()
            error = fail(server, CHAT, {"messages": HELLO})
            assert error["code"] == "chat_template_error" and says in error["message"], error
            assert time.monotonic() - began < 30
            server.post(CHAT, {"messages": [{"role": "user", "content": "plain"}], "max_tokens": 2})
