# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads the arguments of a policy's tools: types, units, limits, tables, links between them.

Every fault is a ConfigError with its line. Knows no ROS.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ros import units
from gemma_thor_ros.ros.policy_file import ItemPath, PolicyFile, number_hint
from gemma_thor_ros.ros.policy_types import DEFAULT_MAX_LENGTH, Argument, Scalar, ToolPolicy

_TYPES: dict[str, tuple[type, ...]] = {
    'number': (int, float), 'integer': (int,), 'string': (str,), 'boolean': (bool,)}


def read_argument(source: PolicyFile, path: ItemPath, name: str,
                  data: dict[str, Any]) -> Argument:
    """Return one argument of a tool, checked for itself."""
    kind = data['type']
    element = data.get('items', '') if kind == 'array' else kind
    default = data.get('default')
    required = data.get('required', default is None)
    if required and default is not None:
        source.fail((*path, 'required'), f'{name} has a default, so it is not required')
    enum = tuple(data.get('enum', ()))
    if kind == 'array':
        _check_array(source, path, name, data)
    _check_values(source, path, name, element, enum, default)
    minimum = _limit(source, (*path, 'min'), data, 'min')
    maximum = _limit(source, (*path, 'max'), data, 'max')
    if minimum is not None and maximum is not None and minimum > maximum:
        source.fail((*path, 'max'), f'max of {name}, {data["max"]}, is below its min, '
                                    f'{data["min"]}')
    numeric = element in ('number', 'integer')
    scalar = kind != 'array'
    allowed = {'min': numeric, 'max': numeric, 'unit': numeric, 'unit_arg': numeric,
               'sign_arg': numeric and scalar, 'sign': kind == 'string',
               'values': kind == 'string', 'max_length': element == 'string',
               'enum': element != 'boolean', 'default': scalar, 'convert': kind == 'number',
               'items': not scalar, 'min_items': not scalar, 'max_items': not scalar}
    for key, fits in allowed.items():
        if key in data and not fits:
            source.fail((*path, key), f'{key} does not go with type {kind}')
    for key in ('sign', 'values'):
        if key in data and set(data[key]) != set(enum):
            source.fail((*path, key), f'{key} must name exactly the enum values of {name}')
    return Argument(
        name, kind, data.get('description', ''), enum, required, default, data.get('field', ''),
        data.get('unit', ''), data.get('unit_arg', ''), data.get('sign_arg', ''),
        {key: int(sign) for key, sign in data.get('sign', {}).items()},
        dict(data.get('values', {})), minimum, maximum,
        data.get('max_length', DEFAULT_MAX_LENGTH), data.get('convert', ''),
        '' if scalar else element, data.get('min_items', 0), data.get('max_items', 0))


def _check_array(source: PolicyFile, path: ItemPath, name: str, data: dict[str, Any]) -> None:
    for key in ('items', 'max_items'):
        if key not in data:
            source.fail(path, f'{name} is an array, so it needs {key}')
    if data.get('min_items', 0) > data['max_items']:
        source.fail((*path, 'max_items'), f'max_items of {name}, {data["max_items"]}, is below '
                                          f'its min_items, {data["min_items"]}')


def _check_values(source: PolicyFile, path: ItemPath, name: str, kind: str,
                  enum: tuple[Scalar, ...], default: Scalar | None) -> None:
    for index, value in enumerate(enum):
        if not _has_type(value, kind):
            source.fail((*path, 'enum', index),
                        f'enum value {value!r} of {name} is not of type {kind}'
                        + (number_hint(value) if kind == 'number' else ''))
        if value in enum[:index]:
            source.fail((*path, 'enum', index), f'enum value {value!r} of {name} stands twice')
    if default is not None and not _has_type(default, kind):
        source.fail((*path, 'default'), f'default {default!r} of {name} is not of type {kind}'
                    + (number_hint(default) if kind == 'number' else ''))
    if default is not None and enum and default not in enum:
        source.fail((*path, 'default'), f'default {default!r} of {name} is not in its enum')


def _has_type(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == 'boolean' or not isinstance(value, bool))


def _limit(source: PolicyFile, path: ItemPath, data: dict[str, Any], key: str) -> float | None:
    """Read min or max in SI. The limit of a quantity has to name its unit."""
    if key not in data:
        return None
    value = data[key]
    if not data.get('unit') and not data.get('unit_arg'):
        if isinstance(value, str):
            source.fail(path, f'{key} is {value!r}; without unit or unit_arg it must be a number'
                        + number_hint(value))
        return float(value)
    quantity = units.parse_quantity(value) if isinstance(value, str) else None
    if quantity is None:
        source.fail(path, f'{key} is {value!r}; with unit or unit_arg it must be a number and a '
                          "unit, such as '5 m' or '360 deg'")
    if 'unit' in data and units.dimension(quantity[1]) != units.dimension(data['unit']):
        source.fail(path, f'{key} is {value!r}, but the unit of the argument is {data["unit"]}')
    return units.to_si(*quantity)


def check_links(source: PolicyFile, path: ItemPath, tool: ToolPolicy, arg: Argument) -> None:
    """Check what an argument needs of the other arguments."""
    if arg.unit and arg.unit_arg:
        source.fail((*path, 'unit_arg'), 'give either unit or unit_arg, not both')
    if arg.unit_arg:
        _check_unit_arg(source, (*path, 'unit_arg'), tool, arg)
    if arg.sign_arg:
        other = _linked(source, (*path, 'sign_arg'), tool, arg.sign_arg)
        if not other.sign:
            source.fail((*path, 'sign_arg'), f'{other.name} has no sign table')
    helps = arg.name == tool.target.duration_arg or any(
        arg.name in (other.unit_arg, other.sign_arg) for other in tool.args)
    if not arg.field and not helps:
        source.fail(path, f'{arg.name} goes nowhere: give it a field')
    if arg.sign and not any(arg.name == other.sign_arg for other in tool.args):
        source.fail((*path, 'sign'), f'no argument names {arg.name} as its sign_arg')
    if arg.values and not arg.field:
        source.fail((*path, 'values'), f'values of {arg.name} need a field')
    if arg.convert and not (arg.field and _dimension(tool, arg) == 'angle'):
        source.fail((*path, 'convert'), f'{arg.convert} needs a field and a unit of angle')
    if (tool.motion and arg.field and (arg.items or arg.type) in ('number', 'integer')
            and not arg.enum and (arg.minimum is None or arg.maximum is None)):
        source.fail(path, f'{arg.name} moves the robot, so it needs min and max')


def _dimension(tool: ToolPolicy, arg: Argument) -> str:
    """Return 'length', 'angle' or ''."""
    other = tool.argument(arg.unit_arg) if arg.unit_arg else None
    return units.dimension(str(other.enum[0]) if other is not None else arg.unit)


def _check_unit_arg(source: PolicyFile, path: ItemPath, tool: ToolPolicy, arg: Argument) -> None:
    other = _linked(source, path, tool, arg.unit_arg)
    dimensions = {units.dimension(str(unit)) for unit in other.enum}
    if len(dimensions) != 1 or '' in dimensions:
        source.fail(path, f'the enum of {other.name} must hold units of one dimension, '
                          f'of {", ".join(units.UNITS)}')
    for key in ('min', 'max'):
        limit = source.data['tools'][tool.name]['args'][arg.name].get(key)
        quantity = units.parse_quantity(limit) if limit is not None else None
        if quantity is not None and units.dimension(quantity[1]) not in dimensions:
            source.fail((*path[:-1], key), f'{key} is {limit!r}, but the units in {other.name} '
                                           f'are {", ".join(map(str, other.enum))}')


def _linked(source: PolicyFile, path: ItemPath, tool: ToolPolicy, name: str) -> Argument:
    other = tool.argument(name)
    if other is None or other.type != 'string' or not other.enum:
        source.fail(path, f'{name!r} is no string argument with an enum of tool {tool.name}')
    if not other.required and other.default is None:
        source.fail(path, f'{name} must be required or have a default')
    return other
