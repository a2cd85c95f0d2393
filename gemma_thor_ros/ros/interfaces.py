# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Looks into ROS interface types, and sets fields strictly: no casts, no truncation, no NaN.

Works on the generated Python classes alone (no rclpy, no node). Knows no policy.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from dataclasses import dataclass
from typing import Any

from rosidl_parser import definition as idl

from gemma_thor_ros.ros.verdict import cut

MAX_FLOAT32 = 3.4028234663852886e38
MAX_TEXT = 300                   # characters of a message shown to people
MAX_ELEMENTS = 1 << 20           # of an array without a bound of its own
QUATERNION = 'geometry_msgs/msg/Quaternion'

Scalar = str | int | float | bool

_INTEGERS: dict[str, tuple[int, int]] = {
    f'{sign}int{bits}': ((0, 2**bits - 1) if sign else (-2**(bits - 1), 2**(bits - 1) - 1))
    for bits in (8, 16, 32, 64) for sign in ('', 'u')}
_IDL_NAMES = {'double': 'float64', 'float': 'float32', 'boolean': 'bool', 'octet': 'byte'}
_TYPE_NAME = re.compile(r'([a-z][a-z0-9_]*)/(msg|srv|action)/([A-Z][A-Za-z0-9]*)')


class InterfaceError(Exception):
    """A type, field or constant does not exist or does not fit; the message names it."""


@dataclass(frozen=True)
class FieldType:
    """A field that one value fills. `kind` is number, integer, string, boolean or quaternion.

    Of an array, the rest is its elements'; `counts` is how many it takes, none for a scalar.
    """

    kind: str
    name: str                            # as in the interface file: float64, int8, string ...
    low: float = -math.inf
    high: float = math.inf
    max_bytes: int = 0                   # of a bounded string; 0 = unbounded
    counts: tuple[int, int] | None = None


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
    """Return (class that holds the last field of a dotted path, that field's parsed type).

    A part of the path may be an element of an array, as in covariance[0].
    """
    *parents, last = path.split('.')
    for name in parents:
        slot = _slot(message_class, name, path)
        if not isinstance(slot, idl.NamespacedType):
            raise InterfaceError(f'field {path}: {name} of {_class_name(message_class)} is no '
                                 'message')
        message_class = _message_class(slot)
    return message_class, _slot(message_class, last, path)


def field_type(message_class: Any, path: str) -> FieldType:
    """Return the type of a field that one value, or a list of values, can fill.

    Raises:
        InterfaceError: no such field, or a message (but a quaternion), a byte or arrays of them.
    """
    slot = find_slot(message_class, path)[1]
    found = _array_type(slot) if isinstance(slot, idl.AbstractNestedType) else leaf_type(slot)
    if isinstance(slot, idl.NamespacedType) and slot_name(slot) == QUATERNION:
        found = FieldType('quaternion', QUATERNION)
    if found is None:
        raise InterfaceError(f'field {path} of {_class_name(message_class)} is '
                             f'{slot_name(slot)}, which one value cannot fill')
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


def fit_list(values: Any, wanted: FieldType, path: str) -> list[Scalar]:
    """Return a list whose elements fit an array field exactly (InterfaceError otherwise)."""
    if wanted.counts is None or not isinstance(values, list):
        raise InterfaceError(f'{values!r} does not fit {path}, which is {wanted.name}')
    low, high = wanted.counts
    if not low <= len(values) <= high:
        raise InterfaceError(f'{path} is {wanted.name}, it does not take {len(values)} elements')
    element = dataclasses.replace(wanted, counts=None)
    return [fit(value, element, f'{path}[{index}]') for index, value in enumerate(values)]


def set_field(message: Any, path: str, wanted: FieldType, value: Any) -> None:
    """Set a field by dotted path to a value that fits it exactly (InterfaceError otherwise).

    A quaternion takes a yaw in radians.
    """
    *parents, last = path.split('.')
    for name in parents:
        message = getattr(message, name)
    if wanted.kind == 'quaternion':
        yaw = float(fit(value, FieldType('number', 'yaw'), path))
        rotation = getattr(message, last)
        rotation.x = rotation.y = 0.0
        rotation.z, rotation.w = math.sin(yaw / 2), math.cos(yaw / 2)
    elif wanted.counts is not None:
        setattr(message, last, fit_list(value, wanted, path))
    else:
        setattr(message, last, fit(value, wanted, path))


def find_messages(message_class: Any, type_name: str, path: str = '') -> list[str]:
    """Return the dotted paths of all fields of a message type, arrays left out."""
    found: list[str] = []
    for name, slot in slot_types(message_class).items():
        here = f'{path}.{name}' if path else name
        if not isinstance(slot, idl.NamespacedType):
            continue
        if slot_name(slot) == type_name:
            found.append(here)
        found += find_messages(_message_class(slot), type_name, here)
    return found


def get_field(message: Any, path: str) -> Any:
    """Return the field of a dotted path, whose parts may be elements of arrays.

    Raises:
        InterfaceError: an array has no such element.
    """
    for part in path.split('.'):
        name, index = _part(part)
        message = getattr(message, name)
        if index is not None:
            if index >= len(message):
                raise InterfaceError(f'{path}: there are {len(message)} elements')
            message = message[index]
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


def _part(part: str) -> tuple[str, int | None]:
    """Return the name and the index of one part of a path."""
    name, bracket, index = part.partition('[')
    return name, int(index.rstrip(']')) if bracket else None


def _slot(message_class: Any, part: str, path: str) -> Any:
    name, index = _part(part)
    slots = slot_types(message_class)
    if name not in slots:
        raise InterfaceError(f'field {path}: {_class_name(message_class)} has no field {name}; '
                             f'its fields are {", ".join(slots) or "none"}')
    slot = slots[name]
    if index is None:
        return slot
    if not isinstance(slot, idl.AbstractNestedType):
        raise InterfaceError(f'field {path}: {name} is {slot_name(slot)}, no array')
    if isinstance(slot, idl.Array) and index >= slot.size:
        raise InterfaceError(f'field {path}: {name} has {slot.size} elements')
    return slot.value_type


def leaf_type(slot: Any) -> FieldType | None:
    """Return the type of a parsed field that one value fills, else None."""
    if isinstance(slot, idl.AbstractString):
        max_bytes = slot.maximum_size if isinstance(slot, idl.BoundedString) else 0
        return FieldType('string', slot_name(slot), max_bytes=max_bytes)
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


def slot_name(slot: Any) -> str:
    """Return a parsed field's type as people write it."""
    if isinstance(slot, idl.NamespacedType):
        return '/'.join(slot.namespaced_name())
    if isinstance(slot, idl.AbstractNestedType):
        return f'an array of {slot_name(slot.value_type)}'
    if isinstance(slot, idl.BoundedString):
        return f'string<={slot.maximum_size}'
    if isinstance(slot, idl.AbstractString):
        return 'string'
    name = str(getattr(slot, 'typename', slot))
    return _IDL_NAMES.get(name, name)


def _array_type(slot: Any) -> FieldType | None:
    element = leaf_type(slot.value_type)
    if element is None:
        return None
    counts = (0, MAX_ELEMENTS)
    if isinstance(slot, idl.Array):
        counts = (slot.size, slot.size)
    elif isinstance(slot, idl.BoundedSequence):
        counts = (0, slot.maximum_size)
    return dataclasses.replace(element, name=f'an array of {element.name}', counts=counts)


def _message_class(slot: Any) -> Any:
    return getattr(importlib.import_module('.'.join(slot.namespaces)), slot.name)


def _class_name(message_class: Any) -> str:
    package, kind = message_class.__module__.split('.')[:2]
    return f'{package}/{kind}/{message_class.__name__}'
