# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Commands as notes: 'left 15, fwd 0.8' - two to four motions without verbs, as people in a hurry type them.

For training alone; knows nothing of the evaluation.
"""

from __future__ import annotations

import random
import re

from demo_model.commands import Command, motion_command
from demo_model.phrasing import pick, random_name
from demo_model.spoken_numbers import ANGLES, LENGTHS, bare_number, quantity
from demo_model.tools import Tool

# fmt: off
_WAYS = {
    'forward': ('forward', 'forward', 'fwd', 'fwd', 'ahead', 'forwards', 'straight', 'straight on', 'straight ahead', 'f', 'fw', 'go', 'go forward', 'drive', 'move forward', 'front'),
    'backward': ('back', 'back', 'backward', 'backwards', 'bwd', 'reverse', 'rev', 'b', 'bk', 'go back', 'back up', 'in reverse', 'rear'),
    'left': ('left', 'left', 'left', 'turn left', 'ccw', 'rot left', 'go left', 'l', 'to the left', 'anticlockwise', 'spin left', 'lft', 'rotate left'),
    'right': ('right', 'right', 'right', 'turn right', 'cw', 'rot right', 'go right', 'r', 'to the right', 'clockwise', 'spin right', 'rt', 'rotate right'),
}
_PARTS = (', ', ', ', ', ', ', ', ', then ', ' then ', ' and ', '; ', ' / ', '/', '. ', ' ', ' ', '\n', ' + ', ' > ', ' -> ', ' - ', ' | ', ' and then ', ', next ', ' n ', '...', ' ... ')
_LAST = (' and ', ', and ', ', then ', ' then ', ' and then ', ', and then ', ', finally ')
_OPENINGS = ('ok ', 'please ', 'go ', 'do ', 'route: ', 'moves: ', 'path: ', 'now ', 'robot, ', 'next: ', 'do this: ', 'sequence: ', 'plan: ', 'first ', 'so ', 'ok so ', 'right then, ', 'I need ')
_ENDS = (' please', ' pls', ', please', ', thanks', '!', ' now', ', go', ', ok?', ' thx')
# fmt: on
_VERBS = ('go', 'drive', 'turn', 'rot', 'move', 'spin', 'back up')
_BARE_SHARE = 0.4                        # of sentences: numbers without units


def _amount(tool: Tool, bare: bool, rng: random.Random) -> tuple[float, str, str]:
    """Number, unit and words."""
    turning = tool.intent == 'turn'
    if turning and rng.random() < 0.5:
        value: float = rng.choice((90, 90, 90, 180, 45, 45, 30, 60, 15, 20, 10, 120, 135, 270, 360))
        sign = '' if bare else pick(rng, (' degrees', ' deg', '°', 'deg', ' degrees'))
        return value, 'deg', f'{value}{sign}'
    if bare:
        value, text = bare_number(rng)
        return value, 'deg' if turning else 'm', text
    units = ('deg',) if turning and rng.random() < 0.9 else ANGLES if turning else LENGTHS
    said = quantity(rng, units)
    while re.search(r'(m|metres?|meters?|feet|foot) ?\d+$|,', said.text):     # what follows might belong to it
        said = quantity(rng, units)
    return said.value, said.unit, said.text


def takes_notes(tools: list[Tool]) -> bool:
    """Whether drive and turn are there, with all units."""
    wanted = {'drive': LENGTHS, 'turn': ANGLES}
    able = [
        tool
        for tool in tools
        if tool.intent in wanted
        and 'unit' in tool.names
        and set(wanted[tool.intent]) <= set(tool.values.get('unit', wanted[tool.intent]))
    ]
    return len(able) == 2


def terse(tools: list[Tool], rng: random.Random, count: int) -> tuple[str, list[Command]]:
    """The sentence and its commands; `tools` as takes_notes wants them."""
    motions = [tool for tool in tools if tool.intent in ('drive', 'turn')]
    dock = next((tool for tool in tools if tool.intent == 'dock'), None)
    bare = rng.random() < _BARE_SHARE
    first = rng.randrange(2)
    template = pick(rng, ('{D} {Q}', '{D} {Q}', '{D} {Q}', '{Q} {D}', '{D}: {Q}', '{D} by {Q}'))
    words = []
    commands = []
    for index in range(count):
        # mostly one after the other, as people go: ahead, turn, ahead
        tool = motions[(first + index) % 2] if rng.random() < 0.85 else rng.choice(motions)
        way = rng.choice(('left', 'right') if tool.intent == 'turn' else ('forward', 'forward', 'backward'))
        value, unit, text = _amount(tool, bare and rng.random() < 0.85, rng)
        key = 'angle' if tool.intent == 'turn' else 'distance'
        commands.append(motion_command(tool, {key: value, 'unit': unit, 'direction': way}))
        form = template if rng.random() < 0.85 else pick(rng, ('{D} {Q}', '{Q} {D}'))
        said = pick(rng, _WAYS[way])
        while form.startswith('{Q}') and said.startswith(_VERBS):
            said = pick(rng, _WAYS[way])
        words.append(form.replace('{D}', said).replace('{Q}', text))
    if dock is not None and rng.random() < 0.15:
        commands[-1] = Command(dock, {}, 'drive to the dock', 'drove to the dock', category='dock')
        words[-1] = pick(rng, ('dock', 'charge', 'charger', 'to the charger', 'go charge', 'dock it', 'back to the dock'))
    part = pick(rng, _PARTS)
    text = part.join(words[:-1]) + (pick(rng, _LAST) if rng.random() < 0.3 else part) + words[-1]
    if rng.random() < 0.3:
        text = pick(rng, _OPENINGS) + text
    elif rng.random() < 0.1:
        text = f'{random_name(rng)}, {text}'
    if rng.random() < 0.2:
        text += pick(rng, _ENDS)
    return text, commands
