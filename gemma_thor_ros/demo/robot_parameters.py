# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The parameters of the demo robot: read-only, checked once at start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, ParameterDescriptor
from rclpy.node import Node

from gemma_thor_ros.demo.motion import Pose


@dataclass(frozen=True)
class RobotParameters:
    """Metres, radians, seconds."""

    speed: float
    turn_speed: float
    characters_per_s: float
    time_factor: float
    start_pose: Pose
    dock_pose: Pose
    arena: tuple[float, float, float, float]


def declare_parameters(node: Node) -> RobotParameters:
    """Declare all parameters of the robot and return their values.

    Raises:
        ValueError: a list has the wrong number of values.
    """
    def number(name: str, default: float, low: float, high: float, about: str) -> float:
        descriptor = ParameterDescriptor(
            description=about, read_only=True,
            floating_point_range=[FloatingPointRange(from_value=low, to_value=high)])
        return float(node.declare_parameter(name, default, descriptor).value)

    def numbers(name: str, default: Sequence[float], about: str) -> list[float]:
        descriptor = ParameterDescriptor(description=about, read_only=True)
        declared: Any = node.declare_parameter(name, list(default), descriptor).value
        values = [float(item) for item in declared]
        if len(values) != len(default):
            raise ValueError(f'parameter {name} has {len(values)} values, not {len(default)}')
        return values

    arena = numbers('arena', (-20.0, -20.0, 20.0, 20.0),
                    'Walls: smallest x and y, largest x and y, in metres.')
    return RobotParameters(
        number('speed', 2.0, 0.01, 100.0, 'Driving, m/s.'),
        number('turn_speed', 2.0, 0.01, 100.0, 'Turning, rad/s.'),
        number('characters_per_s', 15.0, 1.0, 10000.0, 'Speaking, characters/s.'),
        number('time_factor', 1.0, 0.01, 1000.0, 'Simulated seconds in a second.'),
        Pose(*numbers('start_pose', (0.0, 0.0, 0.0), 'x, y in metres, yaw in radians.')),
        Pose(*numbers('dock_pose', (-1.0, 0.0, 0.0), 'x, y in metres, yaw in radians.')),
        (arena[0], arena[1], arena[2], arena[3]))
