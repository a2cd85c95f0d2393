# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One user turn and what the model must do: call, ask back, chat, or say that no tool fits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from demo_model import smalltalk
from demo_model.commands import Command, motion_command
from demo_model.dialogue_phrases import (
    AGAIN,
    BACK,
    HELD_JOINS,
    JOINS,
    THREE,
    VAGUE,
)
from demo_model.filling import fill
from demo_model.intents import INTENTS
from demo_model.motion_phrases import (
    BACKWARD_WORDS,
    CLAUSES,
    FORWARD_WORDS,
    LEFT_WORDS,
    RIGHT_WORDS,
    TURN_VERBS,
    WRAPPERS,
)
from demo_model.phrasing import WORDS, pick, random_name, roughen
from demo_model.sentences import command_for, sentence
from demo_model.spoken_numbers import (
    ANGLES,
    LENGTHS,
    NUMBER_WORDS,
    Quantity,
    bare_number,
    quantity,
)
from demo_model.tools import Tool, demo_tools, other_tool

Json = dict[str, Any]


@dataclass
class Episode:
    """One user turn and what follows. `outcomes` is empty where no tool is called."""

    user: str
    commands: list[Command] = field(default_factory=list)
    reply: str = ''
    thought: str = ''
    category: str = ''


def _joined(commands: list[Command], rng: random.Random, held: bool) -> str:
    names = ('a', 'b', 'c')
    template = pick(rng, THREE if len(commands) == 3 else HELD_JOINS if held else JOINS)
    if any(command.open_end for command in commands[:-1]) and template in (
        '{a}, {b}',
        '{a} plus {b}',
        '{a} {w} {b}',
        '{a}, {b}, {w}',
        '{a}, {w} {b}',
        '{a} / {b}',
        '{a} as well as {b}',
        '{a}, {b} and {c}',
        '{a} and {b} and {c}',
    ):
        template = '{a} and then {b} and then {c}' if len(commands) == 3 else '{a} and then {b}'
    texts = {
        name: command.base or command.whole for name, command in zip(names, commands, strict=False)
    }
    for name, command in zip(names, commands, strict=False):
        if not command.open_end and rng.random() < 0.08:
            texts[name] += ' ' + fill(pick(rng, CLAUSES), rng, {})
    return fill(template, rng, texts)


def _flipped(values: Json) -> Json:
    flip = {'forward': 'backward', 'backward': 'forward', 'left': 'right', 'right': 'left'}
    return {**values, 'direction': flip[values['direction']]}


def _call_episode(tools: list[Tool], rng: random.Random, held: bool, count: int) -> Episode:
    motion = [tool for tool in tools if tool.kind is None]
    pool = motion if motion and rng.random() < 0.85 else tools
    weights = [
        4 if tool.intent in ('drive', 'turn') else 1 if tool.intent == 'dock' else 2
        for tool in pool
    ]
    commands = [command_for(rng.choices(pool, weights)[0], rng, held) for _ in range(count)]
    text = sentence(commands[0], rng, held) if count == 1 else _joined(commands, rng, held)
    if count == 2 and commands[0].values and commands[0].tool.kind is None and rng.random() < 0.08:
        text = commands[0].base or commands[0].whole
        commands[1] = motion_command(commands[0].tool, _flipped(commands[0].values))
        text += pick(
            rng,
            [
                ' and back',
                ' and then back',
                ' and back again',
                ', then back',
                ' and come back',
                ' and then come back',
                ' and return',
                ', then return',
                ' and then go back',
                ' and then the same way back',
                ' and then the other way',
                ' and then the opposite',
                ' and after that the same back',
            ],
        )
    if any(command.open_end or command.tool.kind for command in commands):
        text = (
            text
            if rng.random() < 0.5 or commands[0].tool.intent == 'say'
            else text[:1].upper() + text[1:]
        )
        last = commands[-1]
        if not (last.open_end and text[-1:] in '.!?') and rng.random() < 0.3:
            text += '.'
    else:
        text = roughen(text, rng, NUMBER_WORDS)
    name = commands[0].tool.name
    return Episode(
        text,
        commands,
        thought=f'The user wants me to {" and ".join(command.todo for command in commands)}. I call {name}.',
        category=commands[0].category
        if count == 1
        else 'two calls'
        if count == 2
        else 'three calls',
    )


def _question_episode(
    tools: list[Tool], rng: random.Random, held: bool
) -> tuple[Episode, Episode | None]:
    """A command that lacks something, the question back, and perhaps what the user answers."""
    tool = rng.choice([tool for tool in tools if tool.names] or tools)
    if tool.intent == 'drive':
        forward = rng.random() < 0.5
        direction = 'forward' if forward else 'backward'
        words = pick(rng, (FORWARD_WORDS if forward else BACKWARD_WORDS))
        while 'further' in words or words in ('on', 'away'):
            words = pick(rng, FORWARD_WORDS if forward else BACKWARD_WORDS)
        if rng.random() < 0.2 and not held:
            user = pick(
                rng,
                [
                    'drive',
                    'move',
                    'drive please',
                    'please drive',
                    'can you move',
                    'go',
                    'start driving',
                    'drive a distance',
                    'move the robot',
                    'I want you to drive',
                    'please move',
                    'go for a drive',
                ],
            )
            reply = 'How far should I drive, and in which direction?'
        else:
            user = _incomplete(
                pick(rng, ['drive', 'go', 'move', 'roll', 'head', 'drive', 'come']) + ' ' + words
                if forward or rng.random() < 0.6
                else pick(rng, ['reverse', 'back up', 'back off']),
                rng,
                held,
            )
            reply = f'How far should I drive {direction}?'
            if rng.random() < 0.25:
                user = user.rstrip('.!?') + ' ' + fill(pick(rng, VAGUE), rng, {})
        amount = quantity(
            rng,
            tuple(
                unit
                for unit in LENGTHS
                if 'unit' not in tool.values or unit in tool.values['unit']
            ),
            held,
        )
        if reply.endswith('direction?'):
            direction = 'forward' if rng.random() < 0.5 else 'backward'
            amount_text = f'{amount.text} {pick(rng, FORWARD_WORDS[:6] if direction == "forward" else BACKWARD_WORDS[:6])}'
        else:
            amount_text = amount.text
        if (
            'unit' in tool.names
            and 'm' in tool.values.get('unit', {'m': ''})
            and rng.random() < 0.2
            and not reply.endswith('direction?')
        ):
            value, amount_text = bare_number(rng, held)
            amount = Quantity(value, 'm', amount_text)
        command = motion_command(
            tool, {'distance': amount.value, 'unit': amount.unit, 'direction': direction}
        )
    elif tool.intent == 'turn':
        side = 'left' if rng.random() < 0.5 else 'right'
        words = pick(rng, LEFT_WORDS if side == 'left' else RIGHT_WORDS)
        amount = quantity(
            rng,
            tuple(
                unit for unit in ANGLES if 'unit' not in tool.values or unit in tool.values['unit']
            ),
            held,
        )
        verb = (
            pick(rng, ['turn', 'rotate', 'turn'])
            if rng.random() < 0.6
            else TURN_VERBS[int(rng.random() * 17)][0]
        )
        draw = rng.random()
        if draw < 0.15 and not held:
            user = _incomplete(verb, rng, held)
            reply, amount_text = (
                'How far should I turn, and in which direction?',
                f'{amount.text} {words}',
            )
        elif draw < 0.4 and amount.value not in (180, 360):
            user = _incomplete(f'{verb} {pick(rng, ["by ", "", ""])}{amount.text}', rng, held)
            reply, amount_text = 'Should I turn left or right?', words
        else:
            user = (
                _incomplete(f'{verb} {words}', rng, held)
                if rng.random() < 0.9
                else pick(rng, ['make', 'take', 'do']) + f' a {side} turn'
            )
            if (
                'unit' in tool.names
                and 'deg' in tool.values.get('unit', {'deg': ''})
                and rng.random() < 0.25
            ):
                value, text = bare_number(rng, held)
                amount = Quantity(value, 'deg', text)
            reply, amount_text = f'How far should I turn {side}?', amount.text
        command = motion_command(
            tool, {'angle': amount.value, 'unit': amount.unit, 'direction': side}
        )
    elif tool.intent == 'say':
        user = _incomplete(
            pick(
                rng,
                [
                    'say something',
                    'speak',
                    'talk',
                    'say a sentence',
                    'make an announcement',
                    'announce something',
                    'speak up',
                    'use your voice',
                    'tell them something',
                ],
            ),
            rng,
            held,
        )
        words = pick(
            rng,
            [
                ' '.join(pick(rng, WORDS) for _ in range(rng.randint(1, 4))),
                'hello ' + random_name(rng),
                'good morning',
            ],
        )
        reply, amount_text = 'What should I say?', words
        command = Command(tool, tool.arguments({'text': words}), f'say: {words}', f'said: {words}')
    elif tool.kind is not None and tool.kind.params:
        param = tool.kind.params[0]
        user = (
            _incomplete(pick(rng, tool.kind.names), rng, held)
            if rng.random() < 0.7
            else _incomplete(f'use the tool {tool.name}', rng, held)
        )
        command = command_for(tool, rng, held)
        reply = param.question
        value = (command.values or {})[param.key]
        amount_text = f'{value}'
        if len(tool.kind.params) > 1:
            return Episode(
                user,
                reply=reply,
                thought=f'The tool {tool.name} fits, but something is missing.',
                category='missing',
            ), None
    else:
        return _call_episode(tools, rng, held, 1), None
    complete = [other for other in tools if other.kind is None and other is not tool]
    if (
        complete
        and tool.intent in ('drive', 'turn')
        and user[-1:] not in '.!?'
        and rng.random() < 0.15
    ):
        partner = command_for(rng.choice(complete), rng, held)
        pair = (
            (user, partner.base or partner.whole)
            if rng.random() < 0.6 or partner.open_end
            else (partner.base or partner.whole, user)
        )
        text = f'{pair[0]}{pick(rng, [" and ", " and then ", ", then ", " then ", ". Then "])}{pair[1]}'
        return Episode(
            text, reply=reply, thought=f'The tool {tool.name} lacks a number.', category='missing'
        ), None
    first = Episode(
        user,
        reply=reply,
        thought=f'The tool {tool.name} fits, but something is missing.',
        category='missing',
    )
    if rng.random() < 0.4:
        return first, None
    frame = (
        pick(
            rng,
            [
                '{x}',
                '{x}',
                '{x}',
                '{x} please',
                '{x}, please',
                'by {x}',
                'make it {x}',
                'oh, {x}',
                'sorry, {x}',
                'let us say {x}',
            ],
        )
        if tool.intent in ('drive', 'turn')
        else '{x}'
    )
    return first, Episode(
        frame.replace('{x}', amount_text),
        [command],
        thought=f'Now I know what was missing. I call {tool.name}.',
        category='follow-up',
    )


def _incomplete(phrase: str, rng: random.Random, held: bool) -> str:
    if not held and rng.random() < 0.4:
        wrapper = pick(rng, WRAPPERS)
        if '{ing}' not in wrapper and '{n}' not in wrapper and '{clause}' not in wrapper:
            return roughen(fill(wrapper, rng, {'base': phrase}), rng, NUMBER_WORDS, typo_rate=0.06)
    wrapped = pick(
        rng,
        [
            '{x}',
            '{x}',
            '{x}',
            'please {x}',
            '{x} please',
            'can you {x}?',
            'could you {x}?',
            'robot, {x}',
            'I want you to {x}',
            '{x} now',
            'now {x}',
            'ok {x}',
            'would you please {x}',
            "let's {x}",
            'start to {x}',
            'hey, {x}',
            '{x} for me',
            'you should {x}',
            '{x} a certain amount',
            'I need you to {x}',
            '{x}, robot',
            'try to {x}',
        ]
        if not held
        else ['{x} if you can', 'go on, {x}', 'might you {x}?', 'time to {x}'],
    )
    return roughen(wrapped.replace('{x}', phrase), rng, NUMBER_WORDS, typo_rate=0.06)


def _no_tool_episode(tools: list[Tool], rng: random.Random, held: bool) -> Episode:
    present = {tool.intent for tool in tools}
    draw = rng.random()
    drives = 'drive' in present
    if tools and drives and draw < 0.12:
        amount = quantity(rng, ('m', 'ft', 'cm'), held)
        side = pick(
            rng,
            ['left', 'right', 'to the left', 'to the right', 'sideways', 'sideways to the left'],
        )
        text = pick(rng, ['{v} {q} {s}', '{v} {s} {q}', '{v} {s} by {q}']).replace(
            '{v}', pick(rng, ['drive', 'move', 'go', 'shift', 'slide', 'strafe', 'step'])
        )
        return Episode(
            roughen(text.replace('{q}', amount.text).replace('{s}', side), rng, NUMBER_WORDS),
            reply=smalltalk.SIDEWAYS,
            thought='I can not drive sideways.',
            category='no tool',
        )
    if tools and drives and draw < 0.22:
        tool = next(tool for tool in tools if tool.intent == 'drive')
        if 'unit' in tool.names:
            number = quantity(rng, ('m',), held).text.rsplit(' ', 1)[0]
            text = f'{pick(rng, ["drive", "go", "move", "travel", "drive"])} {number} {pick(rng, smalltalk.ODD_UNITS)} {pick(rng, ["", "forward", "back", "ahead", "backwards"])}'.strip()
            units = list(
                tool.declaration['function']['parameters']['properties'][tool.names['unit']][
                    'enum'
                ]
            )
            reply = smalltalk.UNIT_UNKNOWN.replace(
                '{units}', ', '.join(units[:-1]) + f' and {units[-1]}'
            )
            return Episode(
                roughen(text, rng),
                reply=reply,
                thought='The unit is not known.',
                category='odd unit',
            )
    others = [kind for kind in INTENTS if kind.key not in present]
    alien = any(tool.kind for tool in tools)
    if alien or (not tools and rng.random() < 0.5) or rng.random() < 0.3:
        kind = rng.choice(others)
        draw = rng.random()
        if draw < 0.25 and not drives and not present & {'turn', 'goto', 'head'}:
            command = command_for(rng.choice(draw_motion(rng)), rng, held)
        else:
            command = command_for(other_tool(rng, kind), rng, held)
        text = roughen(sentence(command, rng, held), rng)
    else:
        text = roughen(smalltalk.question(rng, held), rng)
    return Episode(text, reply=smalltalk.NO_TOOL, thought='No tool fits.', category='no tool')


def draw_motion(rng: random.Random) -> list[Tool]:
    """The demo robot's drive and turn, for commands that find no such tool in their set."""
    return demo_tools()[:2]


def draw_episodes(
    tools: list[Tool], rng: random.Random, held: bool, last: Command | None
) -> list[Episode]:
    """The next user turn, or two where a question back is answered; `last` for 'again'."""
    draw = rng.random()
    if not tools:
        draw = 0.8 + draw * 0.2
    if last is not None and last.values and last.tool.kind is None and draw < 0.12:
        values = dict(last.values)
        texts: tuple[str, ...] = AGAIN
        if rng.random() < 0.5:
            values = _flipped(values)
            texts = BACK[last.tool.intent]
        command = motion_command(last.tool, values)
        return [
            Episode(
                roughen(pick(rng, texts), rng, typo_rate=0.03),
                [command],
                thought=f'The user wants me to {command.todo}.',
                category='again',
            )
        ]
    if draw < 0.62:
        return [_call_episode(tools, rng, held, 1)]
    if draw < 0.75:
        return [_call_episode(tools, rng, held, 2 if rng.random() < 0.88 else 3)]
    if draw < 0.83:
        first, second = (
            _question_episode(tools, rng, held)
            if tools
            else (_no_tool_episode(tools, rng, held), None)
        )
        return [first] + ([second] if second else [])
    if draw < 0.88:
        user, reply = smalltalk.chat(rng, held)
        return [
            Episode(
                roughen(user, rng), reply=reply, thought='This is small talk.', category='chat'
            )
        ]
    if draw < 0.895:
        user, reply = smalltalk.abilities(tools, rng, held)
        return [
            Episode(
                roughen(user, rng),
                reply=reply,
                thought='The user asks what I can do.',
                category='chat',
            )
        ]
    return [_no_tool_episode(tools, rng, held)]
