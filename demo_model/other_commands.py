# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A command for a tool that is none of the demo robot's: what is said, and the arguments meant.

With HeldDraws places, objects, names and colours are of lists and words that training never sees.
"""

from __future__ import annotations

import random
import re
from typing import Any

from demo_model import intents_held as held_values
from demo_model.commands import Command
from demo_model.filling import fill, open_text, source_of
from demo_model.intents import COLOURS, JOINTS, OBJECTS, PLACES, Param
from demo_model.motion_phrases import BACKWARD_WORDS, FORWARD_WORDS, LEFT_WORDS, RIGHT_WORDS
from demo_model.phrasing import HeldDraws, TrainDraws, pick, random_name, random_word
from demo_model.spoken_numbers import digits, is_held, quantity, spell, words
from demo_model.tools import Tool, convert
from demo_model.widening import (
    FREE_SHARE,
    NOISE_SHARE,
    colour,
    filled,
    joint,
    noisy,
    noun_phrase,
    person,
)

Json = dict[str, Any]
_SAID_UNITS = {
    'm': ('m', 'm', 'm', 'cm'),
    'cm': ('cm', 'cm', 'm', 'mm'),
    'mm': ('mm', 'mm', 'cm', 'm'),
    'deg': ('deg',),
    'rad': ('rad',),
}
_OPEN = ('place', 'object', 'colour', 'joint')


def _time(rng: random.Random, held: bool, wanted: str) -> tuple[str, Any]:
    """A duration as it is said, and its value in seconds or minutes."""
    unit = pick(rng, ['s', 's', 'min']) if wanted == 's' else 'min'
    if unit == 'min' and wanted == 's' and rng.random() < 0.35:
        return rng.choice(
            (
                ('half a minute', 30),
                ('a minute', 60),
                ('one minute', 60),
                ('a minute and a half', 90),
                ('two and a half minutes', 150),
                ('a quarter of a minute', 15),
                ('a couple of minutes', 120),
            )
        )
    if unit == 'min' and wanted == 's':
        number = rng.randint(1, 12)
        said = str(number) if rng.random() < 0.5 else spell(number, rng)
    else:
        number, said = words(rng, held) if rng.random() < 0.3 else digits(rng, held)
    single = number == 1
    name = {'s': pick(rng, ['second' if single else 'seconds', 's', 'sec']), 'min': pick(rng, ['minute' if single else 'minutes', 'min'])}[unit]
    return f'{said} {name}', convert(number, unit, wanted)


def _measure(tool: Tool, param: Param, rng: random.Random, held: bool) -> tuple[str, Any]:
    """A length or an angle; signed ones come with the direction that the sign stands for."""
    wanted = tool.units[param.key]
    while True:
        said = quantity(rng, _SAID_UNITS[wanted], held)
        value = convert(said.value, said.unit, wanted)
        if 0.001 <= value < 1e6:
            break
    if not param.kind.startswith('signed'):
        return said.text, value
    plus = rng.random() < 0.5
    turning = param.kind == 'signed angle'
    if plus:
        way = pick(rng, LEFT_WORDS if turning else FORWARD_WORDS)
    else:
        way = pick(rng, RIGHT_WORDS if turning else BACKWARD_WORDS)
    sign = 1 if plus != (param.key in tool.negated) else -1
    text = f'{said.text} {way}' if rng.random() < 0.5 else f'{way} {pick(rng, ["", "by ", "for "])}{said.text}'
    return text, sign * value


def _open_value(kind: str, rng: random.Random) -> tuple[str, Any]:
    held = isinstance(rng, HeldDraws)
    if kind in ('place', 'object') and isinstance(rng, TrainDraws) and rng.random() < FREE_SHARE:
        text = noun_phrase(rng, kind == 'place')
        return text, re.sub(r'^(the|a|an) ', '', text)
    if kind in ('colour', 'joint') and isinstance(rng, TrainDraws) and rng.random() < FREE_SHARE:
        text = colour(rng) if kind == 'colour' else joint(rng)
        return text, re.sub(r'^the ', '', text)
    if kind in ('place', 'object'):
        lists = (
            (held_values.HELD_PLACES, held_values.HELD_OBJECTS) if held else (PLACES, OBJECTS)
        )
        text = fill(pick(rng, lists[kind == 'object']), rng, {})
        return text, re.sub(r'^(the|a|an) ', '', text)
    if kind == 'colour':
        text = pick(rng, held_values.HELD_COLOURS if held else COLOURS)
    else:
        text = fill(pick(rng, held_values.HELD_JOINTS if held else JOINTS), rng, {})
    return text, re.sub(r'^the ', '', text)


def _clock(rng: random.Random) -> tuple[str, str]:
    """A time of day in digits, copied as it is said."""
    while True:
        hour, minute = rng.randint(0, 23), rng.choice((0, 15, 30, 45, rng.randint(0, 59)))
        text = f'{hour:02d}:{minute:02d}'
        if rng.random() < 0.2:
            text = f'{rng.randint(1, 12)}:{minute:02d}'
        if rng.random() < 0.12:
            text = f'{rng.randint(1, 12)} {pick(rng, ["am", "pm"])}'
        if not is_held(text):
            return text, text


_ORDINALS = ('first', 'second', 'third', 'fourth', 'fifth', 'sixth', 'seventh', 'eighth', 'ninth', 'tenth', 'eleventh', 'twelfth')


def _ordinal(noun: str, rng: random.Random) -> tuple[str, int]:
    """'the second drawer', 'drawer 2'."""
    value = rng.randint(1, 12)
    while is_held(str(value)):
        value = rng.randint(1, 12)
    ending = {1: 'st', 2: 'nd', 3: 'rd'}.get(value, 'th')
    return pick(rng, [
        f'the {_ORDINALS[value - 1]} {noun}', f'the {_ORDINALS[value - 1]} {noun}', f'{_ORDINALS[value - 1]} {noun}', f'the {value}{ending} {noun}',
        f'{noun} {value}', f'{noun} {value}', f'{noun} number {value}', f'{noun} {spell(value, rng)}',
    ]), value


def _repeats(rng: random.Random) -> tuple[str, int]:
    """'twice', 'three times'."""
    value = rng.choice((1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20))
    while is_held(str(value)):
        value = rng.randint(1, 9)
    if value < 3 and rng.random() < 0.7:
        return pick(rng, [['once', 'just once', 'one time', 'a single time'], ['twice', 'twice', 'two times', 'a couple of times']][value - 1]), value
    number = spell(value, rng) if rng.random() < 0.5 else str(value)
    return pick(rng, [f'{number} times' if value > 1 else f'{number} time', f'{value}x' if rng.random() < 0.3 else f'{number} times' if value > 1 else 'once']), value


def _value(tool: Tool, param: Param, rng: random.Random, held: bool) -> tuple[str, Any]:
    """Words and value for one argument of another tool."""
    kind = param.kind
    if kind in _OPEN:
        return _open_value(kind, rng)
    if kind == 'name':
        text = person(rng) if isinstance(rng, TrainDraws) else random_name(rng)
        return text, text
    if kind == 'open':
        text = pick(rng, ['open', 'close'])
        return text, text
    if kind == 'choice':
        text = pick(rng, tool.choices[param.key])
        return text, text
    if kind == 'clock':
        return _clock(rng)
    if kind == 'repeats':
        return _repeats(rng)
    if kind == 'ordinal':
        return _ordinal(param.choices[0], rng)
    if kind == 'idiom':
        state, _, sentences = pick(rng, param.choices).partition(': ')
        return fill(pick(rng, sentences.split('; ')), rng, {}), state
    if kind == 'words':
        text = ' '.join(random_word(rng) for _ in range(rng.randint(1, 4)))
        return text, text
    if kind == 'text':
        text = (
            open_text(rng)
            if rng.random() < 0.4
            else fill(pick(rng, source_of(held).SAY_TEXTS), rng, {})
        )
        return text, text
    if kind == 'seconds':
        return _time(rng, held, tool.units[param.key])
    if kind in ('length', 'angle', 'signed length', 'signed angle'):
        return _measure(tool, param, rng, held)
    if kind in ('decimal', 'signed'):
        value, text = digits(rng, held)
        while value > 20:
            value, text = digits(rng, held)
        if kind == 'signed' and rng.random() < 0.4:
            return ('-' if rng.random() < 0.6 else 'minus ') + text, -value
        return text, value
    while True:
        number = (
            rng.randint(1, 100)
            if kind == 'percent'
            else rng.choice((rng.randint(1, 12), rng.randint(10, 99), rng.randint(5, 400)))
        )
        if number < 10 or is_held(str(number)) == held:
            break
    if number <= 20 and rng.random() < 0.2:
        return spell(number, rng), number
    return str(number), number


def _by_name(tool: Tool, said: dict[str, str], rng: random.Random) -> str:
    """A command that uses the tool's own name, and its arguments' names where there are several."""
    name = (
        re.sub(r'([a-z])([A-Z])', r'\1 \2', tool.name.replace('_', ' ').replace('-', ' ')).lower()
        if rng.random() < 0.7
        else tool.name
    )
    parts = [
        f'{tool.names[key].replace("_", " ")} {word}' if len(said) > 1 else word
        for key, word in said.items()
    ]
    joint = pick(rng, [' ', ' with ', ': ', ', ']) if parts else ''
    return (
        pick(rng, ['', '', 'use ', 'call ', 'run ', 'do ', 'start '])
        + name
        + joint
        + ', '.join(parts)
    )


def other(tool: Tool, rng: random.Random, held: bool) -> Command:
    """A command for a tool of another kind."""
    kind = tool.kind
    assert kind is not None
    said: dict[str, str] = {}
    values: Json = {}
    tail = ''
    for param in kind.params:
        if param.optional:
            if param.key not in tool.names or rng.random() < 0.5:
                continue
            word, values[param.key] = _value(tool, param, rng, held)
            tail += ' ' + pick(rng, param.optional).replace('{' + param.key + '}', word)
            continue
        said[param.key], values[param.key] = _value(tool, param, rng, held)
    if kind.words:
        base = filled(kind.commands[0], {**dict(kind.words), **said})
    elif isinstance(rng, TrainDraws) and rng.random() < NOISE_SHARE:
        base = noisy(pick(rng, kind.commands), rng, said)
    else:
        base = fill(pick(rng, kind.held if held else kind.commands), rng, said)
    if not held and not tail and rng.random() < 0.15:
        base = _by_name(tool, said, rng)
    return Command(
        tool,
        tool.arguments(values),
        fill(kind.todo, rng, {**dict(kind.words), **said}),
        fill(kind.done, rng, {**dict(kind.words), **said}),
        base=(base + tail).replace(' ,', ','),
        values=values,
        said=said,
        category='other',
        open_end=any(param.kind in ('text', 'words') for param in kind.params),
    )
