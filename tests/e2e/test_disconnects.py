# SPDX-License-Identifier: Apache-2.0
"""200 clients go away while queued, in prefill and in decode, streaming or not: all they held comes back, and others notice nothing."""
import json
import os
import random
import socket
import struct
import threading

import pytest

from server import Server, eventually, model

RUNNING_MAX = 4
HEALTHY = {"prompt": "The quick brown fox", "max_tokens": 300, "temperature": 0.8, "seed": 5, "ignore_eos": True}


class Client:
    """A client that sends a request and, later, goes away in one of three ways."""

    def __init__(self, server, number, body):
        self.way = ("reset", "close", "half-close")[number % 3]
        data = json.dumps(dict(body, stream=number % 2 == 0)).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.port), 60)
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))

    def leave(self):
        if self.way == "reset":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self.way == "half-close":
            self.socket.shutdown(socket.SHUT_WR)
        self.socket.close()


class Healthy(threading.Thread):
    """Streams the same request again and again."""

    def __init__(self, server):
        super().__init__()
        self.server, self.texts, self.error, self.stop = server, [], None, False

    def ask(self):
        return "".join(event["choices"][0]["text"] for event in self.server.stream("/v1/completions", HEALTHY))

    def run(self):
        try:
            while not self.stop:
                self.texts.append(self.ask())
        except Exception as error:  # shown by the test
            self.error = error


@pytest.fixture(scope="module")
def server():
    with Server(model("qwen3_moe"), "--chunked-prefill-size", 16, "--max-running-requests", RUNNING_MAX, "--max-total-tokens", 20000) as server:
        yield server


def test_disconnects(server):
    coordinator = server.pid_of("kt-coordinator")

    def descriptors():
        return len(os.listdir(f"/proc/{coordinator}/fd"))

    healthy = Healthy(server)
    want = healthy.ask()
    open_before = descriptors()
    draw = random.Random(2)
    decode = {"prompt": "x", "max_tokens": 4000, "temperature": 0, "ignore_eos": True}

    def prefill():  # nothing of it is in the prefix cache
        return {"prompt": [draw.randrange(5, 480) for _ in range(4000)], "max_tokens": 8}

    healthy.start()
    try:
        # Queued: all places but the healthy one's are taken by clients that decode.
        blockers = [Client(server, 0, decode) for _ in range(RUNNING_MAX)]
        eventually(lambda: server.state()["sequences_running"] == RUNNING_MAX, server.state)
        queued = [Client(server, i, decode) for i in range(66)]
        eventually(lambda: server.state()["requests_queued"] >= 66, server.state)
        for client in queued:
            client.leave()
        eventually(lambda: server.state()["requests_queued"] <= 1, server.state)
        for client in blockers:
            client.leave()

        # In prefill: 250 steps for each prompt.
        for round_ in range(22):
            before = server.state()["tokens_prefilled"]
            clients = [Client(server, 3 * round_ + i, prefill()) for i in range(3)]
            eventually(lambda: server.state()["tokens_prefilled"] > before + 160, server.state)
            for client in clients:
                client.leave()

        # In decode.
        for round_ in range(22):
            before = server.state()["tokens_generated"]
            clients = [Client(server, 3 * round_ + i, decode) for i in range(3)]
            eventually(lambda: server.state()["tokens_generated"] > before + 20, server.state)
            for client in clients:
                client.leave()
    finally:
        healthy.stop = True
        healthy.join()

    assert healthy.error is None, healthy.error
    assert set(healthy.texts) == {want}
    idle = {"requests_live": 0, "requests_queued": 0, "sequences_running": 0, "kv_blocks_used": 0}
    eventually(lambda: idle.items() <= server.state().items(), server.state)
    figures = {"num_running_reqs": 0, "num_queue_reqs": 0, "num_live_reqs": 0, "kv_blocks_used": 0, "http_connections": 1}  # the one that asks
    eventually(lambda: figures.items() <= server.metrics().items(), server.metrics)
    assert server.metrics()["client_disconnects_total"] >= 200
    eventually(lambda: descriptors() <= open_before, lambda: f"{descriptors()} descriptors open, {open_before} before")
    assert healthy.ask() == want
