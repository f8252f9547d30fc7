# SPDX-License-Identifier: Apache-2.0
"""Many clients at once get bit for bit what each gets alone: greedy and seeded, with any chunk size, also after preemption."""
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import Server, model

CLIENTS = 32
MIXED = ("--enable-mixed-chunk",)


def requests(vocab, prompt_tokens_max, max_tokens):
    """One for each client: other prompts, lengths and parameters; every eighth asks for two choices."""
    draw = random.Random(1)
    out = []
    for i in range(CLIENTS):
        request = {"prompt": [draw.randrange(5, vocab) for _ in range(draw.randrange(3, prompt_tokens_max))], "max_tokens": max_tokens - i % 7,
                   "ignore_eos": True, "logprobs": 3, "temperature": 0}
        if i % 2:
            request.update(temperature=0.6 + i / 40, seed=1000 + i, top_p=0.95, top_k=40)
        if i % 8 == 7:
            request.update(n=2)
        out.append(request)
    return out


def tokens_of(server, request):
    """Tokens with log-probabilities and alternatives of each choice, from a stream."""
    choices = [[] for _ in range(request.get("n", 1))]
    for event in server.stream("/v1/completions", request):
        (choice,) = event["choices"]
        got = choice["logprobs"]
        if got:
            choices[choice["index"]] += zip(got["tokens"], got["token_logprobs"], map(str, got["top_logprobs"]))
    assert all(len(tokens) == request["max_tokens"] for tokens in choices)
    return choices


def one_by_one(server, todo):
    return [tokens_of(server, request) for request in todo]


def together(server, todo):
    with ThreadPoolExecutor(len(todo)) as pool:
        return list(pool.map(lambda request: tokens_of(server, request), todo))


def assert_same(got, want):
    different = [client for client in range(len(want)) if got[client] != want[client]]
    assert not different, (different, got[different[0]], want[different[0]])


@pytest.fixture(scope="module")
def alone():
    """What each client of a tiny model gets alone."""
    results = {}
    for name in ("qwen3_moe", "glm4_moe"):
        todo = requests(480, 150, 64)
        with Server(model(name), "--max-total-tokens", 8192) as server:
            results[name] = todo, one_by_one(server, todo)
            assert_same(one_by_one(server, todo[:4]), results[name][1][:4])
            assert_same(together(server, todo), results[name][1])
    return results


@pytest.mark.parametrize("flags", [("--chunked-prefill-size", 48), ("--chunked-prefill-size", 48, *MIXED), ("--max-running-requests", 5, *MIXED),
                                   ("--stream-interval", 3), ("--kt-cpuinfer", 1)])
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe"])
def test_tiny(alone, name, flags):
    todo, want = alone[name]
    with Server(model(name), "--max-total-tokens", 8192, *flags) as server:
        assert_same(together(server, todo), want)


@pytest.mark.parametrize("name, flags", [("qwen3_moe", ()), ("qwen3_moe", MIXED), ("glm4_moe", MIXED)])
def test_preempted(alone, name, flags):
    todo, want = alone[name]
    with Server(model(name), "--max-total-tokens", 640, *flags) as server:
        assert_same(together(server, todo), want)
        assert server.state()["preemptions"] > 0 and server.state()["kv_blocks_used"] == 0


def test_demo():
    todo = requests(40000, 24, 8)
    with Server(model("mirror")) as server:
        want = one_by_one(server, todo)
        assert_same(together(server, todo), want)
    with Server(model("mirror"), "--chunked-prefill-size", 48, "--max-total-tokens", 320, *MIXED) as server:
        assert_same(together(server, todo), want)
