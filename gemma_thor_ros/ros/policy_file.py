# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads a tool policy's YAML with the line of every item, and holds it against policy_schema.py.

Every fault becomes a ConfigError 'file:line: message'. Knows the shape of the file, not its
meaning (that is policy.py), and no ROS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import yaml

from gemma_thor_ros.ros.policy_schema import POLICY_SCHEMA
from gemma_thor_ros.schema import ConfigError

ItemPath = tuple[Any, ...]

MAX_FILE_BYTES = 1 << 20
# Of a file whose aliases are written out: a few lines of them can stand for billions of items.
MAX_ITEMS = 100_000
_MAX_SHOWN = 200  # characters of a value in a message


@dataclass(frozen=True)
class PolicyFile:
    """The parsed data and where each item stands; paths are tuples of keys and list indices."""

    name: str
    data: dict[str, Any]
    lines: dict[ItemPath, int] = field(repr=False)

    def line(self, path: ItemPath) -> int:
        """Return the line (from 1) of `path`, or of its nearest ancestor in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def fail(self, path: ItemPath, message: str) -> NoReturn:
        """Raise ConfigError 'file:line: message' for the item at `path`."""
        raise ConfigError(f'{self.name}:{self.line(path)}: {message}')


def read_policy_file(path: Path | str) -> PolicyFile:
    """Read and check the shape of a policy file.

    Raises:
        ConfigError: the file can't be read, is no YAML or does not follow POLICY_SCHEMA.
    """
    try:
        with Path(path).open('rb') as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f'{path}: cannot be read: {error.strerror}') from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f'{path}: larger than the limit of {MAX_FILE_BYTES} bytes')
    try:
        text = raw.decode('utf-8')
    except UnicodeDecodeError as error:
        line = raw.count(b'\n', 0, error.start) + 1
        raise ConfigError(f'{path}:{line}: not UTF-8 text') from error
    return parse_policy_text(text, str(path))


def parse_policy_text(text: str, name: str = 'policy') -> PolicyFile:
    """Parse policy text as `read_policy_file` does; `name` stands for the file in messages."""
    lines: dict[ItemPath, int] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise ConfigError(f'{name}:1: the file is empty')
        data = _Builder(name, lines).build(root, (), ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise ConfigError(f'{name}:{line}: not valid YAML: {error.problem}') from error
    except yaml.YAMLError as error:
        raise ConfigError(f'{name}:1: not valid YAML: {error}') from error
    except RecursionError as error:
        raise ConfigError(f'{name}:1: nested too deeply') from error
    policy_file = PolicyFile(name, data, lines)
    _check_shape(policy_file)
    return policy_file


class _Builder:
    """YAML nodes to plain data: line numbers kept, double keys and surprising types refused."""

    def __init__(self, name: str, lines: dict[ItemPath, int]) -> None:
        self._name = name
        self._lines = lines
        self._loader = yaml.SafeLoader('')
        self._num_items = 0

    def build(self, node: yaml.Node, path: ItemPath, parents: tuple[int, ...]) -> Any:
        line = node.start_mark.line + 1
        self._lines.setdefault(path, line)
        if id(node) in parents:
            raise ConfigError(f'{self._name}:{line}: an alias contains itself')
        self._num_items += 1
        if self._num_items > MAX_ITEMS:
            raise ConfigError(f'{self._name}:{line}: more than {MAX_ITEMS} items, each alias '
                              'counted by what it stands for')
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, (*parents, id(node)))
        if isinstance(node, yaml.SequenceNode):
            inner = (*parents, id(node))
            return [self.build(item, (*path, index), inner)
                    for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: ItemPath, parents: tuple[int, ...]) -> Any:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise ConfigError(f'{self._name}:{line}: the key {key_node.value!r} is read as '
                                  f'{_kind(key)}; put it in quotes')
            if key in data:
                raise ConfigError(f'{self._name}:{line}: the key {key!r} stands here twice')
            self._lines[(*path, key)] = line
            data[key] = self.build(value_node, (*path, key), parents)
        return data

    def _scalar(self, node: yaml.Node) -> Any:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode):
            raise ConfigError(f'{self._name}:{line}: a key must be a plain name')
        try:
            value = self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f'{self._name}:{line}: {node.value!r} cannot be read') from error
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f'{self._name}:{line}: {node.value!r} is not a finite number')
        if value is not None and not isinstance(value, (str, int, float, bool)):
            raise ConfigError(f'{self._name}:{line}: {node.value!r} is read as {_kind(value)}; '
                              'put it in quotes')
        return value


def _check_shape(policy_file: PolicyFile) -> None:
    validator = jsonschema.Draft202012Validator(POLICY_SCHEMA)
    # A wrong key explains a missing one better than the other way round.
    errors = sorted(validator.iter_errors(policy_file.data), key=lambda error: (
        error.validator == 'required', policy_file.line(_error_path(error)), error.message))
    if errors:
        policy_file.fail(_error_path(errors[0]), _describe(errors[0]))


def _error_path(error: jsonschema.ValidationError) -> ItemPath:
    path = tuple(error.absolute_path)
    if error.validator == 'additionalProperties' and isinstance(error.instance, dict):
        unknown = _unknown_keys(error)
        if unknown:
            return (*path, unknown[0])
    return path


def _unknown_keys(error: jsonschema.ValidationError) -> list[str]:
    patterns = error.schema.get('patternProperties')
    if patterns is None:
        return [key for key in error.instance if key not in error.schema['properties']]
    validator = jsonschema.Draft202012Validator({
        'additionalProperties': False, 'patternProperties': dict.fromkeys(patterns, True)})
    return [key for key in error.instance if not validator.is_valid({key: None})]


def _describe(error: jsonschema.ValidationError) -> str:
    """Say in one sentence what is wrong, with the item's place in the policy."""
    place = '.'.join(str(part) for part in error.absolute_path) or 'the policy'
    if error.validator == 'additionalProperties':
        unknown = _unknown_keys(error)
        if 'patternProperties' in error.schema:
            return f'{unknown[0]!r} is no valid name in {place}'
        return (f'{place} has no key {unknown[0]!r}; the keys are '
                f'{", ".join(error.schema["properties"])}')
    if error.validator == 'required':
        missing = [key for key in error.validator_value if key not in error.instance]
        return f'{place} lacks {", ".join(missing)}'
    if error.validator == 'type':
        wanted = error.validator_value
        wanted = wanted if isinstance(wanted, str) else ' or '.join(wanted)
        return (f'{place} must be of type {wanted}, not {_kind(error.instance)}'
                + (number_hint(error.instance) if 'number' in wanted else ''))
    if error.validator in ('enum', 'const'):
        choices = error.validator_value if error.validator == 'enum' else [error.validator_value]
        return f'{place} must be {", ".join(map(str, choices))}, not {_short(error.instance)}'
    if error.validator == 'pattern':
        return (f'{place} is {_short(error.instance)}, which is not of the form '
                f'{error.validator_value}')
    return f'{place}: {_cut(error.message)}'


def number_hint(value: Any) -> str:
    """Return how to write what YAML 1.1 reads as text though it is meant as a number; '' else."""
    if not isinstance(value, str) or 'e' not in value.lower():
        return ''
    try:
        number = float(value)
    except ValueError:
        return ''
    if not math.isfinite(number):
        return ''
    mantissa, exponent = f'{number:e}'.split('e')
    mantissa = mantissa.rstrip('0')
    written = f'{mantissa}{"0" if mantissa.endswith(".") else ""}e{exponent}'
    return f'; YAML reads {value} as text, write {written}'


def name_list(kind: str, names: Iterable[str]) -> str:
    """Return which names of a kind there are, for the end of a message about one that is not."""
    shown = ', '.join(sorted(names))
    return f'the {kind} are {_cut(shown)}' if shown else f'the policy has no {kind}'


def _short(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f'{text[:_MAX_SHOWN]}...'


def _kind(value: Any) -> str:
    names = {dict: 'object', list: 'array', str: 'string', bool: 'boolean', int: 'integer',
             float: 'number', type(None): 'nothing'}
    return names.get(type(value), type(value).__name__)
