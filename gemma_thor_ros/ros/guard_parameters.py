# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The parameters of goal_guard: read-only, checked once at start.

They are the guard's own, not the engine's: goal_guard must start without config.py's settings. A
name that is none of them is refused: a stop topic under a misspelled name would stop nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, ParameterDescriptor
from rclpy.node import Node
from rclpy.parameter import Parameter

# What every node may be given.
ROS_PARAMETERS = ('use_sim_time', 'qos_overrides', 'start_type_description_service')


@dataclass(frozen=True)
class GuardParameters:
    """Names are relative to the guard's namespace; times in seconds."""

    node: str
    stop_topics: tuple[str, ...]
    stop_max_age: float
    heartbeat_max_age: float
    cancel_ack_timeout: float
    cancel_end_timeout: float
    state_file: str


_TIMES = {
    'stop_max_age': (0.5, 'A stop topic that is silent for longer stops the robot.'),
    'heartbeat_max_age': (0.5, 'When the node is silent for longer, its goals are cancelled.'),
    'cancel_ack_timeout': (0.5, 'When a cancel is not acknowledged in time, motion is inhibited.'),
    'cancel_end_timeout': (2.0, 'When a cancelled goal runs on for longer, motion is inhibited.'),
}


def declare_parameters(node: Node) -> GuardParameters:
    """Declare all parameters of the guard and return their values.

    Raises:
        ValueError: a parameter was given that does not exist, or an empty stop topic.
    """
    given = getattr(node, '_parameter_overrides', None)      # rclpy has no public way to ask
    if given is None:                    # else a misspelled stop topic would pass unseen
        raise ValueError('this version of rclpy does not tell which parameters were given')
    fault = unknown_names(given)
    if fault:
        raise ValueError(fault)

    def text(name: str, default: str, about: str) -> str:
        descriptor = ParameterDescriptor(description=about, read_only=True)
        return str(node.declare_parameter(name, default, descriptor).value)

    def seconds(name: str) -> float:
        default, about = _TIMES[name]
        limits = FloatingPointRange(from_value=0.05, to_value=10.0)
        descriptor = ParameterDescriptor(description=f'{about} Seconds.', read_only=True,
                                         floating_point_range=[limits])
        return float(node.declare_parameter(name, default, descriptor).value)

    return GuardParameters(
        text('node', 'llm_node', 'Name of the language model node.'),
        _texts(node, 'stop_topics', 'Topics of type std_msgs/Bool, each with one publisher that '
               'says false at 5 Hz or more while the robot may move.'),
        seconds('stop_max_age'), seconds('heartbeat_max_age'), seconds('cancel_ack_timeout'),
        seconds('cancel_end_timeout'),
        text('state_file', '', "File that keeps the stop latch over a restart; '' = "
             "~/.ros/gemma_thor_ros/<name>.json, 'none' = no file."))


def unknown_names(given: Iterable[str]) -> str:
    """Return a sentence on the names that are no parameter of the guard, or ''."""
    own = [item.name for item in fields(GuardParameters)]
    sentences = []
    for name in given:
        if name not in own and name.split('.')[0] not in ROS_PARAMETERS:
            close = difflib.get_close_matches(name, own, 1)
            hint = f'did you mean {close[0]}?' if close else f'there are {", ".join(own)}'
            sentences.append(f'parameter {name} does not exist; {hint}')
    return '; '.join(sentences)


def _texts(node: Node, name: str, about: str) -> tuple[str, ...]:
    """Declare a list of texts whose default is empty; rclpy can't infer the type of []."""
    descriptor = ParameterDescriptor(description=about, read_only=True)
    value: Any = node.declare_parameter(name, Parameter.Type.STRING_ARRAY, descriptor).value
    texts = tuple(str(item) for item in value or ())
    if not all(text.strip() for text in texts):
        raise ValueError(f'{name} holds an empty name; leave {name} out to have none')
    return texts
