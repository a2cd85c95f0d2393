# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The node's heartbeat to goal_guard: 10 Hz from a thread of its own on the steady clock.

A plain thread, not a timer: no executor, callback or engine step can hold it up. When it stops,
the guard cancels every goal that the node has open.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy

import gemma_thor_ros.msg as msg

PERIOD_S = 0.1
# Only the latest beat counts, and an old one must not be delivered late.
HEARTBEAT_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.RELIABLE
)


class Heartbeat:
    """Publishes Heartbeat on ~/heartbeat from `start()` to `stop()`.

    `instance_id` names this start of the node; goal_guard takes goals of that instance alone.
    """

    def __init__(self, node: Node, is_active: Callable[[], bool]) -> None:
        self.instance_id = uuid.uuid4().hex
        self._node = node
        self._is_active = is_active
        self._publisher = node.create_publisher(msg.Heartbeat, '~/heartbeat', HEARTBEAT_QOS)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name='heartbeat', daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def beat_now(self) -> None:
        """Send a beat without waiting for the next one: what it says has changed."""
        self._wake.set()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Send a last beat that says inactive, and end the thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        sequence = 0
        due = time.monotonic()
        while not self._stopping.is_set():
            self._wake.clear()
            self._beat(sequence, self._is_active())
            sequence += 1
            # After a pause (a suspended machine) beats go on from now, they are not made up for.
            due = max(due + PERIOD_S, time.monotonic())
            self._wake.wait(due - time.monotonic())
        self._beat(sequence, active=False)

    def _beat(self, sequence: int, active: bool) -> None:
        self._publisher.publish(
            msg.Heartbeat(
                stamp=self._node.get_clock().now().to_msg(),
                instance_id=self.instance_id,
                sequence=sequence,
                active=active,
            )
        )
