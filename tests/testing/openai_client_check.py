#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drives a running server with the real openai client: chat, stream, stop, logprobs, n, errors.

Usage: openai_client_check.py BASE_URL [--api-key KEY]   (BASE_URL such as http://127.0.0.1:30000/v1)
Exit code 0 only if all holds. Works with any model, so it checks shapes and agreements, not words.
"""
import argparse
import sys

import openai


def text_of_stream(stream):
    text, reasons, usage = "", [], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    return text, reasons, usage


def check_models(client):
    models = client.models.list().data
    assert len(models) == 1, models
    assert client.models.retrieve(models[0].id).id == models[0].id
    return models[0].id


def check_chat(client, model):
    ask = dict(model=model, temperature=0, max_tokens=12, messages=[{"role": "user", "content": "Say hello to the whole world."}])
    whole = client.chat.completions.create(**ask)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.message.content, whole
    assert choice.finish_reason in ("stop", "length"), whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    text, reasons, usage = text_of_stream(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert text == choice.message.content, (text, choice.message.content)
    assert reasons == [choice.finish_reason] and usage.total_tokens == whole.usage.total_tokens
    parts = client.chat.completions.create(**dict(ask, messages=[{"role": "user", "content": [{"type": "text", "text": "Say hello to the "}, {"type": "text", "text": "whole world."}]}]))
    assert parts.choices[0].message.content == choice.message.content
    return choice.message.content


def check_stop(client, model, text):
    stop = text[len(text) // 2:][:3]
    answer = client.chat.completions.create(model=model, temperature=0, max_tokens=12, stop=[stop],
                                            messages=[{"role": "user", "content": "Say hello to the whole world."}]).choices[0]
    assert stop not in answer.message.content and text.startswith(answer.message.content), (stop, answer)
    assert answer.finish_reason == "stop", answer


def check_logprobs(client, model):
    answer = client.chat.completions.create(model=model, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3,
                                            messages=[{"role": "user", "content": "Count."}]).choices[0]
    for token in answer.logprobs.content:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0 and token.bytes, token
    joined = b"".join(bytes(token.bytes) for token in answer.logprobs.content).decode(errors="replace")
    assert joined.startswith(answer.message.content.rstrip("\ufffd")), (joined, answer.message.content)
    completion = client.completions.create(model=model, prompt="One two three", temperature=0, max_tokens=3, logprobs=2, echo=True).choices[0]
    logprobs = completion.logprobs
    assert completion.text.startswith("One two three") and logprobs.token_logprobs[0] is None, completion
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == len(logprobs.top_logprobs)
    assert logprobs.text_offset[0] == 0 and "".join(logprobs.tokens).startswith("One two three")


def check_choices(client, model):
    answer = client.chat.completions.create(model=model, n=3, max_tokens=4, seed=1, messages=[{"role": "user", "content": "A word?"}])
    assert [choice.index for choice in answer.choices] == [0, 1, 2], answer
    prompts = client.completions.create(model=model, prompt=["One two", "Three four"], n=2, max_tokens=2)
    assert [choice.index for choice in prompts.choices] == [0, 1, 2, 3], prompts
    seen = {choice.index for chunk in client.completions.create(model=model, prompt=["One two", "Three four"], n=2, max_tokens=2, stream=True)
            for choice in chunk.choices}
    assert seen == {0, 1, 2, 3}, seen


def expect(error, call, param=None, code=None):
    try:
        call()
    except error as raised:
        assert type(raised) is error, type(raised)
        assert param is None or raised.param == param, raised
        assert code is None or raised.code == code, raised
        assert raised.body["message"] and raised.request_id, raised
        return
    raise AssertionError(f"{error.__name__} was not raised")


def check_errors(client, base_url, model, api_key):
    hello = [{"role": "user", "content": "hi"}]
    bad = openai.BadRequestError
    expect(bad, lambda: client.chat.completions.create(model=model, messages=hello, temperature=9), "temperature")
    expect(bad, lambda: client.chat.completions.create(model=model, messages=[]), "messages")
    expect(bad, lambda: client.chat.completions.create(model=model, messages=[{"role": "wizard", "content": "x"}]), "messages[0].role")
    expect(bad, lambda: client.chat.completions.create(model=model, messages=hello, max_tokens=10**9), "max_tokens", "context_length_exceeded")
    expect(bad, lambda: client.completions.create(model=model, prompt="word " * 300000), "prompt", "context_length_exceeded")
    expect(bad, lambda: client.chat.completions.create(model=model, messages=hello, stream=True, stop=["s"] * 10000), "stop")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    expect(bad, lambda: client.chat.completions.create(model=model, messages=hello, tools=tools), "tools", "unsupported_parameter")
    expect(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"), "model", "model_not_found")
    if api_key != "none":
        other = openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0)
        expect(openai.AuthenticationError, other.models.list, code="invalid_api_key")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base_url")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()
    client = openai.OpenAI(base_url=args.base_url, api_key=args.api_key, max_retries=0, timeout=120)
    model = check_models(client)
    text = check_chat(client, model)
    check_stop(client, model, text)
    check_logprobs(client, model)
    check_choices(client, model)
    check_errors(client, args.base_url, model, args.api_key)
    print(f"openai {openai.__version__} against {args.base_url}: models, chat, stream, stop, logprobs, n, errors: all hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
