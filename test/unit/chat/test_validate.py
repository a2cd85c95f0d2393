# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Bad requests are refused with the field, the value and the limits in the sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gemma_thor_ros import validate
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.schema import ErrorCode, Priority, RequestError

CONFIG = EngineConfig()


@pytest.mark.parametrize(('field', 'value', 'words'), [
    ('temperature', math.nan, 'temperature is nan, allowed are 0.0 to 10.0'),
    ('temperature', -0.1, 'temperature is -0.1, allowed are 0.0 to 10.0'),
    ('temperature', 'hot', "temperature must be a number, not 'hot'"),
    ('temperature', True, 'temperature must be a number'),
    ('top_p', 0.0, 'top_p is 0.0, allowed are above 0.0 to 1.0'),
    ('top_k', 1.5, 'top_k must be a whole number'),
    ('max_tokens', 0, 'max_tokens is 0, allowed are 1 to'),
    ('logprobs', 21, 'logprobs is 21, allowed are -1 to 20'),
    ('presence_penalty', math.inf, 'presence_penalty is inf'),
    ('logit_bias', {'x': 1.0}, "logit_bias has the key 'x'"),
    ('logit_bias', {'7': 101.0}, r'logit_bias\[7\] is 101.0'),
    ('stop_ids', [-1], 'stop_token_ids holds -1'),
    ('beam_width', 4, 'unknown sampling settings: beam_width'),
])
def test_sampling_out_of_range(field: str, value: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as error:
        validate.resolve_sampling({field: value}, CONFIG)
    assert error.value.code is ErrorCode.INVALID_REQUEST


def test_defaults_and_seed() -> None:
    config = EngineConfig.from_mapping({'sampling.temperature': 0.5, 'sampling.top_k': 7})
    params = validate.resolve_sampling({'top_k': None, 'max_tokens': 3.0}, config)
    assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 7, 3)
    assert isinstance(params.max_tokens, int)
    seeds = {validate.resolve_sampling({}, config).seed for _ in range(4)}
    assert len(seeds) == 4
    assert validate.resolve_sampling({'seed': -1}, config).seed == 2**64 - 1


@pytest.mark.parametrize(('messages', 'words'), [
    ([], 'messages is empty'),
    (['hi'], r'messages\[0\] must be an object, not str'),
    ([{'role': 'robot', 'content': 'x'}], r"messages\[0\].role is 'robot', allowed are system"),
    ([{'role': 'user', 'content': 5}], r'messages\[0\].content must be text'),
    ([{'role': 'user', 'content': [{'type': 'smell'}]}], "type is 'smell'"),
    ([{'role': 'user', 'content': [{'type': 'text', 'text': 4}]}], 'text must be text'),
    ([{'role': 'user', 'content': 'x', 'name': 4}], r'messages\[0\].name must be text'),
])
def test_messages(messages: list[Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        validate.check_messages(messages, CONFIG)


def test_images_are_refused_by_name() -> None:
    part = {'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,AA=='}}
    with pytest.raises(RequestError, match=r'takes no image_url .it reads text alone.') as error:
        validate.check_messages([{'role': 'user', 'content': [part]}], CONFIG)
    assert error.value.code is ErrorCode.UNSUPPORTED


def tool(name: Any = 'move', parameters: Any = None) -> dict[str, Any]:
    return {'type': 'function', 'function': {'name': name, 'parameters': parameters}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {'type': 'string'}
    for _ in range(levels):
        schema = {'type': 'object', 'properties': {'a': schema}}
    return schema


@pytest.mark.parametrize(('tools', 'words'), [
    ([{'name': 'move'}], r'tools\[0\] must be'),
    ([tool('a b')], "function.name is 'a b'"),
    ([tool('')], "function.name is ''"),
    ([tool(), tool()], "'move' is used twice"),
    ([tool(parameters=[1])], 'must be a JSON schema object, not list'),
    ([tool(parameters={'type': 'string'})], "parameters.type is 'string', it must be object"),
    ([tool(parameters={'type': 'object', 'properties': {'x': {'type': 'nmber'}}})],
     'is no JSON schema: at /properties/x/type'),
    ([tool(parameters=deep(20000))], 'nested deeper than 32'),
])
def test_tools(tools: list[Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        validate.check_tools(tools, CONFIG)


def test_notes_of_a_schema_may_be_null() -> None:
    """Frameworks write null for what is absent; a property of such a name is still a schema."""
    inner = {'type': 'string', 'title': None, 'description': None, '$comment': None}
    schema = {'type': 'object', 'description': None, '$defs': {'d': inner},
              'properties': {'description': inner, 'x': {'anyOf': [inner, {'type': 'null'}]}}}
    found = tool(parameters=schema)
    found['function']['description'] = None
    validate.check_tools([found], CONFIG)
    for wrong, where in (({'properties': {'description': None}}, '/properties/description'),
                         ({'properties': {'x': {'enum': None}}}, '/properties/x/enum'),
                         ({'properties': {'x': {'description': 5}}}, '/properties/x/description')):
        with pytest.raises(RequestError, match=f'is no JSON schema: at {where}'):
            validate.check_tools([tool(parameters={'type': 'object', **wrong})], CONFIG)


def test_priority_is_bounded_by_the_front_end() -> None:
    assert validate.resolve_priority(None, 'http', CONFIG) is Priority.AGENT
    assert validate.resolve_priority(None, 'ros', CONFIG) is Priority.DIALOGUE
    assert validate.resolve_priority(Priority.OPERATOR, 'ros', CONFIG) is Priority.OPERATOR
    with pytest.raises(RequestError, match='operator is above the limit agent') as error:
        validate.resolve_priority(Priority.OPERATOR, 'http', CONFIG)
    assert error.value.code is ErrorCode.FORBIDDEN


def test_stop_strings() -> None:
    with pytest.raises(RequestError, match='stop has 17 texts, at most 16'):
        validate.check_stop(['x'] * 17, CONFIG)
    with pytest.raises(RequestError, match=r'stop\[0\]'):
        validate.check_stop([''], CONFIG)
