# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Motions that are put right before the sentence ends: 'forward 5, no, 4 metres', 'left 90, sorry, right'.

Only what is meant in the end is called. For training alone; knows nothing of the evaluation.
"""

from __future__ import annotations

import random
import re

from demo_model.commands import Command, motion_command
from demo_model.phrasing import pick
from demo_model.spoken_numbers import ANGLES, LENGTHS, bare_number, quantity
from demo_model.tools import Tool
from demo_model.widening import oops

# fmt: off
_VERBS = {'drive': ('drive', 'go', 'move', 'drive', 'go', 'roll', 'come', 'travel', ''), 'turn': ('turn', 'turn', 'rotate', 'spin', 'swing', 'pivot', '')}
_WAYS = {
    'forward': ('forward', 'forward', 'ahead', 'forwards', 'straight ahead', 'fwd', 'straight on', 'to the front'),
    'backward': ('back', 'back', 'backward', 'backwards', 'in reverse', 'to the rear'),
    'left': ('left', 'left', 'to the left', 'counterclockwise', 'ccw', 'anticlockwise'),
    'right': ('right', 'right', 'to the right', 'clockwise', 'cw'),
}
# {p} way and {q} amount as said first, {d} and {a} as meant, {o} what stands between
_AMOUNT = ('{d} {q}, no {a}', '{d} {q} no {a}', '{d} {q}, no, {a}', '{d} {q}... no {a}', '{d} {q}, sorry {a}', '{d} {q} sorry {a}', '{d} {q} - no - {a}', '{v} {d} {q}, no {a}', '{v} {d} {q} no {a}', '{v} {q} {d}, no {a}', '{v} {d} {q}, wait {a}', '{v} {d} {q} wait no {a}', '{v} {d} {q} er {a}', '{v} {d} {q}, uh, {a}', '{v} {d} {q}{o}{a}', '{v} {q}{o}{a} {d}', '{v} {q} {d}{o}{a}', '{v} {d} by {q}{o}by {a}', '{v} {d} {q}{o}{a} I mean', '{v} {d} {a}, not {q}', '{v} {d} not {q} but {a}', '{v} {d} {q}{o}make it {a}', '{v} {d} {q}{o}make that {a}', '{v} {d} {q}{o}only {a}',
           '{v} {d} {q}{o}I meant {a}', '{v} {d} {q} or rather {a}', '{v} {d}, not {q}, {a}', '{v} {d} {q} - {a}, sorry', '{v} {a} {d} instead of {q}', '{v} {d} {a} instead of {q}', '{v} {d} {q}, {a} actually', '{v} {d} {q}, well, {a}', '{v} {d} {q}? no, {a}', '{v} {d} {q}{o}{a} is enough')
_WAY = ('{v} {p} no {d} {q}', '{v} {p}, no {d}, {q}', '{p} {q}, no {d}', '{p}, no, {d} {q}', '{v} {p} er {d} {q}', '{v} {p} uh I mean {d} {q}', '{v} {p} {q}{o}{d}', '{v} {q} {p}{o}{d}', '{v} {p}{o}{d} {q}', '{v} {d}, not {p}, {q}', '{v} {d} {q}, not {p}', 'not {p}, {d}, {q}', '{v} {q} {d}, not {p}', '{v} {d} {q} instead of {p}', '{v} {d} instead of {p}, {q}', '{v} {p}{o}I mean {d}, {q}', '{v} {p} {q}{o}I meant {d}', '{v} not {p} but {d} {q}',
        '{v} {p}, {d} I mean, {q}', 'no, not {p}, {v} {d} {q}', 'not {p} - {d}! {q}', '{v} {p} {q}{o}the other way, {d}', '{v} {p} or rather {d}, {q}', '{v} {q} {p}, no, {d}', '{v} {d} - not {p} - {q}', '{v} {d} {q} (not {p})', 'I said {d}, not {p}, {q}', '{v} {d} by {q}, not {p}')
_BOTH = ('{v} {p} {q}{o}{d} {a}', '{v} {q} {p}{o}{a} {d}', '{v} {p} {q}{o}{v} {d} {a}', '{v} {p} {q}{o}{v} {a} {d}', "don't {v} {p} {q}, {v} {d} {a}", 'not {p} {q} but {d} {a}', 'not {q} {p}, {a} {d}', 'instead of {q} {p} {v} {a} {d}', 'dont {v} {p} {q}, do {a} {d}', '{v} {d} {a}, not {p} {q}', '{v} {a} {d} and not {q} {p}')
# fmt: on
_OPPOSITE = {'forward': 'backward', 'backward': 'forward', 'left': 'right', 'right': 'left'}


def amended(tool: Tool, rng: random.Random) -> tuple[str, Command]:
    """The sentence and the command that is meant; `tool` drives or turns."""
    turning = tool.intent == 'turn'
    base = ANGLES if turning else LENGTHS
    known = tool.values.get('unit')
    units = tuple(unit for unit in base if known is None or unit in known)
    first, meant = quantity(rng, units), quantity(rng, units)
    key = 'angle' if turning else 'distance'
    way = rng.choice(('left', 'right') if turning else ('forward', 'backward'))
    draw = rng.random()
    before = first.text
    value, unit, after = meant.value, meant.unit, meant.text
    if draw < 0.45:
        templates = _AMOUNT
        if rng.random() < 0.5 and 'unit' in tool.names:
            # one of the two has the unit, and the other takes it over
            if rng.random() < 0.5:
                before = bare_number(rng)[1]
            else:
                value, after = bare_number(rng)
                unit = first.unit
    elif draw < 0.8:
        templates = _WAY
        value, unit, before = meant.value, meant.unit, meant.text
    else:
        templates = _BOTH
    slots = {
        'v': pick(rng, _VERBS[tool.intent]), 'p': pick(rng, _WAYS[_OPPOSITE[way]]), 'd': pick(rng, _WAYS[way]),
        'q': before, 'a': after, 'o': oops(rng),
    }
    text = re.sub(r'\{(\w)\}', lambda slot: slots[slot[1]], pick(rng, templates))
    command = motion_command(tool, {key: value, 'unit': unit, 'direction': way})
    return re.sub(' {2,}', ' ', text).strip(), command
