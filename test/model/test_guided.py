# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Guided answers of the demo model: the reported cases, and calls that are always valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ChatRequest, ChatResult, FinishReason

VECTORS = Path(__file__).resolve().parents[1] / 'data' / 'vectors' / 'http.jsonl'
CASES = {case['id']: case for case in map(json.loads, VECTORS.read_text().splitlines())}
DRIVE = {'type': 'object', 'required': ['distance', 'direction'], 'properties': {
    'distance': {'type': 'number', 'description': 'metres', 'minimum': 0, 'maximum': 20},
    'direction': {'type': 'string', 'enum': ['forward', 'backward']}}}
SAY = {'type': 'object', 'required': ['text'], 'properties': {'text': {'type': 'string'}}}
SCHEMAS: dict[str, Any] = {'get_battery': {'type': 'object', 'properties': {}}, 'say': SAY,
                           'drive': DRIVE}
HOT = {'temperature': 1.8, 'top_k': 0, 'top_p': 1.0, 'max_tokens': 60}


@pytest.fixture(scope='module')
def runtime() -> Iterator[Runtime]:
    runtime = Runtime(EngineConfig.from_mapping({'engine.context_length': 1024}))
    runtime.start()
    assert runtime.wait_ready(120.0), runtime.error
    yield runtime
    runtime.stop()


@pytest.fixture(scope='module')
def chat(runtime: Runtime) -> Chat:
    return runtime.require_chat()


def ask(chat: Chat, text: str, *tools: str, **fields: Any) -> ChatResult:
    fields = {'sampling': {'temperature': 0.0, 'max_tokens': 200}, **fields}
    request = ChatRequest(({'role': 'user', 'content': text},), tuple(
        {'type': 'function', 'function': {'name': name, 'description': name,
                                          'parameters': SCHEMAS[name]}} for name in tools),
        **fields)
    return chat.submit(request).result(120.0)


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_h02_a_required_call_comes_and_ends(chat: Chat, temperature: float) -> None:
    case = CASES['H02']
    sampling = {'temperature': temperature, 'seed': 1, 'max_tokens': case['request']['max_tokens']}
    for text in ('How full is the battery?', 'Hello, how are you?'):
        result = ask(chat, text, *case['request']['tools'], tool_choice='required',
                     sampling=sampling)
        assert len(result.tool_calls) >= case['expected']['tool_calls_min']
        assert len(result.tool_calls) <= case['expected']['tool_calls_max']
        assert result.text == ''
        assert str(result.finish_reason) == case['expected']['finish_reason']


def test_h03_the_named_tool_is_called(chat: Chat) -> None:
    case = CASES['H03']
    name = case['request']['tool_choice']['function']['name']
    for text in ('Say hello.', 'How full is the battery?'):
        result = ask(chat, text, *case['request']['tools'], tool_choice='required',
                     tool_names=(name,))
        assert [call.name for call in result.tool_calls] == case['expected']['tool_calls_names']
        assert set(result.tool_calls[0].arguments) == {'text'}
        assert not result.tool_calls[0].repaired


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_h05_the_text_is_json_and_ends_early(chat: Chat, temperature: float) -> None:
    case = CASES['H05']
    schema = case['request']['response_format']['json_schema']['schema']
    most = case['request']['max_tokens']
    for text in ('How many wheels has a car? As JSON.', 'Tell me a story.', 'Drive two metres.'):
        result = ask(chat, text, response_schema=schema, sampling={
            'temperature': temperature, 'seed': 7, 'max_tokens': most})
        jsonschema.validate(json.loads(result.text), schema)
        assert result.finish_reason is FinishReason.STOP
        assert result.usage.completion_tokens < most // 4


def test_a_hot_model_only_makes_valid_calls(chat: Chat) -> None:
    """At temperature 1.8 it writes what it likes between calls, and nothing else within them."""
    calls = 0
    for seed in range(12):
        result = ask(chat, f'Drive {seed} metres forward and say so.', *SCHEMAS,
                     sampling={**HOT, 'seed': seed})
        for call in result.tool_calls:
            calls += 1
            jsonschema.validate(call.arguments, SCHEMAS[call.name])
            assert not call.repaired
        assert not result.malformed or result.finish_reason is FinishReason.LENGTH
    assert calls > 0


def test_without_the_guide_a_hot_model_makes_wrong_ones() -> None:
    """What the guide is for: the same requests, not held to their tools."""
    config = EngineConfig.from_mapping({'engine.context_length': 1024,
                                        'tools.constrain_calls': False})
    free = Runtime(config)
    free.start()
    assert free.wait_ready(120.0), free.error
    wrong = 0
    try:
        for seed in range(12):
            result = ask(free.require_chat(), f'Drive {seed} metres forward and say so.', *SCHEMAS,
                         sampling={**HOT, 'seed': seed})
            wrong += result.malformed
            for call in result.tool_calls:
                known = SCHEMAS.get(call.name)
                wrong += call.repaired or known is None or not jsonschema.Draft202012Validator(
                    known).is_valid(call.arguments)
    finally:
        free.stop()
    assert wrong > 0


def test_a_greedy_model_that_is_right_is_left_alone(chat: Chat) -> None:
    """Known commands come out as they do without a guide."""
    for text, name, arguments in (
            ('How full is the battery?', 'get_battery', {}),
            ('Drive 2 metres forward.', 'drive', {'direction': 'forward', 'distance': 2})):
        result = ask(chat, text, 'get_battery', 'drive')
        assert [(call.name, call.arguments) for call in result.tool_calls] == [(name, arguments)]


def test_thinking_comes_before_a_guided_answer(chat: Chat) -> None:
    result = ask(chat, 'How full is the battery?', 'get_battery', tool_choice='required',
                 enable_thinking=True)
    assert result.reasoning
    assert [call.name for call in result.tool_calls] == ['get_battery']
    assert result.finish_reason is FinishReason.TOOL_CALLS


def test_a_cancelled_guided_request_leaves_the_others_alone(chat: Chat) -> None:
    schema = {'type': 'array', 'items': {'type': 'string'}, 'minItems': 40}
    messages = ({'role': 'user', 'content': 'many words'},)
    stream = chat.submit(ChatRequest(messages, response_schema=schema))
    assert stream.wait(60.0)
    stream.poll()
    stream.cancel()
    assert stream.result(60.0).finish_reason is FinishReason.CANCELLED
    assert [call.name for call in ask(chat, 'How full is the battery?',
                                      'get_battery').tool_calls] == ['get_battery']
