# SPDX-License-Identifier: Apache-2.0
"""The prefix cache through all processes: conversations of twenty turns, eight at a time, compute what is new and get bit for bit what a server without
the cache gives; what usage, metrics and flags say about it; and that nothing grows over hundreds of turns."""
import os
import random
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from server import EVERYTHING, Server, eventually, model
from test_conversations import Vocabulary

# Delta net with its state; grouped queries; latent with a sparse indexer; sliding window and sinks.
STATEFUL = "qwen3_next-fp8"
RUNS = [(STATEFUL, "float32"), ("qwen3_moe", "bf16")]
if EVERYTHING:
    RUNS = [(name, dtype) for name in (STATEFUL, "qwen3_moe", "deepseek_v32-fp8", "gpt_oss-mxfp4") for dtype in ("float32", "bf16")]
CONVERSATIONS, TURNS = 8, 20


def tokens_of(choice, vocabulary):
    got = choice["logprobs"]
    return [vocabulary.ids[text] for text in got["tokens"]], list(zip(got["tokens"], got["token_logprobs"], map(str, got["top_logprobs"])))


def complete(server, vocabulary, prompt, max_tokens, **more):
    """The answer's ids, what is known of each of its tokens, and how much of the prompt was cached."""
    answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 3,
                                             "logit_bias": vocabulary.bias, **more})
    ids, tokens = tokens_of(answer["choices"][0], vocabulary)
    return ids, tokens, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def converse(server, vocabulary, index, turns=TURNS, said_tokens=(12, 40), answer_tokens=(4, 24)):
    """Everything that is answered in a conversation of its own, how many tokens its user said, and how many were cached."""
    draw = random.Random(index)
    history, answers, said, cached = [], [], 0, 0
    sampling = {"temperature": 0.8, "seed": index} if index % 2 else {}
    for _ in range(turns):
        new = [draw.randrange(5, 480) for _ in range(draw.randrange(*said_tokens))]
        ids, tokens, found = complete(server, vocabulary, history + new, draw.randrange(*answer_tokens), **sampling)
        history += new + ids
        answers.append(tokens)
        said, cached = said + len(new), cached + found
    return answers, said, cached


def all_at_once(server, vocabulary, count=CONVERSATIONS, **shape):
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda index: converse(server, vocabulary, index, **shape), range(count)))


@pytest.mark.parametrize("name, dtype", RUNS, ids=lambda value: value)
def test_twenty_turns_eight_at_a_time(name, dtype):
    flags = ("--activation-dtype", dtype, "--max-running-requests", CONVERSATIONS)
    with Server(model(name), *flags, "--disable-radix-cache") as server:
        vocabulary = Vocabulary(server)
        cold = all_at_once(server, vocabulary)
        assert server.state()["tokens_cached"] == 0 and {cached for _, _, cached in cold} == {0}
    with Server(model(name), *flags) as server:
        warm = all_at_once(server, vocabulary)
        state = server.state()
        assert state["tokens_prefilled"] <= 1.1 * sum(said for _, said, _ in warm), state
        assert state["tokens_cached"] == sum(cached for _, _, cached in warm) == state["prompt_tokens"] - state["tokens_prefilled"]
        for index, ((got, _, _), (want, _, _)) in enumerate(zip(warm, cold)):
            for turn in range(TURNS):
                assert got[turn] == want[turn], f"conversation {index}, turn {turn}"
        hit_rate = state["tokens_cached"] / state["prompt_tokens"]
        assert hit_rate > 0.8
        eventually(lambda: server.metrics()["cached_tokens_total"] == state["tokens_cached"], "metrics")
        assert server.metrics()["cache_hit_rate"] == pytest.approx(hit_rate, rel=1e-4)
        assert server.metrics()["kv_blocks_cached"] > 0 == server.metrics()["kv_blocks_used"]
        assert server.status()["health"]["prefix_cache"]["hit_rate"] == pytest.approx(hit_rate)


@pytest.mark.parametrize("name", ["qwen3_moe", STATEFUL])
def test_little_room(name):
    """Blocks and states for less than one round of the conversations: others are dropped, requests wait and are pushed out, and all are answered alike."""
    shape = {"turns": 6}
    with Server(model(name), "--disable-radix-cache") as server:
        vocabulary = Vocabulary(server)
        cold = all_at_once(server, vocabulary, **shape)
    with Server(model(name), "--max-total-tokens", 400, "--cached-states", 2, "--max-running-requests", 3) as server:
        warm = all_at_once(server, vocabulary, **shape)
        assert [answers for answers, _, _ in warm] == [answers for answers, _, _ in cold]
        assert server.state()["kv_blocks_used"] == 0


@pytest.mark.parametrize("name", ["qwen3_moe", STATEFUL])
def test_three_hundred_turns_leave_no_growth(name):
    """Pools are back where they were, and so is the memory of the processes, after the cache has been flushed."""
    shape = {"turns": 300, "said_tokens": (1, 4), "answer_tokens": (1, 4)}
    programs = ["kt-coordinator", "kt-gpu-worker", "kt-cpu-expert-worker"]

    def memory(server):
        sizes = {}
        for program in programs:
            with open(f"/proc/{server.pid_of(program)}/status") as file:
                sizes[program] = next(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))
        return sizes

    with Server(model(name), "--activation-dtype", "float32") as server:
        vocabulary = Vocabulary(server)
        baseline = server.state()
        assert baseline["kv_blocks_used"] == baseline["kv_blocks_cached"] == baseline["states_cached"] == 0
        sizes = []
        for _ in range(2):
            warm = all_at_once(server, vocabulary, count=3, **shape)
            state = server.state()
            assert state["kv_blocks_used"] == state["requests_live"] == 0 < state["kv_blocks_cached"]
            sizes.append(memory(server))
            assert server.get("/flush_cache").body.startswith(b"Cache flushed.")
            eventually(lambda: server.state()["kv_blocks_cached"] == server.state()["states_cached"] == 0, server.state)
        for program in programs:
            assert sizes[1][program] <= sizes[0][program] + 4096, f"{program}: RssAnon in KiB after each 900 turns {sizes}"
        # What 300 turns have made of it is what one prompt makes of it.
        draw, history = random.Random(0), []
        for tokens in warm[0][0]:
            new = [draw.randrange(5, 480) for _ in range(draw.randrange(*shape["said_tokens"]))]
            draw.randrange(*shape["answer_tokens"])
            prompt, history = history + new, history + new + [vocabulary.ids[text] for text, _, _ in tokens]
        _, cold, found = complete(server, vocabulary, prompt, len(warm[0][0][-1]))
        assert found == 0 and cold == warm[0][0][-1]


def test_flush_while_requests_run():
    with Server(model("qwen3_moe")) as server:
        vocabulary = Vocabulary(server)
        prompt = list(range(5, 69))
        want = complete(server, vocabulary, prompt, 8)[:2]
        assert complete(server, vocabulary, prompt, 8) == (*want, 63), "all but the last token"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(complete, server, vocabulary, list(range(100, 140)), 400)
            eventually(lambda: server.state()["sequences_running"] == 1, server.log)
            for method in ("GET", "POST"):
                answer = server.ask(method, "/flush_cache")
                assert answer.status == 200 and answer.body.startswith(b"Cache flushed."), answer.body
            assert complete(server, vocabulary, prompt, 8) == (*want, 0)
            assert len(running.result()[0]) == 400


def test_what_is_reported_is_computed():
    """Log-probabilities of a prompt need its rows, also where it is cached."""
    with Server(model(STATEFUL)) as server:
        prompt = list(range(5, 69))
        ask = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 2}
        first = server.post("/v1/completions", ask)
        server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0})
        again = server.post("/v1/completions", ask)
        assert again["choices"] == first["choices"]
        assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_usage_through_the_official_client():
    with Server(model("mirror"), "--activation-dtype", "float32") as server:
        client = openai.OpenAI(base_url=f"http://localhost:{server.port}/v1", api_key="none", max_retries=0)
        messages = [{"role": "user", "content": "What is the capital of France?"}]

        def ask(**more):
            return client.chat.completions.create(model="m", messages=messages, temperature=0, max_tokens=24, **more)

        first = ask()
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        again = ask()
        assert again.choices[0].message.content == first.choices[0].message.content
        assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
        messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "And of Italy?"}]
        *_, last = ask(stream=True, stream_options={"include_usage": True})
        assert last.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 2
