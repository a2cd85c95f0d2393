# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Holds a policy against the installed ROS types, and makes messages and reads results by it.

What does not fit is refused at start, with the line of the policy file. Works on the generated
Python classes alone: no rclpy, no node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemma_thor_ros.ros import units
from gemma_thor_ros.ros.binding_checks import (
    bind_pose,
    check_argument,
    check_precondition,
    check_result,
    reason_field,
    success_field,
    table_value,
)
from gemma_thor_ros.ros.interfaces import (
    QUATERNION,
    FieldType,
    InterfaceError,
    field_type,
    find_messages,
    find_slot,
    fit_list,
    get_field,
    load_type,
    set_field,
)
from gemma_thor_ros.ros.policy_file import ItemPath
from gemma_thor_ros.ros.policy_types import (
    Policy,
    PosePolicy,
    ResultField,
    Scalar,
    ToolPolicy,
    Value,
)
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome, cut

MAX_RESULT_ITEMS = 32            # elements of an array that the model is told
MAX_ROTATION_ERROR = 1e-3        # of a quaternion's length, which is 1


@dataclass(frozen=True)
class BoundTool:
    """A tool with the ROS types that it was held against at start.

    `message_class` is what is sent (goal, request, message), `result_class` what comes back
    (result, response, the message that is read); None where there is none.
    """

    tool: ToolPolicy
    interface: Any = None
    message_class: Any = None
    result_class: Any = None
    fields: dict[str, FieldType] = field(default_factory=dict)
    constants: dict[str, Value] = field(default_factory=dict)
    values: dict[str, dict[str, Scalar]] = field(default_factory=dict)  # path -> table -> value
    reason_field: str = ''
    success_field: str = ''
    quaternions: tuple[str, ...] = ()     # paths in the message
    pose: PosePolicy | None = None        # with the fields of a stamped pose filled in
    stop_message: Any = None              # of a publish that goes on

    def make_message(self, fields: Mapping[str, Value]) -> Any:
        """Return the message of checked fields by path; None where nothing is sent.

        Raises:
            CallRefusedError: a value does not fit its ROS field, or a quaternion is no rotation.
        """
        if self.message_class is None:
            return None
        message = self.message_class()
        for path, value in {**fields, **self.constants}.items():
            if not isinstance(value, list):
                value = self.values.get(path, {}).get(str(value), value)
            try:
                set_field(message, path, self.fields[path], value)
            except InterfaceError as error:
                raise CallRefusedError(Outcome.REFUSED_RANGE, str(error)) from error
        for path in self.quaternions:
            rotation = get_field(message, path)
            length = math.hypot(rotation.x, rotation.y, rotation.z, rotation.w)
            if abs(length - 1.0) > MAX_ROTATION_ERROR:
                raise CallRefusedError(
                    Outcome.REFUSED_RANGE,
                    f'{path} is no rotation: its quaternion has length {length:g}, not 1')
        return message

    def result_values(self, result: Any) -> dict[str, Any]:
        """Return what the model is told of a result message, by name, cut and rounded."""
        return {item.name: _read_value(result, item) for item in self.tool.result}

    def reason(self, result: Any) -> str:
        """Return the result's own words on why it failed, or ''."""
        return str(get_field(result, self.reason_field)) if self.reason_field else ''


def bind_policy(policy: Policy) -> dict[str, BoundTool]:
    """Hold every tool of a policy against the installed ROS types.

    Raises:
        ConfigError: 'file:line: message' for the first fault.
    """
    for name, condition in policy.preconditions.items():
        try:
            check_precondition(condition)
        except InterfaceError as error:
            policy.source.fail(('preconditions', name, 'field'), str(error))
    return {name: _bind_tool(policy, tool) for name, tool in policy.tools.items()}


def _bind_tool(policy: Policy, tool: ToolPolicy) -> BoundTool:
    target = tool.target
    if target.kind == 'parameter':
        return BoundTool(tool)
    path: ItemPath = ('tools', tool.name)
    place: ItemPath = (*path, target.kind, 'type')
    try:
        interface = load_type(target.type)
        message, result = _classes(target.kind, interface)
        fields: dict[str, FieldType] = {}
        constants: dict[str, Value] = {}
        tables: dict[str, dict[str, Scalar]] = {}
        for arg in tool.args:
            if arg.field:
                place = (*path, 'args', arg.name, 'field')
                fields[arg.field] = field_type(message, arg.field)
                if arg.values:
                    place = (*path, 'args', arg.name, 'values')
                    tables[arg.field] = {
                        str(value): table_value(message, arg.field, fields[arg.field], value)
                        for value in arg.values.values()}
                else:
                    check_argument(arg, fields[arg.field])
        for name, value in tool.constants.items():
            place = (*path, 'constants', name)
            fields[name] = field_type(message, name)
            constants[name] = _constant(message, name, fields[name], value)
        place = (*path, 'pose')
        pose = None if message is None else bind_pose(message, tool)
        stop_message = None
        if target.stop_message is not None:
            stop_message = message()
            for name, value in target.stop_message.items():
                place = (*path, 'publish', 'stop_message', name)
                wanted = field_type(message, name)
                set_field(stop_message, name, wanted, _constant(message, name, wanted, value))
        for item in tool.result:
            place = (*path, 'result', item.name, 'field')
            check_result(find_slot(result, item.field)[1], item)
        place = (*path, 'reason') if tool.reason_field else place
        reason = '' if result is None else reason_field(result, tool.reason_field, target.kind)
        place = (*path, target.kind, 'success')
        success = success_field(result, target) if target.kind == 'service' else ''
    except InterfaceError as error:
        policy.source.fail(place, str(error))
    quaternions = () if message is None else tuple(find_messages(message, QUATERNION))
    return BoundTool(tool, interface, message, result, fields, constants, tables, reason, success,
                     quaternions, pose, stop_message)


def _classes(kind: str, interface: Any) -> tuple[Any, Any]:
    """Return the classes of what is sent and of what comes back."""
    if kind == 'action':
        return interface.Goal, interface.Result
    if kind == 'service':
        return interface.Request, interface.Response
    return (interface, None) if kind == 'publish' else (None, interface)


def _constant(message: Any, path: str, wanted: FieldType, value: Value) -> Value:
    if isinstance(value, list):
        return fit_list(value, wanted, path)
    return table_value(message, path, wanted, value)


def _read_value(result: Any, item: ResultField) -> Any:
    try:
        return told_value(get_field(result, item.field), item)
    except InterfaceError:
        return None                      # an element that this result does not have


def told_value(value: Any, item: ResultField) -> Any:
    """Return a value as the model is told it: rounded, cut visibly, in its unit."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return cut(value, item.max_length)
    if isinstance(value, (int, float)):
        return _told_number(value, item)
    told = [told_value(element, item) for element in value[:MAX_RESULT_ITEMS].tolist()
            ] if hasattr(value, 'tolist') else [
                told_value(element, item) for element in value[:MAX_RESULT_ITEMS]]
    if len(value) > MAX_RESULT_ITEMS:
        told.append(f'… ({len(value) - MAX_RESULT_ITEMS} more)')
    return told


def _told_number(value: float, item: ResultField) -> float | int | str:
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        return str(value)                # JSON has no such number
    number = units.from_si(value, item.unit) if item.unit else value
    return round(number, item.digits) + 0.0   # + 0.0: no negative zero
