# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Looks into ROS interface types, and converts strictly: no casts, no truncation, no NaN.

Works on the generated Python classes alone (no rclpy, no node). `bind_policy` holds a whole policy
against the installed types, so that a wrong field or type is found at start.
"""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass
from typing import Any

from rosidl_parser import definition as idl

from gemma_thor_ros.ros import units
from gemma_thor_ros.ros.policy import Argument, Policy, ResultField, Scalar, ToolPolicy
from gemma_thor_ros.ros.policy_file import ItemPath
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome, cut

MAX_FLOAT32 = 3.4028234663852886e38
MAX_RESULT_ITEMS = 32            # elements of an array that the model is told
MAX_TEXT = 300                   # characters of a message shown to people

_INTEGERS: dict[str, tuple[int, int]] = {
    f'{sign}int{bits}': ((0, 2**bits - 1) if sign else (-2**(bits - 1), 2**(bits - 1) - 1))
    for bits in (8, 16, 32, 64) for sign in ('', 'u')}
_TYPE_NAME = re.compile(r'([a-z][a-z0-9_]*)/(msg|srv|action)/([A-Z][A-Za-z0-9]*)')


class InterfaceError(Exception):
    """A type, field or constant does not exist or does not fit; the message names it."""


@dataclass(frozen=True)
class FieldType:
    """A field that one value fills. `kind` is number, integer, string or boolean."""

    kind: str
    name: str                            # as in the interface file: float64, int8, string ...
    low: float = -math.inf
    high: float = math.inf
    max_bytes: int = 0                   # of a bounded string; 0 = unbounded


@dataclass(frozen=True)
class BoundTool:
    """A tool with the ROS types that it was held against at start."""

    tool: ToolPolicy
    action_class: Any
    fields: dict[str, FieldType]
    constants: dict[str, Scalar]
    values: dict[str, dict[str, Scalar]]  # goal path -> value of a policy table -> field value
    reason_field: str

    def make_goal(self, fields: dict[str, Scalar]) -> Any:
        """Return the goal message of checked fields by path.

        Raises:
            CallRefusedError: a value does not fit its ROS field.
        """
        goal = self.action_class.Goal()
        for path, value in {**fields, **self.constants}.items():
            value = self.values.get(path, {}).get(str(value), value)
            try:
                set_field(goal, path, self.fields[path], value)
            except InterfaceError as error:
                raise CallRefusedError(Outcome.REFUSED_RANGE, str(error)) from error
        return goal

    def result_values(self, result: Any) -> dict[str, Any]:
        """Return what the model is told of a result message, by name, cut and rounded."""
        return {item.name: _told_value(get_field(result, item.field), item)
                for item in self.tool.result}

    def reason(self, result: Any) -> str:
        """Return the result's own words on why it failed, or ''."""
        return str(get_field(result, self.reason_field)) if self.reason_field else ''


def load_type(name: str) -> Any:
    """Import the class of 'package/action/Name' (or msg, srv).

    Raises:
        InterfaceError: no such package or type.
    """
    match = _TYPE_NAME.fullmatch(name)
    if match is None:
        raise InterfaceError(f'{name!r} is not of the form package/action/Name')
    package, kind, type_name = match.groups()
    try:
        module = importlib.import_module(f'{package}.{kind}')
    except ModuleNotFoundError as error:
        raise InterfaceError(f'type {name}: package {package} is not installed or has no {kind} '
                             'interfaces') from error
    if not hasattr(module, type_name):
        raise InterfaceError(f'type {name} does not exist in package {package}')
    return getattr(module, type_name)


def slot_types(message_class: Any) -> dict[str, Any]:
    """Return the fields of a message class with their parsed types, in order."""
    return dict(zip(message_class.get_fields_and_field_types(), message_class.SLOT_TYPES,
                    strict=True))


def find_slot(message_class: Any, path: str) -> tuple[Any, Any]:
    """Return (class that holds the last field of a dotted path, that field's parsed type)."""
    *parents, last = path.split('.')
    for name in parents:
        slot = _slot(message_class, name, path)
        if not isinstance(slot, idl.NamespacedType):
            raise InterfaceError(f'field {path}: {name} of {_class_name(message_class)} is no '
                                 'message')
        message_class = getattr(importlib.import_module('.'.join(slot.namespaces)), slot.name)
    return message_class, _slot(message_class, last, path)


def field_type(message_class: Any, path: str) -> FieldType:
    """Return the type of a field that one value can fill.

    Raises:
        InterfaceError: no such field, or a message, an array or a byte.
    """
    slot = find_slot(message_class, path)[1]
    found = _leaf_type(slot)
    if found is None:
        raise InterfaceError(f'field {path} of {_class_name(message_class)} is '
                             f'{_slot_name(slot)}, which one value cannot fill')
    return found


def constant(message_class: Any, path: str, name: str) -> Scalar:
    """Return a constant that is defined beside the field of `path`, or in the whole message."""
    for owner in (find_slot(message_class, path)[0], message_class):
        prepared = type(owner).__dict__.get(name)
        if isinstance(prepared, property) and not name.endswith('__DEFAULT'):
            return getattr(owner, name)  # type: ignore[no-any-return]
    raise InterfaceError(f'{_class_name(message_class)} has no constant {name}')


def fit(value: Any, wanted: FieldType, path: str) -> Scalar:
    """Return `value` when it fits the field exactly.

    Raises:
        InterfaceError: another type, out of the field's range, not finite; with the numbers.
    """
    kinds = {'boolean': (bool,), 'string': (str,), 'integer': (int,), 'number': (int, float)}
    if type(value) not in kinds[wanted.kind]:
        raise InterfaceError(f'{value!r} does not fit {path}, which is {wanted.name}')
    if isinstance(value, str):
        size = len(value.encode('utf-8', 'surrogatepass'))
        if wanted.max_bytes and size > wanted.max_bytes:
            raise InterfaceError(f'{path} takes {wanted.max_bytes} bytes of text, not {size}')
        return value
    if wanted.kind == 'number':
        value = float(value)
    if not wanted.low <= value <= wanted.high or not math.isfinite(value):
        raise InterfaceError(f'{value!r} does not fit {path}: {wanted.name} takes '
                             f'{wanted.low:g} to {wanted.high:g}')
    return value  # type: ignore[no-any-return]


def set_field(message: Any, path: str, wanted: FieldType, value: Any) -> None:
    """Set a field by dotted path to a value that fits it exactly (InterfaceError otherwise)."""
    *parents, last = path.split('.')
    for name in parents:
        message = getattr(message, name)
    setattr(message, last, fit(value, wanted, path))


def get_field(message: Any, path: str) -> Any:
    """Return the field of a dotted path."""
    for name in path.split('.'):
        message = getattr(message, name)
    return message


def message_text(message: Any, limit: int = MAX_TEXT) -> str:
    """Return the plain fields of a message as 'name=value, ...' for a log line or an event."""
    parts = []
    for name in slot_types(type(message)):
        value = getattr(message, name)
        if isinstance(value, float):
            value = f'{value:.3f}'
        if isinstance(value, (bool, int, str)):
            parts.append(f'{name}={value}')
    return cut(', '.join(parts), limit)


def bind_policy(policy: Policy) -> dict[str, BoundTool]:
    """Hold every tool of a policy against the installed ROS types.

    Raises:
        ConfigError: 'file:line: message' for the first fault.
    """
    return {name: _bind_tool(policy, tool) for name, tool in policy.tools.items()}


def _bind_tool(policy: Policy, tool: ToolPolicy) -> BoundTool:
    path: ItemPath = ('tools', tool.name)
    place: ItemPath = (*path, 'action', 'type')
    try:
        action_class = load_type(tool.action_type)
        goal, result = action_class.Goal, action_class.Result
        fields: dict[str, FieldType] = {}
        constants: dict[str, Scalar] = {}
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
            constants[name] = _table_value(goal, name, fields[name], value)
        for item in tool.result:
            place = (*path, 'result', item.name, 'field')
            _check_result(find_slot(result, item.field)[1], item)
        place = (*path, 'reason') if tool.reason_field else place
        reason_field = _reason_field(result, tool.reason_field)
    except InterfaceError as error:
        policy.source.fail(place, str(error))
    return BoundTool(tool, action_class, fields, constants, tables, reason_field)


def _table_value(goal: Any, path: str, wanted: FieldType, value: Scalar) -> Scalar:
    """Resolve a value of the policy; where the field is no string, a text names a constant."""
    if isinstance(value, str) and wanted.kind != 'string':
        value = constant(goal, path, value)
    return fit(value, wanted, path)


def _check_argument(arg: Argument, wanted: FieldType) -> None:
    kind = 'number' if arg.has_unit else arg.type
    fits = kind == wanted.kind or (kind == 'integer' and wanted.kind == 'number')
    if not fits:
        what = 'a length or angle' if arg.has_unit else f'of type {arg.type}'
        raise InterfaceError(f'{arg.name} is {what}, but {arg.field} is {wanted.name}')
    if kind in ('string', 'boolean'):
        for value in arg.enum:
            fit(value, wanted, arg.field)
        return
    plain = () if arg.has_unit else (*arg.enum, arg.default)
    for limit in (*plain, arg.minimum, arg.maximum):
        if limit is not None and not wanted.low <= float(limit) <= wanted.high:
            raise InterfaceError(f'{limit} of {arg.name} does not fit {arg.field}: {wanted.name} '
                                 f'takes {wanted.low:g} to {wanted.high:g}')


def _check_result(slot: Any, item: ResultField) -> None:
    element = slot.value_type if isinstance(slot, idl.AbstractNestedType) else slot
    found = _leaf_type(element)
    if found is None:
        raise InterfaceError(f'result field {item.field} is {_slot_name(slot)}, which cannot be '
                             'told to the model')
    if item.unit and (found.kind != 'number' or element is not slot):
        raise InterfaceError(f'result field {item.field} is {_slot_name(slot)}, so it has no unit')


def _reason_field(result: Any, wanted: str) -> str:
    name = wanted or 'error_msg'
    if not wanted and name not in slot_types(result):
        return ''
    if field_type(result, name).kind != 'string':
        raise InterfaceError(f'the reason {name} of {_class_name(result)} is no string')
    return name


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


def _slot(message_class: Any, name: str, path: str) -> Any:
    slots = slot_types(message_class)
    if name not in slots:
        raise InterfaceError(f'field {path}: {_class_name(message_class)} has no field {name}; '
                             f'its fields are {", ".join(slots) or "none"}')
    return slots[name]


def _leaf_type(slot: Any) -> FieldType | None:
    if isinstance(slot, idl.AbstractString):
        max_bytes = slot.maximum_size if isinstance(slot, idl.BoundedString) else 0
        return FieldType('string', _slot_name(slot), max_bytes=max_bytes)
    if not isinstance(slot, idl.BasicType):
        return None
    if slot.typename == 'boolean':
        return FieldType('boolean', 'bool')
    if slot.typename == 'double':
        return FieldType('number', 'float64')
    if slot.typename == 'float':
        return FieldType('number', 'float32', -MAX_FLOAT32, MAX_FLOAT32)
    if slot.typename in _INTEGERS:
        return FieldType('integer', slot.typename, *_INTEGERS[slot.typename])
    return None


def _slot_name(slot: Any) -> str:
    if isinstance(slot, idl.NamespacedType):
        return '/'.join(slot.namespaced_name())
    if isinstance(slot, idl.AbstractNestedType):
        return f'an array of {_slot_name(slot.value_type)}'
    if isinstance(slot, idl.BoundedString):
        return f'string<={slot.maximum_size}'
    if isinstance(slot, idl.AbstractString):
        return 'string'
    return str(getattr(slot, 'typename', slot))


def _class_name(message_class: Any) -> str:
    package, kind = message_class.__module__.split('.')[:2]
    return f'{package}/{kind}/{message_class.__name__}'
