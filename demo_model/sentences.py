# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Commands for tools of any kind, and whole sentences around them."""

from __future__ import annotations

import random
import re
from typing import Any

from demo_model.commands import Command, dock, drive, say, turn
from demo_model.filling import fill, open_text, source_of
from demo_model.intents import COLOURS, JOINTS, OBJECTS, PLACES
from demo_model.phrasing import pick, random_name, random_word
from demo_model.spoken_numbers import digits
from demo_model.tools import Tool

Json = dict[str, Any]


def _value(kind: str, rng: random.Random, held: bool) -> tuple[str, Any]:
    """Words and value for one argument of another tool."""
    if kind in ('place', 'object'):
        text = fill(pick(rng, PLACES if kind == 'place' else OBJECTS), rng, {})
        return text, re.sub(r'^(the|a|an) ', '', text)
    if kind == 'colour':
        text = pick(rng, COLOURS)
        return text, text
    if kind == 'joint':
        text = fill(pick(rng, JOINTS), rng, {})
        return text, text
    if kind == 'name':
        text = random_name(rng)
        return text, text
    if kind == 'open':
        text = pick(rng, ['open', 'close'])
        return text, text
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
    if kind == 'decimal':
        value, text = digits(rng, held)
        while value > 20:
            value, text = digits(rng, held)
        return text, value
    number = (
        rng.randint(1, 100)
        if kind == 'percent'
        else rng.choice((rng.randint(1, 12), rng.randint(10, 99), rng.randint(5, 400)))
    )
    return str(number), number


def _by_name(tool: Tool, words: dict[str, str], rng: random.Random) -> str:
    """A command that uses the tool's own name, and its arguments' names where there are several."""
    name = (
        re.sub(r'([a-z])([A-Z])', r'\1 \2', tool.name.replace('_', ' ').replace('-', ' ')).lower()
        if rng.random() < 0.7
        else tool.name
    )
    parts = [
        f'{tool.names[key].replace("_", " ")} {word}' if len(words) > 1 else word
        for key, word in words.items()
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
    words: dict[str, str] = {}
    values: Json = {}
    for param in kind.params:
        words[param.key], values[param.key] = _value(param.kind, rng, held)
    template = pick(rng, kind.held if held else kind.commands)
    base = fill(template, rng, words)
    if not held and rng.random() < 0.15:
        base = _by_name(tool, words, rng)
    return Command(
        tool,
        tool.arguments(values),
        fill(kind.todo, rng, words),
        fill(kind.done, rng, words),
        base=base,
        values=values,
        category='other',
        open_end=any(param.kind in ('text', 'words') for param in kind.params),
    )


def command_for(tool: Tool, rng: random.Random, held: bool) -> Command:
    """A command for any tool."""
    maker = {'drive': drive, 'turn': turn, 'dock': dock, 'say': say}.get(tool.intent)
    return maker(tool, rng, held) if maker else other(tool, rng, held)


def sentence(command: Command, rng: random.Random, held: bool) -> str:
    """The command as a sentence, wrapped in the ways in which people ask."""
    if command.whole:
        return command.whole
    wrappers = source_of(held).WRAPPERS
    # questions and statements of other tools ('where is my cup') stand alone most of the time
    if command.category == 'other' and rng.random() < 0.5:
        return command.base
    wrapper = pick(rng, wrappers)
    while (
        ('{ing}' in wrapper and not command.ing)
        or (command.open_end and command.base[-1] in '!?' and wrapper.endswith(('?', 'please')))
        or (
            command.open_end
            and not wrapper.endswith(
                ('{base}', '{base}?', '{base} please', '{base}, please', '{base}, robot')
            )
        )
    ):
        wrapper = pick(rng, wrappers)
    return fill(wrapper, rng, {'base': command.base, 'ing': command.ing})
