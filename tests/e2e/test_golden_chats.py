# SPDX-License-Identifier: Apache-2.0
"""The demo models against what transformers computes in float32: eight chats token by token, and the perplexity of a text."""
import json
import os

import pytest

from server import GOLDENS, Server, golden_chats, kt, model

LOGPROB_BOUND = 2e-3  # float32: other orders of summation
BF16_MARGIN = 0.35  # bf16 must choose the golden token wherever it leads by more
PERPLEXITY_BOUND = 0.003

pytestmark = pytest.mark.parametrize("name", ["mirror", "bf16", "fp8-block", "fp8-channel", "int4"])


def prompt_logprobs(server, ids):
    """For each token after the first: its log-probability, and those of the two likeliest there."""
    answer = server.post("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 2})
    logprobs = answer["choices"][0]["logprobs"]
    assert answer["usage"]["prompt_tokens"] == len(ids) == len(logprobs["tokens"])
    assert logprobs["token_logprobs"][0] is None
    return [(one, sorted(top.values(), reverse=True)) for one, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:])]


def test_float32(name):
    with Server(model(name), "--activation-dtype", "float32") as server:
        for chat in golden_chats(name)["chats"]:
            tokenized = server.post("/tokenize", {"messages": chat["messages"]})
            assert tokenized["tokens"] == chat["prompt_ids"]
            answer = server.post("/v1/chat/completions", {"messages": chat["messages"], "temperature": 0, "logprobs": True,
                                                          "max_tokens": len(chat["greedy_ids"])})
            choice, usage = answer["choices"][0], answer["usage"]
            assert choice["message"]["content"] == chat["greedy_text"]
            assert choice["finish_reason"] == chat["finish_reason"]
            assert usage["prompt_tokens"] == len(chat["prompt_ids"]) and usage["completion_tokens"] == len(chat["greedy_ids"])
            texts = server.post("/detokenize", {"tokens": [[id] for id in chat["greedy_ids"]], "skip_special_tokens": False})["text"]
            got = choice["logprobs"]["content"]
            assert [token["token"] for token in got] == texts
            for token, step in zip(got, chat["steps"]):
                assert abs(token["logprob"] - step["logprob"]) < LOGPROB_BOUND, step


def test_bf16_step_by_step(name):
    with Server(model(name)) as server:
        compared = 0
        for chat in golden_chats(name)["chats"]:
            steps = prompt_logprobs(server, chat["prompt_ids"] + chat["greedy_ids"])[len(chat["prompt_ids"]) - 1:]
            assert len(steps) == len(chat["steps"])
            for (logprob, top), step in zip(steps, chat["steps"]):
                if step["logprob"] - step["next"][0][1] > BF16_MARGIN:
                    assert logprob == top[0], step
                    compared += 1
        assert compared > 100


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_perplexity(name, dtype):
    done = kt("perplexity", model(name), os.path.join(GOLDENS, "ppl-text.txt"), "--json", "--activation-dtype", dtype)
    assert done.returncode == 0, done.stderr
    got, want = json.loads(done.stdout), golden_chats(name)["perplexity"]
    assert got["tokens"] == want["tokens"] and got["predicted"] == want["predicted"]
    assert abs(got["perplexity"] / want["perplexity"] - 1) < PERPLEXITY_BOUND
