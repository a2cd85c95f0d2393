# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Chat messages as clients send them, brought into the form that the prompt template renders well.

Checks roles, content and tool calls; decodes argument strings; puts every tool result behind the
call it answers; answers calls that nobody answered. Input is never changed in place. Every error
is a RequestError that names the message.
"""

from __future__ import annotations

import json
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
    replies: dict[int, list[Message]] = {}       # by the index of the calling message
    open_calls: list[tuple[int, Message]] = []   # calls without a result, in order
    calls: dict[int, list[Message]] = {}         # all calls of a message, with ids
    next_id = 0
    for index, message in enumerate(messages):
        if message.get('tool_calls') and not message.get('tool_responses'):
            named = []
            for call in message['tool_calls']:
                # Own ids, so that two calls with one id (some clients reuse them) stay apart.
                named.append({**call, 'id': f'#{next_id}', 'client_id': call.get('id')})
                next_id += 1
            calls[index] = named
            open_calls += [(index, call) for call in named]
            replies[index] = []
        elif message['role'] == 'tool':
            caller, call = _answered(index, message, open_calls)
            open_calls.remove((caller, call))
            replies[caller].append({**message, 'tool_call_id': call['id']})
    last_speaker = max((index for index, message in enumerate(messages)
                        if message['role'] != 'tool'), default=-1)
    out: list[Message] = []
    for index, message in enumerate(messages):
        if message['role'] == 'tool':
            continue
        if index not in calls:
            out.append(message)
            continue
        out.append({**message, 'tool_calls': calls[index]})
        out += replies[index]
        if index != last_speaker:
            out += [{'role': 'tool', 'tool_call_id': call['id'], 'content': CANCELLED_RESULT}
                    for caller, call in open_calls if caller == index]
    return out


def _answered(index: int, reply: Message,
              open_calls: list[tuple[int, Message]]) -> tuple[int, Message]:
    """The open call that a tool message answers: by id, else by name, else the oldest one."""
    reply_id, name = reply.get('tool_call_id'), reply.get('name')
    if reply_id is not None:
        for caller, call in open_calls:
            if call['client_id'] == reply_id:
                return caller, call
    # A result without a usable id is only taken for a call of the latest calling message.
    latest = open_calls[-1][0] if open_calls else -1
    for caller, call in open_calls:
        if caller == latest and (name == call['function']['name']
                                 or (name is None and reply_id is None)):
            return caller, call
    known = ', '.join(repr(call['client_id'] or call['function']['name'])
                      for _, call in open_calls) or 'none'
    label = f'tool_call_id {reply_id!r}' if reply_id is not None else f'name {name!r}'
    raise _bad(f'messages[{index}]', f'is a tool result ({label}) that answers no open call; '
          f'open calls: {known}')


def _string(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _bad(where, f'must be a string, found {type(value).__name__}')
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is not JSON')


def _bad(where: str, sentence: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f'{where} {sentence}', where)
