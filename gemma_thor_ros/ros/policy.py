# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The tool policy: which calls of the model may become which ROS actions, argument by argument.

A policy is plain data after `load_policy`; interfaces.py holds it against the ROS types, checks.py
holds calls against it. Knows no ROS and no model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma_thor_ros.ros import units
from gemma_thor_ros.ros.policy_file import (
    ItemPath,
    PolicyFile,
    parse_policy_text,
    read_policy_file,
)

Scalar = str | int | float | bool

DEFAULT_SERVER_TIMEOUT_S = 2.0
DEFAULT_MAX_LENGTH = 1000        # characters of a string argument
DEFAULT_RESULT_LENGTH = 400      # characters of a result text that the model is told
DEFAULT_RESULT_DIGITS = 3        # digits after the point of a result number
RESERVED_RESULT_NAMES = ('status', 'reason')

_TYPES: dict[str, tuple[type, ...]] = {
    'number': (int, float), 'integer': (int,), 'string': (str,), 'boolean': (bool,)}


@dataclass(frozen=True)
class Argument:
    """One argument of a tool.

    `minimum` and `maximum` hold for the converted value: metres or radians where there is a unit,
    else the plain number. `sign` and `values` are tables by enum value.
    """

    name: str
    type: str
    description: str = ''
    enum: tuple[Scalar, ...] = ()
    required: bool = True
    default: Scalar | None = None
    field: str = ''
    unit: str = ''
    unit_arg: str = ''
    sign_arg: str = ''
    sign: dict[str, int] = dataclasses.field(default_factory=dict)
    values: dict[str, Scalar] = dataclasses.field(default_factory=dict)
    minimum: float | None = None
    maximum: float | None = None
    max_length: int = DEFAULT_MAX_LENGTH

    @property
    def has_unit(self) -> bool:
        """Whether the value is a length or an angle."""
        return bool(self.unit or self.unit_arg)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of this argument as the model sees it."""
        schema: dict[str, Any] = {'type': self.type}
        if self.enum:
            schema['enum'] = list(self.enum)
        if self.description:
            schema['description'] = self.description
        if not self.has_unit:  # limits in SI would mislead where the model writes another unit
            if self.minimum is not None:
                schema['minimum'] = self.minimum
            if self.maximum is not None:
                schema['maximum'] = self.maximum
        if self.default is not None:
            schema['default'] = self.default
        return schema


@dataclass(frozen=True)
class ResultField:
    """One value of the action's result that the model is told under `name`."""

    name: str
    field: str
    unit: str = ''
    digits: int = DEFAULT_RESULT_DIGITS
    max_length: int = DEFAULT_RESULT_LENGTH


@dataclass(frozen=True)
class ToolPolicy:
    """One tool and the ROS action that it stands for. Times in seconds."""

    name: str
    description: str
    motion: bool
    action_name: str
    action_type: str
    args: tuple[Argument, ...]
    constants: dict[str, Scalar]
    timeout_s: float
    server_timeout_s: float
    result: tuple[ResultField, ...]
    reason_field: str

    def argument(self, name: str) -> Argument | None:
        """Return the argument of that name, or None."""
        return next((arg for arg in self.args if arg.name == name), None)

    def openai_tool(self) -> dict[str, Any]:
        """Return the tool in the OpenAI form, as the model sees it."""
        parameters: dict[str, Any] = {
            'type': 'object', 'properties': {arg.name: arg.schema() for arg in self.args}}
        required = [arg.name for arg in self.args if arg.required]
        if required:
            parameters['required'] = required
        return {'type': 'function', 'function': {
            'name': self.name, 'description': self.description, 'parameters': parameters}}


@dataclass(frozen=True)
class Policy:
    """All tools of one policy file. What is not in it is denied."""

    source: PolicyFile
    tools: dict[str, ToolPolicy]

    def openai_tools(self) -> list[dict[str, Any]]:
        """Return the tools that are shown to the model, in the order of the file."""
        return [tool.openai_tool() for tool in self.tools.values()]


def load_policy(path: Path | str) -> Policy:
    """Read and check a policy file.

    Raises:
        ConfigError: 'file:line: message' for the first fault.
    """
    return _policy(read_policy_file(path))


def parse_policy(text: str, name: str = 'policy') -> Policy:
    """Check policy text as `load_policy` does; `name` stands for the file in messages."""
    return _policy(parse_policy_text(text, name))


def _policy(source: PolicyFile) -> Policy:
    tools = {name: _tool(source, name, data) for name, data in source.data['tools'].items()}
    return Policy(source, tools)


def _tool(source: PolicyFile, name: str, data: dict[str, Any]) -> ToolPolicy:
    path: ItemPath = ('tools', name)
    args = tuple(_argument(source, (*path, 'args', arg_name), arg_name, arg_data)
                 for arg_name, arg_data in data.get('args', {}).items())
    result = tuple(
        ResultField(key, item['field'], item.get('unit', ''),
                    item.get('round', DEFAULT_RESULT_DIGITS),
                    item.get('max_length', DEFAULT_RESULT_LENGTH))
        for key, item in data.get('result', {}).items())
    tool = ToolPolicy(
        name, data['description'], data['motion'], data['action']['name'], data['action']['type'],
        args, dict(data.get('constants', {})), float(data['timeout_s']),
        float(data.get('server_timeout_s', DEFAULT_SERVER_TIMEOUT_S)), result,
        data.get('reason', ''))
    for item in result:
        if item.name in RESERVED_RESULT_NAMES:
            source.fail((*path, 'result', item.name), f'the result name {item.name!r} is reserved')
    for arg in args:
        _check_links(source, (*path, 'args', arg.name), tool, arg)
    _check_targets(source, path, tool)
    return tool


def _argument(source: PolicyFile, path: ItemPath, name: str, data: dict[str, Any]) -> Argument:
    kind = data['type']
    default = data.get('default')
    required = data.get('required', default is None)
    if required and default is not None:
        source.fail((*path, 'required'), f'{name} has a default, so it is not required')
    enum = tuple(data.get('enum', ()))
    _check_values(source, path, name, kind, enum, default)
    minimum = _limit(source, (*path, 'min'), data, 'min')
    maximum = _limit(source, (*path, 'max'), data, 'max')
    if minimum is not None and maximum is not None and minimum > maximum:
        source.fail((*path, 'max'), f'max of {name} is below its min')
    numeric = kind in ('number', 'integer')
    allowed = {'min': numeric, 'max': numeric, 'unit': numeric, 'unit_arg': numeric,
               'sign_arg': numeric, 'sign': kind == 'string', 'values': kind == 'string',
               'max_length': kind == 'string', 'enum': kind != 'boolean'}
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
        dict(data.get('values', {})), minimum, maximum, data.get('max_length', DEFAULT_MAX_LENGTH))


def _check_values(source: PolicyFile, path: ItemPath, name: str, kind: str,
                  enum: tuple[Scalar, ...], default: Scalar | None) -> None:
    for index, value in enumerate(enum):
        if not _has_type(value, kind):
            source.fail((*path, 'enum', index),
                        f'enum value {value!r} of {name} is not of type {kind}')
        if value in enum[:index]:
            source.fail((*path, 'enum', index), f'enum value {value!r} of {name} stands twice')
    if default is not None and not _has_type(default, kind):
        source.fail((*path, 'default'), f'default {default!r} of {name} is not of type {kind}')
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
            source.fail(path, f'{key} is {value!r}; without unit or unit_arg it must be a number')
        return float(value)
    quantity = units.parse_quantity(value) if isinstance(value, str) else None
    if quantity is None:
        source.fail(path, f'{key} is {value!r}; with unit or unit_arg it must be a number and a '
                          "unit, such as '5 m' or '360 deg'")
    if 'unit' in data and units.dimension(quantity[1]) != units.dimension(data['unit']):
        source.fail(path, f'{key} is {value!r}, but the unit of the argument is {data["unit"]}')
    return units.to_si(*quantity)


def _check_links(source: PolicyFile, path: ItemPath, tool: ToolPolicy, arg: Argument) -> None:
    """Check what an argument needs of the other arguments."""
    if arg.unit and arg.unit_arg:
        source.fail((*path, 'unit_arg'), 'give either unit or unit_arg, not both')
    if arg.unit_arg:
        _check_unit_arg(source, (*path, 'unit_arg'), tool, arg)
    if arg.sign_arg:
        other = _linked(source, (*path, 'sign_arg'), tool, arg.sign_arg)
        if not other.sign:
            source.fail((*path, 'sign_arg'), f'{other.name} has no sign table')
    helps = any(arg.name in (other.unit_arg, other.sign_arg) for other in tool.args)
    if not arg.field and not helps:
        source.fail(path, f'{arg.name} goes nowhere: give it a field')
    if arg.sign and not any(arg.name == other.sign_arg for other in tool.args):
        source.fail((*path, 'sign'), f'no argument names {arg.name} as its sign_arg')
    if arg.values and not arg.field:
        source.fail((*path, 'values'), f'values of {arg.name} need a field')
    if (tool.motion and arg.field and arg.type in ('number', 'integer') and not arg.enum
            and (arg.minimum is None or arg.maximum is None)):
        source.fail(path, f'{arg.name} moves the robot, so it needs min and max')


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


def _check_targets(source: PolicyFile, path: ItemPath, tool: ToolPolicy) -> None:
    """Refuse two writers of one field of the goal, whole or in part."""
    seen: dict[str, str] = {}
    for key, target, writer in _writers(tool):
        for other, other_writer in seen.items():
            if f'{target}.'.startswith(f'{other}.') or f'{other}.'.startswith(f'{target}.'):
                source.fail((*path, *key),
                            f'{writer} writes {target}, which {other_writer} writes')
        seen[target] = writer


def _writers(tool: ToolPolicy) -> Iterator[tuple[ItemPath, str, str]]:
    for arg in tool.args:
        if arg.field:
            yield ('args', arg.name, 'field'), arg.field, f'argument {arg.name}'
    for name in tool.constants:
        yield ('constants', name), name, f'constant {name}'
