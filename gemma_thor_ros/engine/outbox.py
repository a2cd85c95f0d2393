# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Where one request's events wait for their reader: the engine thread puts, any thread takes.

Exactly one FinishEvent, always the last. Knows no model, no scheduler and no front end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from gemma_thor_ros.schema import FinishEvent, TokenEvent

Event = TokenEvent | FinishEvent
_LOG = logging.getLogger(__name__)


class Outbox:
    """Events of one request, in order. One reader at a time is meant; more are safe but share."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._ready = threading.Condition(threading.Lock())
        self._events: list[Event] = []
        self._finish: FinishEvent | None = None
        self._callback: Callable[[], None] | None = None

    @property
    def finished(self) -> bool:
        """Whether the FinishEvent is in (it may still wait to be polled)."""
        return self._finish is not None

    def poll(self) -> list[Event]:
        """Take all events that are there; never blocks. Empty after the FinishEvent was taken."""
        with self._ready:
            events, self._events = self._events, []
        return events

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until poll() has something to give or the request has finished.

        False when the time ran out first. None waits without limit.
        """
        with self._ready:
            return self._ready.wait_for(self._has_news, timeout_s)

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback()` after each put, from the engine thread: it must be quick, not block.

        One callback per outbox; a second call replaces it. When events wait already, it is also
        called at once, from the caller's thread, so that none is missed.
        """
        with self._ready:
            self._callback = callback
            pending = self._has_news()
        if pending:
            callback()

    def collect(self, timeout_s: float | None = None) -> tuple[list[int], FinishEvent]:
        """Wait for the end and give all token ids not yet polled, and the FinishEvent.

        Raises TimeoutError when the request has not ended after timeout_s seconds.
        """
        token_ids: list[int] = []
        for event in self.events(timeout_s):
            if isinstance(event, FinishEvent):
                return token_ids, event
            token_ids.extend(event.token_ids)
        raise AssertionError(f'request {self.request_id!r}: its FinishEvent was taken already')

    def events(self, timeout_s: float | None = None) -> Iterator[Event]:
        """Iterate over the events up to the FinishEvent, blocking between them.

        Raises TimeoutError when the request has not ended after timeout_s seconds in all.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            remaining = None if end is None else max(0.0, end - time.monotonic())
            if not self.wait(remaining):
                raise TimeoutError(
                    f'request {self.request_id!r} has not ended after {timeout_s} s')
            events = self.poll()
            yield from events
            if not events or isinstance(events[-1], FinishEvent):
                return

    def put(self, event: Event) -> bool:
        """Add an event and wake the reader; for the engine only.

        False, and no effect, when the request has finished already.
        """
        with self._ready:
            if self._finish is not None:
                return False
            if isinstance(event, FinishEvent):
                self._finish = event
            self._events.append(event)
            callback = self._callback
            self._ready.notify_all()
        if callback is not None:
            try:
                callback()
            except Exception:  # noqa: BLE001 - a reader's fault must not stop the engine
                _LOG.exception('on_ready callback of request %r failed', self.request_id)
        return True

    def _has_news(self) -> bool:
        return bool(self._events) or self._finish is not None
