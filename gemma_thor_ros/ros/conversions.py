# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""ROS messages <-> plain schema objects, in pairs `x_from_ros` / `x_to_ros`.

Pure functions; the only judgements here are about what a ROS field can hold and schema.py can't
(JSON in text fields, sentinels, durations). What a value may be is validate.py's to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from builtin_interfaces.msg import Duration, Time

import gemma_thor_ros.msg as msg
import gemma_thor_ros.srv as srv
from gemma_thor_ros.action import Chat as ChatAction
from gemma_thor_ros.schema import ChatRequest, ErrorCode, Priority, RequestError
from gemma_thor_ros.validate import TOOL_CHOICES

MAX_REQUEST_ID = 64
_NANO = 1_000_000_000
_PRIORITY_DEFAULT = ChatAction.Goal.PRIORITY_DEFAULT
_THINKING = {
    ChatAction.Goal.THINKING_DEFAULT: None,
    ChatAction.Goal.THINKING_OFF: False,
    ChatAction.Goal.THINKING_ON: True,
}
# SamplingParams.msg field -> schema setting, where a negative value means the node's default.
_DEFAULTED = (
    'temperature',
    'top_p',
    'min_p',
    'top_k',
    'max_tokens',
    'seed',
    'repetition_penalty',
    'logprobs',
)
Images = Callable[[msg.ChatMessage, str], list[dict[str, Any]]]
_PLAIN = ('min_tokens', 'presence_penalty', 'frequency_penalty', 'ignore_eos')


def no_images(message: msg.ChatMessage, where: str) -> list[dict[str, Any]]:
    """Return the parts of a message without images; refuse one that has some."""
    if message.images or message.compressed_images or message.image_topics:
        raise RequestError(ErrorCode.UNSUPPORTED, f'{where} has images: text only is taken', where)
    return []


def chat_request_from_ros(goal: Any, images: Images = no_images) -> ChatRequest:
    """Return the request of a Chat goal or a Chat service call (they share these fields).

    Args:
        goal: the message.
        images: gives the content parts of a message's images.

    Raises:
        RequestError: a text field that should hold JSON does not, a constant is unknown, a
            duration is negative, or a feature is asked for that this build does not have.
    """
    if len(goal.request_id) > MAX_REQUEST_ID:
        raise _invalid(
            f'request_id has {len(goal.request_id)} characters, at most {MAX_REQUEST_ID} are '
            'allowed',
            'request_id',
        )
    sampling, stop = sampling_from_ros(goal.sampling)
    choice, names = tool_choice_from_ros(goal.tool_choice)
    tools = tuple(tool_from_ros(tool, f'tools[{i}]') for i, tool in enumerate(goal.tools))
    return ChatRequest(
        messages=tuple(
            message_from_ros(message, f'messages[{i}]', images)
            for i, message in enumerate(goal.messages)
        ),
        # A model that is shown no tools calls none.
        tools=() if choice == 'none' else tools,
        tool_choice=choice,
        tool_names=names,
        parallel_tool_calls=goal.parallel_tool_calls,
        response_schema=schema_from_ros(goal.response_schema_json, 'response_schema_json'),
        response_schema_at='response_schema_json',
        sampling=sampling,
        stop=stop,
        enable_thinking=thinking_from_ros(goal.thinking),
        thinking_budget=None if goal.thinking_budget < 0 else goal.thinking_budget,
        session_id=goal.session_id,
        request_id=goal.request_id,
        priority=priority_from_ros(goal.priority),
        deadline_s=duration_from_ros(goal.deadline, 'deadline'),
        timeout_s=duration_from_ros(goal.timeout, 'timeout'),
        front_end='ros',
        choice=goal.choice,
        continue_final_message=goal.continue_final_message,
        client='~/chat' if isinstance(goal, ChatAction.Goal) else '~/chat_once',
    )


def chat_request_to_ros(request: ChatRequest, goal: Any) -> Any:
    """Fill a Chat goal or service request from `request` and return it."""
    goal.request_id = request.request_id
    goal.session_id = request.session_id
    goal.messages = [message_to_ros(message) for message in request.messages]
    goal.tools = [tool_to_ros(tool) for tool in request.tools]
    goal.tool_choice = tool_choice_to_ros(request.tool_choice, request.tool_names)
    goal.parallel_tool_calls = request.parallel_tool_calls
    if request.response_schema is not None:
        goal.response_schema_json = json_text(request.response_schema)
    goal.sampling = sampling_to_ros(request.sampling, request.stop)
    goal.thinking = thinking_to_ros(request.enable_thinking)
    if request.thinking_budget is not None:
        goal.thinking_budget = request.thinking_budget
    goal.priority = _PRIORITY_DEFAULT if request.priority is None else int(request.priority)
    goal.deadline = duration_to_ros(request.deadline_s)
    goal.timeout = duration_to_ros(request.timeout_s)
    goal.choice = request.choice
    goal.continue_final_message = request.continue_final_message
    return goal


def message_from_ros(
    message: msg.ChatMessage, where: str = 'message', images: Images = no_images
) -> dict[str, Any]:
    """Return a message in the OpenAI form, images before the text; `where` names it in errors."""
    result: dict[str, Any] = {'role': message.role, 'content': message.content}
    parts = images(message, where)
    if parts:
        result['content'] = [*parts, {'type': 'text', 'text': message.content}]
    if message.reasoning:
        result['reasoning_content'] = message.reasoning
    if message.tool_calls:
        result['tool_calls'] = [
            _openai_call(call, f'{where}.tool_calls[{i}]')
            for i, call in enumerate(message.tool_calls)
        ]
    for key in ('tool_call_id', 'name'):
        if getattr(message, key):
            result[key] = getattr(message, key)
    return result


def message_to_ros(message: dict[str, Any]) -> msg.ChatMessage:
    """Return the ROS message of an OpenAI-form message; text parts are joined."""
    content = message.get('content') or ''
    if not isinstance(content, str):
        # Images stay behind: they are large, and whoever sent them has them.
        content = ''.join(p if isinstance(p, str) else p.get('text', '') for p in content)
    return msg.ChatMessage(
        role=message['role'],
        content=ros_text(content),
        reasoning=ros_text(message.get('reasoning_content') or message.get('reasoning') or ''),
        tool_calls=[_ros_call(call) for call in message.get('tool_calls') or ()],
        tool_call_id=message.get('tool_call_id') or '',
        name=message.get('name') or '',
    )


def tool_from_ros(tool: msg.Tool, where: str = 'tool') -> dict[str, Any]:
    """Return a tool in the OpenAI form; `where` names it in errors."""
    function: dict[str, Any] = {'name': tool.name, 'description': tool.description}
    if tool.parameters_json.strip():
        function['parameters'] = json_from_ros(tool.parameters_json, f'{where}.parameters_json')
    return {'type': 'function', 'function': function}


def tool_to_ros(tool: dict[str, Any]) -> msg.Tool:
    """Return the ROS message of an OpenAI-form tool."""
    function = tool['function']
    parameters = function.get('parameters')
    return msg.Tool(
        name=function['name'],
        description=ros_text(function.get('description') or ''),
        parameters_json='' if parameters is None else json_text(parameters),
    )


def sampling_from_ros(params: msg.SamplingParams) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (settings that the client gave, stop strings); the absent are the node's defaults."""
    if params.num_draft_tokens > 0:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f'sampling.num_draft_tokens is {params.num_draft_tokens}: no drafter is loaded, '
            'allowed are -1 and 0',
            'num_draft_tokens',
        )
    if len(params.logit_bias_ids) != len(params.logit_bias):
        raise _invalid(
            f'sampling.logit_bias_ids has {len(params.logit_bias_ids)} entries and '
            f'sampling.logit_bias {len(params.logit_bias)}: they must be equally many',
            'logit_bias',
        )
    given: dict[str, Any] = {}
    for name in _DEFAULTED:
        value = getattr(params, name)
        if not value < 0:  # NaN goes on, to be refused with the limits
            given[name] = value
    for name in _PLAIN:
        given[name] = getattr(params, name)
    if len(params.logit_bias_ids):
        pairs = zip(params.logit_bias_ids, params.logit_bias, strict=True)
        given['logit_bias'] = [(int(token_id), float(bias)) for token_id, bias in pairs]
    if len(params.stop_token_ids):
        given['stop_ids'] = [int(token_id) for token_id in params.stop_token_ids]
    return given, tuple(params.stop)


def sampling_to_ros(given: dict[str, Any], stop: Sequence[str] = ()) -> msg.SamplingParams:
    """Return the ROS message of settings as sampling_from_ros gives them; None is the default."""
    params = msg.SamplingParams(stop=list(stop))
    for name in _DEFAULTED + _PLAIN:
        if given.get(name) is not None:
            setattr(params, name, given[name])
    pairs = given.get('logit_bias') or ()
    params.logit_bias_ids = [token_id for token_id, _ in pairs]
    params.logit_bias = [float(bias) for _, bias in pairs]
    params.stop_token_ids = list(given.get('stop_ids') or ())
    return params


def tool_choice_from_ros(text: str) -> tuple[str, tuple[str, ...]]:
    """Return (tool_choice, tool_names): one of the words, or the name of a tool that is called."""
    if text in ('', *TOOL_CHOICES):
        return text or 'auto', ()
    return 'required', (text,)


def tool_choice_to_ros(choice: str, names: Sequence[str]) -> str:
    """Return the text of a choice; ROS has no word for several tools."""
    if not names:
        return choice
    if len(names) > 1 or choice != 'required':
        raise _invalid('tool_names may hold one name, with tool_choice required', 'tool_choice')
    return names[0]


def schema_from_ros(text: str, where: str) -> Any:
    """Return a JSON schema; None where the field is empty."""
    return json_from_ros(text, where) if text.strip() else None


def thinking_from_ros(value: int) -> bool | None:
    """Return what a THINKING_* constant asks for; None is the node's default."""
    if value not in _THINKING:
        raise _invalid(f'thinking is {value}, allowed are 0, 1 and 2', 'thinking')
    return _THINKING[value]


def thinking_to_ros(value: bool | None) -> int:
    """Return the THINKING_* constant."""
    return int(next(number for number, meaning in _THINKING.items() if meaning is value))


def priority_from_ros(value: int) -> Priority | None:
    """Return the priority class; None for PRIORITY_DEFAULT."""
    if value == _PRIORITY_DEFAULT:
        return None
    if value > max(Priority):
        raise _invalid(
            f'priority is {value}, allowed are 0 to {int(max(Priority))} and {_PRIORITY_DEFAULT}',
            'priority',
        )
    return Priority(value)


def duration_from_ros(value: Duration, where: str = 'duration') -> float:
    """Return seconds; a negative duration is an error."""
    seconds = float((value.sec * _NANO + value.nanosec) / _NANO)
    if seconds < 0.0:
        raise _invalid(f'{where} is {seconds:g} s, it must not be negative', where)
    return seconds


def duration_to_ros(seconds: float) -> Duration:
    """Return a Duration of non-negative seconds."""
    whole, rest = divmod(round(seconds * _NANO), _NANO)
    return Duration(sec=whole, nanosec=rest)


def time_to_ros(seconds: float) -> Time:
    """Return a Time of wall-clock seconds since 1970."""
    whole, rest = divmod(round(seconds * _NANO), _NANO)
    return Time(sec=whole, nanosec=rest)


def time_from_ros(value: Time) -> float:
    """Return wall-clock seconds since 1970."""
    return float((value.sec * _NANO + value.nanosec) / _NANO)


def render_request_from_ros(
    request: srv.RenderPrompt.Request, images: Images = no_images
) -> ChatRequest:
    """Return the request whose prompt a RenderPrompt call asks for."""
    return ChatRequest(
        messages=tuple(
            message_from_ros(m, f'messages[{i}]', images) for i, m in enumerate(request.messages)
        ),
        tools=tuple(tool_from_ros(t, f'tools[{i}]') for i, t in enumerate(request.tools)),
        enable_thinking=thinking_from_ros(request.thinking),
        session_id=request.session_id,
        front_end='ros',
        continue_final_message=request.continue_final_message,
    )


def json_from_ros(text: str, where: str) -> Any:
    """Decode strict JSON (no NaN, no Infinity); `where` names the field in the error."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _invalid(f'{where} is not JSON: {error}', where) from error


def arguments_from_ros(text: str, where: str) -> tuple[str, dict[str, Any]]:
    """Return (JSON text, object) of a call's arguments; empty and null mean none."""
    if text.strip() in ('', 'null'):
        return '{}', {}
    value = json_from_ros(text, where)
    if not isinstance(value, dict):
        raise _invalid(f'{where} must be a JSON object, not {type(value).__name__}', where)
    return text, value


def json_text(value: Any) -> str:
    """Return JSON text with all characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def ros_text(text: str) -> str:
    """Return `text` as a ROS string can carry it: no NUL (which cuts it), no lone surrogate."""
    if '\0' in text:
        text = text.replace('\0', '\ufffd')
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode('utf-8', 'replace').decode()
    return text


def _openai_call(call: msg.ToolCall, where: str) -> dict[str, Any]:
    text, _ = arguments_from_ros(call.arguments_json, f'{where}.arguments_json')
    return {
        'id': call.call_id,
        'type': 'function',
        'function': {'name': call.name, 'arguments': text},
    }


def _ros_call(call: dict[str, Any]) -> msg.ToolCall:
    function = call['function']
    arguments = function.get('arguments') or {}
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    return msg.ToolCall(
        call_id=call.get('id') or '',
        name=ros_text(function['name']),
        arguments_json=ros_text(text),
        repaired=bool(call.get('repaired', False)),
    )


def _no_constant(name: str) -> Any:
    raise ValueError(f'{name} is no JSON value')


def _invalid(message: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, param)
