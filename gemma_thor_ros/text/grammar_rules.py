# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Turns schemas into the rules of a grammar, in either notation.

Every rule can be finished from wherever it is: what no value fits is left out on the way up, and
nesting is bounded, also where a schema contains itself. Knows no tokenizer and no request.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

from gemma_thor_ros.text.grammar_notation import Notation, literal
from gemma_thor_ros.text.grammar_numbers import EVERYTHING, integer_regex, number_regex
from gemma_thor_ros.text.grammar_schema import Located, Parts, SchemaReader, Shape
from gemma_thor_ros.text.grammar_text import (
    FORMATS,
    UnfitPattern,
    regex_literal,
    whole_match,
)
from gemma_thor_ros.text.writer import MAX_DEPTH

_FREE_LEVELS = 6                   # of values that no schema describes
_RECURSION = 12                    # levels down to which a schema may contain itself
_MAX_RULES = 20_000
_MAX_MULTIPLES = 512               # multiples that are written out one by one
_ANY = Located(True, '#any')
_WORDS = ('"null"', '"true"', '"false"')

NO_TEXT = 'no text fits'
# Takes a terminal's definition: NO_TEXT, or what else is wrong with it, or ''.
Check = Callable[[str], str]


class Rules:
    """The growing text of one grammar; several schemas may add to it."""

    def __init__(self, notation: Notation, check: Check) -> None:
        self.notation = notation
        self.check = check
        self.has_conjunctions = False
        self.has_free_keys = False
        self.lines: list[str] = []
        self._names: dict[str, str] = {}                 # definition -> name
        self.blanks = notation.blanks(self.terminal)

    def rule(self, body: str) -> str:
        """Add a rule, unless there is one with the same body; gives its name."""
        return self._define(body, 'r')

    def terminal(self, *regexes: str, start: str = '', end: str = '') -> str:
        """Add a terminal: the conjunction of some expressions, '~' before one negates it, with a
        text before and behind it.
        """
        if len(regexes) > 1:
            self.has_conjunctions = True
        name = self._define(conjunction(*regexes), 'T')
        if start or end:
            around = [json.dumps(text) if text else '' for text in (start, end)]
            name = self._define(f'{around[0]} {name} {around[1]}'.strip(), 'T')
        return name

    def text(self, start: str) -> str:
        """The whole grammar."""
        return '\n'.join([f'start: {start}', *self.lines, ''])

    def _define(self, body: str, letter: str) -> str:
        name = self._names.get(letter + body)
        if name is None:
            if len(self._names) >= _MAX_RULES:
                raise TooLarge(f'more than {_MAX_RULES:,} rules')
            name = self._names[letter + body] = f'{letter}{len(self._names)}'
            self.lines.append(f'{name}: {body}')
        return name


class TooLarge(ValueError):
    """The schemas give too large a grammar."""


def conjunction(*regexes: str) -> str:
    """The definition of a terminal."""
    return ' & '.join(f'~/{regex[1:]}/' if regex[:1] == '~' else f'/{regex}/'
                      for regex in regexes)


class SchemaRules:
    """The rules of one schema. `value` gives the name of a rule, or None when nothing fits."""

    def __init__(self, rules: Rules, reader: SchemaReader) -> None:
        self._rules = rules
        self._reader = reader
        self._notation = rules.notation
        self._made: dict[tuple[tuple[str, ...], int], str | None] = {}
        self._open: list[tuple[str, ...]] = []           # schemas being written

    def root(self, *, closed: bool = False) -> str | None:
        """The rule of the whole schema. closed: an object that declares nothing is empty."""
        parts = (self._reader.root,)
        if not closed:
            return self.value(parts, 0)
        bodies: list[str | None] = []
        for shape in self._reader.shapes(parts):
            if shape.values is not None:
                bodies += self._shape(shape, 0)
            elif 'object' in shape.kinds:
                empty = not (shape.declares or shape.extra or shape.required)
                bodies.append('"{" "}"' if empty else self._object(shape, 0))
        return self._choice([body for body in bodies if body])

    def value(self, parts: Parts, depth: int) -> str | None:
        """The rule of values that fit all parts, inside `depth` objects and arrays."""
        name = tuple(part.pointer for part in parts)
        key = name, depth
        if key not in self._made:
            if depth > MAX_DEPTH or (depth > _RECURSION and name in self._open):
                return None
            self._open.append(name)
            bodies: list[str] = []
            for shape in self._reader.shapes(parts):
                bodies += self._shape(shape, depth)
            self._open.pop()
            self._made[key] = self._choice(bodies)
        return self._made[key]

    def _choice(self, bodies: list[str]) -> str | None:
        return self._rules.rule(' | '.join(dict.fromkeys(bodies))) if bodies else None

    def _shape(self, shape: Shape, depth: int) -> list[str]:
        if shape.values is not None:
            found = [literal(self._notation, value) for value in shape.values
                     if not isinstance(value, str) or self._matches(value, shape)]
            return [body for body in found if body is not None]
        if shape.is_free:
            return [self._free(min(_FREE_LEVELS, MAX_DEPTH - depth))]
        bodies: list[str | None] = []
        kinds = shape.kinds
        if 'null' in kinds:
            bodies.append('"null"')
        if 'boolean' in kinds:
            bodies += ['"true"', '"false"']
        if 'number' in kinds or 'integer' in kinds:
            bodies.append(self._number(shape, whole='number' not in kinds))
        if 'string' in kinds:
            bodies.append(self._text(shape))
        if 'array' in kinds and depth < MAX_DEPTH:
            bodies.append(self._array(shape, depth))
        if 'object' in kinds and depth < MAX_DEPTH:
            bodies.append(self._object(shape, depth))
        return [body for body in bodies if body is not None]

    def _number(self, shape: Shape, whole: bool) -> str | None:
        fraction = 15
        step = 1
        for multiple in shape.multiples:
            number = Decimal(repr(multiple.schema))
            if number == number.to_integral_value():
                whole = True
                step = step * int(number) // _common(step, int(number))
            elif number.as_tuple().digits == (1,):       # 0.1, 0.01, ...
                fraction = min(fraction, -int(number.as_tuple().exponent))
            else:
                raise self._reader.refused('multipleOf', multiple.pointer,
                                           'it is neither whole nor a power of ten')
        if step > 1:
            return self._multiples(shape, step)
        regex = integer_regex(shape.numbers) if whole else number_regex(shape.numbers, fraction)
        return None if regex is None else self._rules.terminal(regex)

    def _multiples(self, shape: Shape, step: int) -> str | None:
        """Whole multiples: written out where there are few, else by their last digits."""
        low, high = shape.numbers.integers()
        if low is not None and high is not None and (high - low) // step < _MAX_MULTIPLES:
            numbers = range(-(-low // step) * step, high + 1, step)
            return self._rules.terminal('|'.join(map(str, numbers))) if numbers else None
        digits = next((n for n in range(1, 4) if 10 ** n % step == 0), 0)
        if not digits:
            raise self._reader.refused('multipleOf', shape.multiples[0].pointer,
                                       f'more than {_MAX_MULTIPLES} multiples')
        ends = '|'.join(f'{n:0{digits}d}' for n in range(0, 10 ** digits, step))
        small = '|'.join(str(n) for n in range(0, 10 ** digits, step))
        regexes = [f'-?([1-9][0-9]{{0,10}}({ends})|{small})']
        if shape.numbers != EVERYTHING:
            bounds = integer_regex(shape.numbers)
            if bounds is None or self._rules.check(conjunction(*regexes, bounds)):
                return None
            regexes.append(bounds)
        return self._rules.terminal(*regexes)

    def _text(self, shape: Shape) -> str | None:
        if shape.max_length is not None and shape.min_length > shape.max_length:
            return None
        patterns = [FORMATS[name] for name in dict.fromkeys(shape.formats) if name in FORMATS]
        patterns += self._patterns(shape)
        made: list[tuple[str, ...]] = []

        def terminal(*regexes: str, start: str = '', end: str = '') -> str:
            made.append(regexes)
            return self._rules.terminal(*regexes, start=start, end=end)

        body = self._notation.text(terminal, shape.min_length, shape.max_length, patterns)
        return body if len(made[0]) == 1 or self._holds(made[0], shape) else None

    def _matches(self, text: str, shape: Shape) -> bool:
        """Whether a given string matches the patterns beside it."""
        regexes = self._patterns(shape)
        return not regexes or self._holds((regex_literal(text), *regexes), shape)

    def _holds(self, regexes: tuple[str, ...], shape: Shape) -> bool:
        """Whether expressions leave any text, all together."""
        fault = self._rules.check(conjunction(*regexes))
        if fault and fault != NO_TEXT:
            pointer = shape.patterns[0].pointer if shape.patterns else ''
            raise self._reader.refused('pattern', pointer, fault)
        return not fault

    def _patterns(self, shape: Shape) -> list[str]:
        """The expressions of a shape's patterns, each for a whole string."""
        regexes = []
        for pattern in shape.patterns:
            try:
                regex = whole_match(pattern.schema)
            except UnfitPattern as error:
                raise self._reader.refused('pattern', pattern.pointer, str(error)) from error
            fault = self._rules.check(conjunction(regex))
            if fault and fault != NO_TEXT:
                raise self._reader.refused('pattern', pattern.pointer, fault)
            regexes.append(regex)
        return regexes

    def _array(self, shape: Shape, depth: int) -> str | None:
        least, most = shape.min_items, shape.max_items
        prefix: list[str] = []
        for parts in shape.prefix[:most]:
            item = self.value(parts, depth + 1)
            if item is None:
                most = len(prefix)
                break
            prefix.append(item)
        rest = None
        if most is None or most > len(prefix):
            rest = self.value(shape.items or (_ANY,), depth + 1)
            if rest is None:
                most = len(prefix)
        if most is not None and least > most:
            return None
        body = self._items(prefix, rest, least, most)
        return self._bracketed('[', body, ']', optional=least == 0)

    def _items(self, prefix: list[str], rest: str | None, least: int, most: int | None) -> str:
        """One item and those behind it, at least `least`; '' when there may be none at all."""
        comma = self._comma
        tail = ''
        if rest is not None:
            have = len(prefix)
            low = max(0, least - max(have, 1))
            high = '' if most is None else str(most - max(have, 1))
            tail = f'({comma} {rest}){{{low},{high}}}' if high != '0' else ''
            if not prefix:
                return f'{rest} {tail}'
        for index in range(len(prefix) - 1, 0, -1):
            inner = f'{comma} {prefix[index]} {tail}'
            tail = inner if index < least else f'({inner})?'
        return f'{prefix[0]} {tail}' if prefix else ''

    def _object(self, shape: Shape, depth: int) -> str | None:
        fields: list[tuple[str, bool]] = []              # a pair, and whether it must be there
        undeclared = [name for name in shape.required if name not in shape.properties]
        properties = {**shape.properties,
                      **dict.fromkeys(undeclared, shape.extra or (_ANY,))}
        for name in self._notation.order(properties):
            required = name in shape.required
            key, item = self._notation.key(name), self.value(properties[name], depth + 1)
            if key is None:
                raise self._reader.refused('a property name', properties[name][0].pointer,
                                           f'{name!r} can not be written in a call')
            if item is not None:
                fields.append((f'{key} {self._rules.blanks} {item}', required))
            elif required:
                return None
        extra = self._extra(shape, properties, depth)
        return self._map(shape, extra) if extra and not fields else self._pairs(shape, fields,
                                                                                extra)

    def _extra(self, shape: Shape, properties: dict[str, Parts], depth: int) -> str | None:
        """A pair with a key that is not declared, if there may be any."""
        extra = shape.extra
        if extra is None:
            extra = () if shape.declares else (_ANY,)
        if not extra:
            return None
        item = self.value(extra, depth + 1)
        if item is None:
            return None
        self._rules.has_free_keys = True
        key = self._notation.free_key(self._rules.terminal, properties)
        return self._rules.rule(f'{key} {self._rules.blanks} {item}')

    def _map(self, shape: Shape, pair: str) -> str | None:
        """An object without declared properties."""
        least, most = _bounds(shape)
        if least > 1 and not self._notation.unique_keys:
            assert shape.min_properties is not None
            raise self._reader.refused('minProperties', shape.min_properties.pointer,
                                       'keys that are not declared may come twice')
        if most is not None and least > most:
            return None
        body = '' if most == 0 else self._items([], pair, least, most)
        return self._bracketed('{', body, '}', optional=least == 0)

    def _pairs(self, shape: Shape, fields: list[tuple[str, bool]],
               extra: str | None) -> str | None:
        """An object of declared properties, in their order, and perhaps others behind them."""
        num_required = sum(required for _, required in fields)
        least, most = _bounds(shape)
        if least and not fields:
            return None
        if shape.min_properties and least > max(num_required, 1):
            raise self._reader.refused('minProperties', shape.min_properties.pointer,
                                       'more than are required')
        if shape.max_properties and (extra or most is None or most < len(fields)):
            raise self._reader.refused('maxProperties', shape.max_properties.pointer,
                                       'fewer than are declared')
        comma = self._comma
        rest = f'({comma} {extra})*' if extra else ''
        firsts = [f'{extra} {rest}'] if extra else []    # what the object may begin with
        for pair, required in reversed(fields):
            firsts = ([] if required else firsts) + [f'{pair} {rest}']
            rest = self._rules.rule(f'{comma} {pair} {rest}' if required
                                    else f'({comma} {pair})? {rest}')
        return self._bracketed('{', ' | '.join(reversed(firsts)), '}',
                               optional=not num_required and not least)

    @property
    def _comma(self) -> str:
        return f'"," {self._rules.blanks}'

    def _bracketed(self, start: str, body: str, end: str, *, optional: bool) -> str:
        """Brackets around something; a pair of blanks never meets another one."""
        blanks = self._rules.blanks
        inner = f'(({body}) {blanks})' + ('?' if optional else '') if body.strip() else ''
        return f'"{start}" {blanks} {inner} "{end}"'

    def _free(self, levels: int) -> str:
        """The rule of any value, with so many levels of objects and arrays in it."""
        rules = self._rules
        bodies = [*_WORDS, rules.terminal(str(number_regex(EVERYTHING))),
                  self._notation.text(rules.terminal, 0, None, ())]
        if levels > 0:
            inner = self._free(levels - 1)
            rules.has_free_keys = True
            key = self._notation.free_key(rules.terminal, ())
            pair = rules.rule(f'{key} {rules.blanks} {inner}')
            bodies += [self._bracketed('[', self._items([], inner, 0, None), ']', optional=True),
                       self._bracketed('{', self._items([], pair, 0, None), '}', optional=True)]
        return rules.rule(' | '.join(bodies))


def _bounds(shape: Shape) -> tuple[int, int | None]:
    """The least and the largest number of properties."""
    least, most = shape.min_properties, shape.max_properties
    return int(least.schema) if least else 0, int(most.schema) if most else None


def _common(one: int, other: int) -> int:
    while other:
        one, other = other, one % other
    return one
