# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Work that only the engine thread may do and that is no request: copies of pages.

An errand is a generator; the engine thread runs it from one `yield` to the next at a step border,
so that no step waits for all of it. Knows no page and no request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from gemma_thor_ros.schema import DeviceError

Work = Generator[None, None, Any]


class Errands:
    """The errands of one engine, one after the other; `post` from any thread, under a lock."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Work, Future[Any]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def post(self, work: Work) -> Future[Any]:
        """Queue a generator; the future gets what it returns or raises."""
        future: Future[Any] = Future()
        self._waiting.append((work, future))
        return future

    def run_piece(self) -> bool:
        """Run the first errand up to its next `yield`; False when there is none.

        A DeviceError is raised after it was answered, anything else is its poster's alone.
        """
        if not self._waiting:
            return False
        work, future = self._waiting[0]
        try:
            next(work)
        except StopIteration as end:
            self._waiting.popleft()
            future.set_result(end.value)
        except Exception as error:            # whatever it is, no step is at fault
            self._waiting.popleft()
            future.set_exception(error)
            if isinstance(error, DeviceError):
                raise
        return True

    def drop(self, error: Exception) -> None:
        """End all of them; generators clean up behind their `yield`."""
        while self._waiting:
            work, future = self._waiting.popleft()
            work.close()
            future.set_exception(error)
