# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions by the real openai client: raw prompts, echo, log probabilities, n."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from .conftest import Server, StartServer, wait_until


def test_text_is_not_parsed(start_server: StartServer) -> None:
    """No template, no thoughts, no calls: control tokens add nothing, the rest is text."""
    client = start_server('<|channel>thought\nhm<channel|>  two  spaces 🤖\n<turn|>').client()
    answer = client.completions.create(model='scripted', prompt='Once', max_tokens=100)
    assert answer.choices[0].text == 'thought\nhm  two  spaces 🤖\n'
    assert answer.choices[0].finish_reason == 'stop'
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_16_tokens_unless_asked_otherwise(start_server: StartServer) -> None:
    client = start_server('a b c d ' * 20 + '<turn|>').client()
    answer = client.completions.create(model='scripted', prompt='Once')
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, 'length')


@pytest.mark.parametrize('echo', [False, True])
def test_streamed_equals_whole(start_server: StartServer, echo: bool) -> None:
    client = start_server('Hi 🤖, 3 < 4 & €.\n<turn|>').client()
    options: Any = {'model': 'scripted', 'prompt': 'Say: ', 'max_tokens': 50, 'echo': echo,
                    'seed': 3}
    whole = client.completions.create(**options)
    text, finish, tokens = '', None, 0
    for chunk in client.completions.create(
            stream=True, stream_options={'include_usage': True}, **options):
        tokens = chunk.usage.total_tokens if chunk.usage else tokens
        for choice in chunk.choices:
            text += choice.text
            finish = choice.finish_reason or finish
    assert text == whole.choices[0].text == ('Say: ' if echo else '') + 'Hi 🤖, 3 < 4 & €.\n'
    assert whole.usage is not None
    assert (finish, tokens) == (whole.choices[0].finish_reason, whole.usage.total_tokens)


def test_prompts_as_text_and_as_token_ids(start_server: StartServer) -> None:
    server = start_server('x<turn|>')
    client, chat = server.client(), server.runtime.require_chat()
    ids = chat.tokenize('Once upon', add_bos=True)
    sizes = []
    for prompt in ('Once upon', ids, ['Once upon'], [ids]):
        answer = client.completions.create(model='scripted', prompt=prompt, echo=True)
        assert answer.usage is not None
        sizes.append((answer.usage.prompt_tokens, answer.choices[0].text))
    assert sizes[0] == sizes[2] == (len(ids), 'Once uponx')
    assert sizes[1] == sizes[3] == (len(ids), '<bos>Once uponx')


def test_several_prompts_and_choices_come_in_order(start_server: StartServer) -> None:
    server = start_server('x<turn|>')
    options: Any = {'model': 'scripted', 'prompt': ['alpha', 'beta'], 'n': 2, 'echo': True}
    whole = server.client().completions.create(**options)
    assert [(c.index, c.text) for c in whole.choices] == [
        (0, 'alphax'), (1, 'alphax'), (2, 'betax'), (3, 'betax')]
    assert whole.usage is not None
    chat = server.runtime.require_chat()
    assert whole.usage.prompt_tokens == sum(
        len(chat.tokenize(text, add_bos=True)) for text in ('alpha', 'beta'))
    texts = ['', '', '', '']
    for chunk in server.client().completions.create(stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_logprobs_in_the_legacy_form(start_server: StartServer) -> None:
    client = start_server('Hi 日本 🤖 you<turn|>').client()
    options: Any = {'model': 'scripted', 'prompt': 'x', 'logprobs': 2, 'temperature': 0.0,
                    'max_tokens': 40}
    choice = client.completions.create(**options).choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None and logprobs.token_logprobs is not None
    assert logprobs.text_offset is not None and logprobs.top_logprobs is not None
    assert len({len(logprobs.tokens), len(logprobs.token_logprobs), len(logprobs.text_offset),
                len(logprobs.top_logprobs)}) == 1
    assert any(token.startswith('bytes:\\x') for token in logprobs.tokens)
    for token, offset, top in zip(logprobs.tokens, logprobs.text_offset, logprobs.top_logprobs,
                                  strict=True):
        if not token.startswith(('bytes:', '<turn')):     # parts of characters, control tokens
            assert choice.text[offset:offset + len(token)] == token
        assert token in top
        assert len(top) in (2, 3)
    streamed: list[str] = []
    offsets: list[int] = []
    for chunk in client.completions.create(stream=True, **options):
        piece = chunk.choices[0].logprobs
        if piece is not None:
            streamed += piece.tokens or []
            offsets += piece.text_offset or []
    assert (streamed, offsets) == (logprobs.tokens, logprobs.text_offset)


def test_stop_strings(start_server: StartServer) -> None:
    client = start_server('one\ntwo\nthree<turn|>').client()
    answer = client.completions.create(model='scripted', prompt='x', stop=['\nthree'],
                                       max_tokens=100)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ('one\ntwo', 'stop')


@pytest.mark.parametrize('options', [
    {'prompt': []}, {'prompt': ''}, {'prompt': [[]]}, {'prompt': [-1]}, {'prompt': [10 ** 9]},
    {'n': 0}, {'best_of': 3}, {'suffix': 'x'}, {'echo': True, 'logprobs': 1}, {'max_tokens': 0},
    {'logprobs': -1}, {'logprobs': 21}, {'model': 'gpt-9'}, {'prompt': ['a'] * 17}, {'n': 10 ** 9},
    {'prompt': ['a', [1]]}])
def test_what_is_not_served_is_named(plain_server: Server, options: Any) -> None:
    if options == {'prompt': ''}:                 # a bos alone is a prompt
        plain_server.client().completions.create(model='scripted', prompt='')
        return
    with pytest.raises(openai.APIStatusError) as error:
        plain_server.client().completions.create(**{'model': 'scripted', 'prompt': 'x', **options})
    assert error.value.status_code == (404 if 'model' in options else 400)
    assert error.value.body['message']                          # type: ignore[index]
    assert wait_until(lambda: plain_server.runtime.require_chat().stats().running == 0)
