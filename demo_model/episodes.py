# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One user turn and what the model must do: call, ask back, chat, or say that no tool fits."""

from __future__ import annotations

import random
import re
from typing import Any

from demo_model import smalltalk
from demo_model.amended import amended
from demo_model.asked_again import asked_again, several
from demo_model.commands import SMALL_ANGLE, SMALL_DISTANCE, Command, motion_command
from demo_model.dialogue_phrases import (
    AGAIN,
    AMOUNT_CORRECTIONS,
    BACK,
    CORRECTIONS,
    HELD_AMOUNT_CORRECTIONS,
    HELD_CORRECTIONS,
    HELD_JOINS,
    HELD_NEGATIONS,
    JOINS,
    NEGATIONS,
    NEW_JOINS,
    PLAIN_JOINS,
    PLAIN_THREE,
    THREE,
)
from demo_model.episode import Episode
from demo_model.filling import clause, fill
from demo_model.held_apart import apart
from demo_model.made_up import made_up_kind
from demo_model.motion_phrases import DRIVE, DRIVE_VERBS, FORWARD_WORDS
from demo_model.not_commands import not_command
from demo_model.phrasing import TrainDraws, expand, pick, roughen
from demo_model.questions import question_episode
from demo_model.sentences import command_for, sentence
from demo_model.spoken_numbers import ANGLES, LENGTHS, NUMBER_WORDS, bare_number, quantity
from demo_model.terse import takes_notes, terse
from demo_model.tools import Tool, demo_tools
from demo_model.toolsets import HARD, KINDS, TRAIN_KINDS, alike, other_tool
from demo_model.widening import addressed, correction, join, negation, reasoned
from demo_model.wordings_sixth import (
    HALF_OF_IT,
    LITTLE_MORE,
    LOOSE_WISHES,
    MORE_AGAIN,
    MORE_AMOUNTS,
    MORE_BACK,
    TWICE,
)

Json = dict[str, Any]
_PLAIN_JOIN_SHARE = 0.25                 # of sentences with several commands
_MADE_JOIN_SHARE = 0.3                   # of pairs of commands: joins that are put together
_AMENDED_SHARE = 0.35                    # of corrections of motions: a part of the command, not all of it
_LITTLE_SHARE = 0.25                     # of other amounts of the last motion: 'a bit more'
_LOOSE_SHARE = 0.12                      # of wishes that no tool fits: what nobody asks a robot's tools for
_BESIDE_SHARE = 0.06                     # of sentences with several commands: a reason, or an address, before them
_ING_SHARE = 0.05                        # of pairs of commands: 'after turning left 2 m ahead'
_TERSE_SHARE = 0.15                      # of sentences with several commands: notes without verbs
_MOTION_WISH_SHARE = 0.05                # of wishes that no tool fits: plain motions where none is there
_NOT_SHARE = 0.12                        # of turns in training: no command, or a command that looks like none
_AGAIN_SHARE = 0.2                       # of questions back where something moves: answered in parts
_SEVERAL_SHARE = 0.13                    # of them: three motions of which one lacks something
_MADE_UP_SHARE = 0.15                    # of wishes that no tool fits: for a tool that is made up
_AGAIN = (*AGAIN, *AGAIN, *apart(MORE_AGAIN, ()))
_BACK = {key: (*BACK[key], *apart(texts, ())) for key, texts in MORE_BACK.items()}
_AMOUNTS = (*AMOUNT_CORRECTIONS, *apart(MORE_AMOUNTS, HELD_AMOUNT_CORRECTIONS))
_LITTLE = apart(LITTLE_MORE, ())
_LOOSE = apart(LOOSE_WISHES, smalltalk.QUESTIONS[1])
_TOPICS = {'search', 'translate', 'music', 'book', 'news', 'game', 'joke', 'dance', 'weather', 'note', 'status', 'order', 'shopping', 'tag'}
# {a} in its -ing form, {b} as it is; the second tuple has {b} so.
_AFTER_ING = ('after {a} {b}', 'after {a}, {b}', 'after {a} please {b}', '{b} after {a}', '{b}, but only after {a}', 'once you are done {a}, {b}', 'when you have finished {a}, {b}', 'having finished {a}, {b}', 'start by {a}, then {b}', 'begin with {a} and then {b}', 'first you should be {a}, then {b}', 'when you are done {a} {b}', 'finish {a}, then {b}', 'after you are done {a}, {b}', 'upon {a} {b}')
_BEFORE_ING = ('before {b} {a}', 'before {b}, {a}', '{a} before {b}', '{a} prior to {b}', '{a} and finish by {b}', '{a}, then carry on by {b}', '{a} and end with {b}', 'prior to {b}, {a}', '{a} and then start {b}', '{a}, followed by {b}', '{a} first, before {b}')
# What may follow a text that is to be spoken, and has no quotes.
_AFTER_TEXT = re.compile(
    r'["\'.;:\n]|\s*$| ?(&+|[-=>]>+) |,? (and|then|after|before|followed|next|once|when|afterwards|thereafter'
    r'|thereupon|subsequently|finally|lastly|later|eventually|secondly|second|also|now|besides|additionally)\b'
)


def _joined(
    commands: list[Command], rng: random.Random, held: bool, plain: bool = False
) -> str:
    names = ('a', 'b', 'c')
    joins = THREE if len(commands) == 3 else HELD_JOINS if held else JOINS
    template = expand(pick(rng, joins), rng)      # one reading, its slots as they are
    if template.startswith(('{b}', 'before')) and commands[-1].open_end:
        template = '{a} and then {b}'
    if not held and rng.random() < (0.8 if plain else 0.1):
        template = pick(rng, PLAIN_THREE if len(commands) == 3 else PLAIN_JOINS)
    made = (
        isinstance(rng, TrainDraws)
        and len(commands) == 2
        and not plain
        and rng.random() < _MADE_JOIN_SHARE
    )
    if made:
        template = join(rng)
    # a text that is to be spoken must end where the join begins
    weak = template in NEW_JOINS and not re.search(r'[.;:\n]|then|after|when|next', template)
    weak = not made and (weak or (not held and any(
        command.open_end and not _AFTER_TEXT.match(template.partition('{' + name + '}')[2])
        for name, command in zip(names, commands, strict=False)
    )))
    last_weak = weak and not held and commands[-1].open_end
    if last_weak or (any(command.open_end for command in commands[:-1]) and (weak or template in (
        '{b} after you {a}',
        '{a} + {b}',
        '{a} and also {b}, please',
        '{a}, {b}',
        '{a} plus {b}',
        '{a} {w} {b}',
        '{a}, {b}, {w}',
        '{a}, {w} {b}',
        '{a} / {b}',
        '{a} as well as {b}',
        '{a}, {b} and {c}',
        '{a} and {b} and {c}',
    ))):
        template = '{a} and then {b} and then {c}' if len(commands) == 3 else '{a} and then {b}'
    ing = isinstance(rng, TrainDraws) and len(commands) == 2 and rng.random() < _ING_SHARE
    after = ing and bool(commands[0].ing) and rng.random() < 0.6
    ing = ing and not commands[0].open_end and bool(commands[0 if after else 1].ing)
    if ing:
        template = pick(rng, _AFTER_ING if after else _BEFORE_ING)
    texts = {
        name: command.base or command.whole for name, command in zip(names, commands, strict=False)
    }
    if ing:
        texts['a' if after else 'b'] = commands[0 if after else 1].ing
    for name, command in zip(names, commands, strict=False):
        if not command.open_end and not plain and rng.random() < 0.08:
            texts[name] += ' ' + fill(clause(rng), rng, {})
    return fill(template, rng, texts)


def _flipped(values: Json) -> Json:
    flip = {'forward': 'backward', 'backward': 'forward', 'left': 'right', 'right': 'left'}
    return {**values, 'direction': flip[values['direction']]}


def call_episode(tools: list[Tool], rng: random.Random, held: bool, count: int) -> Episode:
    """A sentence that asks for `count` calls."""
    motion = [tool for tool in tools if tool.kind is None]
    pool = motion if motion and rng.random() < 0.85 else tools
    weights = [
        4
        if tool.intent in ('drive', 'turn')
        else 1
        if tool.intent == 'dock'
        else 4
        if tool.intent in HARD and isinstance(rng, TrainDraws)
        else 2
        for tool in pool
    ]
    notes = isinstance(rng, TrainDraws) and count > 1 and takes_notes(tools)
    if notes and rng.random() < (_TERSE_SHARE if count == 2 else 2 * _TERSE_SHARE):
        number = 4 if count == 3 and rng.random() < 0.2 else count
        text, commands = terse(tools, rng, number)
        names = ' and '.join(command.todo for command in commands)
        return Episode(
            roughen(text, rng, NUMBER_WORDS, typo_rate=0.03),
            commands,
            thought=f'The user wants me to {names}. I call {commands[0].tool.name}.',
            category='two calls' if len(commands) == 2 else 'three calls',
        )
    plain = not held and count > 1 and rng.random() < _PLAIN_JOIN_SHARE
    commands = [
        command_for(rng.choices(pool, weights)[0], rng, held, plain) for _ in range(count)
    ]
    text = sentence(commands[0], rng, held) if count == 1 else _joined(commands, rng, held, plain)
    if isinstance(rng, TrainDraws) and count > 1:
        draw = rng.random()
        if draw < _BESIDE_SHARE:
            text = reasoned(text, rng, False, True)
        elif draw < 2 * _BESIDE_SHARE:
            text = addressed(text, rng, False)
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


def no_tool_episode(tools: list[Tool], rng: random.Random, held: bool) -> Episode:
    """Something that none of the tools can do, and the plain refusal."""
    present = alike({tool.intent for tool in tools})
    draw = rng.random()
    drives = any(tool.intent == 'drive' for tool in tools)
    if tools and drives and draw < 0.08:
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
    if tools and drives and draw < 0.11:
        tool = next(tool for tool in tools if tool.intent == 'drive')
        if 'unit' in tool.names:
            number = bare_number(rng, held)[1]
            verb = DRIVE_VERBS[int(rng.random() * len(DRIVE_VERBS))][0]
            slots = {
                'V': pick(rng, ('drive', 'go', 'move', verb)),
                'Q': f'{number} {pick(rng, smalltalk.ODD_UNITS)}',
                'D': pick(rng, ('forward', 'back', 'ahead', 'backwards', *FORWARD_WORDS)),
            }
            # in the words of any drive, so that nothing but the unit tells
            frame = pick(rng, ('{V} {Q}', '{V} {Q} {D}', '{V} {D} {Q}', pick(rng, DRIVE)))
            text = fill(frame, rng, slots)
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
    if isinstance(rng, TrainDraws) and tools and rng.random() < _MOTION_WISH_SHARE:
        motions = [
            motion
            for motion, like in zip(
                draw_motion(rng),
                ({'drive', 'shift', 'circle'}, {'turn', 'yaw', 'head', 'look', 'circle', 'turntable'}),
                strict=True,
            )
            if not present & like
        ]
        if motions:
            command = command_for(rng.choice(motions), rng, held, True)
            text = command.base if command.base and rng.random() < 0.6 else sentence(command, rng, held)
            return Episode(
                roughen(text, rng, NUMBER_WORDS),
                reply=smalltalk.NO_TOOL,
                thought='No tool fits.',
                category='no tool',
            )
    if isinstance(rng, TrainDraws) and tools and rng.random() < _LOOSE_SHARE and not present & _TOPICS:
        return Episode(
            roughen(fill(pick(rng, _LOOSE), rng, {}), rng),
            reply=smalltalk.NO_TOOL,
            thought='No tool fits.',
            category='no tool',
        )
    kinds = TRAIN_KINDS if isinstance(rng, TrainDraws) else KINDS
    others = [kind for kind in kinds if kind.key not in present]
    if isinstance(rng, TrainDraws) and rng.random() < _MADE_UP_SHARE:
        others = [made_up_kind(rng)]
    alien = any(tool.kind for tool in tools)
    if alien or (not tools and rng.random() < 0.5) or rng.random() < 0.3:
        kind = rng.choice(others)
        draw = rng.random()
        if draw < 0.25 and not present & {'drive', 'turn', 'goto', 'head'}:
            command = command_for(rng.choice(draw_motion(rng)), rng, held)
        else:
            command = command_for(other_tool(rng, kind), rng, held)
        text = roughen(sentence(command, rng, held), rng)
    else:
        text = roughen(smalltalk.question(rng, held), rng)
    return Episode(text, reply=smalltalk.NO_TOOL, thought='No tool fits.', category='no tool')


def corrected_episode(tools: list[Tool], rng: random.Random, held: bool) -> Episode:
    """'Do not do this, do that' and 'do this, no, do that': only the second is called; or nothing."""
    motions = [tool for tool in tools if tool.intent in ('drive', 'turn')]
    if isinstance(rng, TrainDraws) and motions and rng.random() < _AMENDED_SHARE:
        text, command = amended(rng.choice(motions), rng)
        return Episode(
            roughen(text, rng, NUMBER_WORDS),
            [command],
            thought=f'The user wants me to {command.todo}. I call {command.tool.name}.',
            category='correction',
        )
    good = command_for(rng.choice(tools), rng, held)
    bad = command_for(good.tool if rng.random() < 0.6 else rng.choice(tools), rng, held)
    if bad.tool is good.tool and bad.arguments == good.arguments:
        return call_episode(tools, rng, held, 1)
    wrong = bad.base or bad.whole
    if bad.open_end or rng.random() < 0.25:
        template = pick(rng, HELD_NEGATIONS if held else NEGATIONS)
        if isinstance(rng, TrainDraws) and rng.random() < 0.4:
            template = negation(rng)
        if isinstance(rng, TrainDraws) and rng.random() < 0.3:
            template = template.replace("n't", 'nt')
        text = fill(template, rng, {'bad': wrong})
        return Episode(text, reply='Okay.', thought='I must not do it.', category='negation')
    template = pick(rng, HELD_CORRECTIONS if held else CORRECTIONS)
    if isinstance(rng, TrainDraws) and rng.random() < 0.5:
        template = correction(rng)
    if good.open_end:
        template = "don't {bad}, {good}" if not held else 'by no means {bad}; {good}'
    text = fill(template, rng, {'bad': wrong, 'good': good.base or good.whole})
    return Episode(
        text if good.open_end or good.tool.kind else roughen(text, rng, NUMBER_WORDS),
        [good],
        thought=f'The user wants me to {good.todo}. I call {good.tool.name}.',
        category='correction',
    )


def _amount_episode(last: Command, rng: random.Random, held: bool) -> Episode:
    """'No, two metres' and 'twice as far': the last motion with another amount."""
    assert last.values is not None
    turning = last.tool.intent == 'turn'
    key = 'angle' if turning else 'distance'
    values = dict(last.values)
    number = values[key]
    small = SMALL_ANGLE if turning else SMALL_DISTANCE
    fits = small.unit in last.tool.values.get('unit', {small.unit: ''})
    if isinstance(rng, TrainDraws) and fits and rng.random() < _LITTLE_SHARE:
        values[key], values['unit'] = small.value, small.unit
        text = pick(rng, _LITTLE)
    elif rng.random() < 0.4 and isinstance(number, int) and number < 500:
        if number % 2 == 0 and rng.random() < 0.4:
            values[key] = number // 2
            text = pick(rng, ['half of that', 'only half of that', 'now half as much', 'half the amount'])
            if isinstance(rng, TrainDraws):
                text = pick(rng, HALF_OF_IT)
        else:
            values[key] = number * 2
            text = pick(rng, ['twice as far', 'double that', 'now twice as much', 'twice the amount'])
            if isinstance(rng, TrainDraws):
                text = pick(rng, TWICE)
    else:
        known = last.tool.values.get('unit')
        units = tuple(u for u in (ANGLES if turning else LENGTHS) if known is None or u in known)
        amount = quantity(rng, units, held)
        values[key], values['unit'] = amount.value, amount.unit
        frames = HELD_AMOUNT_CORRECTIONS if held else AMOUNT_CORRECTIONS
        if isinstance(rng, TrainDraws):
            frames = _AMOUNTS
        text = pick(rng, frames).replace('{q}', amount.text)
    command = motion_command(last.tool, values)
    return Episode(
        text,
        [command],
        thought=f'The user wants me to {command.todo}.',
        category='again',
    )


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
    elif isinstance(rng, TrainDraws) and rng.random() < _NOT_SHARE:
        unlike = not_command(tools, rng)
        if unlike:
            return unlike
    if last is not None and last.values and last.tool.kind is None and draw < 0.12:
        values = dict(last.values)
        wide = isinstance(rng, TrainDraws)
        texts = _AGAIN if wide else AGAIN
        if rng.random() < 0.5:
            values = _flipped(values)
            texts = (_BACK if wide else BACK)[last.tool.intent]
        if rng.random() < 0.35:
            return [_amount_episode(last, rng, held)]
        command = motion_command(last.tool, values)
        return [
            Episode(
                roughen(expand(pick(rng, texts), rng), rng, typo_rate=0.03),
                [command],
                thought=f'The user wants me to {command.todo}.',
                category='again',
            )
        ]
    if draw < (0.52 if isinstance(rng, TrainDraws) else 0.50):
        return [call_episode(tools, rng, held, 1)]
    if draw < 0.56:
        return [corrected_episode(tools, rng, held)]
    if draw < 0.73:
        return [call_episode(tools, rng, held, 2 if rng.random() < 0.88 else 3)]
    if draw < 0.83:
        motions = [tool for tool in tools if tool.intent in ('drive', 'turn')]
        if motions and isinstance(rng, TrainDraws):
            share = rng.random()
            if share < _AGAIN_SHARE:
                return asked_again(rng.choice(motions), rng)
            if share < _AGAIN_SHARE + _SEVERAL_SHARE:
                return several(motions, rng)
        first, second = question_episode(tools, rng, held) if tools else (None, None)
        if first is None:
            return [call_episode(tools, rng, held, 1) if tools else no_tool_episode([], rng, held)]
        return [first] + ([second] if second else [])
    if draw < 0.88:
        present = {tool.intent for tool in tools}
        user, reply = smalltalk.chat(rng, held)
        while (reply == smalltalk.STOP and present & {'halt', 'brakes'}) or (
            reply == smalltalk.FINE and present & {'status', 'visit'}
        ):
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
    return [no_tool_episode(tools, rng, held)]
