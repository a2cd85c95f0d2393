# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One ROS request from start to end: one generation, or the agent loop that lets it use tools.

Each round is a new chat request whose history holds the assistant message with its calls and the
tool messages. Knows no action and no service: deltas go to a ChunkWriter, tool steps to a
callback. Which calls may act is the tool bridge's to say.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gemma_thor_ros.ros.answers import arguments_json
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.provenance import NOTHING_READ, reads_of
from gemma_thor_ros.ros.running import Cancellable, Running
from gemma_thor_ros.ros.token_topic import ChunkWriter
from gemma_thor_ros.ros.verdict import CallEvent, Verdict
from gemma_thor_ros.schema import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    ErrorCode,
    FinishReason,
    QueuePosition,
    RequestError,
    Timings,
    TokenLogprob,
    ToolCall,
)

# Cancels and tokens wake the wait; this bounds what a lost wake-up could cost.
POLL_S = 0.5
# A request that has no token after so long may be in the queue.
QUEUED_AFTER_S = 0.1
# Room for '.255' behind a request id in the 64 characters that chat.py takes.
_ROUND_ID_CHARACTERS = 60

Message = dict[str, Any]


class Stream(Cancellable, Protocol):
    """What this file needs of a chat_stream.ChatStream."""

    @property
    def done(self) -> bool:
        """True when the last delta has been given."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for something to poll."""

    def poll(self) -> list[ChatDelta]:
        """Return the new deltas."""

    def result(self, timeout_s: float | None = None) -> ChatResult:
        """Return the whole answer."""


class Tools(Protocol):
    """What this file needs of the tool bridge."""

    def tools(self) -> list[dict[str, Any]]:
        """Return the policy's tools in the OpenAI form."""

    def run_turn(
        self,
        calls: Sequence[ToolCall],
        *,
        request_id: str,
        on_event: Callable[[CallEvent], None],
        cancel: Any,
        turn: TurnContext,
        dry_run: bool,
    ) -> list[Verdict]:
        """Check the calls of a turn, act on those that may, wait for all ends."""

    def forget_session(self, session_id: str) -> None:
        """Drop what a person has allowed for a session ('*' = for all)."""


@dataclass
class Answer:
    """The end of a request: `result` is of the last round, usage and timings are sums."""

    result: ChatResult
    rounds: int = 1
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the last round
    verdicts: list[Verdict] = field(default_factory=list)
    new_messages: list[Message] = field(default_factory=list)

    @property
    def untold(self) -> list[Message]:
        """The tool messages that no generation has been shown: the loop ended before."""
        return self.new_messages[_last_assistant(self.new_messages) + 1 :]


@dataclass(frozen=True)
class Acting:
    """How a request may use tools."""

    bridge: Tools
    max_rounds: int
    dry_run: bool
    on_event: Callable[[CallEvent, int], None]  # (step, round)


@dataclass(frozen=True)
class Queue:
    """Who hears where a waiting request stands."""

    position: Callable[[str], QueuePosition | None]  # Chat.queue_position
    tell: Callable[[QueuePosition], None]


class Generation:
    """Runs one request in the caller's thread.

    Args:
        submit: chat.Chat.submit.
        running: where a cancel of the request arrives.
        writer: takes the deltas of all rounds.
        timeout_s: for the whole request, tools included; steady clock.
        queue: hears of changes of the position while the request waits for its first token.
    """

    def __init__(
        self,
        submit: Callable[[ChatRequest], Stream],
        running: Running,
        writer: ChunkWriter,
        timeout_s: float,
        queue: Queue | None = None,
    ) -> None:
        self._submit = submit
        self._running = running
        self._writer = writer
        self._timeout_s = timeout_s
        self._queue = queue
        self._started = time.monotonic()
        self._logprobs: list[TokenLogprob] = []
        self._reads = NOTHING_READ

    def run(self, request: ChatRequest, acting: Acting | None = None) -> Answer:
        """Generate, act on the calls and go on until the model answers without one.

        Raises:
            RequestError: the first round was refused before any work; a later fault is in the
            result.
        """
        if acting is None:
            return self._rounds(request, None)
        request = dataclasses.replace(request, tools=tuple(acting.bridge.tools()))
        self._reads = reads_of(request.messages, bool(request.session_id))
        # While a tool runs nothing else looks at the clock.
        limit_s, end = self._timeout_s, (self._timeout_message(), ErrorCode.TIMEOUT)
        if 0.0 < request.deadline_s < limit_s:
            limit_s, end = request.deadline_s, (_deadline_message(request), ErrorCode.DEADLINE)
        watchdog = threading.Timer(limit_s, self._running.cancel, end)
        watchdog.daemon = True
        watchdog.start()
        try:
            answer = self._rounds(request, acting)
        finally:
            watchdog.cancel()
        total_ms = (time.monotonic() - self._started) * 1000.0
        timings = dataclasses.replace(answer.result.timings, total_ms=total_ms)
        answer.result = dataclasses.replace(answer.result, timings=timings)
        return answer

    def _rounds(self, request: ChatRequest, acting: Acting | None) -> Answer:
        first = self._generate(request, 0)
        answer = Answer(first, logprobs=self._logprobs)
        answer.new_messages.append(assistant_message(first))
        while acting is not None and self._goes_on(request, answer, acting):
            if self._running.cancelled.is_set():
                answer.result = self._cancelled(answer.result)
                break
            if answer.rounds == acting.max_rounds:
                break
            request = self._next_request(request, answer)
            try:
                result = self._generate(request, answer.rounds)
            except RequestError as error:
                answer.result = _failed(answer.result, error)
                break
            answer.rounds += 1
            answer.logprobs = self._logprobs
            answer.new_messages.append(assistant_message(result))
            answer.result = _summed(answer.result, result)
        answer.result = dataclasses.replace(answer.result, request_id=self._running.request_id)
        return answer

    def _generate(self, request: ChatRequest, round_index: int) -> ChatResult:
        """Run one round to its end, handing its deltas on."""
        self._logprobs = []
        spent_s = time.monotonic() - self._started
        timeout_s, deadline_s = max(self._timeout_s - spent_s, 1e-3), request.deadline_s
        if round_index and deadline_s > 0.0:     # of the whole request: what is left of it
            deadline_s -= spent_s
            if deadline_s <= 0.0:
                raise RequestError(ErrorCode.DEADLINE, _deadline_message(request), 'deadline')
        stream = self._submit(
            dataclasses.replace(request, timeout_s=timeout_s, deadline_s=deadline_s)
        )
        self._running.attach(stream)
        try:
            if self._queue is not None:
                self._wait_for_turn(stream, request.request_id, self._queue)
            while not stream.done:
                due_s = self._writer.due_s()
                stream.wait(POLL_S if due_s is None else min(due_s, POLL_S))
                for delta in stream.poll():
                    self._logprobs.extend(delta.logprobs)
                    self._writer.add(delta, round_index)
                self._writer.flush_due()
        finally:
            self._running.attach(None)
        result = stream.result()
        if result.code is ErrorCode.TIMEOUT:
            # The limit that counts is the whole request's, not what was left of it.
            return dataclasses.replace(result, message=self._timeout_message())
        if round_index and result.code is ErrorCode.DEADLINE:
            return dataclasses.replace(result, message=_deadline_message(request))
        return self._cancelled(result) if result.code is ErrorCode.CANCELLED else result

    def _wait_for_turn(self, stream: Stream, request_id: str, queue: Queue) -> None:
        """Return with the first token, or when the request is not in the queue (any more)."""
        told: QueuePosition | None = None
        while not stream.wait(QUEUED_AFTER_S if told is None else POLL_S):
            position = queue.position(request_id)
            if position is None:
                return
            if told is None or _differ(told, position):
                queue.tell(position)
                told = position

    def _goes_on(self, request: ChatRequest, answer: Answer, acting: Acting) -> bool:
        """Run the calls of the last round; True when the model is to be told what came of them."""
        result = answer.result
        if not result.tool_calls:
            return False
        turn = TurnContext(
            result.finish_reason,
            request.session_id,
            request.front_end,
            self._reads.after(answer.verdicts),
        )
        round_index = answer.rounds - 1

        def on_event(event: CallEvent) -> None:
            acting.on_event(event, round_index)

        # The calls of a turn that was cut, too: the bridge refuses and reports them.
        verdicts = acting.bridge.run_turn(
            result.tool_calls,
            request_id=self._running.request_id,
            on_event=on_event,
            cancel=self._running.cancelled,
            turn=turn,
            dry_run=acting.dry_run,
        )
        answer.verdicts += verdicts
        for call, verdict in zip(result.tool_calls, verdicts, strict=True):
            answer.new_messages.append(
                {
                    'role': 'tool',
                    'tool_call_id': call.call_id,
                    'name': call.name,
                    'content': verdict.result_json,
                }
            )
        return result.finish_reason is FinishReason.TOOL_CALLS

    def _next_request(self, request: ChatRequest, answer: Answer) -> ChatRequest:
        """Return the request of the next round."""
        identity = self._running.request_id[:_ROUND_ID_CHARACTERS]
        since = _last_assistant(answer.new_messages)
        added = answer.new_messages[since:]
        # A session has kept the question and the calls already; it lacks the results alone.
        messages = (*added[1:],) if request.session_id else (*request.messages, *added)
        return dataclasses.replace(
            request,
            messages=messages,
            request_id=f'{identity}.{answer.rounds}',
            continue_final_message=False,
            # The call that was wanted has been made; wanted again, it would never end.
            tool_choice='auto',
            tool_names=() if request.tool_choice == 'required' else request.tool_names,
        )

    def _timeout_message(self) -> str:
        return f'the time limit of {self._timeout_s:g} s ran out'

    def _cancelled(self, result: ChatResult) -> ChatResult:
        reason = FinishReason.CANCELLED
        if self._running.code is not ErrorCode.CANCELLED:
            reason = FinishReason.ERROR
        return dataclasses.replace(
            result,
            finish_reason=reason,
            code=self._running.code,
            message=self._running.reason or result.message or 'the request was cancelled',
        )


def assistant_message(result: ChatResult) -> Message:
    """Return an answer as the assistant message of the next prompt, in the OpenAI form."""
    message: Message = {'role': 'assistant', 'content': result.text}
    if result.reasoning:
        message['reasoning_content'] = result.reasoning
    if result.tool_calls:
        message['tool_calls'] = [
            {
                'id': call.call_id,
                'type': 'function',
                'function': {'name': call.name, 'arguments': arguments_json(call)},
            }
            for call in result.tool_calls
        ]
    return message


def _differ(told: QueuePosition, now: QueuePosition) -> bool:
    """Whether a client should be told: another position, or another wait in whole seconds."""
    return told.position != now.position or round(told.expected_wait_s) != round(
        now.expected_wait_s
    )


def _deadline_message(request: ChatRequest) -> str:
    return f'the deadline of {request.deadline_s:g} s has passed'


def _last_assistant(messages: list[Message]) -> int:
    return max(i for i, message in enumerate(messages) if message['role'] == 'assistant')


def _failed(result: ChatResult, error: RequestError) -> ChatResult:
    return dataclasses.replace(
        result, finish_reason=FinishReason.ERROR, code=error.code, message=error.message
    )


def _summed(before: ChatResult, result: ChatResult) -> ChatResult:
    """Return `result` with the usage and timings of the rounds before added."""
    usage = before.usage + result.usage
    first, last = before.timings, result.timings
    decode_ms = first.decode_ms + last.decode_ms
    # tokens_per_s weighs each round by its decode time.
    tokens = first.tokens_per_s * first.decode_ms + last.tokens_per_s * last.decode_ms
    timings = Timings(
        queued_ms=first.queued_ms + last.queued_ms,
        prefill_ms=first.prefill_ms + last.prefill_ms,
        time_to_first_token_ms=first.time_to_first_token_ms,
        decode_ms=decode_ms,
        total_ms=first.total_ms + last.total_ms,
        tokens_per_s=tokens / decode_ms if decode_ms > 0.0 else 0.0,
    )
    return dataclasses.replace(result, usage=usage, timings=timings)
