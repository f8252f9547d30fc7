# SPDX-License-Identifier: Apache-2.0
"""Conversations of several turns, eight of them interleaved, get bit for bit what each turn gets alone: tokens and log-probabilities, greedy and
seeded, on one model of each kind of attention (KT_TEST_EVERYTHING=1: each of them in both types), for any chunk size, with forked choices, with the prefix cache and
without it, after preemption and after the death of a worker."""
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import EVERYTHING, Server, eventually, model

# Grouped queries; with biases and partial rotation; latent; latent with a sparse indexer; delta net with its state; sliding window and sinks; one norm
# over all heads.
NAMES = ["qwen3_moe", "glm4_moe", "deepseek_v3-fp8", "deepseek_v32-fp8", "qwen3_next-fp8", "gpt_oss-mxfp4", "minimax_m2-fp8"]
STATEFUL = "qwen3_next-fp8"
DTYPES = ["float32", "bf16"]
RUNS = [(name, dtype) for name in NAMES for dtype in DTYPES]
if not EVERYTHING:
    RUNS = [(STATEFUL, "float32"), (STATEFUL, "bf16"), ("deepseek_v32-fp8", "bf16"), ("gpt_oss-mxfp4", "bf16"), ("minimax_m2-fp8", "float32")]
CONVERSATIONS, TURNS = 8, 3
CHOICES_EVERY = 3  # of so many conversations one asks for several choices and goes on with the last of them


class Conversation:
    """What its user says in each turn, and how the answers are sampled."""

    def __init__(self, index, answer_tokens):
        draw = random.Random(index)
        self.said = [[draw.randrange(5, 480) for _ in range(draw.randrange(3, 70 if turn == 0 else 30))] for turn in range(TURNS)]
        self.request = {"ignore_eos": True, "logprobs": 3, "temperature": 0, "max_tokens": answer_tokens + index,
                        "n": 3 if index % CHOICES_EVERY == 1 else 1}
        if index % 2:
            self.request.update(temperature=0.7 + index / 20, seed=100 + index, top_p=0.95)


def conversations(answer_tokens=40):
    return [Conversation(index, answer_tokens) for index in range(CONVERSATIONS)]


class Vocabulary:
    """Tells ids from texts, which is all that answers show; so only ids with a text of their own may be sampled."""

    def __init__(self, server):
        size = server.get("/model_info").json()["vocab_size"]
        texts = server.post("/detokenize", {"tokens": [[id] for id in range(size)], "skip_special_tokens": False})["text"]
        self.ids = {text: id for id, text in enumerate(texts) if text and texts.count(text) == 1}
        self.bias = {str(id): -100 for id in set(range(size)) - set(self.ids.values())}


def choices_of(server, vocabulary, prompt, request):
    """Of each choice: the id, log-probability and alternatives of every token."""
    choices = [[] for _ in range(request["n"])]
    for event in server.stream("/v1/completions", {**request, "prompt": prompt, "logit_bias": vocabulary.bias}):
        (choice,) = event["choices"]
        got = choice["logprobs"]
        if got:
            choices[choice["index"]] += zip([vocabulary.ids[text] for text in got["tokens"]], got["token_logprobs"], map(str, got["top_logprobs"]))
    assert all(len(tokens) == request["max_tokens"] for tokens in choices)
    return choices


def play(server, vocabulary, conversation):
    """[(prompt, choices)] of each turn; a prompt has all that was said and answered before."""
    turns, history = [], []
    for said in conversation.said:
        prompt = history + said
        choices = choices_of(server, vocabulary, prompt, conversation.request)
        turns.append((prompt, choices))
        history = prompt + [id for id, _, _ in choices[-1]]
    return turns


def interleaved(server, vocabulary, todo):
    with ThreadPoolExecutor(len(todo)) as pool:
        return list(pool.map(lambda conversation: play(server, vocabulary, conversation), todo))


def assert_same(got, want):
    for index, (got_turns, want_turns) in enumerate(zip(got, want, strict=True)):
        for turn, (got_turn, want_turn) in enumerate(zip(got_turns, want_turns, strict=True)):
            assert got_turn == want_turn, f"conversation {index}, turn {turn}"


def assert_prompt_gives_the_same(server, vocabulary, conversation, prompt, choices):
    """An answer that comes back as part of a prompt has the log-probabilities with which it was sampled."""
    for tokens in choices:
        ids = prompt + [id for id, _, _ in tokens]
        answer = server.post("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": conversation.request["logprobs"]})
        got = answer["choices"][0]["logprobs"]
        assert got["token_logprobs"][len(prompt):] == [logprob for _, logprob, _ in tokens]
        assert list(map(str, got["top_logprobs"][len(prompt):])) == [top for _, _, top in tokens]


@pytest.fixture(scope="module", params=RUNS, ids="-".join)
def alone(request):
    """(name, dtype, vocabulary, conversations, what each gets when one is played after the other and every prompt is computed as a whole)."""
    name, dtype = request.param
    todo = conversations()
    with Server(model(name), "--activation-dtype", dtype, "--disable-radix-cache") as server:
        vocabulary = Vocabulary(server)
        played = [play(server, vocabulary, conversation) for conversation in todo]
    return name, dtype, vocabulary, todo, played


def test_each_turn_by_itself(alone):
    """On a server that has not seen the turns before; and the answers read back as prompts."""
    name, dtype, vocabulary, todo, want = alone
    with Server(model(name), "--activation-dtype", dtype) as server:
        for turn in reversed(range(TURNS)):
            for conversation, turns in zip(todo, want):
                prompt, choices = turns[turn]
                assert choices_of(server, vocabulary, prompt, conversation.request) == choices
                assert_prompt_gives_the_same(server, vocabulary, conversation, prompt, choices)


@pytest.mark.parametrize("flags", [(), ("--chunked-prefill-size", 16), ("--chunked-prefill-size", 7, "--enable-mixed-chunk"),
                                   ("--max-running-requests", 2)], ids=str)
def test_interleaved(alone, flags):
    name, dtype, vocabulary, todo, want = alone
    with Server(model(name), "--activation-dtype", dtype, *flags) as server:
        assert_same(interleaved(server, vocabulary, todo), want)


def test_preempted(alone):
    name, dtype, vocabulary, todo, want = alone
    with Server(model(name), "--activation-dtype", dtype, "--max-total-tokens", 320, "--enable-mixed-chunk") as server:
        assert_same(interleaved(server, vocabulary, todo), want)
        assert server.state()["preemptions"] > 0 and server.state()["kv_blocks_used"] == 0


@pytest.mark.parametrize("program", ["kt-cpu-expert-worker", "kt-gpu-worker"])
def test_worker_killed(program):
    """In the midst of the answers of all conversations, several times: a step that is computed again must not advance a state twice."""
    todo = conversations(answer_tokens=120)
    with Server(model(STATEFUL)) as server:
        vocabulary = Vocabulary(server)
        want = [play(server, vocabulary, conversation) for conversation in todo]
        before, result = server.state()["tokens_generated"], []
        players = threading.Thread(target=lambda: result.extend(interleaved(server, vocabulary, todo)))
        players.start()
        kills = 3
        for kill in range(1, kills + 1):
            reached = before + before * kill // (kills + 1)  # the same number of tokens again
            eventually(lambda: server.state()["tokens_generated"] >= reached and server.pid_of(program), server.log, 60)
            os.kill(server.pid_of(program), signal.SIGKILL)
        players.join(120)
        assert_same(result, want)
        assert server.state()["steps_lost"] > 0
        assert sum(p["restarts"] for p in server.status()["node"]["processes"] if p["name"].startswith(program)) == kills
