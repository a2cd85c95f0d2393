# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One command for a tool of the demo robot: words, the call meant, how to speak of it later."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from demo_model import heldout_phrases as held_phrases
from demo_model import motion_phrases as phrases
from demo_model import motion_words as new_words
from demo_model import wordings_seventh as seventh
from demo_model.filling import fill, open_text, source_of
from demo_model.held_apart import apart
from demo_model.phrasing import TrainDraws, expand, pick, random_word
from demo_model.spoken_numbers import (
    ANGLES,
    LENGTHS,
    Quantity,
    bare_number,
    quantity,
)
from demo_model.tools import Tool, demo_tools
from demo_model.wordings_sixth import SAYINGS, SMALL_WHOLE, TEXTS

Json = dict[str, Any]

# What 'a bit' means, in words of docs/demo_model.md.
SMALL_DISTANCE = Quantity(0.2, 'm', '')
SMALL_ANGLE = Quantity(15, 'deg', '')
_SPOKEN_UNITS = {
    'm': ('metre', 'metres'),
    'cm': ('centimetre', 'centimetres'),
    'mm': ('millimetre', 'millimetres'),
    'ft': ('foot', 'feet'),
    'in': ('inch', 'inches'),
    'deg': ('degree', 'degrees'),
    'rad': ('radian', 'radians'),
}


@dataclass
class Command:
    """`base` and `ing` are verb phrases for wrappers, `whole` a sentence; one of them may be empty.

    `values` are the intent's values before the tool's own names, for 'again' and 'and back'.
    """

    tool: Tool
    arguments: Json
    todo: str  # 'drive 2 metres forward'
    done: str  # 'drove 2 metres forward'
    base: str = ''
    ing: str = ''
    whole: str = ''
    values: Json | None = None
    category: str = ''
    said: dict[str, str] | None = None  # the words of each argument of other tools
    open_end: bool = False  # ends in copied text, so that nothing may follow it


def spoken_amount(value: Any, unit: str) -> str:
    """'1 metre', '2.5 feet'."""
    single, plural = _SPOKEN_UNITS[unit]
    return f'{value} {single if value == 1 else plural}'


def motion_command(tool: Tool, values: Json) -> Command:
    """A command without words, from an intent's values (amount, unit, direction)."""
    if tool.intent == 'drive':
        tail = f'{spoken_amount(values["distance"], values["unit"])} {values["direction"]}'
        return Command(
            tool, tool.arguments(values), f'drive {tail}', f'drove {tail}', values=values
        )
    tail = f'{values["direction"]} by {spoken_amount(values["angle"], values["unit"])}'
    return Command(tool, tool.arguments(values), f'turn {tail}', f'turned {tail}', values=values)


_PLAIN_SHARE = 0.2                       # of commands that come in the plainest words
_WIDER_SHARE = 0.3                      # of motions in training: with the words of motion_words.py
_NEW_VERB_SHARE = 0.12                   # of motions in training: with a verb that no list holds
_TRUE_TEXT_SHARE = 0.3                   # of texts in training: what people do have a robot say
_SMALL_SHARE = 0.35                      # of small motions, and of verbs that tell the way: with nothing beside them
_ASKING_SHARE = 0.4                      # of texts in training that ask: with their mark
_ORDER_TEXT_SHARE = 0.08                 # of texts in training: a command, which is only to be spoken
_TWICE_SHARE = 0.04                      # of texts in training: with a word said twice
_TEXT_END_SHARE = 0.12                   # of texts that end in a word of those that wrappers end in
_MARKED_SHARE = 0.22                     # of texts in training: with apostrophes, marks or quotes in them
_MARKED = tuple(
    (share, apart(texts, held_phrases.SAY_TEXTS), apart(frames, held_phrases.SAY))
    for share, texts, frames in (
        (0.68, seventh.TEXTS_APOSTROPHE, seventh.SAY_PLAINLY),
        (0.24, seventh.TEXTS_ASKING, seventh.ASK_PLAINLY),
        (0.08, seventh.TEXTS_QUOTED, tuple(text for text in seventh.SAY_PLAINLY if '"' not in text)),
    )
)
_TEXTS = apart(TEXTS, ())
_SAYINGS = apart(SAYINGS, ())
_MOTIONS = demo_tools()[:2]
_PLAIN_DRIVE = (('drive', 'driving'), ('go', 'going'), ('move', 'moving'))
_PLAIN_WORDS = {
    'forward': ('forward', 'forward', 'ahead', 'forwards', 'straight ahead'),
    'backward': ('back', 'backward', 'backwards', 'back'),
    'left': ('left', 'left', 'to the left'),
    'right': ('right', 'right', 'to the right'),
}
_PLAIN_TURN = (('turn', 'turning'), ('turn', 'turning'), ('rotate', 'rotating'))


def _word_lists(rng: random.Random, held: bool) -> ModuleType:
    """Where directions and small amounts come from: now and then from the wider lists, in training."""
    return new_words if not held and rng.random() < _WIDER_SHARE else phrases


def pick_pair(rng: random.Random, verbs: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """One of some verbs with their -ing forms."""
    return verbs[int(rng.random() * len(verbs))]


def _plainly(command: Command, verb: tuple[str, str], slots: dict[str, str],
             rng: random.Random) -> Command:
    """Verb, direction and amount with nothing beside them: what most people say."""
    template = pick(rng, ('{V} {D} {Q}', '{V} {Q} {D}'))
    if slots['D'] and rng.random() < 0.6:
        slots = {**slots, 'D': pick(rng, _PLAIN_WORDS[str((command.values or {})['direction'])])}
    command.base = fill(template, rng, {**slots, 'V': verb[0]})
    command.ing = fill(template, rng, {**slots, 'V': verb[1]})
    return command


def _new_verb(rng: random.Random) -> tuple[str, str]:
    """A verb that no list holds: the words beside it must tell."""
    word = random_word(rng)
    return word, word + 'ing'


def _allowed_units(tool: Tool, base: tuple[str, ...]) -> tuple[str, ...]:
    known = tool.values.get('unit')
    return tuple(unit for unit in base if known is None or unit in known)


def drive(tool: Tool, rng: random.Random, held: bool, plain: bool = False) -> Command:
    """A drive command."""
    direction = 'forward' if rng.random() < 0.55 else 'backward'
    amount = quantity(rng, _allowed_units(tool, LENGTHS), held)
    known = _word_lists(rng, held)
    words = pick(rng, known.FORWARD_WORDS if direction == 'forward' else known.BACKWARD_WORDS)
    category = 'distance'
    draw = rng.random()
    metres = 'm' in _allowed_units(tool, LENGTHS)
    if draw < 0.05 and metres and 'unit' in tool.names:
        value, text = bare_number(rng, held)
        amount = Quantity(value, 'm', text)
        category = 'no unit'
    elif draw < 0.10 and metres:
        amount = Quantity(SMALL_DISTANCE.value, 'm', pick(rng, known.SMALL_DRIVE))
        category = 'a bit'
    source = source_of(held)
    verbs = source.DRIVE_VERBS
    draw = rng.random()
    if category in ('distance', 'no unit') and draw < 0.16:
        direction, words, category = 'forward', '', 'no direction'
    elif draw < 0.22 and direction == 'forward':
        verbs, words = known.FORWARD_VERBS, '' if rng.random() < 0.7 else words
    elif draw < 0.40 and direction == 'backward':
        verbs, words = known.BACKWARD_VERBS, '' if rng.random() < 0.8 else words
    verb = verbs[int(rng.random() * len(verbs))]
    share = 0.5 if category == 'no direction' else _PLAIN_SHARE
    plain = not held and (plain or rng.random() < share)
    if plain and (words or category == 'no direction'):
        verb = pick_pair(rng, _PLAIN_DRIVE)
    # an unknown verb tells no direction
    elif (
        (words or category == 'no direction')
        and category != 'a bit'
        and rng.random() < (_NEW_VERB_SHARE if isinstance(rng, TrainDraws) else 0.06)
    ):
        verb = _new_verb(rng)
    text = amount.text
    if rng.random() < 0.01 and text[0].isdigit() and category == 'distance':
        direction = 'backward'
        words, text = '', '-' + text
    command = motion_command(
        tool, {'distance': amount.value, 'unit': amount.unit, 'direction': direction}
    )
    command.category = category
    slots = {'Q': text, 'D': words}
    if plain and category != 'a bit':
        return _plainly(command, verb, slots, rng)
    if isinstance(rng, TrainDraws):
        if category == 'a bit' and words and rng.random() < _SMALL_SHARE:
            command.whole = fill(pick(rng, SMALL_WHOLE), rng, slots)
            return command
        if category in ('distance', 'no unit') and not words and rng.random() < _SMALL_SHARE:
            command.base, command.ing = f'{verb[0]} {text}', f'{verb[1]} {text}'
            return command
    if category == 'a bit' or (words and rng.random() < 0.3):
        template = pick(rng, source.DRIVE_WHOLE)
        if category != 'a bit':
            command.whole = fill(template, rng, {**slots, 'V': verb[0]})
            return command
    if category == 'a bit':
        template = pick(
            rng,
            [
                '{V} {D} {Q}',
                '{V} {Q} {D}',
                '{V} {D} {Q}',
                '{V} {D} {Q}, not more',
                '{V} {D} by {Q}',
                '{V} {D} just {Q}',
            ],
        )
    else:
        template = pick(rng, source.DRIVE)
        if not words:
            template = re.sub(r' ?\{D\}[,:]?', '', template) if rng.random() < 0.5 else '{V} {Q}'
            # without direction words the verb must tell
            template = template if held or '{V}' in template else '{V} {Q}'
    command.base = fill(template, rng, {**slots, 'V': verb[0]})
    if held or '{V}' in template:
        command.ing = fill(template, rng, {**slots, 'V': verb[1]})
    return command


_PI = (
    (3.1416, 'pi'),
    (1.5708, 'pi/2'),
    (1.5708, 'half pi'),
    (0.7854, 'pi/4'),
    (3.1416, 'π'),
    (6.2832, 'two pi'),
    (1.5708, 'pi over two'),
)


def _not_a_decimal(phrase: str, amount: str) -> str:
    """'your front point two degrees' is 0.2 for anybody who hears it: 'point by two degrees'."""
    return phrase.replace(f'point {amount}', f'point by {amount}') if amount[:1].isalpha() else phrase


def turn(tool: Tool, rng: random.Random, held: bool, plain: bool = False) -> Command:
    """A turn command."""
    side = 'left' if rng.random() < 0.5 else 'right'
    known = _word_lists(rng, held)
    words = pick(rng, known.LEFT_WORDS if side == 'left' else known.RIGHT_WORDS)
    units = _allowed_units(tool, ANGLES)
    amount = quantity(rng, units, held)
    source = source_of(held)
    category = 'angle'
    template = ''
    whole = ''
    name = ''
    draw = rng.random()
    if 'deg' in units:
        if draw < 0.05 and 'unit' in tool.names:
            value, text = bare_number(rng, held)
            amount, category = Quantity(value, 'deg', text), 'no unit'
        elif draw < 0.1:
            amount, category = (
                Quantity(SMALL_ANGLE.value, 'deg', pick(rng, known.SMALL_TURN)),
                'a bit',
            )
            template = pick(
                rng,
                [
                    '{V} {D} {Q}',
                    '{V} {Q} {D}',
                    '{V} {D} {Q}',
                    '{V} {D} by {Q}',
                    '{V} {D} just {Q}',
                    '{V} {Q} {D}',
                ],
            )
        elif draw < 0.22:
            angle, pattern = known.NAMED_ANGLES[int(rng.random() * len(known.NAMED_ANGLES))]
            name = expand(pattern, rng)
            amount, category = Quantity(angle, 'deg', name), 'named angle'
            template = pick(rng, source.NAMED_TURN)
        elif draw < 0.30:
            amount, category = Quantity(180, 'deg', ''), 'turn around'
            if rng.random() < 0.65:
                side, template = 'left', pick(rng, source.AROUND)
                if not held and (plain or rng.random() < _PLAIN_SHARE):
                    template = 'turn around'
            else:
                template = pick(rng, source.AROUND_SIDE)
    if 'rad' in units and draw > (0.96 if isinstance(rng, TrainDraws) else 0.985):
        value, text = _PI[int(rng.random() * len(_PI))]
        amount = Quantity(value, 'rad', text + ' ' + pick(rng, ['radians', 'rad', 'radians']))
    elif 'deg' in units and draw > 0.97 and category == 'angle':
        angle = rng.choice((180, 360))
        amount, category, side, words = (
            Quantity(angle, 'deg', f'{angle} degrees'),
            'no direction',
            'left',
            '',
        )
    command = motion_command(tool, {'angle': amount.value, 'unit': amount.unit, 'direction': side})
    command.category = category
    if category == 'no direction':
        template = '{V} {Q}'
    elif category == 'angle' and amount.text[0].isdigit() and rng.random() < 0.012:
        command = motion_command(
            tool, {'angle': amount.value, 'unit': amount.unit, 'direction': 'right'}
        )
        command.category, words, template = 'angle', '', '{V} ' + pick(rng, ['', 'by ']) + '{Q}'
        amount = Quantity(amount.value, amount.unit, '-' + amount.text)
    elif category in ('angle', 'no unit') and rng.random() < 0.3:
        whole = pick(rng, source.TURN_WHOLE)
    elif not template:
        template = pick(rng, source.TURN)
    if isinstance(rng, TrainDraws) and category == 'a bit' and rng.random() < _SMALL_SHARE:
        whole = pick(rng, SMALL_WHOLE)
    verbs = source.TURN_VERBS
    verb = verbs[int(rng.random() * len(verbs))]
    new = _NEW_VERB_SHARE if isinstance(rng, TrainDraws) else 0.05
    if words and category == 'angle' and rng.random() < new:
        verb = _new_verb(rng)
    slots = {'Q': amount.text, 'D': words, 'N': name, 'side': side}
    if not held and words and category == 'angle' and (plain or rng.random() < _PLAIN_SHARE):
        return _plainly(command, pick_pair(rng, _PLAIN_TURN), slots, rng)
    if whole:
        command.whole = _not_a_decimal(fill(whole, rng, {**slots, 'V': verb[0]}), amount.text)
    else:
        command.base = _not_a_decimal(fill(template, rng, {**slots, 'V': verb[0]}), amount.text)
        if '{V}' in template:
            command.ing = fill(template, rng, {**slots, 'V': verb[1]})
    return command


def dock(tool: Tool, rng: random.Random, held: bool) -> Command:
    """A command to go to the dock."""
    template = pick(rng, source_of(held).DOCK)
    if not held and rng.random() < _PLAIN_SHARE:
        template = phrases.PLAIN_DOCK
    text = fill(template, rng, {'dock': pick(rng, phrases.DOCK_NAMES)})
    command = Command(tool, {}, 'drive to the dock', 'drove to the dock', category='dock')
    if text.startswith(
        (
            'it is',
            'time',
            'your',
            'back to',
            'to the',
            'you ',
            'we ',
            'that',
            'mission',
            'I want',
            'off to',
            'let us',
        )
    ):
        command.whole = text
    else:
        command.base = text
    return command


def say(tool: Tool, rng: random.Random, held: bool) -> Command:
    """A command to speak a sentence; the sentence is copied as it stands."""
    source = source_of(held)
    text = open_text(rng) if rng.random() < 0.4 else fill(pick(rng, source.SAY_TEXTS), rng, {})
    if isinstance(rng, TrainDraws):
        if rng.random() < _TRUE_TEXT_SHARE:
            text = fill(pick(rng, _TEXTS), rng, {})
            if text.startswith(('what', 'where', 'who', 'can ')) and rng.random() < _ASKING_SHARE:
                text += '?'
        elif rng.random() < _ORDER_TEXT_SHARE:
            order = drive(_MOTIONS[0], rng, held, True) if rng.random() < 0.5 else turn(_MOTIONS[1], rng, held, True)
            text = order.base or order.whole
        if rng.random() < _TWICE_SHARE:
            words = text.split(' ')
            place = int(rng.random() * len(words))
            text = ' '.join([*words[:place], words[place], *words[place:]])
    if not held and rng.random() < _TEXT_END_SHARE:
        end = pick(rng, phrases.TEXT_ENDS)
        text += ' ' * end.startswith(' ') + fill(end, rng, {})
    if rng.random() < 0.15:
        text = text[:1].upper() + text[1:]
    if rng.random() < 0.06:
        text += pick(rng, ['!', '?', '!'])
    phrase = fill(pick(rng, source.SAY), rng, {'T': '\0'}).replace('\0', text)
    if not held and rng.random() < _PLAIN_SHARE:
        phrase = fill(pick(rng, phrases.PLAIN_SAY), rng, {'T': '\0'}).replace('\0', text)
    elif isinstance(rng, TrainDraws) and rng.random() < 0.2:
        phrase = fill(pick(rng, (*phrases.NEW_SAY, *_SAYINGS)), rng, {'T': '\0'}).replace('\0', text)
    elif not held and rng.random() < 0.06:
        phrase = f'{random_word(rng)} {pick(rng, ["aloud", "out loud", "the words", "the sentence", "loudly"])}: {text}'
    if isinstance(rng, TrainDraws) and rng.random() < _MARKED_SHARE:
        text, phrase = _marked(rng)
    return Command(
        tool,
        tool.arguments({'text': text}),
        f'say: {text}',
        f'said: {text}',
        base=phrase,
        category='say',
        open_end=True,
    )


def _marked(rng: random.Random) -> tuple[str, str]:
    """A text with apostrophes, a mark or quotes of its own, all of which belong to it, and the sentence."""
    _, texts, frames = rng.choices(_MARKED, [kind[0] for kind in _MARKED])[0]
    text = fill(pick(rng, texts), rng, {})
    if texts is _MARKED[1][1]:
        text += '?'
    elif rng.random() < 0.2:
        text += pick(rng, ('!', ' please', ', please', ' now', ' everybody'))
    if rng.random() < 0.3:
        text = text[:1].upper() + text[1:]
    return text, fill(pick(rng, frames), rng, {'T': '\0'}).replace('\0', text)
