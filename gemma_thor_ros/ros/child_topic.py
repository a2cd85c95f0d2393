# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One publish of goal_guard: a message at a rate for a while, then a message that stops.

Owned like a child goal (child_goal.py): driven by a tick, never waits, ends by itself. Whatever
ends it, the stop message goes out at once, and again for subscribers that lost it. Everything runs
in the guard's one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rclpy.publisher import Publisher

from gemma_thor_ros.ros.child_goal import ChildEnd, Order

STOP_REPEATS = 3                 # one at once, the others with the next ticks


@dataclass(frozen=True)
class Stream:
    """What to publish. `rate_hz` 0: `message` once. `stop` may be None where nothing moves."""

    message: Any
    stop: Any
    rate_hz: float
    duration_s: float


class TopicChild:
    """A publish on its way.

    `report` is called once, with what the node is to be told. `ended` turns true when nothing is
    left to do.

    Args:
        order: whose it is; its server_timeout is how long a subscriber is waited for.
        stream: what to publish.
        publisher: on the order's target.
        now: seconds on the steady clock at the start.
        check: asked before the first message; its text refuses.
        report: takes the end.
        feedback: takes (status, b'').
        stamp: gives the time for messages with a header.
        clock: the steady clock in seconds.
    """

    escalated = ''                   # what it publishes it can always stop

    def __init__(self, order: Order, stream: Stream, publisher: Publisher[Any], now: float, *,
                 check: Callable[[], str], report: Callable[[ChildEnd], None],
                 feedback: Callable[[str, bytes], None], stamp: Callable[[], Any],
                 clock: Callable[[], float]) -> None:
        self.order = order
        self.started = now
        self.status = 'sending'
        self.ended = False
        self._stream = stream
        self._publisher = publisher
        self._check = check
        self._report = report
        self._feedback = feedback
        self._stamp = stamp
        self._clock = clock
        self._begun_at: float | None = None
        self._next_at = 0.0
        self._stops_left = 0

    def tick(self, now: float) -> None:
        """Do what time asks for."""
        if self.ended:
            return
        if self._stops_left:
            self._publish_stop()
        elif self._begun_at is None:
            self._try_to_begin(now)
        elif now - self._begun_at >= self._stream.duration_s:
            self._end('succeeded', '')
        elif not self._publisher.get_subscription_count():
            self._end('aborted', f'nobody listens on {self.order.target} any more')
        elif now >= self._next_at:
            # Ticks that came late are not made up for.
            self._next_at = max(self._next_at + 1.0 / self._stream.rate_hz, now)
            self._publish(self._stream.message)

    def cancel(self, status: str, reason: str) -> None:
        """End it; `status` and `reason` are what the node is told. The first call counts."""
        if self.ended or self._stops_left:
            return
        if self._begun_at is None:
            self._end('refused' if status == 'stopped' else status, reason)
        else:
            self._feedback('canceling', b'')
            self._end(status, reason)

    def make_way(self) -> bool:
        """Give the topic to another publish; False while this one goes on."""
        if self._stops_left:
            self._stops_left, self.ended = 0, True   # the first stop message is out
        return self.ended

    def abandon(self) -> None:
        """Stop owning it at an operator's word."""
        self.cancel('unknown', 'given up by an operator')

    def _try_to_begin(self, now: float) -> None:
        if not self._publisher.get_subscription_count():
            if now - self.started > self.order.server_timeout:
                self._end('unavailable', f'nobody listens on {self.order.target}')
            return
        fault = self._check()
        if fault:
            self._end('refused', fault)
            return
        self._feedback('sending', b'')
        self.status = 'executing'
        self._begun_at = now
        self._publish(self._stream.message)
        if self._stream.rate_hz:
            self._next_at = now + 1.0 / self._stream.rate_hz
            self._feedback('accepted', b'')
        else:
            self._end('succeeded', '')

    def _end(self, status: str, reason: str) -> None:
        self.status = status
        if self._begun_at is not None and self._stream.stop is not None:
            self._stops_left = STOP_REPEATS
            self._publish_stop()
        else:
            self.ended = True
        self._report(ChildEnd(status, reason))

    def _publish_stop(self) -> None:
        self._publish(self._stream.stop)
        self._stops_left -= 1
        self.ended = not self._stops_left

    def _publish(self, message: Any) -> None:
        header: Any = getattr(message, 'header', None)
        if hasattr(header, 'stamp'):
            header.stamp = self._stamp()
        self._publisher.publish(message)
