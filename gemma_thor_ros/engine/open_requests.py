# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Every request that has no FinishEvent yet: where front ends and the engine thread meet.

Front ends open and cancel requests here; the engine thread takes the news at each step border.
Whoever answers a request takes it out, so that it is answered once. Knows no model, no page and no
schedule.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any, NamedTuple

from gemma_thor_ros.engine.errands import Errands, Work
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.schema import ErrorCode, FinishEvent, FinishReason, RequestError


class End(NamedTuple):
    """How a request ends."""

    reason: FinishReason
    code: ErrorCode = ErrorCode.NONE
    message: str = ''
    stop_id: int = -1


def cancelled(message: str) -> End:
    """The end of a request that somebody stopped."""
    return End(FinishReason.CANCELLED, ErrorCode.CANCELLED, message)


def failed(code: ErrorCode, message: str) -> End:
    """The end of a request that could not be served."""
    return End(FinishReason.ERROR, code, message)


class News(NamedTuple):
    """What came in since the engine thread looked last."""

    new: list[Sequence]
    cancelled: list[Sequence]            # to be ended by the engine thread
    answered: list[Sequence]             # ended by another thread; to be let go


class OpenRequests:
    """The table of open requests; every method may be called from any thread.

    max_running, max_waiting: one more than both together is BUSY.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.state = 'new'               # then 'running', 'stopped' or 'failed'
        self.num_finished = 0
        self.num_cancelled = 0
        self.num_failed = 0
        self._changed = threading.Condition(threading.Lock())   # guards what follows, and above
        self._open: dict[str, Sequence] = {}
        self._new: list[Sequence] = []
        self._cancels: set[str] = set()
        self._answered: list[Sequence] = []
        self._num_opened = 0
        self._errands = Errands()

    @property
    def has_news(self) -> bool:
        """Whether a request was cancelled or answered; a racy look, the next border sees all."""
        return bool(self._cancels or self._answered)

    def begin(self) -> None:
        """Take requests from now on; a second call raises RuntimeError."""
        with self._changed:
            if self.state != 'new':
                raise RuntimeError(f'the engine is {self.state}; it starts only once')
            self.state = 'running'

    def end(self, state: str) -> list[Sequence]:
        """Take no more requests; gives those that are open. A state is entered once."""
        with self._changed:
            if self.state in ('new', 'running'):
                self.state = state
            self._changed.notify()
            return list(self._open.values())

    def open(self, sequence: Sequence) -> None:
        """Enter a new request. Raises RequestError: NOT_READY, INVALID_REQUEST or BUSY."""
        request_id = sequence.request.request_id
        with self._changed:
            if self.state != 'running':
                raise RequestError(ErrorCode.NOT_READY,
                                   f'The engine takes no requests: its state is {self.state!r}.')
            if request_id in self._open:
                raise RequestError(ErrorCode.INVALID_REQUEST,
                                   f'Request id {request_id!r} is in use.', 'request_id')
            if len(self._open) >= self.max_running + self.max_waiting:
                raise RequestError(
                    ErrorCode.BUSY,
                    f'The engine has {len(self._open)} requests; it takes {self.max_running} '
                    f'running and {self.max_waiting} waiting ones.')
            sequence.arrival = self._num_opened
            self._num_opened += 1
            self._open[request_id] = sequence
            self._new.append(sequence)
            self._changed.notify()

    def post(self, work: Work) -> Future[Any]:
        """Queue an errand for the engine thread. Raises RequestError: NOT_READY."""
        with self._changed:
            if self.state != 'running':
                raise RequestError(ErrorCode.NOT_READY,
                                   f'The engine does nothing: its state is {self.state!r}.')
            future = self._errands.post(work)
            self._changed.notify()
        return future

    def run_errand(self) -> bool:
        """Run a piece of the first errand, in the engine thread; False when there is none."""
        return self._errands.run_piece()

    def drop_errands(self, message: str) -> None:
        """Answer all errands with CANCELLED; once the state is neither 'new' nor 'running'."""
        self._errands.drop(RequestError(ErrorCode.CANCELLED, message))

    def cancel(self, request_id: str) -> bool:
        """Mark a request to be ended at the next step border; False when it is not open."""
        with self._changed:
            if request_id not in self._open:
                return False
            self._cancels.add(request_id)
            self._changed.notify()
        return True

    def get(self, request_id: str) -> Sequence | None:
        """An open request."""
        with self._changed:
            return self._open.get(request_id)

    def all(self) -> list[Sequence]:
        """All open requests, in the order of their arrival."""
        with self._changed:
            return list(self._open.values())

    def num_new(self) -> int:
        """Requests that the engine thread has not taken yet."""
        with self._changed:
            return len(self._new)

    def wait(self, busy: bool) -> bool:
        """Block until there is something to do, at once if `busy`; False when the engine ends."""
        with self._changed:
            while not busy and self.state == 'running' and not (
                    self._new or self._cancels or self._answered or self._errands):
                self._changed.wait()
            return self.state == 'running'

    def take(self) -> News:
        """Give the news to the engine thread."""
        with self._changed:
            news = News(self._new, [self._open[request_id] for request_id in self._cancels],
                        self._answered)
            self._new, self._cancels, self._answered = [], set(), []
        return news

    def answer(self, sequence: Sequence, end: End, *, by_engine: bool = True) -> bool:
        """Put the FinishEvent of a request; False when it has been answered before.

        When another thread answers, the engine thread hears of it and lets the sequence go.
        """
        with self._changed:
            if self._open.pop(sequence.request.request_id, None) is None:
                return False
            self._cancels.discard(sequence.request.request_id)
            self.num_finished += 1
            self.num_cancelled += end.reason is FinishReason.CANCELLED
            self.num_failed += end.reason is FinishReason.ERROR
            if not by_engine:
                self._answered.append(sequence)
        sequence.outbox.put(FinishEvent(
            end.reason, sequence.usage(), sequence.timings(time.monotonic()), end.stop_id,
            end.code, end.message))
        return True
