# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Holds a whole policy against the installed ROS types, and makes goals and reads results by it.

What does not fit is refused at start, with the line of the policy file. Works on the generated
Python classes alone: no rclpy, no node.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from rosidl_parser import definition as idl

from gemma_thor_ros.ros import units
from gemma_thor_ros.ros.interfaces import (
    QUATERNION,
    FieldType,
    InterfaceError,
    constant,
    field_type,
    find_messages,
    find_slot,
    fit,
    fit_list,
    get_field,
    leaf_type,
    load_type,
    set_field,
    slot_name,
    slot_types,
)
from gemma_thor_ros.ros.policy_file import ItemPath
from gemma_thor_ros.ros.policy_types import (
    Argument,
    Policy,
    PosePolicy,
    Precondition,
    ResultField,
    Scalar,
    ToolPolicy,
    Value,
)
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome, cut

# message types with a header -> where their position is
STAMPED = {'geometry_msgs/msg/PoseStamped': 'pose.position',
           'geometry_msgs/msg/PoseWithCovarianceStamped': 'pose.pose.position',
           'geometry_msgs/msg/PointStamped': 'point'}
MAX_RESULT_ITEMS = 32            # elements of an array that the model is told
MAX_ROTATION_ERROR = 1e-3        # of a quaternion's length, which is 1


@dataclass(frozen=True)
class BoundTool:
    """A tool with the ROS types that it was held against at start."""

    tool: ToolPolicy
    action_class: Any
    fields: dict[str, FieldType]
    constants: dict[str, Value]
    values: dict[str, dict[str, Scalar]]  # goal path -> value of a policy table -> field value
    reason_field: str
    quaternions: tuple[str, ...]          # goal paths
    pose: PosePolicy | None               # with the fields of a stamped pose filled in

    def make_goal(self, fields: dict[str, Value]) -> Any:
        """Return the goal message of checked fields by path.

        Raises:
            CallRefusedError: a value does not fit its ROS field, or a quaternion is no rotation.
        """
        goal = self.action_class.Goal()
        for path, value in {**fields, **self.constants}.items():
            if not isinstance(value, list):
                value = self.values.get(path, {}).get(str(value), value)
            try:
                set_field(goal, path, self.fields[path], value)
            except InterfaceError as error:
                raise CallRefusedError(Outcome.REFUSED_RANGE, str(error)) from error
        for path in self.quaternions:
            rotation = get_field(goal, path)
            length = math.hypot(rotation.x, rotation.y, rotation.z, rotation.w)
            if abs(length - 1.0) > MAX_ROTATION_ERROR:
                raise CallRefusedError(
                    Outcome.REFUSED_RANGE,
                    f'{path} is no rotation: its quaternion has length {length:g}, not 1')
        return goal

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
            _check_precondition(condition)
        except InterfaceError as error:
            policy.source.fail(('preconditions', name, 'field'), str(error))
    return {name: _bind_tool(policy, tool) for name, tool in policy.tools.items()}


def _check_precondition(condition: Precondition) -> None:
    message = load_type(condition.type)
    if condition.stamp:
        field_type(message, 'header.stamp.sec')
    if not condition.field:
        return
    found = leaf_type(find_slot(message, condition.field)[1])
    if found is None:
        raise InterfaceError(f'{condition.field} is no plain value')
    if condition.equals is None and found.kind not in ('number', 'integer'):
        raise InterfaceError(f'{condition.field} is {found.name}, so it has no min and max')
    if condition.equals is not None:
        fit(condition.equals, found, condition.field)


def _bind_tool(policy: Policy, tool: ToolPolicy) -> BoundTool:
    path: ItemPath = ('tools', tool.name)
    place: ItemPath = (*path, 'action', 'type')
    try:
        action_class = load_type(tool.target.type)
        goal, result = action_class.Goal, action_class.Result
        fields: dict[str, FieldType] = {}
        constants: dict[str, Value] = {}
        tables: dict[str, dict[str, Scalar]] = {}
        for arg in tool.args:
            if arg.field:
                place = (*path, 'args', arg.name, 'field')
                fields[arg.field] = field_type(goal, arg.field)
                if arg.values:
                    place = (*path, 'args', arg.name, 'values')
                    tables[arg.field] = {
                        str(value): _table_value(goal, arg.field, fields[arg.field], value)
                        for value in arg.values.values()}
                else:
                    _check_argument(arg, fields[arg.field])
        for name, value in tool.constants.items():
            place = (*path, 'constants', name)
            fields[name] = field_type(goal, name)
            constants[name] = (
                fit_list(value, fields[name], name) if isinstance(value, list)
                else _table_value(goal, name, fields[name], value))
        place = (*path, 'pose')
        pose = _bind_pose(goal, tool)
        for item in tool.result:
            place = (*path, 'result', item.name, 'field')
            _check_result(find_slot(result, item.field)[1], item)
        place = (*path, 'reason') if tool.reason_field else place
        reason_field = _reason_field(result, tool.reason_field)
    except InterfaceError as error:
        policy.source.fail(place, str(error))
    return BoundTool(tool, action_class, fields, constants, tables, reason_field,
                     tuple(find_messages(goal, QUATERNION)), pose)


def _table_value(goal: Any, path: str, wanted: FieldType, value: Scalar) -> Scalar:
    """Resolve a value of the policy; where the field is no string, a text names a constant."""
    if wanted.counts is not None or wanted.kind == 'quaternion':
        raise InterfaceError(f'{value!r} does not fit {path}, which is {wanted.name}')
    if isinstance(value, str) and wanted.kind != 'string':
        value = constant(goal, path, value)
    return fit(value, wanted, path)


def _check_argument(arg: Argument, wanted: FieldType) -> None:
    kind = 'number' if arg.has_unit else arg.items or arg.type
    if arg.convert:
        kind = 'quaternion'
    if bool(arg.items) != (wanted.counts is not None):
        raise InterfaceError(f'{arg.name} is of type {arg.type}, but {arg.field} is {wanted.name}')
    if wanted.counts is not None:
        low, high = wanted.counts
        if not low <= arg.min_items or not arg.max_items <= high:
            raise InterfaceError(f'{arg.name} has {arg.min_items} to {arg.max_items} elements, '
                                 f'but {arg.field} takes {low} to {high}')
    fits = kind == wanted.kind or (kind == 'integer' and wanted.kind == 'number')
    if not fits:
        what = 'a length or angle' if arg.has_unit else f'of type {arg.type}'
        raise InterfaceError(f'{arg.name} is {what}, but {arg.field} is {wanted.name}')
    if kind == 'quaternion':
        return
    if kind in ('string', 'boolean'):
        for value in arg.enum:
            fit(value, dataclasses.replace(wanted, counts=None), arg.field)
        return
    plain = () if arg.has_unit else (*arg.enum, arg.default)
    for limit in (*plain, arg.minimum, arg.maximum):
        if limit is not None and not wanted.low <= float(limit) <= wanted.high:
            raise InterfaceError(f'{float(limit):g} of {arg.name} does not fit {arg.field}: '
                                 f'{wanted.name} takes {wanted.low:g} to {wanted.high:g}')


def _bind_pose(goal: Any, tool: ToolPolicy) -> PosePolicy | None:
    """Return a tool's pose by its fields; no stamped pose of a motion may go unchecked."""
    pose = tool.pose
    written = [arg.field for arg in tool.args if arg.field] + list(tool.constants)
    for type_name, position in STAMPED.items():
        for found in find_messages(goal, type_name):
            if pose is not None and pose.field == found:
                places = [f'{found}.{position}.{axis}' for axis in 'xyz']
                pose = PosePolicy('', '', f'{found}.header.frame_id', *places)
            elif tool.motion and any(item.startswith(f'{found}.') for item in written) and (
                    pose is None or pose.frame_field != f'{found}.header.frame_id'):
                raise InterfaceError(f'{found} is a {type_name}: say pose: {found}, so that its '
                                     'frame is checked')
    if pose is None:
        return None
    if pose.field:
        raise InterfaceError(f'pose {pose.field} is no {" or ".join(STAMPED)}')
    for item in filter(None, (pose.x, pose.y, pose.z)):
        found_type = field_type(goal, item)
        if found_type.kind != 'number' or found_type.counts is not None:
            raise InterfaceError(f'{item} is no number, so it is no coordinate')
    if pose.frame_field:
        if field_type(goal, pose.frame_field).kind != 'string':
            raise InterfaceError(f'{pose.frame_field} is no string, so it names no frame')
        if pose.frame_field not in written:
            raise InterfaceError(f'nothing fills {pose.frame_field}')
    return pose


def _check_result(slot: Any, item: ResultField) -> None:
    element = slot.value_type if isinstance(slot, idl.AbstractNestedType) else slot
    found = leaf_type(element)
    if found is None:
        raise InterfaceError(f'result field {item.field} is {slot_name(slot)}, which cannot be '
                             'told to the model')
    if item.unit and (found.kind != 'number' or element is not slot):
        raise InterfaceError(f'result field {item.field} is {slot_name(slot)}, so it has no unit')


def _reason_field(result: Any, wanted: str) -> str:
    name = wanted or 'error_msg'
    if not wanted and name not in slot_types(result):
        return ''
    if field_type(result, name).kind != 'string':
        raise InterfaceError(f'the reason {name} of {result.__name__} is no string')
    return name


def _read_value(result: Any, item: ResultField) -> Any:
    try:
        return _told_value(get_field(result, item.field), item)
    except InterfaceError:
        return None                      # an element that this result does not have


def _told_value(value: Any, item: ResultField) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return cut(value, item.max_length)
    if isinstance(value, (int, float)):
        return _told_number(value, item)
    told = [_told_value(element, item) for element in value[:MAX_RESULT_ITEMS].tolist()
            ] if hasattr(value, 'tolist') else [
                _told_value(element, item) for element in value[:MAX_RESULT_ITEMS]]
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
