# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Values of a call as written to JSON values, guided by the tool's schema where there is one.

Delimited text is a string, bare text is a JSON literal where it spells one. A schema that says
otherwise wins, which the result reports: such a call never acts. Nothing here raises.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from gemma_thor_ros.schema import RequestError
from gemma_thor_ros.text.call_syntax import NUMBER, Bare, Node
from gemma_thor_ros.text.grammar_schema import SchemaReader
from gemma_thor_ros.text.writer import MAX_DEPTH

# Python literals pass too: older templates wrote null as None, and models learnt it from them.
_LITERALS: dict[str, bool | None] = {'true': True, 'false': False, 'null': None,
                                     'True': True, 'False': False, 'None': None}
_MAX_DIGITS = 4300                 # Python's limit for int(); longer numbers stay text
_MAX_STEPS = 16                    # references followed and unions looked into
_NOT_A_NUMBER = object()


def resolve(arguments: Mapping[str, Node],
            schema: Mapping[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """JSON values of a call's arguments; True when a value isn't what its spelling says."""
    as_spelled = _Resolver({})
    value = as_spelled.object(arguments, {})
    if not schema or (not as_spelled.changed and _fits(value, schema)):
        return value, as_spelled.changed
    resolver = _Resolver(schema)
    value = resolver.object(arguments, schema)
    return value, resolver.changed


class _Resolver:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.changed = False

    def object(self, pairs: Mapping[str, Node], schema: Mapping[str, Any]) -> dict[str, Any]:
        if not schema:
            return {key: self.value(node, {}) for key, node in pairs.items()}
        members = self.members(schema)
        return {key: self.value(node, self.child(members, key)) for key, node in pairs.items()}

    def value(self, node: Node, schema: Mapping[str, Any]) -> Any:
        if isinstance(node, dict):
            return self.object(node, schema)
        if isinstance(node, list):
            items: Mapping[str, Any] = {}
            for member in self.members(schema):
                if isinstance(member.get('items'), Mapping):
                    items = member['items']
                    break
            return [self.value(item, items) for item in node]
        kinds = self.kinds(schema) if schema else frozenset()
        return self.bare(node, kinds) if isinstance(node, Bare) else self.quoted(node, kinds)

    def bare(self, text: str, kinds: frozenset[str]) -> Any:
        """A value without quotes: a literal, or text where it is none or the schema wants text."""
        value = _LITERALS[text] if text in _LITERALS else _number(text)
        if value is _NOT_A_NUMBER:
            self.changed = True
            return str(text)
        if value is not None and 'string' in kinds:
            fits = {'boolean'} if isinstance(value, bool) else {'integer', 'number'}
            if kinds.isdisjoint(fits):
                self.changed = True
                return str(text)
        return value

    def quoted(self, text: str, kinds: frozenset[str]) -> Any:
        """A quoted value: text, unless the schema takes no text and it spells what it takes."""
        if not kinds or 'string' in kinds:
            return str(text)
        value: Any = _NOT_A_NUMBER
        spelled = text.strip()
        if spelled in _LITERALS or spelled.lower() in ('true', 'false'):
            literal = _LITERALS.get(spelled, spelled.lower() == 'true')
            if ('null' if literal is None else 'boolean') in kinds:
                value = literal
        elif not kinds.isdisjoint(('integer', 'number')):
            value = _number(spelled)
            if isinstance(value, float) and 'number' not in kinds:
                value = _NOT_A_NUMBER
        elif not kinds.isdisjoint(('object', 'array')):
            value = _container(spelled, kinds)
        if value is _NOT_A_NUMBER:
            return str(text)
        self.changed = True
        return value

    def child(self, members: list[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
        """The schema of one property."""
        for member in members:
            properties = member.get('properties')
            if isinstance(properties, Mapping) and isinstance(properties.get(key), Mapping):
                found: Mapping[str, Any] = properties[key]
                return found
        for member in members:
            if isinstance(member.get('additionalProperties'), Mapping):
                extra: Mapping[str, Any] = member['additionalProperties']
                return extra
        return {}

    def kinds(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """The JSON types that a schema allows; empty when it doesn't say."""
        kinds: set[str] = set()
        for member in self.members(schema):
            stated = member.get('type')
            for kind in stated if isinstance(stated, list | tuple) else [stated]:
                if isinstance(kind, str):
                    kinds.add(kind.lower())
            if member.get('nullable') is True:
                kinds.add('null')
            if stated is None:
                enum = member.get('enum')
                values = list(enum) if isinstance(enum, list | tuple) else []
                if 'const' in member:
                    values.append(member['const'])
                kinds.update(_kind_of(value) for value in values)
        return frozenset(kinds)

    def members(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The schema with its references followed and the members of its unions."""
        found: list[Mapping[str, Any]] = []
        queue: list[Any] = [schema]
        for _ in range(_MAX_STEPS):
            if not queue:
                break
            member = queue.pop(0)
            if not isinstance(member, Mapping):
                continue
            found.append(member)
            if isinstance(member.get('$ref'), str):
                queue.append(self.referred(member['$ref']))
            for key in ('anyOf', 'oneOf', 'allOf'):
                if isinstance(member.get(key), list | tuple):
                    queue += member[key]
        return found

    def referred(self, reference: str) -> Any:
        target: Any = self.root
        for step in reference.lstrip('#').split('/')[1:]:
            step = step.replace('~1', '/').replace('~0', '~')
            target = target.get(step) if isinstance(target, Mapping) else None
        return target


def _fits(value: dict[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether arguments fit their schema as they are; False also where nobody can tell."""
    try:
        return SchemaReader(schema, 'parameters').accepts(value)
    except (RequestError, ArithmeticError, AttributeError, RecursionError, TypeError, ValueError):
        return False                                     # what a client sent may be no schema


def _number(text: str) -> Any:
    """The number that a text spells in JSON, finite and exact for integers."""
    if not NUMBER.fullmatch(text) or len(text) > _MAX_DIGITS:
        return _NOT_A_NUMBER
    if text.lstrip('-').isdigit():
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else _NOT_A_NUMBER


def _container(text: str, kinds: frozenset[str]) -> Any:
    """The JSON object or array that a text spells, if the schema takes it."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NOT_A_NUMBER
    kind = _kind_of(value)
    if kind not in ('object', 'array') or kind not in kinds or not _plain(value, 1):
        return _NOT_A_NUMBER
    return value


def _plain(value: Any, depth: int) -> bool:
    """Finite numbers, whole characters and bounded depth: what can be written as JSON again."""
    if isinstance(value, dict):
        return depth < MAX_DEPTH and all(_plain(key, depth) and _plain(item, depth + 1)
                                         for key, item in value.items())
    if isinstance(value, list):
        return depth < MAX_DEPTH and all(_plain(item, depth + 1) for item in value)
    if isinstance(value, str):
        return not any('\ud800' <= char <= '\udfff' for char in value)
    return not isinstance(value, float) or math.isfinite(value)


def _kind_of(value: Any) -> str:
    if value is None:
        return 'null'
    if isinstance(value, bool):
        return 'boolean'
    if isinstance(value, int):
        return 'integer'
    if isinstance(value, float):
        return 'number'
    if isinstance(value, str):
        return 'string'
    return 'array' if isinstance(value, list) else 'object'


def _refuse(name: str) -> NoReturn:
    raise ValueError(f'{name} is not JSON')
