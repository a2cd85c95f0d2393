# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The newest message of each topic that a policy reads, with its age on the steady clock.

Messages are kept as they came and read when somebody asks, so that a fast topic costs little.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message

from gemma_thor_ros.ros.interfaces import load_type

# Best effort and volatile hears every kind of publisher.
ANY_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
# The last message of a publisher that keeps it for late subscribers.
LATCHED_QOS = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


@dataclass(frozen=True)
class WatchedTopic:
    """A topic by its resolved name, its type as 'package/msg/Name', and how it is published."""

    name: str
    type: str
    latched: bool = False


class TopicWatch:
    """Subscribes once to each topic. Thread-safe.

    Args:
        node: subscribes.
        group: of the subscriptions, whose callbacks only store.
    """

    def __init__(self, node: Node, group: CallbackGroup) -> None:
        self._node = node
        self._group = group
        self._news = threading.Condition()
        self._latest: dict[WatchedTopic, tuple[bytes, float]] = {}
        self._subscriptions: dict[WatchedTopic, Any] = {}

    def add(self, topic: WatchedTopic) -> None:
        """Begin to listen."""
        if topic in self._subscriptions:
            return

        def keep(data: bytes) -> None:
            with self._news:
                self._latest[topic] = (data, time.monotonic())
                self._news.notify_all()

        self._subscriptions[topic] = self._node.create_subscription(
            load_type(topic.type), topic.name, keep, LATCHED_QOS if topic.latched else ANY_QOS,
            callback_group=self._group, raw=True)

    def latest(self, topic: WatchedTopic) -> tuple[Any, float] | None:
        """Return (message, age in seconds), or None when nothing has been heard."""
        with self._news:
            found = self._latest.get(topic)
        if found is None:
            return None
        return deserialize_message(found[0], load_type(topic.type)), time.monotonic() - found[1]

    def wait(self, timeout_s: float) -> None:
        """Wait for a message on any topic, at most `timeout_s` seconds."""
        with self._news:
            self._news.wait(timeout_s)

    def close(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions.values():
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()
