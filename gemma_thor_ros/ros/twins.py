# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Notices that two processes run under one name, by the ids that their messages carry.

A process that was started anew is another id that stays; two at once take turns. Times are seconds
on the steady clock, handed in by the caller. Knows no ROS.
"""

from __future__ import annotations

from collections import deque

TWINS_S = 2.0                    # how long after the last sign of a second one it counts


class Twins:
    """The senders of one name."""

    def __init__(self) -> None:
        self._last = ''
        self._replaced: deque[str] = deque(maxlen=8)
        self._seen_at: float | None = None

    def hear(self, sender: str, now: float) -> bool:
        """Take the id of a message; True when its sender had been replaced by another one."""
        if not sender or sender == self._last:
            return False
        again = sender in self._replaced
        if self._last and self._last not in self._replaced:
            self._replaced.append(self._last)
        self._last = sender
        if again:
            self._seen_at = now
        return again

    def seen(self, now: float) -> bool:
        """Whether two have been heard lately."""
        return self._seen_at is not None and now - self._seen_at < TWINS_S
