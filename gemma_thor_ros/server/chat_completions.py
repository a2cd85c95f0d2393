# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions: OpenAI's request to ChatRequests, deltas and results back to
OpenAI's form.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.schema import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    ErrorCode,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)
from gemma_thor_ros.server.guided import calls_of, text_of
from gemma_thor_ros.server.openai_types import (
    ChatCompletion,
    ChatCompletionRequest,
    Choice,
    FunctionOut,
    MessageOut,
    ToolCallOut,
)
from gemma_thor_ros.server.words import (
    DONE,
    TokenNames,
    check_count,
    choice_id,
    chunk_head,
    deadline_of,
    dumps,
    error_event,
    finish_reason,
    finite,
    invalid,
    logprobs_of,
    priority_of,
    quote,
    sampling_of,
    stop_of,
    thinking_of,
    timings_out,
    unsupported,
    usage_event,
    usage_out,
    wants_usage,
)


def to_chat_requests(
    body: ChatCompletionRequest, request_id: str, max_choices: int
) -> list[ChatRequest]:
    """Convert a request: one ChatRequest for each of its n answers.

    Raises:
        RequestError: a field that would change the answer and that we don't serve, or that
            contradicts another one.
    """
    if body.functions or body.function_call:
        raise unsupported('functions are served as tools only', 'functions')
    if set(body.modalities or ()) - {'text'}:
        raise unsupported('modalities other than text are not served', 'modalities')
    for name in ('audio', 'web_search_options'):
        if getattr(body, name) is not None:
            raise unsupported(f'{name} is not served', name)
    n = check_count(body.n, 1, max_choices)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise invalid(
            f'max_tokens is {body.max_tokens} and max_completion_tokens '
            f'{body.max_completion_tokens}: give one of them',
            'max_completion_tokens',
        )
    if 0 in (body.max_completion_tokens, body.max_tokens):
        raise invalid('max_tokens is 0, at least 1 is needed', 'max_tokens')
    sampling = sampling_of(body)
    sampling['max_tokens'] = body.max_completion_tokens or body.max_tokens
    if body.logprobs:
        sampling['logprobs'] = logprobs_of(body.top_logprobs, 'top_logprobs')
    elif body.top_logprobs:
        raise invalid('top_logprobs needs logprobs: true', 'top_logprobs')
    request = ChatRequest(
        messages=tuple(body.messages),
        tools=tuple(body.tools or ()),
        sampling=sampling,
        stop=stop_of(body.stop),
        enable_thinking=thinking_of(
            body.chat_template_kwargs, body.enable_thinking, body.reasoning_effort
        ),
        thinking_budget=body.thinking_budget,
        priority=priority_of(body.priority),
        deadline_s=deadline_of(body.deadline_ms),
        front_end='http',
        continue_final_message=bool(body.continue_final_message),
        **calls_of(body.tool_choice, body.parallel_tool_calls),
        **text_of(body.response_format, 'response_format'),
    )
    return [
        dataclasses.replace(request, choice=choice, request_id=choice_id(request_id, choice))
        for choice in range(n)
    ]


class ChatForm:
    """Writes answers as chat completions: at most one chunk a step and choice, then [DONE]."""

    def __init__(
        self,
        request_id: str,
        model: str,
        body: ChatCompletionRequest,
        chat: Chat,
    ) -> None:
        self._id = request_id
        self._model = model
        self._created = int(time.time())
        self._n = body.n or 1
        self._logprobs = LogprobText(chat) if body.logprobs else None
        self._gathered: list[list[TokenLogprob]] = [[] for _ in range(self._n)]
        self._held: list[list[ToolCallDelta]] = [[] for _ in range(self._n)]
        self._include_usage = wants_usage(body.stream_options)
        self._head = chunk_head('chat.completion.chunk', request_id, self._created, model)
        # With usage asked for, OpenAI sends it as null in all chunks but the last.
        self._tail = ',"usage":null}\n\n' if self._include_usage else '}\n\n'

    def begin(self) -> str:
        first = {'role': 'assistant', 'content': ''}
        return ''.join(self._chunk(choice, first) for choice in range(self._n))

    def delta(self, choice: int, delta: ChatDelta) -> str:
        calls = _merged(self._held[choice], delta.tool_calls)
        if delta.text and self._logprobs is None and not (delta.reasoning or calls):
            # Nearly all deltas; written by hand, since each costs the event loop its time.
            return (
                f'{self._head}[{{"index":{choice},"delta":{{"content":{quote(delta.text)}}},'
                f'"finish_reason":null}}]{self._tail}'
            )
        fields: dict[str, Any] = {}
        if delta.reasoning:
            fields['reasoning_content'] = delta.reasoning
        if delta.text:
            fields['content'] = delta.text
        if calls:
            # OpenAI's chunks speak of one call each, once, and some clients (LlamaIndex) read no
            # more than that: what a step says of the next call goes with the next chunk.
            fields['tool_calls'] = [_call_delta(calls[0])]
            self._held[choice] = calls[1:]
        if self._logprobs is not None and delta.logprobs:
            return self._chunk(choice, fields, logprobs=self._logprobs.of(delta.logprobs))
        return self._chunk(choice, fields) if fields else ''

    def finished(self, choice: int, result: ChatResult) -> str:
        held = ''.join(
            self._chunk(choice, {'tool_calls': [_call_delta(piece)]})
            for piece in self._held[choice]
        )
        # Whether a call was mended shows at its end, when its pieces have gone out long ago.
        mended = [
            {'index': index, 'function': {'arguments': ''}, 'repaired': True}
            for index, call in enumerate(result.tool_calls)
            if call.repaired
        ]
        return held + self._chunk(
            choice, {'tool_calls': mended} if mended else {}, finish_reason(result)
        )

    def end(self, results: Sequence[ChatResult]) -> str:
        return usage_event(self._head, results) * self._include_usage + DONE

    def failed(self, code: ErrorCode, message: str) -> str:
        return error_event(code, message) + DONE

    def collect(self, choice: int, delta: ChatDelta) -> None:
        if self._logprobs is not None:
            self._gathered[choice].extend(delta.logprobs)

    def whole(self, results: Sequence[ChatResult]) -> dict[str, Any]:
        choices = [
            Choice(
                index=index,
                message=MessageOut(
                    content=result.text or None,
                    reasoning_content=result.reasoning or None,
                    tool_calls=[_call_out(call) for call in result.tool_calls] or None,
                ),
                finish_reason=finish_reason(result),
                logprobs=self._logprobs.of(self._gathered[index]) if self._logprobs else None,
            )
            for index, result in enumerate(results)
        ]
        completion = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage_out(results),
            timings=timings_out(results),
        ).model_dump()
        for dumped in completion['choices']:
            for name in ('reasoning_content', 'tool_calls'):
                if dumped['message'][name] is None:
                    del dumped['message'][name]
        return completion

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> str:
        body: dict[str, Any] = {'index': choice, 'delta': delta, 'finish_reason': finish}
        if logprobs is not None:
            body['logprobs'] = logprobs
        return f'{self._head}{dumps([body])}{self._tail}'


class LogprobText:
    """Writes token log probabilities in the chat API's form."""

    def __init__(self, chat: Chat) -> None:
        self._names = TokenNames(chat)

    def of(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        """Return the `logprobs` object of some tokens."""
        content = []
        for entry in entries:
            item = self._entry(entry.token_id, entry.logprob)
            item['top_logprobs'] = [self._entry(*pair) for pair in entry.top]
            content.append(item)
        return {'content': content}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._names.raw(token_id)
        return {
            'token': self._names.of(token_id),
            'logprob': finite(logprob),
            'bytes': list(raw) or None,
        }


def _merged(
    held: Sequence[ToolCallDelta], new: Sequence[ToolCallDelta]
) -> list[ToolCallDelta]:
    """Return what is known of each call, once."""
    merged: list[ToolCallDelta] = []
    for piece in (*held, *new):
        if merged and merged[-1].index == piece.index:
            joined = merged[-1].arguments + piece.arguments
            merged[-1] = dataclasses.replace(merged[-1], arguments=joined)
        else:
            merged.append(piece)
    return merged


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
