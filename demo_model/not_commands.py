# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Sentences with a command's words that are none, and commands that look like them: both for training alone.

A robot should not move for a question, a condition that it can not watch, a choice, other people's words or a
range. Their neighbours ('can you drive 2 m?', 'if you can, drive 2 m') stand beside them, so that neither word
decides alone. Knows nothing of the evaluation but what `apart` takes out.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from demo_model import heldout_phrases, smalltalk
from demo_model import wordings_seventh as said
from demo_model.commands import Command, motion_command, say
from demo_model.dialogue_phrases import HELD_NEGATIONS
from demo_model.episode import Episode
from demo_model.filling import fill
from demo_model.held_apart import apart
from demo_model.phrasing import pick, roughen
from demo_model.sentences import command_for, sentence, stands_alone
from demo_model.spoken_numbers import (
    ANGLES,
    LENGTHS,
    NUMBER_WORDS,
    UNITS,
    Quantity,
    digits,
    is_held,
    quantity,
    spell,
)
from demo_model.tools import Tool

ASKED = "I can't answer that. I only do what I am told to do."
CAN_NOT_WAIT = "I can't wait for that. Please tell me when it is time."
WHICH = 'Which of the two should I do?'
WHETHER = 'Do you want me to do that?'
# Share of each kind; 'still' are the commands.
_KINDS = {'still': 56, 'question': 13, 'told': 2, 'condition': 10, 'negated': 6, 'choice': 5, 'hearsay': 4, 'range': 4, 'feat': 2}
# Tools that a question or a time may be for.
_OPEN_TO_ANYTHING = frozenset(['search', 'translate', 'book', 'news', 'game', 'joke', 'dance', 'weather', 'note', 'status', 'calendar', 'remindme', 'departure', 'wake', 'wait', 'rest', 'timer', 'log', 'visit', 'halt', 'brakes', 'battery'])
_OTHER_SHARE = 0.15                      # of the commands inside: for tools of other kinds
_WORDED_SHARE = 0.4                      # of motions inside: worded as any command, not just verb, way and amount
_NEXT_SHARE = 0.6                        # of questions back: with the user's answer
_HALF_SHARE = 0.15                       # of motions inside: without an amount
_TWO_SHARE = 0.12                        # of motions inside: two of them
_SAY_SHARE = 0.3                         # of conditions for other tools than motions: texts
_TOWARDS_SHARE = 0.06                    # of drives: a number, and an 'in' that is no inch
_HELD_NEGATED = tuple(text.replace('{bad}', '{base}') for text in HELD_NEGATIONS)
_QUESTIONS = tuple(
    apart(texts, smalltalk.QUESTIONS[1])
    for texts in (said.QUESTIONS_BASE, said.QUESTIONS_ING, said.QUESTIONS_PAST, said.QUESTIONS_SHORT, said.QUESTIONS_AMOUNT)
)
_TOLD = tuple(apart(texts, ()) for texts in (said.STATEMENTS_BASE, said.STATEMENTS_PAST))
_EVENTS = apart(said.EVENTS, ())
_FRONT, _END = apart(said.CONDITION_FRONT, ()), apart(said.CONDITION_END, ())
_NEGATED = apart(said.NEGATED, _HELD_NEGATED)
_NEGATED_SHORT = apart(said.NEGATED_SHORT, ())
_CHOICE, _CHOICE_BARE = apart(said.CHOICE, ()), apart(said.CHOICE_BARE, ())
_HEARSAY = apart(said.HEARSAY, heldout_phrases.WRAPPERS)
_STILL = tuple(
    apart(texts, heldout_phrases.WRAPPERS, ('{base}',))
    for texts in (said.STILL_BASE, said.STILL_ING, said.STILL_END)
)
_FEATS = apart((*said.MORE_FEATS, *smalltalk.FEATS[:6]), smalltalk.QUESTIONS[1])
_WAYS = {
    'forward': ('forward', 'forward', 'ahead', 'forwards', 'straight ahead', 'straight on'),
    'backward': ('back', 'backward', 'backwards', 'back', 'in reverse'),
    'left': ('left', 'left', 'to the left'),
    'right': ('right', 'right', 'to the right'),
}
# 'I said to 90 degrees left' is no English.
_NO_VERB = re.compile(r'(a|an|the|one|two|three|half|how|to|by|so|and|please|your|all)\b|[^a-zA-Z]|[^ ]*:|.*:\B', re.IGNORECASE)
_LACKS = 'The amount is missing.'
_NOTHING_THOUGHT = 'This is no command.'


@dataclass
class Inside:
    """A motion command and its words in all forms that the templates ask for."""

    command: Command
    slots: dict[str, str]


def units_of(tool: Tool) -> tuple[str, ...]:
    """The units that a motion tool takes, as often as people say them."""
    base = ANGLES if tool.intent == 'turn' else LENGTHS
    known = tool.values.get('unit')
    return tuple(unit for unit in base if known is None or unit in known)


def plain_amount(tool: Tool, rng: random.Random) -> Quantity:
    """Mostly a small number with its unit, as people say it; now and then any quantity."""
    units = units_of(tool)
    if rng.random() < 0.4:
        return quantity(rng, units)
    unit = pick(rng, units)
    if unit in ('deg', 'cm', 'mm') and rng.random() < 0.7:
        value: float = rng.choice((10, 15, 20, 30, 40, 45, 50, 60, 75, 80, 90, 100, 120, 150, 200))
        while is_held(str(value)):
            value = rng.randint(1, 9)
        text = str(value)
    else:
        value, text = digits(rng) if rng.random() < 0.5 else (rng.randint(1, 9), '')
        text = text or (str(value) if rng.random() < 0.7 else spell(int(value), rng))
    single, plural, short = UNITS[unit]
    form = pick(rng, short) if text[0].isdigit() and rng.random() < 0.5 else pick(rng, single if value == 1 else plural)
    return Quantity(value, unit, text + ('' if form in ('"', '°') or (form in short and rng.random() < 0.4) else ' ') + form)


def inside(tool: Tool, rng: random.Random) -> Inside:
    """A motion in plain words: verb, way and amount, with the verb's forms."""
    turning = tool.intent == 'turn'
    way = rng.choice(('left', 'right') if turning else ('forward', 'forward', 'backward'))
    amount = plain_amount(tool, rng)
    words = pick(rng, _WAYS[way])
    frames = ('{way} {q}', '{q} {way}', '{way} by {q}', '{way} {q}')
    frame = '{q}' if way == 'forward' and rng.random() < 0.4 else pick(rng, frames)
    tail = frame.replace('{way}', words).replace('{q}', amount.text)
    verbs = said.TURNING if turning else said.DRIVING
    verb = verbs[int(rng.random() * len(verbs))]
    base, ing, past, done = (f'{form} {tail}' for form in verb)
    values = {'angle' if turning else 'distance': amount.value, 'unit': amount.unit, 'direction': way}
    return Inside(motion_command(tool, values), {
        'base': base, 'ing': ing, 'past': past, 'done': done, 'verb': verb[0], 'way': words, 'q': amount.text})


def _short(one: Inside, rng: random.Random) -> dict[str, str]:
    """The slots with the verb alone instead of whole phrases."""
    verbs = said.TURNING if one.command.tool.intent == 'turn' else said.DRIVING
    verb = verbs[int(rng.random() * len(verbs))]
    return {**one.slots, 'verb': verb[0], 'ing': verb[1], 'past': verb[2], 'done': verb[3]}


def _halved(one: Inside, places: bool, rng: random.Random) -> dict[str, str]:
    """The slots without the amount: 'turn left', or, where nothing is asked back, 'go to the kitchen'."""
    verbs = said.TURNING if one.command.tool.intent == 'turn' else said.DRIVING
    base, ing, past, done = verbs[int(rng.random() * len(verbs))]
    tail = one.slots['way']
    if places and one.command.tool.intent == 'drive' and rng.random() < 0.5:
        tail = fill('(to|into) the {place}', rng, {})
    return {'base': f'{base} {tail}', 'ing': f'{ing} {tail}', 'past': f'{past} {tail}', 'done': f'{done} {tail}'}


def _any_command(tools: list[Tool], rng: random.Random) -> Command | None:
    """A command with a verb phrase that takes anything before it; None where none was met."""
    for _ in range(6):
        command = command_for(rng.choice(tools), rng, False, rng.random() < 0.4)
        if command.base and not command.open_end and not stands_alone(command.base) and not _NO_VERB.match(command.base):
            return command
    return None


def _finished(text: str, command: Command | None, rng: random.Random) -> str:
    """As people type it; words of other tools stay as they are."""
    if command is not None and (command.tool.kind is not None or command.open_end):
        return text[:1].upper() + text[1:] if rng.random() < 0.5 else text
    return roughen(text, rng, NUMBER_WORDS, typo_rate=0.05)


def not_command(tools: list[Tool], rng: random.Random) -> list[Episode]:
    """One or two user turns of a kind drawn anew; empty where the tools allow none."""
    kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    motions = [tool for tool in tools if tool.intent in ('drive', 'turn')]
    if kind != 'still' and {tool.intent for tool in tools} & _OPEN_TO_ANYTHING:
        return []
    if kind in ('choice', 'range', 'feat') and not motions:
        return []
    one: Inside | None = None
    command: Command | None = None
    if motions and rng.random() > _OTHER_SHARE:
        one = inside(rng.choice(motions), rng)
        command = one.command
        if rng.random() < _WORDED_SHARE:
            worded = _any_command(motions, rng)
            one, command = (None, worded) if worded else (one, command)
    elif kind == 'condition' and rng.random() < _SAY_SHARE and (saying := [tool for tool in tools if tool.intent == 'say']):
        command = say(saying[0], rng, False)
    else:
        command = _any_command([tool for tool in tools if tool not in motions] or tools, rng)
    if command is None:
        return []
    slots = one.slots if one else {'base': command.base, 'ing': command.ing}
    if kind == 'choice':
        return _choice(motions, command, slots, rng)
    if kind == 'range':
        return _range(rng.choice(motions), rng)
    if kind == 'feat':
        return [Episode(roughen(fill(pick(rng, _FEATS), rng, {}), rng), reply=smalltalk.NO_TOOL, thought='No tool fits.', category='no tool')]
    half = one if kind in ('still', 'condition', 'hearsay') and rng.random() < _HALF_SHARE else None
    if half:
        slots = _halved(half, kind == 'condition', rng)
    second = inside(rng.choice(motions), rng) if one and not half and rng.random() < _TWO_SHARE else None
    if kind == 'still':
        if second is None and not half and command.tool.intent == 'drive' and rng.random() < _TOWARDS_SHARE and {'m'} <= set(units_of(command.tool)) and 'unit' in command.tool.names:
            slots, command = _towards(command.tool, rng)
        if half:
            text = _still([command], slots, rng).user
            way = str((command.values or {})['direction'])
            return [Episode(text, reply=how_far(command.tool, way), thought=_LACKS, category='missing')]
        return [_still([command], slots, rng) if second is None else _still([command, second.command], _both(slots, second, rng), rng)]
    if kind == 'hearsay':
        mark = {'c': pick(rng, ('', '', ':', ',')), 'c2': pick(rng, ('', '', 'the words ', 'somebody say '))}
        text = fill(pick(rng, _HEARSAY), rng, {**slots, **mark})
        return _asked_whether(_finished(text, command, rng), command, rng, bool(half))
    if kind == 'condition':
        event = fill(pick(rng, _EVENTS), rng, {})
        slots = _both(slots, second, rng) if second and rng.random() < 0.6 else slots
        template = pick(rng, _FRONT if rng.random() < 0.6 or command.open_end else _END)
        while command.open_end and not template.endswith('{base}'):
            template = pick(rng, _FRONT)
        other = inside(rng.choice(motions), rng).slots['base'] if motions else 'do nothing'
        text = fill(template, rng, {**slots, 'e': event, 'other': other})
        if second and 'and' not in slots['base']:
            text = f'{second.slots["base"]} {pick(rng, ("and", "and then", "then", "and,"))} {text}'
        reply = CAN_NOT_WAIT
    elif kind == 'negated':
        text, reply = _negated(one, slots, rng), 'Okay.'
    elif kind == 'told':
        text, reply = fill(pick(rng, _TOLD[one is not None and rng.random() < 0.7]), rng, slots), 'Okay.'
    else:
        text, reply = _question(one, slots, rng), ASKED
    return [Episode(_finished(text, command, rng), reply=reply, thought=_NOTHING_THOUGHT, category='no command')]


def _question(one: Inside | None, slots: dict[str, str], rng: random.Random) -> str:
    base, ing, past, short, amount = _QUESTIONS
    draw = rng.random()
    if one is not None and draw > 0.88:
        text = fill(pick(rng, amount), rng, slots)
    elif one is not None and draw < 0.5:
        text = fill(pick(rng, past), rng, slots) if draw < 0.25 else fill(pick(rng, short), rng, _short(one, rng))
    else:
        text = fill(pick(rng, ing if slots['ing'] and draw > 0.8 else base), rng, slots)
    return text + '?' if rng.random() < 0.7 and text[-1] not in '.?"' else text


def _negated(one: Inside | None, slots: dict[str, str], rng: random.Random) -> str:
    if one is not None and rng.random() < 0.5:
        short = _short(one, rng)
        short['base'] = fill(pick(rng, _NEGATED_SHORT), rng, short)
        tail = short['base'].partition(' ')[2]
        slots = {**short, 'ing': f'{short["ing"]} {tail}'.strip()}
    template = pick(rng, _NEGATED)
    while '{ing}' in template and not slots['ing']:
        template = pick(rng, _NEGATED)
    return fill(template, rng, slots)


def _both(slots: dict[str, str], second: Inside, rng: random.Random) -> dict[str, str]:
    joint = pick(rng, (' and ', ' and ', ' and then ', ', then ', ' then '))
    return {**slots, 'base': slots['base'] + joint + second.slots['base'], 'ing': slots['ing'] + joint.replace(' then', '').replace(',', ' and') + second.slots['ing']}


def _still(commands: list[Command], slots: dict[str, str], rng: random.Random) -> Episode:
    """One or two commands in words that stand before what is none as well."""
    base, ing, end = _STILL
    draw = rng.random()
    if draw < 0.12 and slots['ing']:
        text = fill(pick(rng, ing), rng, slots)
    elif draw < 0.2 and len(commands) == 1:
        text = sentence(commands[0], rng, False) if commands[0].base else slots['base']
    else:
        event = fill(pick(rng, _EVENTS), rng, {})
        text = fill(pick(rng, end if draw > 0.75 else base), rng, {**slots, 'e': event})
    todo = ' and '.join(command.todo for command in commands)
    thought = f'The user wants me to {todo}. I call {commands[0].tool.name}.'
    category = 'no question' if len(commands) == 1 else 'two calls'
    return Episode(_finished(text, commands[0], rng), commands, thought=thought, category=category)


def _towards(tool: Tool, rng: random.Random) -> tuple[dict[str, str], Command]:
    """'80 in the direction of the door', '80 in reverse': metres, for no unit is said."""
    value, number = digits(rng)
    way = rng.choice(('forward', 'forward', 'backward'))
    verb, ing, _, _ = said.DRIVING[int(rng.random() * len(said.DRIVING))]
    tail = fill(pick(rng, said.TOWARDS[way]), rng, {'q': number})
    command = motion_command(tool, {'distance': value, 'unit': 'm', 'direction': way})
    return {'base': f'{verb} {tail}', 'ing': f'{ing} {tail}'}, command


def _asked_whether(text: str, command: Command, rng: random.Random, half: bool) -> list[Episode]:
    first = Episode(text, reply=WHETHER, thought='Somebody else said so.', category='no command')
    if rng.random() > _NEXT_SHARE:
        return [first]
    if rng.random() < 0.3:
        return [first, Episode(roughen(pick(rng, said.NO), rng), reply='Okay.', thought='I must not do it.', category='no command')]
    if half:
        way = str((command.values or {})['direction'])
        return [first, Episode(roughen(pick(rng, said.YES), rng), reply=how_far(command.tool, way), thought=_LACKS, category='missing')]
    return [first, Episode(roughen(pick(rng, said.YES), rng), [command], thought=f'I call {command.tool.name}.', category='follow-up')]


def _then(question: str, text: str, answer: str, command: Command, rng: random.Random) -> list[Episode]:
    """What is unclear, the question back, and perhaps the answer."""
    first = Episode(roughen(text, rng, NUMBER_WORDS, typo_rate=0.05), reply=question, thought='This is not clear.', category='missing')
    if rng.random() > _NEXT_SHARE:
        return [first]
    return [first, Episode(answer, [command], thought=f'Now I know. I call {command.tool.name}.', category='follow-up')]


def _choice(motions: list[Tool], command: Command, slots: dict[str, str], rng: random.Random) -> list[Episode]:
    """Two commands, two amounts or two ways to choose from."""
    draw = rng.random()
    one = inside(rng.choice(motions), rng)
    tool, values = one.command.tool, dict(one.command.values or {})
    turning = tool.intent == 'turn'
    if draw < 0.4:
        if command.arguments == one.command.arguments:
            return []
        text = fill(pick(rng, _CHOICE), rng, {'base': slots['base'], 'other': one.slots['base']})
        first = rng.random() < 0.5
        chosen = command if first else one.command
        answer = pick(rng, ('the first', 'the first one', 'the former', 'number one') if first else ('the second', 'the second one', 'the latter', 'the other one'))
        if rng.random() < 0.5:
            answer = slots['base'] if first else one.slots['base']
        return _then(WHICH, text, answer, chosen, rng)
    both = ('left', 'right') if turning else ('forward', 'backward')
    pair = [pick(rng, _WAYS[way]) for way in (both if rng.random() < 0.6 else both[::-1])]
    ways = ' or '.join(pair)
    other = plain_amount(tool, rng)
    if draw < 0.55:
        a, b = pair if rng.random() < 0.5 else (one.slots['q'], other.text)
        return [Episode(roughen(fill(pick(rng, _CHOICE_BARE), rng, {'a': a, 'b': b}), rng, NUMBER_WORDS), reply=WHICH, thought='This is not clear.', category='no command')]
    verb = one.slots['verb']
    if draw < 0.75:
        if values.get('angle') in (180, 360):
            return []
        text = pick(rng, ('{v} {q} {w}', '{v} {w} {q}', '{v} {w} by {q}', '{v} {w}, {q}', 'please {v} {q} {w}', '{v} {q}, {w}', '{v} {q} {w}?'))
        text = text.replace('{v}', verb).replace('{q}', one.slots['q']).replace('{w}', ways)
        question = 'Should I turn left or right?' if turning else 'Should I drive forward or backward?'
        return _then(question, text, one.slots['way'] if pick(rng, ('w', 'k')) == 'w' else str(values['direction']), one.command, rng)
    if draw < 0.83:
        action = 'turn' if turning else 'drive'
        text = pick(rng, ('{v} {w}', '{v} {w}?', 'please {v} {w}', 'now {v} {w}')).replace('{v}', verb).replace('{w}', ways)
        answer = f'{one.slots["way"]} {one.slots["q"]}' if rng.random() < 0.5 else f'{one.slots["q"]} {one.slots["way"]}'
        return _then(f'How far should I {action}, and in which direction?', text, answer, one.command, rng)
    joint = pick(rng, (' or ', ' or ', ' or ', ', or ', ' or maybe ', ' or perhaps '))
    text = pick(rng, ('{v} {w} {q}', '{v} {q} {w}', '{v} {w} by {q}', 'please {v} {w} {q}', '{v} {w} {q}?', '{q} {w}', '{w} {q}', '{q} {w}?', 'should it be {q} {w}?', 'is it {q} {w}?'))
    text = text.replace('{v}', verb).replace('{q}', one.slots['q'] + joint + other.text).replace('{w}', one.slots['way'])
    return _then(how_far(tool, str(values['direction'])), text, one.slots['q'], one.command, rng)


def how_far(tool: Tool, way: str) -> str:
    """The question for the amount of a motion."""
    return f'How far should I {"turn" if tool.intent == "turn" else "drive"} {way}?'


def _range(tool: Tool, rng: random.Random) -> list[Episode]:
    """'2-3 metres', 'between 10 and 20 degrees'."""
    one = inside(tool, rng)
    unit = pick(rng, units_of(tool))
    step = 10 if unit in ('cm', 'mm', 'deg') and rng.random() < 0.8 else 1
    while True:
        low = rng.randint(1, 9) * step
        high = low + rng.randint(1, 4) * step
        if not is_held(str(low)) and not is_held(str(high)):
            break
    single, plural, short = UNITS[unit]
    told = (lambda number: spell(number, rng)) if rng.random() < 0.25 else str
    form = pick(rng, plural[:2]) if rng.random() < 0.6 else pick(rng, [text for text in short if text not in ('"', 'in', '°')])
    template = pick(rng, said.RANGES)
    amount = template.replace('{n}', told(low)).replace('{m}', told(high)).replace('{u}', form)
    if rng.random() < 0.08 and unit in ('m', 'ft'):
        amount = f'a {single[0]} or two' if rng.random() < 0.5 else f'one or two {plural[0]}'
        low = 1
    way = str((one.command.values or {})['direction'])
    verb, words = one.slots['verb'], one.slots['way']
    if way == 'forward' and rng.random() < 0.4:
        text = pick(rng, ('{v} {q}', '{v} {q}', 'please {v} {q}', '{v} {q} please'))
    else:
        text = pick(rng, ('{v} {w} {q}', '{v} {q} {w}', '{v} {w} {q}', '{v} {w}, {q}', 'please {v} {w} {q}', '{q} {w}', '{w} {q}', 'could you {v} {w} {q}?', '{v} {w} {q} please', '{v} {w} by {q}'))
    text = text.replace('{v}', verb).replace('{q}', amount).replace('{w}', words)
    values = {'angle' if tool.intent == 'turn' else 'distance': low, 'unit': unit, 'direction': way}
    answer = str(low) if 'unit' in tool.names and rng.random() < 0.4 else f'{low} {form if low != 1 else single[0]}'
    return _then(how_far(tool, way), text, answer, motion_command(tool, values), rng)
