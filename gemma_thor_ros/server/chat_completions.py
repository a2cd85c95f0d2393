# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions: OpenAI's request to a ChatRequest, deltas and result back to
OpenAI's form.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from gemma_thor_ros.schema import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    ErrorCode,
    FinishReason,
    Priority,
    RequestError,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from gemma_thor_ros.server.errors import error_body
from gemma_thor_ros.server.openai_types import (
    ChatCompletion,
    ChatCompletionRequest,
    Choice,
    CompletionTokensDetails,
    FunctionOut,
    MessageOut,
    PromptTokensDetails,
    ToolCallOut,
    UsageOut,
)
from gemma_thor_ros.server.stream import AsyncStream

_SAMPLING = (
    'temperature',
    'top_p',
    'top_k',
    'min_p',
    'repetition_penalty',
    'presence_penalty',
    'frequency_penalty',
    'min_tokens',
    'seed',
    'ignore_eos',
    'logit_bias',
)
_EFFORTS = {
    'none': False,
    'minimal': True,
    'low': True,
    'medium': True,
    'high': True,
    'xhigh': True,
}


def to_chat_request(body: ChatCompletionRequest, request_id: str) -> ChatRequest:
    """Convert a request.

    Raises:
        RequestError: a field that would change the answer and that we don't serve, or that
            contradicts another one.
    """
    _refuse_unserved(body)
    sampling: dict[str, Any] = {name: getattr(body, name) for name in _SAMPLING}
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise _invalid(
            f'max_tokens is {body.max_tokens} and max_completion_tokens '
            f'{body.max_completion_tokens}: give one of them',
            'max_completion_tokens',
        )
    sampling['max_tokens'] = body.max_completion_tokens or body.max_tokens
    if 0 in (body.max_completion_tokens, body.max_tokens):
        raise _invalid('max_tokens is 0, at least 1 is needed', 'max_tokens')
    if body.stop_token_ids:
        sampling['stop_ids'] = body.stop_token_ids
    if body.logprobs:
        sampling['logprobs'] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise _invalid('top_logprobs needs logprobs: true', 'top_logprobs')
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    deadline_s = (body.deadline_ms or 0.0) / 1000.0
    if deadline_s < 0:
        raise _invalid(
            f'deadline_ms is {body.deadline_ms:g}, it must not be negative', 'deadline_ms'
        )
    return ChatRequest(
        messages=tuple(body.messages),
        tools=() if body.tool_choice == 'none' else tuple(body.tools or ()),
        sampling=sampling,
        stop=stop,
        enable_thinking=thinking_of(body),
        request_id=request_id,
        priority=None if body.priority is None else Priority[body.priority.upper()],
        deadline_s=deadline_s,
        front_end='http',
    )


def thinking_of(body: ChatCompletionRequest) -> bool | None:
    """Return whether to think; chat_template_kwargs wins over the two other spellings."""
    if (
        body.chat_template_kwargs is not None
        and body.chat_template_kwargs.enable_thinking is not None
    ):
        return body.chat_template_kwargs.enable_thinking
    if body.enable_thinking is not None:
        return body.enable_thinking
    if body.reasoning_effort is None:
        return None
    if body.reasoning_effort not in _EFFORTS:
        raise _invalid(
            f'reasoning_effort is {body.reasoning_effort!r}, allowed are {", ".join(_EFFORTS)}',
            'reasoning_effort',
        )
    return _EFFORTS[body.reasoning_effort]


def whole(
    result: ChatResult, model: str, created: int, logprobs: dict[str, Any] | None
) -> ChatCompletion:
    """Convert a finished answer; errors are raised as RequestError."""
    if result.code not in (ErrorCode.NONE, ErrorCode.CANCELLED):
        raise RequestError(result.code, result.message)
    message = MessageOut(
        content=result.text or None,
        reasoning_content=result.reasoning or None,
        tool_calls=[_call_out(call) for call in result.tool_calls] or None,
    )
    choice = Choice(message=message, finish_reason=_finish(result), logprobs=logprobs)
    return ChatCompletion(
        id=result.request_id,
        created=created,
        model=model,
        choices=[choice],
        usage=usage_out(result.usage),
    )


async def events(
    stream: AsyncStream,
    model: str,
    include_usage: bool,
    keep_alive_s: float,
    pieces: LogprobText | None,
) -> AsyncIterator[str]:
    """Yield the server-sent events of one answer: at most one an engine step, then [DONE]."""
    chunks = _Chunks(stream.stream.request_id, model, include_usage)
    yield chunks.event({'role': 'assistant', 'content': ''})
    while True:
        deltas = await stream.next(keep_alive_s)
        for delta in deltas:
            fields = _delta_fields(delta)
            if fields or (pieces is not None and delta.logprobs):
                yield chunks.event(fields, logprobs=pieces.of(delta) if pieces else None)
        if stream.stream.done:
            break
        if not deltas:
            yield ': keep-alive\n\n'
    result = stream.stream.result(0.0)
    if result.code not in (ErrorCode.NONE, ErrorCode.CANCELLED):
        yield f'data: {error_body(result.code, result.message).model_dump_json()}\n\n'
    else:
        yield chunks.event({}, finish_reason=_finish(result))
        if include_usage:
            yield chunks.usage(result.usage)
    yield 'data: [DONE]\n\n'


def usage_out(usage: Usage) -> UsageOut:
    """Convert token counts."""
    return UsageOut(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=usage.reasoning_tokens,
            accepted_prediction_tokens=usage.accepted_tokens,
            rejected_prediction_tokens=usage.drafted_tokens - usage.accepted_tokens,
        ),
    )


class LogprobText:
    """Writes token log probabilities in OpenAI's form; needs the text and bytes of a token."""

    def __init__(self, token_bytes: Any) -> None:
        self._bytes = token_bytes

    def of(self, delta: ChatDelta) -> dict[str, Any]:
        """Return the `logprobs` object of a delta."""
        content = []
        for entry in delta.logprobs:
            item = self._entry(entry.token_id, entry.logprob)
            item['top_logprobs'] = [self._entry(*pair) for pair in entry.top]
            content.append(item)
        return {'content': content}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._bytes(token_id)
        return {'token': raw.decode('utf-8', 'replace'), 'logprob': logprob, 'bytes': list(raw)}


class _Chunks:
    """Makes chunk events of one answer; id, created and model are the same in all of them."""

    def __init__(self, request_id: str, model: str, include_usage: bool) -> None:
        self._head = {
            'id': request_id,
            'object': 'chat.completion.chunk',
            'created': int(time.time()),
            'model': model,
        }
        self._include_usage = include_usage

    def event(
        self,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> str:
        choice: dict[str, Any] = {'index': 0, 'delta': delta, 'finish_reason': finish_reason}
        if logprobs is not None:
            choice['logprobs'] = logprobs
        body: dict[str, Any] = {**self._head, 'choices': [choice]}
        if self._include_usage:
            body['usage'] = None
        return f'data: {json.dumps(body, ensure_ascii=False, separators=(",", ":"))}\n\n'

    def usage(self, usage: Usage) -> str:
        body = {**self._head, 'choices': [], 'usage': usage_out(usage).model_dump()}
        return f'data: {json.dumps(body, separators=(",", ":"))}\n\n'


def _delta_fields(delta: ChatDelta) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if delta.reasoning:
        fields['reasoning_content'] = delta.reasoning
    if delta.text:
        fields['content'] = delta.text
    if delta.tool_calls:
        fields['tool_calls'] = [_call_delta(piece) for piece in delta.tool_calls]
    return fields


def _call_delta(piece: ToolCallDelta) -> dict[str, Any]:
    if piece.name:
        return {
            'index': piece.index,
            'id': piece.call_id,
            'type': 'function',
            'function': {'name': piece.name, 'arguments': piece.arguments},
        }
    return {'index': piece.index, 'function': {'arguments': piece.arguments}}


def _call_out(call: ToolCall) -> ToolCallOut:
    return ToolCallOut(
        id=call.call_id,
        repaired=call.repaired,
        function=FunctionOut(name=call.name, arguments=call.arguments_json),
    )


def _finish(result: ChatResult) -> str:
    # OpenAI knows no 'cancelled': what a cancelled answer holds ends like a full one.
    return 'stop' if result.finish_reason is FinishReason.CANCELLED else str(result.finish_reason)


def _refuse_unserved(body: ChatCompletionRequest) -> None:
    if body.tool_choice not in (None, 'auto', 'none'):
        raise RequestError(ErrorCode.UNSUPPORTED, 'tool_choice may be auto or none', 'tool_choice')
    if body.parallel_tool_calls is False and body.tools:
        raise RequestError(
            ErrorCode.UNSUPPORTED, 'parallel_tool_calls may not be false', 'parallel_tool_calls'
        )
    if body.response_format is not None and body.response_format.get('type') != 'text':
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            'response_format may be {"type": "text"} only',
            'response_format',
        )
    if body.n not in (None, 1):
        raise RequestError(ErrorCode.UNSUPPORTED, f'n is {body.n}, only 1 is served', 'n')


def _invalid(message: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, param)
