# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/responses: a ChatRequest in, output items out, as events in the SDK's order or whole.

A whole answer goes through the same steps as a streamed one, so that both have the same items.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.schema import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    ErrorCode,
    FinishReason,
    TokenLogprob,
    ToolCallDelta,
)
from gemma_thor_ros.server.errors import error_body
from gemma_thor_ros.server.guided import calls_of, text_of
from gemma_thor_ros.server.openai_types import JsonObject
from gemma_thor_ros.server.response_input import tools_of
from gemma_thor_ros.server.response_types import (
    FunctionCallItem,
    Incomplete,
    InputDetails,
    Item,
    MessageItem,
    OutputDetails,
    OutputText,
    ReasoningItem,
    ReasoningOptions,
    ReasoningText,
    ResponseFailure,
    ResponseOut,
    ResponseRequest,
    ResponseUsage,
)
from gemma_thor_ros.server.words import (
    TokenNames,
    deadline_of,
    dumps,
    finite,
    logprobs_of,
    priority_of,
    sampling_of,
    stop_of,
    thinking_of,
    timings_out,
    unsupported,
)

_WITH_LOGPROBS = 'message.output_text.logprobs'
_END_OF_THOUGHT = '<channel|>'


def to_chat_request(
    body: ResponseRequest, messages: Sequence[JsonObject], request_id: str
) -> ChatRequest:
    """Convert a request whose conversation is `messages`, without its instructions.

    Raises:
        RequestError: a field that would change the answer and that we don't serve.
    """
    for name in ('background', 'conversation', 'prompt'):
        if getattr(body, name):
            raise unsupported(f'{name} is not served', name)
    sampling = sampling_of(body)
    sampling['max_tokens'] = body.max_output_tokens
    if body.top_logprobs or _WITH_LOGPROBS in (body.include or ()):
        sampling['logprobs'] = logprobs_of(body.top_logprobs, 'top_logprobs')
    effort = body.reasoning.effort if body.reasoning else None
    first = [{'role': 'system', 'content': body.instructions}] if body.instructions else []
    return ChatRequest(
        messages=(*first, *messages),
        tools=tuple(tools_of(body.tools)),
        sampling=sampling,
        stop=stop_of(body.stop),
        enable_thinking=thinking_of(
            body.chat_template_kwargs, body.enable_thinking, effort, 'reasoning.effort'
        ),
        thinking_budget=body.thinking_budget,
        request_id=request_id,
        priority=priority_of(body.priority),
        deadline_s=deadline_of(body.deadline_ms),
        front_end='http',
        **calls_of(body.tool_choice, body.parallel_tool_calls),
        **text_of(body.text.format if body.text else None, 'text.format'),
    )


def empty_response(
    response_id: str, model: str, body: ResponseRequest, config: EngineConfig
) -> ResponseOut:
    """Return a response that has just begun."""
    return ResponseOut(
        id=response_id,
        created_at=int(time.time()),
        status='in_progress',
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        reasoning=body.reasoning or ReasoningOptions(),
        store=body.store is not False,
        text={'format': (body.text and body.text.format) or {'type': 'text'}},
        temperature=_given(body.temperature, config['sampling.temperature']),
        tool_choice=body.tool_choice or 'auto',
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=_given(body.top_p, config['sampling.top_p']),
        truncation=body.truncation or 'disabled',
        metadata=body.metadata or {},
    )


class ResponseForm:
    """Writes one answer as a response. `on_end(response, result)` hears of the finished one."""

    def __init__(
        self,
        response: ResponseOut,
        with_logprobs: bool,
        chat: Chat,
        on_end: Callable[[ResponseOut, ChatResult], None],
    ) -> None:
        self._response = response
        self._names = TokenNames(chat) if with_logprobs else None
        self._logprobs: list[JsonObject] = []  # of tokens whose text has not come out yet
        self._on_end = on_end
        self._open: Item | None = None  # the last item of the output, while it grows
        self._sequence = 0

    def begin(self) -> str:
        response = self._response.model_dump()
        return self._event('response.created', response=response) + self._event(
            'response.in_progress', response=response
        )

    def delta(self, choice: int, delta: ChatDelta) -> str:
        events = ''
        if self._names is not None:
            for entry in delta.logprobs:
                self._take_logprob(self._names, entry)
        if delta.reasoning:
            self._logprobs.clear()
            events += self._reasoning(delta.reasoning)
        if delta.text:
            events += self._text(delta.text)
        for piece in delta.tool_calls:
            self._logprobs.clear()
            events += self._call(piece)
        return events

    def finished(self, choice: int, result: ChatResult) -> str:
        return self._close(_is_complete(result))

    def end(self, results: Sequence[ChatResult]) -> str:
        response = self._finish(results[0])
        return self._event(f'response.{response.status}', response=response.model_dump())

    def failed(self, code: ErrorCode, message: str) -> str:
        error = error_body(code, message).error
        response = self._response
        response.status = 'failed'
        response.error = ResponseFailure(code=error.type, message=error.message)
        events = self._close(complete=False)
        return events + self._event('response.failed', response=response.model_dump())

    def collect(self, choice: int, delta: ChatDelta) -> None:
        self.delta(choice, delta)

    def whole(self, results: Sequence[ChatResult]) -> dict[str, Any]:
        self.finished(0, results[0])
        return self._finish(results[0]).model_dump()

    def _finish(self, result: ChatResult) -> ResponseOut:
        response, usage = self._response, result.usage
        response.completed_at = int(time.time())
        response.status = 'completed' if _is_complete(result) else 'incomplete'
        if result.finish_reason is FinishReason.LENGTH:
            response.incomplete_details = Incomplete(reason='max_output_tokens')
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(cached_tokens=usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(
                reasoning_tokens=usage.reasoning_tokens,
                accepted_prediction_tokens=usage.accepted_tokens,
                rejected_prediction_tokens=usage.drafted_tokens - usage.accepted_tokens,
            ),
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        )
        response.timings = timings_out([result])
        repaired = {call.call_id: call.repaired for call in result.tool_calls}
        for item in response.output:
            if isinstance(item, FunctionCallItem):
                item.repaired = repaired.get(item.call_id)
        self._on_end(response, result)
        return response

    def _text(self, text: str) -> str:
        events = ''
        if not isinstance(self._open, MessageItem):
            events = self._start(MessageItem(id=self._item_id('msg')), OutputText())
        assert isinstance(self._open, MessageItem)
        part = self._open.content[0]
        part.text += text
        logprobs, self._logprobs = self._logprobs, []
        part.logprobs.extend(logprobs)
        return events + self._part_event('output_text.delta', delta=text, logprobs=logprobs)

    def _reasoning(self, text: str) -> str:
        events = ''
        if not isinstance(self._open, ReasoningItem):
            events = self._start(ReasoningItem(id=self._item_id('rs')), ReasoningText())
        assert isinstance(self._open, ReasoningItem)
        self._open.content[0].text += text
        return events + self._part_event('reasoning_text.delta', delta=text)

    def _call(self, piece: ToolCallDelta) -> str:
        events = ''
        if piece.name:
            item = FunctionCallItem(
                id=self._item_id('fc'), call_id=piece.call_id, name=piece.name
            )
            events = self._start(item)
        if not piece.arguments:
            return events
        assert isinstance(self._open, FunctionCallItem)
        self._open.arguments += piece.arguments
        return events + self._item_event(
            'function_call_arguments.delta', delta=piece.arguments
        )

    def _start(self, item: Item, part: OutputText | ReasoningText | None = None) -> str:
        """Close what is open and begin a new item with an empty part."""
        events = self._close(complete=True)
        self._response.output.append(item)
        self._open = item
        events += self._output_event('output_item.added', item)
        if part is not None:
            item.content.append(part)  # type: ignore[union-attr, arg-type]
            events += self._part_event('content_part.added', part=part.model_dump())
        return events

    def _close(self, complete: bool) -> str:
        """Close the open item."""
        item = self._open
        if item is None:
            return ''
        item.status = 'completed' if complete else 'incomplete'
        events = ''
        if isinstance(item, MessageItem):
            part = item.content[0]
            events = self._part_event('output_text.done', text=part.text, logprobs=part.logprobs)
            events += self._part_event('content_part.done', part=part.model_dump())
        elif isinstance(item, ReasoningItem):
            thought = item.content[0]
            events = self._part_event('reasoning_text.done', text=thought.text)
            events += self._part_event('content_part.done', part=thought.model_dump())
        else:
            events = self._item_event(
                'function_call_arguments.done', name=item.name, arguments=item.arguments
            )
        events += self._output_event('output_item.done', item)
        self._open = None
        return events

    def _event(self, kind: str, **fields: Any) -> str:
        body = {'type': kind, 'sequence_number': self._sequence, **fields}
        self._sequence += 1
        return f'event: {kind}\ndata: {dumps(body)}\n\n'

    def _output_event(self, kind: str, item: Item) -> str:
        index = len(self._response.output) - 1
        return self._event(f'response.{kind}', output_index=index, item=item.model_dump())

    def _item_event(self, kind: str, **fields: Any) -> str:
        assert self._open is not None
        index = len(self._response.output) - 1
        return self._event(
            f'response.{kind}', item_id=self._open.id, output_index=index, **fields
        )

    def _part_event(self, kind: str, **fields: Any) -> str:
        return self._item_event(kind, content_index=0, **fields)

    def _item_id(self, prefix: str) -> str:
        return f'{prefix}_{self._response.id[5:]}_{len(self._response.output)}'

    def _take_logprob(self, names: TokenNames, entry: TokenLogprob) -> None:
        """Keep a token's log probability for its text; those of thoughts have no place."""
        if names.raw(entry.token_id):
            top = [_logprob(names, *pair) for pair in entry.top]
            item = _logprob(names, entry.token_id, entry.logprob)
            self._logprobs.append({**item, 'top_logprobs': top})
        elif names.of(entry.token_id) == _END_OF_THOUGHT:
            self._logprobs.clear()


def _logprob(names: TokenNames, token_id: int, logprob: float) -> JsonObject:
    raw = list(names.raw(token_id))
    return {'token': names.of(token_id), 'logprob': finite(logprob), 'bytes': raw}


def _is_complete(result: ChatResult) -> bool:
    return result.finish_reason in (FinishReason.STOP, FinishReason.TOOL_CALLS)


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
