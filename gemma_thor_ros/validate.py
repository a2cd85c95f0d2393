# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of a chat request before any work: messages, tools, sampling settings, priority.

Every fault is a RequestError whose sentence names the field, the value and the limits. Used by
chat.py alone, so that ROS, HTTP and the command line refuse the same things in the same words.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import jsonschema

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.schema import (
    ChatRequest,
    ErrorCode,
    Priority,
    RequestError,
    SamplingParams,
)

ROLES = ('system', 'developer', 'user', 'assistant', 'tool')
TOOL_CHOICES = ('auto', 'none', 'required')
IMAGE_PARTS = ('image_url', 'image', 'input_image')
MAX_SCHEMA_DEPTH = 32
MAX_NAME = 64
_NOTES = ('title', 'description', '$comment')
_SCHEMAS_BY_NAME = ('properties', 'patternProperties', 'dependentSchemas', '$defs', 'definitions')
_NAME_CHARACTERS = frozenset('abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.')

# field -> (type, lowest, highest, lowest is excluded)
_RANGES: dict[str, tuple[type, float, float, bool]] = {
    'temperature': (float, 0.0, 10.0, False),
    'top_p': (float, 0.0, 1.0, True),
    'min_p': (float, 0.0, 1.0, False),
    'top_k': (int, 0, 1 << 20, False),
    'repetition_penalty': (float, 0.0, 10.0, True),
    'presence_penalty': (float, -2.0, 2.0, False),
    'frequency_penalty': (float, -2.0, 2.0, False),
    'max_tokens': (int, 1, 1 << 31, False),
    'min_tokens': (int, 0, 1 << 31, False),
    'seed': (int, -(1 << 63), (1 << 64) - 1, False),
    'logprobs': (int, -1, 20, False),
}
_DEFAULTED = ('temperature', 'top_k', 'top_p', 'min_p', 'repetition_penalty', 'max_tokens')


def invalid(message: str, param: str) -> RequestError:
    """Return the error of a wrong field."""
    return RequestError(ErrorCode.INVALID_REQUEST, message, param)


def check_messages(
    messages: Sequence[Any], config: EngineConfig, no_images: str | None = ''
) -> None:
    """Check the shape of OpenAI-form messages; what a role may hold is the renderer's to say.

    `no_images`: why images are refused, where there is more to say than that the model takes none;
    None: they are taken.
    """
    limit = config['request.max_messages']
    if not messages:
        raise invalid('messages is empty: at least 1 message is needed', 'messages')
    if len(messages) > limit:
        raise invalid(
            f'messages has {len(messages):,} entries, at most {limit:,} are allowed', 'messages'
        )
    for index, message in enumerate(messages):
        where = f'messages[{index}]'
        if not isinstance(message, Mapping):
            raise invalid(f'{where} must be an object, not {type(message).__name__}', where)
        role = message.get('role')
        if role not in ROLES:
            raise invalid(
                f'{where}.role is {role!r}, allowed are {", ".join(ROLES)}', f'{where}.role'
            )
        _check_content(message.get('content'), where, no_images)
        for key in ('reasoning', 'reasoning_content', 'name', 'tool_call_id'):
            if not isinstance(message.get(key), (str, type(None))):
                raise invalid(f'{where}.{key} must be text', f'{where}.{key}')


def check_tools(tools: Sequence[Any], config: EngineConfig) -> None:
    """Check tools in the OpenAI form: unique names, parameters that are a JSON schema of an
    object.
    """
    limit = config['request.max_tools']
    if len(tools) > limit:
        raise invalid(f'tools has {len(tools):,} entries, at most {limit:,} are allowed', 'tools')
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f'tools[{index}]'
        function = tool.get('function') if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get('type', 'function') != 'function':
            raise invalid(f'{where} must be {{"type": "function", "function": {{...}}}}', where)
        name = function.get('name')
        check_name(name, f'{where}.function.name')
        if name in names:
            raise invalid(
                f'{where}.function.name {name!r} is used twice', f'{where}.function.name'
            )
        names.add(str(name))
        if not isinstance(function.get('description', ''), (str, type(None))):
            raise invalid(
                f'{where}.function.description must be text', f'{where}.function.description'
            )
        _check_parameters(function.get('parameters'), f'{where}.function.parameters')


def check_choice(request: ChatRequest) -> None:
    """Check which tools an answer may or must call, and the schema of its text."""
    choice, ignore_eos = request.tool_choice, request.sampling.get('ignore_eos')
    if choice not in TOOL_CHOICES:
        raise invalid(
            f'tool_choice is {choice!r}, allowed are {", ".join(TOOL_CHOICES)}', 'tool_choice'
        )
    known = [tool['function']['name'] for tool in request.tools]
    for name in request.tool_names:
        if name not in known:
            raise invalid(
                f'tool_choice names the tool {name!r}, the request has '
                f'{", ".join(known) or "no tools"}',
                'tool_choice',
            )
    if choice == 'required' and not known:
        raise invalid('tool_choice is required, but the request has no tools', 'tool_choice')
    if request.response_schema is not None:
        if not isinstance(request.response_schema, bool):
            _check_schema(request.response_schema, request.response_schema_at)
        if request.continue_final_message:
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                f'{request.response_schema_at} holds for a whole answer: it does not go with '
                'continue_final_message',
                request.response_schema_at,
            )
    if ignore_eos and (choice == 'required' or request.response_schema is not None):
        raise invalid('ignore_eos does not go with a guided answer: it has an end', 'ignore_eos')


def check_name(name: Any, where: str) -> None:
    """Check a tool's name: 1 to 64 letters, digits, '_', '-' and '.'."""
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= MAX_NAME
        or not set(name) <= _NAME_CHARACTERS
    ):
        raise invalid(
            f'{where} is {name!r}: 1 to {MAX_NAME} letters, digits, "_", "-" or "." are allowed',
            where,
        )


def resolve_sampling(given: Mapping[str, Any], config: EngineConfig) -> SamplingParams:
    """Fill in the node's defaults, check every range, and draw a seed where none is set."""
    known = {field.name for field in fields(SamplingParams)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise invalid(f'unknown sampling settings: {", ".join(unknown)}', unknown[0])
    values: dict[str, Any] = {name: config[f'sampling.{name}'] for name in _DEFAULTED}
    values['seed'] = None if config['sampling.seed'] < 0 else config['sampling.seed']
    values.update({name: value for name, value in given.items() if value is not None})
    for name, (kind, low, high, open_below) in _RANGES.items():
        if values.get(name) is not None:
            values[name] = _number(name, values[name], kind, low, high, open_below)
    if values['seed'] is None:
        values['seed'] = secrets.randbits(63)
    values['seed'] &= (1 << 64) - 1
    values['stop_ids'] = tuple(_ids('stop_token_ids', values.get('stop_ids', ())))
    values['logit_bias'] = _logit_bias(values.get('logit_bias', ()))
    if not isinstance(values.get('ignore_eos', False), bool):
        raise invalid('ignore_eos must be true or false', 'ignore_eos')
    params = SamplingParams(**values)
    if params.min_tokens > params.max_tokens:
        raise invalid(
            f'min_tokens is {params.min_tokens:,}, more than max_tokens {params.max_tokens:,}',
            'min_tokens',
        )
    return params


def check_stop(stop: Sequence[Any], config: EngineConfig) -> None:
    """Check stop strings: not empty, not too many."""
    limit = config['request.max_stop']
    if len(stop) > limit:
        raise invalid(f'stop has {len(stop)} texts, at most {limit} are allowed', 'stop')
    for index, text in enumerate(stop):
        if not isinstance(text, str) or not text:
            raise invalid(f'stop[{index}] must be a text that is not empty', f'stop[{index}]')


def resolve_priority(asked: Priority | None, front_end: str, config: EngineConfig) -> Priority:
    """Return the class to run in; asking for more than the front end's limit is FORBIDDEN."""
    highest = config['http.max_priority'] if front_end == 'http' else config['ros.max_priority']
    limit = Priority[highest.upper()]
    if asked is None:
        default = (
            Priority.AGENT
            if front_end == 'http'
            else Priority[config['ros.default_priority'].upper()]
        )
        return min(default, limit)
    if asked > limit:
        raise RequestError(
            ErrorCode.FORBIDDEN,
            f'priority {asked.name.lower()} is above the limit {highest} of {front_end} requests',
            'priority',
        )
    return asked


# Kinds of parts that hold text, and where: also those of /v1/responses, which agents keep in one
# history with a chat's, and what another model refused.
_TEXT_PARTS = {
    'text': 'text',
    'input_text': 'text',
    'output_text': 'text',
    'refusal': 'refusal',
}


def _check_content(content: Any, where: str, no_images: str | None) -> None:
    if content is None or isinstance(content, (str, Mapping)):
        return
    if not isinstance(content, Sequence):
        raise invalid(f'{where}.content must be text or a list of parts', f'{where}.content')
    for number, part in enumerate(content):
        name = f'{where}.content[{number}]'
        if isinstance(part, str):
            continue
        kind = part.get('type') if isinstance(part, Mapping) else None
        if kind in _TEXT_PARTS:
            field = _TEXT_PARTS[kind]
            if not isinstance(part.get(field), str):
                raise invalid(f'{name}.{field} must be text', f'{name}.{field}')
        elif kind in IMAGE_PARTS:
            if no_images is not None:
                reason = no_images or 'it reads text alone'
                raise RequestError(
                    ErrorCode.UNSUPPORTED, f'{name}: this model takes no {kind} ({reason})', name
                )
        elif kind in ('input_audio', 'audio', 'video'):
            raise RequestError(ErrorCode.UNSUPPORTED, f'{name}: this model takes no {kind}', name)
        else:
            allowed = 'text' if no_images is not None else 'text and image_url'
            raise invalid(f'{name}.type is {kind!r}, allowed is {allowed}', f'{name}.type')


def _check_parameters(parameters: Any, where: str) -> None:
    if parameters is None:
        return
    _check_schema(parameters, where)
    if parameters.get('type', 'object') != 'object':
        raise invalid(
            f'{where}.type is {parameters["type"]!r}, it must be object', f'{where}.type'
        )


def _check_schema(schema: Any, where: str) -> None:
    if not isinstance(schema, Mapping):
        raise invalid(f'{where} must be a JSON schema object, not {type(schema).__name__}', where)
    if _depth(schema) > MAX_SCHEMA_DEPTH:
        raise invalid(f'{where} is nested deeper than {MAX_SCHEMA_DEPTH} levels', where)
    try:
        jsonschema.Draft202012Validator.check_schema(_without_empty_notes(schema))
    except jsonschema.SchemaError as error:
        pointer = '/'.join(str(item) for item in error.absolute_path)
        raise invalid(
            f'{where} is no JSON schema: at /{pointer}: {error.message[:200]}', where
        ) from error


def _without_empty_notes(value: Any, named: bool = False) -> Any:
    """Return a schema without the notes that are null: frameworks write these for notes that are
    absent. `named`: the keys are names of schemas.
    """
    if isinstance(value, Mapping):
        return {
            key: _without_empty_notes(item, not named and key in _SCHEMAS_BY_NAME)
            for key, item in value.items()
            if named or item is not None or key not in _NOTES
        }
    if isinstance(value, (list, tuple)):
        return [_without_empty_notes(item) for item in value]
    return value


def _depth(value: Any) -> int:
    """Return the nesting depth without recursing, stopping once it is beyond the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_SCHEMA_DEPTH:
        depth += 1
        nested: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                nested.extend(item.values())
            elif isinstance(item, (list, tuple)):
                nested.extend(item)
        level = [item for item in nested if isinstance(item, (Mapping, list, tuple))]
    return depth


def _number(name: str, value: Any, kind: type, low: float, high: float, open_below: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise invalid(f'{name} must be a number, not {value!r}', name)
    limits = f'{"above " if open_below else ""}{low:,} to {high:,}'
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(f'{name} is {value}, allowed are {limits}', name)
    if kind is int:
        if value != int(value):
            raise invalid(f'{name} must be a whole number, not {value!r}', name)
        value = int(value)
    if not low <= value <= high or (open_below and value == low):
        raise invalid(f'{name} is {value:,}, allowed are {limits}', name)
    return kind(value)


def _ids(name: str, values: Any) -> list[int]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise invalid(f'{name} must be a list of token ids', name)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise invalid(f'{name} holds {value!r}, token ids are whole numbers from 0', name)
    return list(values)


def _logit_bias(pairs: Any) -> tuple[tuple[int, float], ...]:
    pairs = pairs.items() if isinstance(pairs, Mapping) else pairs
    result = []
    for key, value in pairs:
        try:
            token_id = int(key)
        except (TypeError, ValueError):
            raise invalid(
                f'logit_bias has the key {key!r}, token ids are whole numbers', 'logit_bias'
            ) from None
        result.append(
            (token_id, _number(f'logit_bias[{token_id}]', value, float, -100.0, 100.0, False))
        )
    return tuple(sorted(result))
