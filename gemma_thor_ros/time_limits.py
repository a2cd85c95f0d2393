# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Ends requests whose time limit has run out.

One heap for all streams; ended ones are swept out now and then. Knows no messages; chat.py is its
only user.
"""

from __future__ import annotations

import heapq
import threading
import time

from gemma_thor_ros.chat_stream import ChatStream

_COMPACT_AT = 256  # entries between two sweeps


class TimeLimits:
    """One thread that ends streams; safe to use from any thread."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ChatStream, str]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._count = 0
        self._thread = threading.Thread(target=self._run, name='chat-timer', daemon=True)
        self._thread.start()

    def add(self, at: float, stream: ChatStream, message: str) -> None:
        """End `stream` with TIMEOUT and `message` at a steady-clock time."""
        with self._changed:
            self._count += 1
            if len(self._heap) >= _COMPACT_AT and self._count % _COMPACT_AT == 0:
                self._heap = [entry for entry in self._heap if not entry[2].done]
                heapq.heapify(self._heap)
            heapq.heappush(self._heap, (at, self._count, stream, message))
            self._changed.notify()

    def close(self) -> None:
        """End the thread; limits that have not run out are forgotten."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._heap and self._heap[0][2].done:
                    heapq.heappop(self._heap)
                if self._closed:
                    return
                wait = self._heap[0][0] - time.monotonic() if self._heap else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, _, stream, message = heapq.heappop(self._heap)
            if not stream.done:
                stream.expire(message)
