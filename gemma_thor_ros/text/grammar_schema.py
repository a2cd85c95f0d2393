# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads JSON schemas (draft 2020-12) for guided decoding: a schema becomes alternatives, each a
plain conjunction of keywords with references, allOf, anyOf and oneOf folded in.

A guide only has to stay within a schema, so that it may be narrower: objects have no properties
but the declared ones unless additionalProperties says so, and keywords of one type imply it. What
can't be kept is refused by its JSON pointer. Knows no notation and no grammar.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.grammar_numbers import EVERYTHING, Range

ALL_TYPES = frozenset(('null', 'boolean', 'integer', 'number', 'string', 'array', 'object'))
_IMPLIED = {
    'minimum': 'number', 'maximum': 'number', 'exclusiveMinimum': 'number',
    'exclusiveMaximum': 'number', 'multipleOf': 'number',
    'minLength': 'string', 'maxLength': 'string', 'pattern': 'string', 'format': 'string',
    'items': 'array', 'prefixItems': 'array', 'minItems': 'array', 'maxItems': 'array',
    'properties': 'object', 'required': 'object', 'additionalProperties': 'object',
    'minProperties': 'object', 'maxProperties': 'object',
}
# Keyword -> the value that asks for nothing; with any other the schema is refused.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    'not': (False,), 'if': (), 'dependentRequired': ({},), 'dependentSchemas': ({},),
    'dependencies': ({},), 'patternProperties': ({},), 'propertyNames': ({}, True),
    'contains': (), 'uniqueItems': (False,), 'unevaluatedItems': ({}, True),
    'unevaluatedProperties': ({}, True, False), '$dynamicRef': (), '$recursiveRef': (),
}
_MAX_SHAPES = 256                  # alternatives of one schema
_MAX_READS = 8192                  # schemas read for one root, again through each reference
_FARTHEST = Decimal(10) ** 20      # a bound beyond it is none


class Located(NamedTuple):
    """A schema and its JSON pointer in the root."""

    schema: Any
    pointer: str


Parts = tuple[Located, ...]        # all of them hold at once


@dataclass(frozen=True)
class Shape:
    """One alternative of a schema. Keywords of a type count only for values of that type.

    `extra` are the schemas of undeclared properties: None where no schema speaks of them.
    """

    types: frozenset[str] = ALL_TYPES
    implied: frozenset[str] = frozenset()
    values: tuple[Any, ...] | None = None
    numbers: Range = EVERYTHING
    multiples: tuple[Located, ...] = ()
    min_length: int = 0
    max_length: int | None = None
    patterns: tuple[Located, ...] = ()
    formats: tuple[str, ...] = ()
    prefix: tuple[Parts, ...] = ()
    items: Parts = ()
    min_items: int = 0
    max_items: int | None = None
    properties: dict[str, Parts] = field(default_factory=dict)
    declares: bool = False
    required: tuple[str, ...] = ()
    extra: Parts | None = None
    min_properties: Located | None = None
    max_properties: Located | None = None

    @property
    def kinds(self) -> frozenset[str]:
        """The types to write: those that are left, or the implied ones where none is stated."""
        if self.types == ALL_TYPES and self.implied:
            return self.implied
        return self.types

    @property
    def is_free(self) -> bool:
        """Any value at all."""
        return self.types == ALL_TYPES and not self.implied and self.values is None


class SchemaReader:
    """One root schema; `where` names it in errors."""

    def __init__(self, root: Any, where: str) -> None:
        self.root = Located(root, '')
        self.where = where
        self._shapes: dict[tuple[str, ...], list[Shape]] = {}
        self._left = _MAX_READS

    def shapes(self, parts: Parts) -> list[Shape]:
        """The alternatives of schemas that all hold; empty when nothing fits them."""
        key = tuple(part.pointer for part in parts)
        if key not in self._shapes:
            found = [Shape()]
            for part in parts:
                found = self._product(found, self._read(part, frozenset()), part)
            self._shapes[key] = found
            self._shapes[key] = [self._with_values(shape) for shape in found]
        return self._shapes[key]

    def accepts(self, value: Any, parts: Parts = ()) -> bool:
        """Whether a JSON value fits schemas, patterns and formats of its strings aside.

        Takes time that is linear in the size of the value, whatever the schemas.
        """
        return self._accepts(value, parts or (self.root,), {})

    def refused(self, keyword: str, pointer: str, why: str = '') -> RequestError:
        """The error of a keyword that can't be kept."""
        return RequestError(
            ErrorCode.UNSUPPORTED,
            f'{self.where}: {keyword} at {pointer or "/"} is not supported in guided '
            f'decoding{": " + why if why else ""}', self.where)

    def _read(self, part: Located, following: frozenset[str]) -> list[Shape]:
        """The alternatives of one schema; `following` are the references on the way here."""
        schema, pointer = part
        self._left -= 1
        if self._left < 0:
            raise self.refused('a schema', pointer, f'more than {_MAX_READS} of them in all')
        if isinstance(schema, bool):
            return [Shape()] if schema else []
        if not isinstance(schema, Mapping):
            raise RequestError(ErrorCode.INVALID_REQUEST,
                               f'{self.where}: what stands at {pointer or "/"} is no schema',
                               self.where)
        shapes = [self._own(schema, pointer)]
        reference = schema.get('$ref')
        if reference is not None:
            if reference in following:
                raise self.refused('$ref', f'{pointer}/$ref', 'it refers to itself alone')
            target = self._referred(reference, f'{pointer}/$ref')
            shapes = self._product(shapes, self._read(target, following | {reference}), part)
        for index, member in enumerate(schema.get('allOf', ())):
            inner = Located(member, f'{pointer}/allOf/{index}')
            shapes = self._product(shapes, self._read(inner, following), inner)
        for keyword in ('anyOf', 'oneOf'):
            if keyword not in schema:
                continue
            members = [self._read(Located(member, f'{pointer}/{keyword}/{index}'), following)
                       for index, member in enumerate(schema[keyword])]
            if keyword == 'oneOf' and not self._exclusive(members):
                raise self.refused(keyword, f'{pointer}/{keyword}',
                                   'its members are not told apart by type or by a constant')
            shapes = self._product(shapes, [shape for member in members for shape in member],
                                   part)
        if schema.get('nullable') is True:               # OpenAPI's word for a null beside
            shapes.append(Shape(types=frozenset(('null',))))
        return shapes

    def _own(self, schema: Mapping[str, Any], pointer: str) -> Shape:
        """The keywords of a schema itself, without those that bring in others."""
        for keyword, harmless in _UNSUPPORTED.items():
            if keyword in schema and schema[keyword] not in harmless:
                if keyword == 'if' and not ('then' in schema or 'else' in schema):
                    continue
                raise self.refused(keyword, f'{pointer}/{keyword}')

        def located(keyword: str) -> Parts:
            return (Located(schema[keyword], f'{pointer}/{keyword}'),) if keyword in schema else ()

        types = schema.get('type', ALL_TYPES)
        types = frozenset((types,) if isinstance(types, str) else types)
        if 'number' in types and types != ALL_TYPES:
            types -= {'integer'}                         # a number may be whole
        values = schema.get('enum')
        if 'const' in schema:
            values = [schema['const']]
        properties = schema.get('properties', {})
        return Shape(
            types=types,
            implied=frozenset(kind for keyword, kind in _IMPLIED.items() if keyword in schema),
            values=None if values is None else tuple(values),
            numbers=_range(schema),
            multiples=located('multipleOf'),
            min_length=int(schema.get('minLength', 0)), max_length=_whole(schema, 'maxLength'),
            patterns=located('pattern'),
            formats=(schema['format'],) if isinstance(schema.get('format'), str) else (),
            prefix=tuple((Located(item, f'{pointer}/prefixItems/{index}'),)
                         for index, item in enumerate(schema.get('prefixItems', ()))),
            items=located('items'),
            min_items=int(schema.get('minItems', 0)), max_items=_whole(schema, 'maxItems'),
            properties={name: (Located(item, f'{pointer}/properties/{escaped(name)}'),)
                        for name, item in properties.items()},
            declares='properties' in schema,
            required=tuple(schema.get('required', ())),
            extra=located('additionalProperties') or None,
            min_properties=next(iter(located('minProperties')), None),
            max_properties=next(iter(located('maxProperties')), None))

    def _product(self, ones: list[Shape], others: list[Shape], part: Located) -> list[Shape]:
        """The alternatives that are in both."""
        if len(ones) * len(others) > _MAX_SHAPES:
            raise self.refused('a schema', part.pointer, f'more than {_MAX_SHAPES} alternatives')
        return [both for one in ones for other in others
                if (both := self._both(one, other)) is not None]

    def _both(self, one: Shape, other: Shape) -> Shape | None:
        """The conjunction of two alternatives; None when no type or value is left."""
        types = one.types & other.types
        for narrow, wide in ((one.types, other.types), (other.types, one.types)):
            if 'integer' in narrow and 'number' in wide and 'number' not in narrow:
                types |= {'integer'}
        values = one.values if other.values is None else other.values
        if one.values is not None and other.values is not None:
            values = tuple(value for value in one.values
                           if any(same_json(value, each) for each in other.values))
        if not types or values == ():
            return None
        bounds = {}
        for name in ('min_properties', 'max_properties'):
            first, second = getattr(one, name), getattr(other, name)
            if first and second and first.schema != second.schema:
                raise self.refused('a second bound', second.pointer)
            bounds[name] = first or second
        return Shape(
            types, one.implied | other.implied, values, one.numbers.within(other.numbers),
            one.multiples + other.multiples, max(one.min_length, other.min_length),
            _least(one.max_length, other.max_length), one.patterns + other.patterns,
            one.formats + other.formats, _joined_prefix(one, other), one.items + other.items,
            max(one.min_items, other.min_items), _least(one.max_items, other.max_items),
            _joined_properties(one, other), one.declares or other.declares,
            tuple(dict.fromkeys(one.required + other.required)),
            one.extra if other.extra is None else (one.extra or ()) + other.extra,
            bounds['min_properties'], bounds['max_properties'])

    def _with_values(self, shape: Shape) -> Shape:
        """Keep of given values those that fit the keywords beside them."""
        if shape.values is None:
            return shape
        free = dataclasses.replace(shape, values=None)
        return dataclasses.replace(shape, values=tuple(
            value for value in shape.values if self._fits(value, free, {})))

    def _accepts(self, value: Any, parts: Parts, known: _Known) -> bool:
        key = id(value), tuple(part.pointer for part in parts)
        if key not in known:
            known[key] = any(self._fits(value, shape, known) for shape in self.shapes(parts))
        return known[key]

    def _fits(self, value: Any, shape: Shape, known: _Known) -> bool:
        if shape.values is not None and not any(same_json(value, each) for each in shape.values):
            return False
        kind = type_of(value)
        if kind not in shape.types and not (kind == 'integer' and 'number' in shape.types):
            return False
        if kind in ('integer', 'number'):
            return shape.numbers.holds(value) and all(
                _is_multiple(value, multiple.schema) for multiple in shape.multiples)
        if kind == 'string':
            return _within(len(value), shape.min_length, shape.max_length)
        if kind == 'array':
            return _within(len(value), shape.min_items, shape.max_items) and all(
                self._accepts(item, parts, known) for index, item in enumerate(value)
                if (parts := shape.prefix[index] if index < len(shape.prefix) else shape.items))
        if kind == 'object':
            least, most = shape.min_properties, shape.max_properties
            return _within(len(value), least.schema if least else 0,
                           most.schema if most else None) and all(
                name in value for name in shape.required) and all(
                self._accepts(item, parts, known) for name, item in value.items()
                if (parts := shape.properties.get(name, shape.extra or ())))
        return True

    def _exclusive(self, members: list[list[Shape]]) -> bool:
        """Whether no value can fit two members."""
        return all(self._apart(one, other)
                   for index, first in enumerate(members) for second in members[:index]
                   for one in first for other in second)

    def _apart(self, one: Shape, other: Shape) -> bool:
        both = self._both(one, other)
        if both is None:
            return True
        if both.types & (one.kinds | other.kinds) != {'object'}:      # of what is written at all
            return False
        for name in set(one.required) & set(other.required):
            mine, theirs = _constants(one, name), _constants(other, name)
            if mine and theirs and not any(same_json(a, b) for a in mine for b in theirs):
                return True
        return False

    def _referred(self, reference: Any, pointer: str) -> Located:
        """The schema that a reference within the root names."""
        if not isinstance(reference, str) or not (reference == '#' or reference[:2] == '#/'):
            raise self.refused('$ref', pointer, 'only references into the same schema work')
        target = self.root.schema
        for step in reference[2:].split('/') if reference != '#' else ():
            step = step.replace('~1', '/').replace('~0', '~')
            if isinstance(target, list) and step.isdigit() and int(step) < len(target):
                target = target[int(step)]
            elif isinstance(target, Mapping) and step in target:
                target = target[step]
            else:
                raise RequestError(ErrorCode.INVALID_REQUEST,
                                   f'{self.where}: {pointer} refers to {reference!r}, which the '
                                   'schema does not hold', self.where)
        return Located(target, reference[1:])


_Known = dict[tuple[int, tuple[str, ...]], bool]


def type_of(value: Any) -> str:
    """The JSON type of a value; a number without a fraction is an integer."""
    if value is None:
        return 'null'
    if isinstance(value, bool):
        return 'boolean'
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return 'integer'
    if isinstance(value, float):
        return 'number'
    if isinstance(value, str):
        return 'string'
    return 'array' if isinstance(value, list | tuple) else 'object'


def escaped(name: str) -> str:
    """A property's name as a step of a JSON pointer."""
    return name.replace('~', '~0').replace('/', '~1')


def same_json(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    return bool(one == other)


def _range(schema: Mapping[str, Any]) -> Range:
    numbers = EVERYTHING
    for keyword, is_low, is_open in (('minimum', True, False), ('exclusiveMinimum', True, True),
                                     ('maximum', False, False), ('exclusiveMaximum', False, True)):
        if keyword not in schema:
            continue
        bound = Decimal(repr(schema[keyword]))
        if is_low and bound > -_FARTHEST:
            numbers = numbers.within(Range(low=bound, low_open=is_open))
        elif not is_low and bound < _FARTHEST:
            numbers = numbers.within(Range(high=bound, high_open=is_open))
    return numbers


def _whole(schema: Mapping[str, Any], keyword: str) -> int | None:
    return int(schema[keyword]) if keyword in schema else None


def _constants(shape: Shape, name: str) -> list[Any]:
    """The values that a property is held to by const or enum."""
    for part in shape.properties.get(name, ()):
        if isinstance(part.schema, Mapping):
            if 'const' in part.schema:
                return [part.schema['const']]
            if 'enum' in part.schema:
                return list(part.schema['enum'])
    return []


def _within(size: int, least: float, most: float | None) -> bool:
    return least <= size and (most is None or size <= most)


def _is_multiple(value: float, step: float) -> bool:
    if not math.isfinite(value):
        return False
    return Decimal(repr(value)) % Decimal(repr(step)) == 0


def _least(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _joined_prefix(one: Shape, other: Shape) -> tuple[Parts, ...]:
    """Element schemas by position; where one side has only `items` left, these count."""
    size = max(len(one.prefix), len(other.prefix))
    return tuple(tuple(part for side in (one, other) for part in
                       (side.prefix[i] if i < len(side.prefix) else side.items))
                 for i in range(size))


def _joined_properties(one: Shape, other: Shape) -> dict[str, Parts]:
    """Property schemas; one that a side does not declare has to fit its additionalProperties."""
    names: Iterable[str] = dict.fromkeys([*one.properties, *other.properties])
    return {name: tuple(part for side in (one, other)
                        for part in side.properties.get(name, side.extra or ()))
            for name in names}
