# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Publishers whose QoS a robot's integrator may override, and that say when nobody can hear them.

A subscription that asks for more than is offered gets nothing, in silence: here it becomes a
warning in the log and a figure in /diagnostics.
"""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any

from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile, qos_policy_name_from_kind
from rclpy.qos_overriding_options import QoSOverridingOptions

_log = logging.getLogger(__name__)


class WatchedPublishers:
    """Makes a node's publishers and counts the subscriptions that do not fit them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._count = 0
        self._last = ''

    def create(
        self, kind: type[Any], name: str, qos: QoSProfile, overridable: bool = False
    ) -> Publisher[Any]:
        """Return a publisher.

        With `overridable` the parameters `qos_overrides.<topic>.publisher.{history, depth,
        reliability}` change its QoS at the start of the node.
        """
        topic = self._node.resolve_topic_name(name)
        options = QoSOverridingOptions.with_default_policies() if overridable else None
        return self._node.create_publisher(
            kind,
            name,
            copy.copy(qos),  # rclpy writes the overrides into it, and others share it
            event_callbacks=PublisherEventCallbacks(
                incompatible_qos=lambda event: self._misfit(topic, event)
            ),
            qos_overriding_options=options,
        )

    def misfits(self) -> tuple[int, str]:
        """Return how many subscriptions did not fit, and a sentence about the last one."""
        with self._lock:
            return self._count, self._last

    def _misfit(self, topic: str, event: Any) -> None:
        policy = qos_policy_name_from_kind(event.last_policy_kind)
        sentence = f'a subscription of {topic} asks for more than is offered: {policy}'
        with self._lock:
            self._count += event.total_count_change
            self._last = sentence
        _log.warning('%s; it hears nothing', sentence)
