# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The input of /v1/responses as chat messages and tools: items become messages, a thought and the
calls behind it become one assistant message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemma_thor_ros.server.openai_types import JsonObject
from gemma_thor_ros.server.words import invalid, unsupported

_TEXT_PARTS = ('input_text', 'output_text', 'text', 'summary_text', 'reasoning_text')
_IMAGE_FIELDS = ('type', 'image_url', 'detail')
_ROLES = ('user', 'assistant', 'system', 'developer')
_MEDIA = ('input_file', 'input_audio')


def messages_of(given: str | Sequence[JsonObject]) -> list[JsonObject]:
    """Return the messages that the input stands for.

    Raises:
        RequestError: an item of a kind, or a part, that is not served; it is named.
    """
    if isinstance(given, str):
        return [{'role': 'user', 'content': given}]
    if not given:
        raise invalid('input is empty: text or at least 1 item is needed', 'input')
    messages: list[JsonObject] = []
    for index, item in enumerate(given):
        where = f'input[{index}]'
        kind = item.get('type') or ('message' if 'role' in item else None)
        if kind == 'message':
            _add_message(messages, item, where)
        elif kind == 'function_call':
            _add_call(messages, item, where)
        elif kind == 'function_call_output':
            messages.append(
                {
                    'role': 'tool',
                    'tool_call_id': _text(item.get('call_id'), f'{where}.call_id'),
                    'content': _content(item.get('output'), f'{where}.output'),
                }
            )
        elif kind == 'reasoning':
            _add_thought(messages, item, where)
        else:
            raise unsupported(
                f'{where}.type is {kind!r}, served are message, function_call, '
                'function_call_output and reasoning',
                f'{where}.type',
            )
    return [message for message in messages if message != {'role': 'assistant'}]


def tools_of(given: Sequence[JsonObject] | None) -> list[JsonObject]:
    """Return function tools in the chat API's nested form.

    Raises:
        RequestError: a tool that only OpenAI's own servers have.
    """
    tools = []
    for index, tool in enumerate(given or ()):
        if tool.get('type') != 'function':
            raise unsupported(
                f'tools[{index}].type is {tool.get("type")!r}, only function is served',
                f'tools[{index}].type',
            )
        fields = ('name', 'description', 'parameters', 'strict')
        function = {name: tool[name] for name in fields if tool.get(name) is not None}
        tools.append({'type': 'function', 'function': function})
    return tools


def _add_message(messages: list[JsonObject], item: JsonObject, where: str) -> None:
    role = item.get('role')
    if role not in _ROLES:
        raise invalid(
            f'{where}.role is {role!r}, allowed are {", ".join(_ROLES)}', f'{where}.role'
        )
    if role == 'assistant':
        text = _joined(item.get('content'), f'{where}.content')
        message = _open_turn(messages)
        if message.get('tool_calls') or 'content' in message:
            message = {'role': 'assistant'}
            messages.append(message)
        message['content'] = text
    else:
        content = _content(item.get('content'), f'{where}.content')
        messages.append({'role': role, 'content': content})


def _add_call(messages: list[JsonObject], item: JsonObject, where: str) -> None:
    call_id = _text(item.get('call_id'), f'{where}.call_id')
    name = _text(item.get('name'), f'{where}.name')
    arguments = item.get('arguments')
    if not isinstance(arguments, str):
        raise invalid(f'{where}.arguments must be JSON as text', f'{where}.arguments')
    function = {'name': name, 'arguments': arguments}
    calls = _open_turn(messages).setdefault('tool_calls', [])
    calls.append({'id': call_id, 'type': 'function', 'function': function})


def _add_thought(messages: list[JsonObject], item: JsonObject, where: str) -> None:
    parts = item.get('content') or item.get('summary') or []
    text = _joined(parts, f'{where}.content')
    message = _open_turn(messages)
    if len(message) > 1:  # a thought begins a turn of its own
        message = {'role': 'assistant'}
        messages.append(message)
    if text:
        message['reasoning'] = text


def _open_turn(messages: list[JsonObject]) -> JsonObject:
    """Return the assistant message at the end; make one where there is none."""
    if not messages or messages[-1]['role'] != 'assistant':
        messages.append({'role': 'assistant'})
    return messages[-1]


def _content(content: Any, where: str) -> str | list[JsonObject]:
    """Return the text of content parts, or the parts where an image is among them.

    Whether the model takes images is chat's to say.
    """
    if not isinstance(content, Sequence) or isinstance(content, str):
        return _joined(content, where)
    if not any(map(_is_image, content)):
        return _joined(content, where)
    parts: list[JsonObject] = []
    for index, part in enumerate(content):
        if not _is_image(part):
            parts.append({'type': 'text', 'text': _part_text(part, f'{where}[{index}]')})
        elif part.get('image_url') is None:
            raise unsupported(
                f'{where}[{index}] has no image_url: files are not kept here', f'{where}[{index}]'
            )
        else:
            parts.append({name: part[name] for name in _IMAGE_FIELDS if name in part})
    return parts


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get('type') == 'input_image'


def _joined(content: Any, where: str) -> str:
    """Return the text of content parts."""
    if isinstance(content, str):
        return content
    if content is None:
        return ''
    if not isinstance(content, Sequence):
        raise invalid(f'{where} must be text or a list of parts', where)
    return ''.join([_part_text(part, f'{where}[{index}]') for index, part in enumerate(content)])


def _part_text(part: Any, name: str) -> str:
    kind = part.get('type') if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind in _TEXT_PARTS:
        return _text(part.get('text'), f'{name}.text')
    if isinstance(part, Mapping) and kind == 'refusal':
        return _text(part.get('refusal'), f'{name}.refusal')
    if kind in (*_MEDIA, 'input_image'):
        raise unsupported(f'{name}: this model takes no {kind} here', name)
    raise invalid(f'{name}.type is {kind!r}, allowed is input_text', f'{name}.type')


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f'{where} must be text', where)
    return value
