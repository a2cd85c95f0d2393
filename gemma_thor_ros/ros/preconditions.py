# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What must be true of the robot before a tool may act, read from topics: value and age.

Asked when a call is made and again at the moment of sending. What has not been heard is not true.
"""

from __future__ import annotations

import math
from typing import Any

from rclpy.node import Node
from rclpy.time import Time

from gemma_thor_ros.ros.interfaces import InterfaceError, get_field
from gemma_thor_ros.ros.policy_types import Policy, Precondition, ToolPolicy
from gemma_thor_ros.ros.topic_watch import TopicWatch, WatchedTopic
from gemma_thor_ros.ros.units import number_text
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome, cut

MAX_SHOWN = 60                   # characters of a value in a reason


class Preconditions:
    """The preconditions of a policy on one node. Thread-safe."""

    def __init__(self, node: Node, policy: Policy, topics: TopicWatch) -> None:
        self._node = node
        self._policy = policy
        self._topics = topics
        used = {name for tool in policy.tools.values() for name in tool.requires}
        self._watched = {
            name: WatchedTopic(node.resolve_topic_name(item.topic), item.type, item.latched)
            for name, item in policy.preconditions.items() if name in used}
        for topic in self._watched.values():
            topics.add(topic)

    def check(self, tool: ToolPolicy) -> None:
        """Refuse a call (REFUSED_PRECONDITION) unless all that its tool requires is true."""
        for name in tool.requires:
            condition = self._policy.preconditions[name]
            fault = self._fault(condition, self._watched[name])
            if fault:
                words = f'{condition.otherwise}: {fault}' if condition.otherwise else fault
                raise CallRefusedError(Outcome.REFUSED_PRECONDITION, words)

    def _fault(self, condition: Precondition, topic: WatchedTopic) -> str:
        """Return why a precondition does not hold, with the numbers, or ''."""
        found = self._topics.latest(topic)
        if found is None:
            return f'nothing has been heard on {topic.name}'
        message, age_s = found
        if condition.max_age_s and age_s > condition.max_age_s:
            return _too_old(topic.name, 'last message', age_s, condition.max_age_s)
        if condition.stamp:
            stamp = Time.from_msg(message.header.stamp,
                                  clock_type=self._node.get_clock().clock_type)
            age_s = (self._node.get_clock().now() - stamp).nanoseconds / 1e9
            if age_s > condition.max_age_s:
                return _too_old(topic.name, 'stamp', age_s, condition.max_age_s)
        if not condition.field:
            return ''
        try:
            value = get_field(message, condition.field)
        except InterfaceError as error:
            return f'{topic.name}: {error}'
        return _value_fault(condition, f'{condition.field} of {topic.name}', value)


def _value_fault(condition: Precondition, what: str, value: Any) -> str:
    shown = cut(number_text(value) if isinstance(value, float) else str(value), MAX_SHOWN)
    if condition.equals is not None and value != condition.equals:
        return f'{what} is {shown}, it must be {condition.equals}'
    if condition.minimum is None and condition.maximum is None:
        return ''
    if not math.isfinite(value):
        return f'{what} is {shown}'
    if condition.minimum is not None and value < condition.minimum:
        return f'{what} is {shown}, it must be at least {number_text(condition.minimum)}'
    if condition.maximum is not None and value > condition.maximum:
        return f'{what} is {shown}, it must be at most {number_text(condition.maximum)}'
    return ''


def _too_old(topic: str, what: str, age_s: float, limit_s: float) -> str:
    return f'the {what} on {topic} is {age_s:.1f} s old, the limit is {limit_s:g} s'
