# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How often each tool may act: at most so many calls in any so many seconds.

A call counts when it is sent; refused ones do not. Knows no ROS.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from gemma_thor_ros.ros.policy_types import ToolPolicy
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome


class RateLimits:
    """The calls of the last while, by tool. Thread-safe; times on the steady clock in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sent: dict[str, deque[float]] = {}

    def check(self, tool: ToolPolicy) -> None:
        """Refuse a call (REFUSED_RATE) when the tool has acted too often."""
        with self._lock:
            self._check(tool)

    def take(self, tool: ToolPolicy) -> None:
        """Check as above, and count the call."""
        with self._lock:
            self._check(tool)
            if tool.rate is not None:
                self._sent.setdefault(tool.name, deque()).append(self._clock())

    def _check(self, tool: ToolPolicy) -> None:
        limit, sent = tool.rate, self._sent.get(tool.name)
        if limit is None or not sent:
            return
        now = self._clock()
        while sent and now - sent[0] >= limit.period_s:
            sent.popleft()
        if len(sent) >= limit.calls:
            wait_s = sent[0] + limit.period_s - now
            raise CallRefusedError(
                Outcome.REFUSED_RATE,
                f'{tool.name} may act {limit.calls} times in {limit.period_s:g} s; it may again '
                f'in {wait_s:.1f} s')
