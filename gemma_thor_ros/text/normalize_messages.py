# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Chat messages as clients send them, brought into the form that the prompt template renders well.

Checks roles, content and tool calls; decodes argument strings; puts every tool result behind the
call it answers; answers calls that nobody answered. Input is never changed in place. Every error
is a RequestError that names the message.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gemma_thor_ros.schema import ErrorCode, RequestError

_ROLES = {'system': 'system', 'developer': 'system', 'user': 'user', 'assistant': 'assistant',
          'model': 'assistant', 'tool': 'tool'}
_PARTS = {'text': 'text', 'input_text': 'text', 'output_text': 'text', 'image': 'image',
          'image_url': 'image_url', 'input_image': 'image', 'audio': 'audio',
          'input_audio': 'input_audio', 'audio_url': 'audio', 'video': 'video',
          'video_url': 'video'}
# What a call is answered with when its result never came and the conversation went on.
CANCELLED_RESULT = 'cancelled'

Message = dict[str, Any]


def normalize_messages(messages: Sequence[Mapping[str, Any]], *,
                       open_part: str = '') -> list[Message]:
    """Check and rewrite a conversation.

    developer and model become system and assistant; thoughts lose blanks at their ends (the last
    one keeps them when `open_part` is 'reasoning'); arguments become mappings; tool results follow
    their call, also late ones; a call without a result before the next message gets
    'cancelled'. A tool message that answers no call is refused.
    """
    out: list[Message] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise _bad(f'messages[{index}]', f'must be an object, found {type(message).__name__}')
        last = index == len(messages) - 1
        out.append(_message(index, message, open_part if last else ''))
    if open_part and out[-1]['role'] != 'assistant':
        raise RequestError(ErrorCode.INVALID_REQUEST,
                           'continue_final_message needs an assistant message at the end, '
                           f"found role '{out[-1]['role']}'", 'continue_final_message')
    if any(message['role'] == 'tool' or message.get('tool_calls') for message in out):
        return _attach_results(out)
    return out


def decode_arguments(arguments: Any, where: str) -> Mapping[str, Any]:
    """The arguments of a call as a mapping; clients of the OpenAI API send them as a JSON string.

    None, '' and 'null' mean no arguments. Raises RequestError naming `where`.
    """
    if arguments is None:
        return {}
    if isinstance(arguments, Mapping):
        return arguments
    if not isinstance(arguments, str):
        raise _bad(f'{where}.function.arguments',
              f'must be a JSON object, found {type(arguments).__name__}')
    if not arguments.strip():
        return {}
    try:
        decoded = json.loads(arguments, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = 'nested too deeply' if isinstance(error, RecursionError) else str(error)
        raise RequestError(ErrorCode.INVALID_REQUEST,
                           f'{where}.function.arguments is not JSON: {reason}',
                           f'{where}.function.arguments') from error
    if decoded is None:
        return {}
    if not isinstance(decoded, dict):
        raise _bad(f'{where}.function.arguments',
              f'must be a JSON object, found JSON of type {type(decoded).__name__}')
    return decoded


def _message(index: int, message: Mapping[str, Any], open_part: str) -> Message:
    where = f'messages[{index}]'
    role = message.get('role')
    if not isinstance(role, str) or role not in _ROLES:
        raise _bad(f'{where}.role',
                   f'is {role!r}, expected system, developer, user, assistant or tool')
    role = _ROLES[role]
    out: Message = {'role': role, 'content': _content(where, role, message.get('content'))}
    if role == 'tool':
        for key in ('tool_call_id', 'name'):
            if message.get(key) is not None:
                out[key] = _string(f'{where}.{key}', message[key])
        return out
    for key in ('tool_calls', 'tool_responses', 'function_call'):
        if message.get(key) and (role != 'assistant' or key == 'function_call'):
            raise _bad(f'{where}.{key}',
                       'is only understood as tool_calls of an assistant message')
    if role != 'assistant':
        return out
    thought = message.get('reasoning') or message.get('reasoning_content')
    if thought:
        thought = _string(f'{where}.reasoning_content', thought)
        out['reasoning_content'] = thought if open_part == 'reasoning' else thought.strip()
    if message.get('tool_calls'):
        calls = message['tool_calls']
        if not isinstance(calls, list | tuple):
            raise _bad(f'{where}.tool_calls', 'must be a list')
        out['tool_calls'] = [_call(f'{where}.tool_calls[{number}]', call)
                             for number, call in enumerate(calls)]
    if message.get('tool_responses'):
        responses = message['tool_responses']
        if not isinstance(responses, list | tuple) or not all(
                isinstance(item, Mapping) and isinstance(item.get('name'), str)
                for item in responses):
            raise _bad(f'{where}.tool_responses',
                       'must be a list of objects with name and response')
        out['tool_responses'] = responses
    return out


def _content(where: str, role: str, content: Any) -> Any:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        if role == 'tool' and not all(isinstance(part, Mapping) and part.get('type') in _PARTS
                                      for part in content):
            return content               # a JSON list as result, not a list of content parts
        return [_part(f'{where}.content[{number}]', role, part)
                for number, part in enumerate(content)]
    if role == 'tool' or (content is None and role == 'assistant'):
        return content
    raise _bad(f'{where}.content', f'must be a string or a list of parts, found '
          f'{"nothing" if content is None else type(content).__name__}')


def _part(where: str, role: str, part: Any) -> Mapping[str, Any]:
    if isinstance(part, str):
        return {'type': 'text', 'text': part}
    kind = part.get('type') if isinstance(part, Mapping) else None
    if kind == 'refusal' and isinstance(part.get('refusal'), str):
        return {'type': 'text', 'text': part['refusal']}
    if not isinstance(kind, str) or kind not in _PARTS:
        raise _bad(where, f'has the unknown type {kind!r}')
    kind = _PARTS[kind]
    if kind == 'text':
        return {'type': 'text', 'text': _string(f'{where}.text', part.get('text'))}
    if role == 'system':
        raise _bad(where, f'is of type {kind}; a system message holds text only')
    return {**part, 'type': kind}


def _call(where: str, call: Any) -> Message:
    if not isinstance(call, Mapping):
        raise _bad(where, f'must be an object, found {type(call).__name__}')
    function = call.get('function', call)
    if not isinstance(function, Mapping) or not isinstance(function.get('name'), str) \
            or not function['name']:
        raise _bad(where, 'has no function name')
    out: Message = {'function': {'name': function['name'],
                                 'arguments': decode_arguments(function.get('arguments'), where)}}
    if call.get('id') is not None:
        out['id'] = _string(f'{where}.id', call['id'])
    return out


def _attach_results(messages: list[Message]) -> list[Message]:
    """Put each tool message behind its call; answer the calls that were left without one."""
    open_calls = _OpenCalls()
    calls: dict[int, list[Message]] = {}         # calls by the index of their message
    replies: dict[int, list[Message]] = {}       # results by the index of the calling message
    for index, message in enumerate(messages):
        if message.get('tool_calls') and not message.get('tool_responses'):
            calls[index] = open_calls.add(index, message['tool_calls'])
            replies[index] = []
        elif message['role'] == 'tool':
            caller, call_id = open_calls.answer(index, message)
            replies[caller].append({**message, 'tool_call_id': call_id})
    last_speaker = max((index for index, message in enumerate(messages)
                        if message['role'] != 'tool'), default=-1)
    out: list[Message] = []
    for index, message in enumerate(messages):
        if index in calls:
            out.append({**message, 'tool_calls': calls[index]})
            out += replies[index]
            if index != last_speaker:
                out += [{'role': 'tool', 'tool_call_id': call_id, 'content': CANCELLED_RESULT}
                        for call_id in open_calls.left(index)]
        elif message['role'] != 'tool':
            out.append(message)
    return out


class _OpenCalls:
    """Calls without a result. Each gets an id of its own, since some clients use one twice."""

    def __init__(self) -> None:
        self._count = 0
        self._latest = -1                                        # the last calling message
        self._names: dict[int, dict[str, str]] = {}              # caller -> own id -> name
        self._by_client: dict[str, dict[int, deque[str]]] = {}   # client's id -> caller -> own ids

    def add(self, caller: int, calls: list[Message]) -> list[Message]:
        """Enter the calls of a message; returns them with ids of their own."""
        self._latest = caller
        names = self._names[caller] = {}
        out = []
        for call in calls:
            own = f'#{self._count}'
            self._count += 1
            names[own] = call['function']['name']
            if 'id' in call:
                self._by_client.setdefault(call['id'], {}).setdefault(caller, deque()).append(own)
            out.append({**call, 'id': own})
        return out

    def answer(self, index: int, reply: Message) -> tuple[int, str]:
        """Take the call that a result answers: by id, the newest message first; else, in the last
        calling message, by name; else, for a result without both, the oldest there.
        """
        reply_id, name = reply.get('tool_call_id'), reply.get('name')
        callers = self._by_client.get(reply_id, {}) if reply_id is not None else {}
        while callers:
            caller = next(reversed(callers))
            while callers[caller]:
                own = callers[caller].popleft()
                if own in self._names[caller]:
                    return self._take(caller, own)
            del callers[caller]
        for own, called in self._names.get(self._latest, {}).items():
            if name == called or (name is None and reply_id is None):
                return self._take(self._latest, own)
        label = f'tool_call_id {reply_id!r}' if reply_id is not None else f'name {name!r}'
        waiting = [own for names in self._names.values() for own in names]
        raise _bad(f'messages[{index}]', f'is a tool result ({label}) that answers no open call; '
                   f'{len(waiting)} calls are open')

    def left(self, caller: int) -> list[str]:
        """The ids of a message's calls that nobody answered."""
        return list(self._names[caller])

    def _take(self, caller: int, own: str) -> tuple[int, str]:
        del self._names[caller][own]
        return caller, own


def _string(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _bad(where, f'must be a string, found {type(value).__name__}')
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is not JSON')


def _bad(where: str, sentence: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f'{where} {sentence}', where)
