# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Looks after a step that does not end: a thread beside the engine's, which can't look itself.

Knows when the step under way began, and whom to call; nothing of what a step does.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

_LONGEST_SLEEP_S = 0.5
_SHORTEST_SLEEP_S = 0.01


class Watchdog:
    """Calls `on_hang(step, seconds)` while a step runs longer than timeout_s, again and again.

    The engine thread calls begin and end; they cost two assignments each. timeout_s 0.0 watches
    nothing.
    """

    def __init__(self, timeout_s: float, on_hang: Callable[[int, float], None]) -> None:
        self.timeout_s = timeout_s
        self._on_hang = on_hang
        self._step = 0
        self._begun = math.inf           # steady-clock s; inf: no step is under way
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name='gemma_thor_watchdog', daemon=True)

    @property
    def overdue_s(self) -> float:
        """Seconds that the step under way has run, if that is longer than allowed; else 0.0."""
        elapsed = time.monotonic() - self._begun
        return elapsed if elapsed > self.timeout_s > 0.0 else 0.0

    def start(self) -> None:
        """Begin to watch."""
        if self.timeout_s > 0.0:
            self._thread.start()

    def stop(self) -> None:
        """End the thread; harmless when it never ran."""
        self._stopped.set()

    def begin(self, step: int, now: float) -> None:
        """A step begins."""
        self._step = step
        self._begun = now

    def end(self) -> None:
        """The step has ended."""
        self._begun = math.inf

    def _run(self) -> None:
        sleep_s = min(_LONGEST_SLEEP_S, max(_SHORTEST_SLEEP_S, self.timeout_s / 4))
        while not self._stopped.wait(sleep_s):
            step, overdue_s = self._step, self.overdue_s
            if overdue_s > 0.0:
                self._on_hang(step, overdue_s)
