# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Finds values in a policy that can never pass: they would be refused at every call.

Defaults and enums beyond their own limits, preconditions that nothing fulfils, and stop messages
that move. Every fault is a ConfigError with its line. Knows no ROS.
"""

from __future__ import annotations

import math

from gemma_thor_ros.ros import units
from gemma_thor_ros.ros.policy_file import ItemPath, PolicyFile
from gemma_thor_ros.ros.policy_types import Argument, Precondition, Scalar, ToolPolicy

# Of these, what is not 0 moves; of the others only whoever knows the robot can say what stops it.
_STOPPED_AT_ZERO = frozenset(
    f'geometry_msgs/msg/{name}{stamped}' for name in ('Twist', 'Accel', 'Wrench')
    for stamped in ('', 'Stamped')) | {
        'ackermann_msgs/msg/AckermannDrive', 'ackermann_msgs/msg/AckermannDriveStamped'}
_NO_SPEED = ('steering_angle', 'steering_angle_velocity')


def check_values(source: PolicyFile, path: ItemPath, tool: ToolPolicy) -> None:
    """Check the values of a tool's arguments and of its stop message."""
    for arg in tool.args:
        here = (*path, 'args', arg.name)
        for index, value in enumerate(arg.enum):
            fault = _never_passes(tool, arg, value)
            if fault:
                source.fail((*here, 'enum', index), f'enum value {value!r} of {arg.name} {fault}')
        if arg.default is not None:
            fault = _never_passes(tool, arg, arg.default)
            if fault:
                source.fail((*here, 'default'), f'default {arg.default!r} of {arg.name} {fault}')
    _check_stop_message(source, path, tool)


def check_preconditions(source: PolicyFile, conditions: dict[str, Precondition]) -> None:
    """Check that something can fulfil each precondition."""
    for name, item in conditions.items():
        if item.minimum is not None and item.maximum is not None and item.minimum > item.maximum:
            source.fail(('preconditions', name, 'max'),
                        f'max of {name}, {item.maximum:g}, is below its min, {item.minimum:g}')


def _never_passes(tool: ToolPolicy, arg: Argument, value: Scalar) -> str:
    """Return why a value is refused whatever the other arguments say, or ''."""
    if isinstance(value, str):
        long = len(value) > arg.max_length
        return (f'has {len(value)} characters, max_length is {arg.max_length}' if long else '')
    if isinstance(value, bool):
        return ''
    if arg.sign_arg and value <= 0:
        return f'is not above 0, and {arg.sign_arg} says which way'
    signs = _linked(tool, arg.sign_arg).sign.values() if arg.sign_arg else (1,)
    names = _linked(tool, arg.unit_arg).enum if arg.unit_arg else (arg.unit,)
    low = -math.inf if arg.minimum is None else arg.minimum
    high = math.inf if arg.maximum is None else arg.maximum
    for name in names:
        size = units.to_si(value, str(name)) if name else value
        if any(low <= sign * size <= high for sign in signs):
            return ''
    si = f' {units.SI_UNITS[units.dimension(str(names[0]))]}' if names[0] else ''
    return f'lies outside {units.number_text(low)} to {units.number_text(high)}{si}'


def _linked(tool: ToolPolicy, name: str) -> Argument:
    found = tool.argument(name)
    assert found is not None, f'{name} was checked with the links of the arguments'
    return found


def _check_stop_message(source: PolicyFile, path: ItemPath, tool: ToolPolicy) -> None:
    target = tool.target
    if target.type not in _STOPPED_AT_ZERO:
        return
    for name, value in (target.stop_message or {}).items():
        numbers = value if isinstance(value, list) else [value]
        if name.split('.')[-1] not in _NO_SPEED and any(
                isinstance(number, (int, float)) and number for number in numbers):
            source.fail((*path, target.kind, 'stop_message', name),
                        f'{name} is {value} in the message that stops: a {target.type} moves the '
                        'robot unless it is 0')
