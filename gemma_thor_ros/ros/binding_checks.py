# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Single items of a policy held against ROS types: arguments, constants, poses, results.

Each raises InterfaceError; binding.py adds the line. Works on the generated Python classes alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rosidl_parser import definition as idl

from gemma_thor_ros.ros.interfaces import (
    FieldType,
    InterfaceError,
    constant,
    field_type,
    find_messages,
    find_slot,
    fit,
    leaf_type,
    load_type,
    slot_name,
    slot_types,
)
from gemma_thor_ros.ros.policy_types import (
    Argument,
    PosePolicy,
    Precondition,
    ResultField,
    Scalar,
    Target,
    ToolPolicy,
)

# message types with a header -> where their position is
STAMPED = {'geometry_msgs/msg/PoseStamped': 'pose.position',
           'geometry_msgs/msg/PoseWithCovarianceStamped': 'pose.pose.position',
           'geometry_msgs/msg/PointStamped': 'point'}


def check_precondition(condition: Precondition) -> None:
    """Check that a precondition's topic has what it speaks of."""
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


def table_value(goal: Any, path: str, wanted: FieldType, value: Scalar) -> Scalar:
    """Resolve a value of the policy; where the field is no string, a text names a constant."""
    if wanted.counts is not None or wanted.kind == 'quaternion':
        raise InterfaceError(f'{value!r} does not fit {path}, which is {wanted.name}')
    if isinstance(value, str) and wanted.kind != 'string':
        value = constant(goal, path, value)
    return fit(value, wanted, path)


def check_argument(arg: Argument, wanted: FieldType) -> None:
    """Check that an argument fits its field, whatever its value."""
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


def bind_pose(goal: Any, tool: ToolPolicy) -> PosePolicy | None:
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


def check_result(slot: Any, item: ResultField) -> None:
    """Check that a field of a result can be told."""
    element = slot.value_type if isinstance(slot, idl.AbstractNestedType) else slot
    found = leaf_type(element)
    if found is None:
        raise InterfaceError(f'result field {item.field} is {slot_name(slot)}, which cannot be '
                             'told to the model')
    if item.unit and (found.kind != 'number' or element is not slot):
        raise InterfaceError(f'result field {item.field} is {slot_name(slot)}, so it has no unit')


def reason_field(result: Any, wanted: str, kind: str) -> str:
    """Return the field of a result that says why it failed, or ''."""
    usual = ('error_msg', 'message', 'status_message') if kind == 'service' else ('error_msg',)
    names = (wanted,) if wanted else usual
    for name in names:
        if wanted or name in slot_types(result):
            found = field_type(result, name)
            if found.kind == 'string' and found.counts is None:
                return name
            if wanted:
                raise InterfaceError(f'the reason {name} of {result.__name__} is no string')
    return ''


def success_field(response: Any, target: Target) -> str:
    """Return the field of a service's response that says whether it worked, or ''."""
    name = target.success or 'success'
    if not target.success and name not in slot_types(response):
        return ''
    if field_type(response, name).kind != 'boolean':
        raise InterfaceError(f'{name} of {response.__name__} is no bool')
    return name
