# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Commands that lack something: the question back, and what the user answers."""

from __future__ import annotations

import random
import re

from demo_model import motion_words as new_words
from demo_model.commands import SMALL_ANGLE, SMALL_DISTANCE, Command, motion_command
from demo_model.dialogue_phrases import VAGUE, VAGUE_TURN
from demo_model.episode import Episode
from demo_model.filling import fill
from demo_model.held_apart import apart
from demo_model.motion_phrases import (
    BACKWARD_VERBS,
    BACKWARD_WORDS,
    FORWARD_VERBS,
    FORWARD_WORDS,
    LEFT_WORDS,
    RIGHT_WORDS,
    SMALL_DRIVE,
    SMALL_TURN,
    TURN_VERBS,
    WRAPPERS,
)
from demo_model.phrasing import TrainDraws, open_words, pick, random_name, roughen
from demo_model.sentences import command_for, stands_alone
from demo_model.spoken_numbers import (
    ANGLES,
    LENGTHS,
    NUMBER_WORDS,
    Quantity,
    bare_number,
    quantity,
)
from demo_model.tools import Tool
from demo_model.widening import ADDRESS_SHARE, FRAME_SHARE, addressed, framed
from demo_model.wordings_sixth import INCOMPLETE

_HALF_SHARE = 0.6                        # of what lacks a value: said as people say it, not by the tool's name
_MADE_UP_SHARE = 0.5                     # of the made-up tools of a set may be asked back for
_HALVES = {
    kind: {key: apart(halves, ()) for key, halves in missing.items()}
    for kind, missing in INCOMPLETE.items()
}
_LITTLE_SHARE = 0.12                     # of answers to 'how far'
_ONLY_VERB_SHARE = 0.3                   # of drives without an amount: the verb tells the way
_WAY_VERBS = tuple(
    tuple(verb for verb, _ in (*old, *old, *new))
    for old, new in ((BACKWARD_VERBS, new_words.BACKWARD_VERBS), (FORWARD_VERBS, new_words.FORWARD_VERBS))
)
_HALF_SAYINGS = ('say it', 'say that', 'speak to them', 'tell them', 'say a few words', 'tell everybody', 'say something nice', 'say something to him', 'tell the guests something', 'say what you think', 'say some words', 'speak to the class', 'make a speech', 'talk to her', 'say that again')
_MADE_UP_HALVES = ('{v} the {t}', '{v} {t}', '{t}', 'the {t}', 'the {t} please', '{v} the {t} please', 'I want to {v} the {t}', 'could you {v} the {t}', 'another {t}', 'see to the {t}', 'time to {v} the {t}', '{v} a {t}', '{v} some {t}', 'a {t} please', 'I need a {t}', '{v} any {t}', '{v} one of the {t}', '{v} me a {t}', 'I want a {t}', 'some {t} please', '{v} another {t}')


def question_episode(
    tools: list[Tool], rng: random.Random, held: bool
) -> tuple[Episode | None, Episode | None]:
    """A command that lacks something, the question back, and perhaps what the user answers.

    None where the tool that was drawn needs nothing.
    """
    # what a made-up tool asks back is 'Which' and the noun of its declaration: in training alone
    asking = [
        tool
        for tool in tools
        if tool.kind is None
        or not tool.kind.words
        or (isinstance(rng, TrainDraws) and rng.random() < _MADE_UP_SHARE)
    ]
    if not asking:
        return None, None
    asking = [tool for tool in asking if tool.names] or asking
    if isinstance(rng, TrainDraws):      # which of two numbers is missing is the hardest
        asking += [tool for tool in asking if _two_of_a_kind(tool)] * 2
    tool = rng.choice(asking)
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
            only_verb = isinstance(rng, TrainDraws) and rng.random() < _ONLY_VERB_SHARE
            user = _incomplete(
                pick(rng, ['drive', 'go', 'move', 'roll', 'head', 'drive', 'come']) + ' ' + words
                if not only_verb and (forward or rng.random() < 0.6)
                else pick(rng, ['reverse', 'back up', 'back off'])
                if not only_verb
                else pick(rng, _WAY_VERBS[forward]),
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
            vague = ' ' + fill(pick(rng, VAGUE_TURN), rng, {}) if rng.random() < 0.3 else ''
            user = _incomplete(verb + vague, rng, held)
            reply, amount_text = (
                'How far should I turn, and in which direction?',
                f'{amount.text} {words}',
            )
        elif draw < 0.4 and amount.value not in (180, 360):
            if (
                isinstance(rng, TrainDraws)
                and 'unit' in tool.names
                and 'deg' in tool.values.get('unit', {'deg': ''})
                and rng.random() < 0.2
            ):
                value, text = bare_number(rng, held)
                while value in (180, 360):
                    value, text = bare_number(rng, held)
                amount = Quantity(value, 'deg', text)
            user = _incomplete(f'{verb} {pick(rng, ["by ", "", ""])}{amount.text}', rng, held)
            reply, amount_text = 'Should I turn left or right?', words
        else:
            if isinstance(rng, TrainDraws) and rng.random() < 0.25:
                words += ' ' + fill(pick(rng, VAGUE_TURN), rng, {})
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
                    *(_HALF_SAYINGS if isinstance(rng, TrainDraws) else ()),
                ],
            ),
            rng,
            held,
        )
        words = pick(
            rng,
            [
                ' '.join(pick(rng, open_words(rng)) for _ in range(rng.randint(1, 4))),
                'hello ' + random_name(rng),
                'good morning',
            ],
        )
        reply, amount_text = 'What should I say?', words
        command = Command(tool, tool.arguments({'text': words}), f'say: {words}', f'said: {words}')
    elif tool.kind is not None and any(not param.optional for param in tool.kind.params):
        return _other_question(tool, rng, held)
    else:
        return None, None
    complete = [other for other in tools if other.kind is None and other is not tool]
    if (
        complete
        and tool.intent in ('drive', 'turn')
        and user[-1:] not in '.!?'
        and rng.random() < (0.15 if held else 0.1)
    ):
        plain = not held and rng.random() < 0.5
        partner = command_for(rng.choice(complete), rng, held, plain)
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
    if isinstance(rng, TrainDraws) and reply.startswith('How far should I') and rng.random() < _LITTLE_SHARE:
        small = _little(tool, command, rng)
        if small is not None:
            command, amount_text = small
            if 'direction?' in reply:
                amount_text += ' ' + str((command.values or {})['direction'])
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


def _little(tool: Tool, command: Command, rng: random.Random) -> tuple[Command, str] | None:
    """'a bit' as the answer, where the tool has the unit of it."""
    turning = tool.intent == 'turn'
    small = SMALL_ANGLE if turning else SMALL_DISTANCE
    if small.unit not in tool.values.get('unit', {small.unit: ''}):
        return None
    values = {
        'angle' if turning else 'distance': small.value,
        'unit': small.unit,
        'direction': (command.values or {})['direction'],
    }
    return motion_command(tool, values), pick(rng, SMALL_TURN if turning else SMALL_DRIVE)


def _in_a_frame(phrase: str, rng: random.Random) -> str:
    """An address or a frame of open words."""
    return addressed(phrase, rng, False) if rng.random() < 0.6 else framed(phrase, rng, True)


def _two_of_a_kind(tool: Tool) -> bool:
    kinds = [param.kind for param in tool.kind.params if not param.optional] if tool.kind else []
    return len(set(kinds)) < len(kinds)


def _other_question(
    tool: Tool, rng: random.Random, held: bool
) -> tuple[Episode, Episode | None]:
    """A tool of another kind: one argument is left out and asked for."""
    assert tool.kind is not None
    command = command_for(tool, rng, held)
    said = command.said or {}
    missing = rng.choice([param for param in tool.kind.params if not param.optional])
    name = pick(rng, tool.kind.names)
    if rng.random() < 0.3:
        name = pick(rng, ['use ', 'call ', 'the tool ', '']) + tool.name
    elif rng.random() < 0.3:
        name = re.sub('[_-]', ' ', tool.name)
    # of two numbers the one that is said needs its name
    kinds = [param.kind for param in tool.kind.params if not param.optional]
    given = [
        word
        if rng.random() < 0.5 and kinds.count(missing.kind) == 1
        else f'{re.sub("[_-]", " ", tool.names[key])} {word}'
        for key, word in said.items()
        if key != missing.key
    ]
    text = ' '.join([name, *given])
    half = ''
    if isinstance(rng, TrainDraws) and rng.random() < _HALF_SHARE:
        half = _half(tool, missing.key, said, rng)
        text = half or text
    if stands_alone(half):
        user = addressed(half, rng, False) if rng.random() < 0.5 else half
    else:
        user = _incomplete(text, rng, held) if not given else _framed(text, rng, held)
    first = Episode(
        user,
        reply=missing.question,
        thought=f'The tool {tool.name} fits, but something is missing.',
        category='missing',
    )
    if rng.random() < 0.4:
        return first, None
    answer = said[missing.key] if missing.kind != 'idiom' else str((command.values or {})[missing.key])
    return first, Episode(
        answer,
        [command],
        thought=f'Now I know what was missing. I call {tool.name}.',
        category='follow-up',
    )


def _half(tool: Tool, missing: str, said: dict[str, str], rng: random.Random) -> str:
    """A command without one of its values, or '' where nobody wrote one down."""
    assert tool.kind is not None
    words = dict(tool.kind.words)
    if words:
        parts = [f'{words["n" + key]} {word}' for key, word in said.items() if key != missing]
        return ', '.join([fill(pick(rng, _MADE_UP_HALVES), rng, words), *parts])
    halves = _HALVES.get(tool.kind.key, {}).get(missing, ())
    return fill(pick(rng, halves), rng, said) if halves else ''


def _framed(text: str, rng: random.Random, held: bool) -> str:
    """A phrase with open words in it: framed, but neither misspelt nor in capitals."""
    if isinstance(rng, TrainDraws) and rng.random() < ADDRESS_SHARE + FRAME_SHARE:
        return _in_a_frame(text, rng)
    frames = ['{x} if you can', 'go on, {x}'] if held else ['{x}', '{x}', 'please {x}', 'robot, {x}', 'I want you to {x}', 'ok, {x}', '{x} now']
    wrapper = pick(rng, WRAPPERS)
    if not held and rng.random() < 0.5 and not re.search('{ing}|{n}|{clause}', wrapper):
        return fill(wrapper, rng, {'base': text})
    return pick(rng, frames).replace('{x}', text)


def _incomplete(phrase: str, rng: random.Random, held: bool) -> str:
    if isinstance(rng, TrainDraws) and rng.random() < ADDRESS_SHARE + FRAME_SHARE:
        return _in_a_frame(phrase, rng)
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
