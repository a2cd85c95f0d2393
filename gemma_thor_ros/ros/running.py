# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The ROS requests that are running now: unique ids, and one place to cancel them from.

A cancel may come at any moment: before the request has a stream, between two rounds of the agent
loop, while a tool runs. `Running` remembers it and hands it to whatever is going on. Knows no ROS.
"""

from __future__ import annotations

import threading
import uuid
from typing import Protocol

from gemma_thor_ros.schema import ErrorCode, RequestError


class Cancellable(Protocol):
    """Anything that ends early when told so; called from any thread, must be quick."""

    def cancel(self) -> object:
        """Ask for the end; returns at once."""


class Running:
    """One running request; an `acting` one may use the robot's tools."""

    def __init__(self, request_id: str, session_id: str, acting: bool = False) -> None:
        self.request_id = request_id
        self.session_id = session_id
        self.acting = acting
        self.cancelled = threading.Event()
        self.ended = threading.Event()
        self.reason = ''
        self.code = ErrorCode.CANCELLED
        self._lock = threading.Lock()
        self._work: Cancellable | None = None

    def attach(self, work: Cancellable | None) -> None:
        """Say what a cancel has to reach now; a cancel that came before reaches it at once."""
        with self._lock:
            self._work = work
            cancelled = self.cancelled.is_set()
        if cancelled and work is not None:
            work.cancel()

    def cancel(self, reason: str, code: ErrorCode = ErrorCode.CANCELLED) -> None:
        """End the request; the first reason counts."""
        with self._lock:
            if not self.cancelled.is_set():
                self.reason, self.code = reason, code
                self.cancelled.set()
            work = self._work
        if work is not None:
            work.cancel()


class RunningRequests:
    """All running ROS requests of the node; safe to use from any thread.

    Args:
        limit: how many may be under way at once, waiting ones included; each holds a thread.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._requests: dict[str, Running] = {}
        self._closed = 'the node has not been activated'

    def open(self) -> None:
        """Take requests from now on."""
        with self._lock:
            self._closed = ''

    def close(self, reason: str) -> None:
        """Take no more requests; `reason` is what they are told."""
        with self._lock:
            self._closed = reason

    def begin(self, request_id: str, session_id: str, acting: bool = False) -> Running:
        """Register a request; '' as id makes one.

        Raises:
            RequestError: NOT_READY while closed, BUSY when too many are under way,
                INVALID_REQUEST when the id is taken.
        """
        with self._lock:
            if self._closed:
                raise RequestError(ErrorCode.NOT_READY, self._closed)
            if len(self._requests) >= self._limit:
                raise RequestError(
                    ErrorCode.BUSY,
                    f'{len(self._requests)} requests are under way, at most {self._limit} may be',
                )
            if request_id in self._requests:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f'request_id {request_id!r} is in use by a running request',
                    'request_id',
                )
            running = Running(request_id or uuid.uuid4().hex, session_id, acting)
            self._requests[running.request_id] = running
            return running

    def end(self, running: Running) -> None:
        """Forget a request that has been answered."""
        with self._idle:
            self._requests.pop(running.request_id, None)
            self._idle.notify_all()
        running.ended.set()

    def all(self) -> list[Running]:
        """Return what is running now."""
        with self._lock:
            return list(self._requests.values())

    def cancel(
        self,
        request_id: str = '',
        session_id: str = '',
        reason: str = '',
        code: ErrorCode = ErrorCode.CANCELLED,
    ) -> list[str]:
        """Cancel what fits ('' fits all) and return the ids."""
        chosen = [
            running
            for running in self.all()
            if request_id in ('', running.request_id) and session_id in ('', running.session_id)
        ]
        for running in chosen:
            running.cancel(reason, code)
        return [running.request_id for running in chosen]

    def stop(self, reason: str) -> list[Running]:
        """End the requests that may move the robot: it was stopped. Return them."""
        chosen = [running for running in self.all() if running.acting]
        for running in chosen:
            running.cancel(reason, ErrorCode.STOPPED)
        return chosen

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is under way; False when the time is over."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._requests, timeout_s)

    def __len__(self) -> int:
        with self._lock:
            return len(self._requests)
