# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Answers that answer a part or nothing, and three motions of which one lacks its amount: for training alone.

What nobody said is asked for as often as it takes, and never made up. Knows nothing of the evaluation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_model import wordings_seventh as said
from demo_model.commands import Command, motion_command
from demo_model.episode import Episode
from demo_model.not_commands import how_far, inside, plain_amount
from demo_model.phrasing import pick, roughen
from demo_model.spoken_numbers import NUMBER_WORDS, Quantity, bare_number
from demo_model.tools import Tool

# fmt: off
_WAYS = {
    'forward': ('forward', 'forward', 'forwards', 'ahead', 'straight ahead', 'straight on', 'to the front'),
    'backward': ('backward', 'backwards', 'backwards', 'back', 'in reverse', 'to the back', 'to the rear'),
    'left': ('left', 'left', 'to the left', 'to your left', 'counterclockwise', 'towards the left', 'to my left'),
    'right': ('right', 'right', 'to the right', 'to your right', 'clockwise', 'towards the right', 'to my right'),
}
_START = {
    'drive': ('drive', 'drive', 'go', 'go', 'move', 'move', 'start driving', 'drive please', 'please drive', 'please move', 'can you move', 'move the robot', 'roll', 'travel', 'walk', 'start moving', 'could you drive?', 'come on, drive', 'now drive', 'go for a drive', 'start', 'move on', 'move yourself', 'drive some distance', 'drive a bit of a way', 'I want you to drive', 'I want you to move', 'get moving', 'drive off', 'set off'),
    'turn': ('turn', 'turn', 'turn', 'rotate', 'rotate', 'spin', 'turn please', 'please turn', 'please rotate', 'turn yourself', 'can you turn?', 'could you rotate', 'start turning', 'now turn', 'turn somewhere', 'make a turn', 'I want you to turn', 'turn on the spot', 'do a turn', 'turn the robot', 'pivot', 'swivel'),
}
_PLAIN = {'drive': ('drive', 'go', 'move', 'roll', 'come', 'drive', 'go', 'travel'), 'turn': ('turn', 'turn', 'turn', 'rotate', 'spin')}
_ANSWERS = ('{x}', '{x}', '{x}', '{x}', '{x} please', '{x}, please', 'oh, {x}', 'I mean {x}', 'sorry, {x}', 'well, {x}', '{x} of course')
_AMOUNTS = (*_ANSWERS, 'by {x}', 'make it {x}', 'let us say {x}', 'about {x}', '{x}, no more')
_JOINS = (', ', ', ', ', ', ', then ', ' then ', ' and then ', '. ', '; ', ' and ')
_LAST = (' and ', ' and then ', ', then ', ', and ', ', and then ', ' then ', ', ', '. Then ', ', finally ')
_FRAMES = ('{x}', '{x}', '{x}', '{x}', 'please {x}', '{x} please', 'first {x}', 'could you {x}?', 'robot, {x}', 'ok, {x}')
_OPPOSITE = {'forward': 'backward', 'backward': 'forward', 'left': 'right', 'right': 'left'}
# fmt: on
_MOST_TURNS = 5
_END_SHARE = 0.35                        # of dialogues: end with the question back
_BARE_SHARE = 0.3                        # of amounts as answers: a number without a unit


def _amount(tool: Tool, rng: random.Random) -> Quantity:
    unit = 'deg' if tool.intent == 'turn' else 'm'
    if 'unit' in tool.names and unit in tool.values.get('unit', {unit: ''}) and rng.random() < _BARE_SHARE:
        value, text = bare_number(rng)
        return Quantity(value, unit, text)
    return plain_amount(tool, rng)


def _side_is_open(amount: Quantity) -> bool:
    """Whether a turn by so much has no side of its own."""
    return amount.value not in (180, 360)


def asked_again(tool: Tool, rng: random.Random) -> list[Episode]:
    """'turn', 'to the left', '90': a question back for each part that is still missing; `tool` moves."""
    turning = tool.intent == 'turn'
    ways = ('left', 'right') if turning else ('forward', 'backward')
    way = amount = None
    draw = rng.random()
    if draw < 0.55:
        user = pick(rng, _START[tool.intent])
    elif draw < 0.8 or not turning:
        way = rng.choice(ways)
        user = f'{pick(rng, _PLAIN[tool.intent])} {pick(rng, _WAYS[way])}'
    else:
        amount = _amount(tool, rng)
        while not _side_is_open(amount):
            amount = _amount(tool, rng)
        user = f'{pick(rng, _PLAIN["turn"])} {amount.text}'
    user = roughen(user, rng, NUMBER_WORDS, typo_rate=0.03)
    episodes: list[Episode] = []
    while True:
        if way and amount:
            values = {'angle' if turning else 'distance': amount.value, 'unit': amount.unit, 'direction': way}
            command = motion_command(tool, values)
            episodes.append(Episode(user, [command], thought=f'Now I know what was missing. I call {tool.name}.', category='follow-up'))
            return episodes
        if way:
            reply = how_far(tool, way)
        elif amount:
            reply = 'Should I turn left or right?'
        else:
            reply = f'How far should I {"turn" if turning else "drive"}, and in which direction?'
        episodes.append(Episode(user, reply=reply, thought=f'The tool {tool.name} fits, but something is missing.', category='missing'))
        if len(episodes) == _MOST_TURNS:
            return episodes
        draw = rng.random()
        if draw < 0.14:
            user = roughen(pick(rng, said.NO_ANSWER), rng)
        elif draw < 0.2:
            user = roughen(pick(rng, said.TAKEN_BACK), rng)
            episodes.append(Episode(user, reply='Okay.', thought='Nothing is to be done.', category='no command'))
            return episodes
        elif way:
            if draw < 0.36:              # another way, or the same once more, but no amount
                way = _OPPOSITE[way] if draw < 0.28 else way
                user = pick(rng, ('{x}', '{x}', 'no, {x}', '{x} I said', 'I mean {x}', '{x}!')).replace('{x}', pick(rng, _WAYS[way]))
            else:
                amount = _amount(tool, rng)
                user = pick(rng, _AMOUNTS).replace('{x}', amount.text)
        elif amount:
            way = rng.choice(ways)
            user = pick(rng, _ANSWERS).replace('{x}', pick(rng, _WAYS[way]))
        elif draw < 0.62:
            way = rng.choice(ways)
            user = roughen(pick(rng, _ANSWERS).replace('{x}', pick(rng, _WAYS[way])), rng, typo_rate=0.03)
        elif draw < 0.8:
            amount = _amount(tool, rng)
            if not turning:              # forward, as in 'drive 2 m'
                way = 'forward'
            elif not _side_is_open(amount):
                way = 'left'
            user = pick(rng, _AMOUNTS).replace('{x}', amount.text)
        else:
            way, amount = rng.choice(ways), _amount(tool, rng)
            parts = [pick(rng, _WAYS[way]), amount.text]
            user = ' '.join(parts if rng.random() < 0.5 else parts[::-1])


@dataclass
class _Item:
    """A motion's words with and without what it may lack, the question for that, and the answer."""

    command: Command
    whole: str
    half: str
    question: str
    answer: str


def _item(tool: Tool, rng: random.Random) -> _Item:
    one = inside(tool, rng)
    values = one.command.values or {}
    way = str(values['direction'])
    verb = pick(rng, _PLAIN[tool.intent])
    words, amount = one.slots['way'], one.slots['q']
    frame = pick(rng, ('{v} {w} {q}', '{v} {q} {w}', '{v} {w} by {q}'))
    whole = frame.replace('{v}', verb).replace('{w}', words).replace('{q}', amount)
    angle = values.get('angle')
    if angle is not None and angle not in (180, 360) and rng.random() < 0.25:
        return _Item(one.command, whole, f'{verb} {amount}', 'Should I turn left or right?', words)
    return _Item(one.command, whole, f'{verb} {words}', how_far(tool, way), amount)


def several(motions: list[Tool], rng: random.Random) -> list[Episode]:
    """Two to four motions in a row, mostly three; where one or two lack something, it is asked for first."""
    count = rng.choice((2, 3, 3, 3, 3, 3, 3, 4))
    first = int(rng.random() * len(motions))
    order = [motions[(first + index) % len(motions)] if rng.random() < 0.75 else rng.choice(motions) for index in range(count)]
    items = [_item(tool, rng) for tool in order]
    lacking = rng.choice((0, 0, 1, 1, 1, 1, 1, 2)) if count > 2 else 1
    places = sorted(rng.sample(range(count), lacking))
    words = [item.half if place in places else item.whole for place, item in enumerate(items)]
    join = pick(rng, _JOINS)
    text = join.join(words[:-1]) + (pick(rng, _LAST) if rng.random() < 0.7 else join) + words[-1]
    user = roughen(pick(rng, _FRAMES).replace('{x}', text), rng, NUMBER_WORDS, typo_rate=0.03)
    episodes: list[Episode] = []
    for item in (items[place] for place in places):
        thought = f'The tool {item.command.tool.name} lacks something.'
        episodes.append(Episode(user, reply=item.question, thought=thought, category='missing'))
        if rng.random() < _END_SHARE:
            return episodes
        user = pick(rng, _ANSWERS).replace('{x}', item.answer)
    commands = [item.command for item in items]
    todo = ' and '.join(command.todo for command in commands)
    thought = f'The user wants me to {todo}. I call {commands[0].tool.name}.'
    category = 'three calls' if count == 3 else 'two calls'
    return [*episodes, Episode(user, commands, thought=thought, category=category)]
