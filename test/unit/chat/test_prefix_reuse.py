# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Case H11 through the chat: what a prompt shares with earlier ones is not computed again.

The scripted model reads its history back through the page tables, so a wrong page would be an
error and not a silent answer; bit-exactness on real arithmetic is test/model's part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ChatRequest, ChatResult

SYSTEM = {'role': 'system', 'content': 'You help a robot to find its way. ' * 100}
TOOLS = ({'type': 'function', 'function': {
    'name': 'drive', 'description': 'Drive to a place.',
    'parameters': {'type': 'object', 'properties': {'place': {'type': 'string'}}}}},)
PAGE = 16


def start(**settings: Any) -> Runtime:
    runtime = Runtime(EngineConfig.from_mapping({
        'model.path': 'scripted', 'model.script': ['All right.<turn|>'], **settings}))
    runtime.start()
    assert runtime.wait_ready(20.0)
    return runtime


@pytest.fixture
def chat() -> Iterator[Chat]:
    runtime = start()
    yield runtime.require_chat()
    runtime.stop()


def ask(chat: Chat, text: str, **fields: Any) -> ChatResult:
    messages = (SYSTEM, {'role': 'user', 'content': text})
    return chat.submit(ChatRequest(messages, TOOLS, **fields)).result(20.0)


def test_three_users_interleaved_twice(chat: Chat) -> None:
    """The second and third share system and tools; the second round shares all but the end."""
    texts = ['Drive to the dock.', 'Where are you?', 'What can you see from there?']
    first = [ask(chat, text) for text in texts]
    second = [ask(chat, text) for text in texts]
    assert {result.text for result in first + second} == {'All right.'}
    block = chat.render_prompt(ChatRequest((SYSTEM,), TOOLS), add_generation_prompt=False)
    assert len(block.token_ids) > 1024, 'longer than the sliding window'
    system = len(block.token_ids) // PAGE * PAGE
    assert first[0].usage.cached_tokens == 0
    assert all(system <= result.usage.cached_tokens <= system + PAGE for result in first[1:])
    for cold, warm in zip(first, second, strict=True):
        assert cold.usage.prompt_tokens == warm.usage.prompt_tokens
        assert warm.usage.cached_tokens == (warm.usage.prompt_tokens - 1) // PAGE * PAGE
    stats = chat.stats()
    assert stats.cached_prompt_tokens == sum(r.usage.cached_tokens for r in first + second)
    assert stats.prompt_tokens == sum(r.usage.prompt_tokens for r in first + second)


def test_the_turns_of_a_session_grow_on_what_is_there(chat: Chat) -> None:
    """Each turn runs its own words, the last answer and the template's tail; no more."""
    before = -1
    for turn in range(4):
        usage = ask(chat, f'Say something about number {turn}.', session_id='s').usage
        assert usage.cached_tokens > before
        if turn:
            assert usage.prompt_tokens - usage.cached_tokens < 64
        before = usage.cached_tokens


def test_switched_off() -> None:
    runtime = start(**{'engine.max_checkpoints': 0})
    chat = runtime.require_chat()
    assert [ask(chat, 'hello').usage.cached_tokens for _ in range(2)] == [0, 0]
    assert chat.stats().checkpoints == 0
    runtime.stop()


def test_one_window_in_a_budget_for_one_sequence() -> None:
    """The cache lives on what the sequence leaves free, and never takes its memory."""
    runtime = start(**{'engine.max_checkpoints': 1, 'engine.max_sequences': 1})
    chat = runtime.require_chat()
    cached = [ask(chat, text).usage.cached_tokens for text in ('a', 'a', 'b', 'b')]
    assert cached[0] == 0 < cached[1] == cached[3]
    assert chat.stats().checkpoints == 1
    runtime.stop()
