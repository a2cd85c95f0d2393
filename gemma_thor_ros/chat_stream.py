# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One answer under way: token events become text, reasoning and tool-call deltas.

Sits between an engine outbox and a front end. Parsing happens in the reader's thread, never in the
engine's. Knows no messages and no sessions; chat.py makes it and learns its end by a callback.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from gemma_thor_ros.engine.outbox import Outbox
from gemma_thor_ros.schema import (
    ChatDelta,
    ChatResult,
    ErrorCode,
    FinishEvent,
    FinishReason,
    TokenEvent,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from gemma_thor_ros.stops import StopFilter
from gemma_thor_ros.text.parser import OutputParser, ParserDelta
from gemma_thor_ros.text.raw_output import RawOutput

MAX_WAIT_S = 3600.0
Watcher = Callable[[list[ChatDelta], ChatResult | None], None]


class ChatStream:
    """Deltas of one answer, for one reader; cancel and `done` may be used from any thread."""

    def __init__(
        self,
        outbox: Outbox,
        parser: OutputParser | RawOutput,
        stops: StopFilter,
        cancel: Callable[[str], bool],
        on_end: Callable[[ChatResult], None],
    ) -> None:
        self.request_id = outbox.request_id
        self._outbox = outbox
        self._parser = parser
        self._stops = stops
        self._cancel = cancel
        self._on_end = on_end
        self._lock = threading.RLock()
        self._sequence = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._token_ids: list[int] = []
        self._expired = ''
        self._result: ChatResult | None = None
        self._watchers: list[Watcher] = []

    @property
    def done(self) -> bool:
        """True when the last delta has been given by poll()."""
        return self._result is not None

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Call back, from the engine thread, whenever poll() may have something; must be quick."""
        self._outbox.on_ready(callback)

    def watch(self, watcher: Watcher) -> None:
        """Show `watcher(deltas, result)` what each poll() gives, in the reader's thread.

        The result comes once, with the last deltas. To be called before the first poll().
        """
        self._watchers.append(watcher)

    def wait(self, timeout_s: float) -> bool:
        """Wait until poll() has something or the answer has ended; False when time ran out."""
        return self.done or self._outbox.wait(timeout_s)

    def poll(self) -> list[ChatDelta]:
        """Return the new deltas without waiting: at most one for each step of the engine."""
        deltas: list[ChatDelta] = []
        finished: ChatResult | None = None
        with self._lock:
            if self._result is not None:
                return deltas
            for event in self._outbox.poll():
                if isinstance(event, TokenEvent):
                    pieces, count = self._read(event)
                    self._add(deltas, pieces, event.token_ids[:count], event.logprobs[:count])
                else:
                    tail, finished = self._end(event)
                    self._add(deltas, tail, (), ())
                    self._result = finished
            if deltas or finished is not None:
                for watcher in self._watchers:
                    watcher(deltas, finished)
        if finished is not None:
            self._on_end(finished)
        return deltas

    def result(self, timeout_s: float | None = None) -> ChatResult:
        """Wait for the end and return the whole answer; deltas not yet polled are dropped.

        Raises:
            TimeoutError: the answer has not ended within `timeout_s` (None: one hour).
        """
        limit = time.monotonic() + (MAX_WAIT_S if timeout_s is None else timeout_s)
        while self._result is None:
            self.poll()
            if self._result is None and not self.wait(max(0.0, limit - time.monotonic())):
                raise TimeoutError(f'request {self.request_id} has not ended')
        return self._result

    def cancel(self) -> bool:
        """End the request at the next step border; False when it has ended already."""
        return self._cancel(self.request_id)

    def expire(self, message: str) -> None:
        """End the request with ErrorCode.TIMEOUT."""
        self._expired = message
        self._cancel(self.request_id)

    def __iter__(self) -> Iterator[ChatDelta]:
        while not self.done:
            if not self.wait(MAX_WAIT_S):
                return
            yield from self.poll()

    def _read(self, event: TokenEvent) -> tuple[_Pieces, int]:
        """What the tokens of a step add, and how many of them belong to the answer.

        Those behind the one that completes a stop string are dropped: without drafts the engine
        would not have come to them.
        """
        pieces = _Pieces()
        for count, token_id in enumerate(event.token_ids):
            if self._stops.hit:
                return pieces, count
            self._token_ids.append(token_id)
            self._collect(self._parser.push((token_id,)), pieces)
            if self._stops.hit:
                self._cancel(self.request_id)
        return pieces, len(event.token_ids)

    def _collect(self, deltas: Iterable[ParserDelta], pieces: _Pieces) -> _Pieces:
        """Add parser deltas; what follows a stop string is dropped."""
        for delta in deltas:
            if self._stops.hit:
                break
            if delta.text:
                pieces.text += self._stops.push(delta.text)
            pieces.reasoning += delta.reasoning
            if delta.call_name:
                call_id = self._call_id(delta.call_index)
                pieces.tool_calls.append(
                    ToolCallDelta(delta.call_index, call_id, delta.call_name)
                )
            elif delta.call_index >= 0:
                pieces.tool_calls.append(
                    ToolCallDelta(delta.call_index, arguments=delta.arguments)
                )
        return pieces

    def _add(
        self,
        deltas: list[ChatDelta],
        pieces: _Pieces,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...],
    ) -> None:
        self._text.append(pieces.text)
        self._reasoning.append(pieces.reasoning)
        if pieces or token_ids or logprobs:
            deltas.append(
                ChatDelta(
                    self._sequence,
                    pieces.text,
                    pieces.reasoning,
                    tuple(pieces.tool_calls),
                    token_ids,
                    logprobs,
                )
            )
            self._sequence += 1

    def _end(self, event: FinishEvent) -> tuple[_Pieces, ChatResult]:
        """Return the last pieces and the result."""
        stopped_by_text = bool(self._stops.hit)
        output = self._parser.finish(FinishReason.STOP if stopped_by_text else event.reason)
        pieces = self._collect(output.deltas, _Pieces())
        pieces.text += self._stops.flush()
        code, message = event.code, event.message
        if stopped_by_text:
            reason, code, message = FinishReason.STOP, ErrorCode.NONE, ''
        elif self._expired and event.reason is FinishReason.CANCELLED:
            reason, code, message = FinishReason.ERROR, ErrorCode.TIMEOUT, self._expired
        elif event.reason is FinishReason.STOP and output.tool_calls:
            reason = FinishReason.TOOL_CALLS
        else:
            reason = event.reason
        calls = tuple(
            ToolCall(
                self._call_id(i), call.name, call.arguments, call.repaired, call.arguments_json
            )
            for i, call in enumerate(output.tool_calls)
        )
        usage: Usage = dataclasses.replace(
            event.usage, reasoning_tokens=self._parser.reasoning_tokens
        )
        if stopped_by_text:  # what the engine did before it heard of it is not of the answer
            usage = dataclasses.replace(usage, completion_tokens=len(self._token_ids))
        result = ChatResult(
            self.request_id,
            ''.join(self._text) + pieces.text,
            ''.join(self._reasoning) + pieces.reasoning,
            () if stopped_by_text else calls,
            reason,
            usage,
            event.timings,
            tuple(self._token_ids),
            bool(output.malformed),
            code,
            message,
        )
        return pieces, result

    def _call_id(self, index: int) -> str:
        # Unique over the rounds of an agent loop too, since each round has its own request id.
        return f'call_{self.request_id[-24:]}_{index}'


@dataclasses.dataclass
class _Pieces:
    """What a step adds."""

    text: str = ''
    reasoning: str = ''
    tool_calls: list[ToolCallDelta] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.tool_calls)
