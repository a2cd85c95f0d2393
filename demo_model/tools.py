# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Tool declarations of the demo robot, variants of them, and tools of other kinds.

A `Tool` knows its declaration and how an intent's arguments become its arguments, so that the same
sentence gives another call when the names, units or descriptions are drawn anew.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from demo_model.intents import Intent
from demo_model.phrasing import HeldDraws, TrainDraws, identifier, pick, random_word

Json = dict[str, Any]


_FACTORS = {'m': '1', 'cm': '0.01', 'mm': '0.001', 's': '1', 'min': '60', 'ms': '0.001'}


def convert(value: float, unit: str, wanted: str) -> int | float:
    """A number in another unit, exactly, as JSON would write it; equal units leave it as it is."""
    if unit == wanted:
        return value
    exact = Decimal(str(value)) * Decimal(_FACTORS[unit]) / Decimal(_FACTORS[wanted])
    return int(exact) if exact == int(exact) else float(exact)


def function(name: str, description: str, properties: Json, required: list[str]) -> Json:
    """A declaration in the OpenAI form."""
    parameters: Json = {'type': 'object', 'properties': properties}
    if required:
        parameters['required'] = required
    return {
        'type': 'function',
        'function': {'name': name, 'description': description, 'parameters': parameters},
    }


def _enum(values: list[str], description: str = '') -> Json:
    schema: Json = {'type': 'string', 'enum': values}
    if description:
        schema['description'] = description
    return schema


# The demo robot's tools, as its policy file declares them.
DEMO_TOOLS: tuple[Json, ...] = (
    function(
        'drive',
        'Drive straight ahead or back.',
        {
            'distance': {'type': 'number', 'description': 'How far, a positive number'},
            'unit': _enum(['m', 'cm', 'mm', 'ft', 'in'], 'Unit of distance'),
            'direction': _enum(['forward', 'backward']),
        },
        ['distance', 'unit', 'direction'],
    ),
    function(
        'turn',
        'Turn on the spot.',
        {
            'angle': {'type': 'number', 'description': 'How far, a positive number'},
            'unit': _enum(['deg', 'rad'], 'Unit of angle'),
            'direction': _enum(['left', 'right']),
        },
        ['angle', 'unit', 'direction'],
    ),
    function('dock', 'Drive to the charging dock.', {}, []),
    function('say', 'Speak a sentence aloud.', {'text': {'type': 'string'}}, ['text']),
)


@dataclass
class Tool:
    """A declaration and its meaning: intent key, argument names by intent parameter, value maps."""

    intent: str
    declaration: Json
    names: dict[str, str] = field(default_factory=dict)  # parameter key -> argument name
    values: dict[str, dict[str, Any]] = field(default_factory=dict)  # parameter key -> value map
    kind: Intent | None = None  # for tools of other kinds
    units: dict[str, str] = field(default_factory=dict)  # parameter key -> the unit it is told in
    negated: frozenset[str] = frozenset()  # signed parameters whose plus is backward or right
    choices: dict[str, list[str]] = field(default_factory=dict)  # parameter key -> what may be said

    @property
    def name(self) -> str:
        return str(self.declaration['function']['name'])

    def arguments(self, values: dict[str, Any]) -> Json:
        """The call's arguments for an intent's values; parameters without a name are left out."""
        out: Json = {}
        for key, value in values.items():
            if key in self.units and 'unit' in values:
                out[self.names[key]] = convert(value, values['unit'], self.units[key])
            elif key in self.names:
                out[self.names[key]] = self.values.get(key, {}).get(value, value)
        return out


def demo_tools() -> list[Tool]:
    """The demo robot's four tools, exactly as declared."""
    names: tuple[dict[str, str], ...] = (
        {'distance': 'distance', 'unit': 'unit', 'direction': 'direction'},
        {'angle': 'angle', 'unit': 'unit', 'direction': 'direction'},
        {},
        {'text': 'text'},
    )
    return [
        Tool(str(declaration['function']['name']), declaration, dict(mapping))
        for declaration, mapping in zip(DEMO_TOOLS, names, strict=True)
    ]


def fresh_name(rng: random.Random, names: tuple[str, ...], open_share: float) -> str:
    """A tool's or an argument's name: of the list, or of open words (HeldDraws: always)."""
    all_open = isinstance(rng, TrainDraws) and rng.all_open
    if isinstance(rng, HeldDraws) or all_open or rng.random() < open_share:
        return identifier(rng, [random_word(rng) for _ in range(rng.choice((1, 1, 2, 2, 3)))])
    words = pick(rng, names).split()
    if rng.random() < 0.15:
        words.insert(
            rng.randint(0, len(words)), pick(rng, ['robot', 'base', 'do', 'cmd', 'my', 'the'])
        )
    return identifier(rng, words)


_UNIT_MAPS = (
    {'m': 'm', 'cm': 'cm', 'mm': 'mm', 'ft': 'ft', 'in': 'in'},
    {'m': 'metres', 'cm': 'centimetres', 'mm': 'millimetres', 'ft': 'feet', 'in': 'inches'},
    {'m': 'meters', 'cm': 'centimeters', 'mm': 'millimeters', 'ft': 'feet', 'in': 'inches'},
    {'m': 'meter', 'cm': 'centimeter', 'mm': 'millimeter', 'ft': 'foot', 'in': 'inch'},
)
_DRIVE_MAPS = (
    ('forward', 'backward'),
    ('forward', 'backward'),
    ('forwards', 'backwards'),
    ('ahead', 'back'),
    ('front', 'rear'),
    ('fwd', 'bwd'),
    ('ahead', 'reverse'),
)
_TURN_MAPS = (
    ('left', 'right'),
    ('left', 'right'),
    ('counterclockwise', 'clockwise'),
    ('ccw', 'cw'),
    ('l', 'r'),
    ('to_left', 'to_right'),
    ('LEFT', 'RIGHT'),
)
_ANGLE_MAPS = (
    {'deg': 'deg', 'rad': 'rad'},
    {'deg': 'degrees', 'rad': 'radians'},
    {'deg': 'degree', 'rad': 'radian'},
    {'deg': '°', 'rad': 'rad'},
)


def shuffled(rng: random.Random, items: list[Any]) -> list[Any]:
    """The list itself, in another order."""
    rng.shuffle(items)
    return items


def motion_variant(rng: random.Random, turn: bool) -> Tool:
    """A drive or turn tool with other names, enums and descriptions; the unit may be fixed."""
    amount_key = 'angle' if turn else 'distance'
    tool_names = (
        ('turn', 'rotate', 'spin', 'turn robot', 'rotate base', 'yaw', 'pivot', 'turn in place')
        if turn
        else (
            'drive',
            'move',
            'go',
            'drive straight',
            'move straight',
            'travel',
            'base move',
            'roll',
            'move base',
        )
    )
    descriptions = (
        (
            'Turn on the spot.',
            'Rotate in place.',
            'Turn the robot.',
            'Turn left or right.',
            'Change the heading.',
        )
        if turn
        else (
            'Drive straight ahead or back.',
            'Move in a straight line.',
            'Drive the robot forward or backward.',
            'Move the base.',
            'Drive a distance.',
        )
    )
    amount_names = (
        ('angle', 'amount', 'by', 'value', 'rotation', 'how_far')
        if turn
        else ('distance', 'amount', 'by', 'value', 'length', 'how_far', 'dist', 'range')
    )
    open_share = 0.3
    amount = fresh_name(rng, amount_names, open_share)
    direction = fresh_name(
        rng, ('direction', 'dir', 'way', 'side', 'where', 'heading'), open_share
    )
    unit_name = fresh_name(rng, ('unit', 'units', 'measure', 'in_unit'), open_share)
    if len({amount, direction, unit_name}) < 3:
        amount, direction, unit_name = amount_key, 'direction', 'unit'
    pair = rng.choice(_TURN_MAPS if turn else _DRIVE_MAPS)
    keys = ('left', 'right') if turn else ('forward', 'backward')
    words = dict(zip(keys, pair, strict=True))
    names = {amount_key: amount, 'direction': direction}
    values = {'direction': words}
    units_told: dict[str, str] = {}
    described = rng.random() < 0.7
    properties: Json = {
        direction: _enum(
            shuffled(rng, list(pair)) if rng.random() < 0.5 else list(pair),
            pick(rng, ['Which way', 'Direction', '']) if described else '',
        )
    }
    amount_text = pick(
        rng,
        [
            'How far, a positive number',
            'How far',
            'The amount',
            'Positive number',
            'Angle' if turn else 'Distance',
        ],
    )
    units = dict(rng.choice(_ANGLE_MAPS if turn else _UNIT_MAPS))
    if rng.random() < 0.6:
        kept = (
            shuffled(rng, list(units))[: rng.randint(2, len(units))]
            if rng.random() < 0.4
            else list(units)
        )
        properties[unit_name] = _enum(
            [units[key] for key in kept], pick(rng, ['Unit', 'Unit of ' + amount_key, ''])
        )
        names['unit'] = unit_name
        values['unit'] = {key: units[key] for key in kept}
    else:
        key = rng.choice(list(units))
        long_name = (_ANGLE_MAPS[1] if turn else _UNIT_MAPS[1])[key]
        amount_text = pick(
            rng,
            [
                f'{amount_key.capitalize()} in {long_name}',
                f'in {long_name}',
                f'How far, in {long_name}',
            ],
        )
        if rng.random() < 0.3:
            amount = names[amount_key] = f'{amount_key}_{key}'
        same = ('m', 'cm', 'mm') if key in ('m', 'cm', 'mm') else (key,)
        values['unit'] = {unit: unit for unit in same}
        units_told[amount_key] = key
    properties[amount] = {'type': 'number', 'description': amount_text}
    required = [amount, direction] + ([unit_name] if 'unit' in names else [])
    return Tool(
        'turn' if turn else 'drive',
        function(
            fresh_name(rng, tool_names, open_share),
            pick(rng, list(descriptions)),
            properties,
            shuffled(rng, required),
        ),
        names,
        values,
        units=units_told,
    )


def plain_variant(rng: random.Random, intent: str) -> Tool:
    """A dock or say tool with other names and descriptions."""
    if intent == 'dock':
        return Tool(
            'dock',
            function(
                fresh_name(
                    rng,
                    ('dock', 'go charge', 'charge', 'return to dock', 'go home', 'dock robot'),
                    0.2,
                ),
                pick(
                    rng,
                    [
                        'Drive to the charging dock.',
                        'Go to the charging station.',
                        'Return to the dock and charge.',
                        'Dock the robot.',
                    ],
                ),
                {},
                [],
            ),
        )
    argument = fresh_name(
        rng, ('text', 'sentence', 'message', 'words', 'utterance', 'content', 'phrase'), 0.2
    )
    schema: Json = {'type': 'string'}
    if rng.random() < 0.6:
        schema['description'] = pick(
            rng, ['What to say', 'The sentence', 'Text to speak', 'The words']
        )
    return Tool(
        'say',
        function(
            fresh_name(
                rng, ('say', 'speak', 'talk', 'say text', 'tts', 'announce', 'speak aloud'), 0.2
            ),
            pick(
                rng,
                [
                    'Speak a sentence aloud.',
                    'Say something.',
                    'Speak a text with the loudspeaker.',
                    'Say a text aloud.',
                ],
            ),
            {argument: schema},
            [argument],
        ),
        {'text': argument},
    )
