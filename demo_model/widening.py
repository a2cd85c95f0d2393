# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What training draws wider than any list: phrases for things and places, people, addresses, noise.

Written from general knowledge, so that the model copies what is said and leaves the rest alone. Knows no
tools; the evaluation draws none of it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from demo_model.filling import CAPITALS, fill
from demo_model.held_apart import apart
from demo_model.intents import COLOURS
from demo_model.phrasing import expand, pick, random_name, random_word, read_words
from demo_model.wordings_sixth import PURPOSES, REASON_FIRST, REASON_LAST, REASONS

FREE_SHARE = 0.45                        # of places and objects
NOISE_SHARE = 0.12                       # of commands for other tools
ADDRESS_SHARE = 0.12                     # of sentences
FRAME_SHARE = 0.08
REASON_SHARE = 0.09                      # of sentences with one command: a reason beside it
CLAUSE_SHARE = 0.08                      # of motions with words behind them that change nothing
# fmt: off
_ADJECTIVES = read_words('adjectives.txt')
_PLACE_HEADS = read_words('places.txt')
_OBJECT_HEADS = read_words('objects.txt')
_PHRASES = (
    'the {h}', 'the {a} {h}', 'the {a} {h}', 'the {a} {a} {h}', 'the {c} {h}', 'the {a} {c} {h}', "{name}'s {h}", "{name}'s {a} {h}", 'the {w} {h}', 'the {w} {h}', 'the {a} {w} {h}', 'the {a} {w}',
    'the {w} {w} {h}', '{h} {n}', '{h} {n}', '{h} {l}', '{h} {l}{n}', '{h} {n}{l}', '{name} {h}', '{name} {name} {h}', '{w} {h}', '{w} {h}', '{w} {w} {h}', '{h} {w}', 'a {h}', 'a {a} {h}', 'a {w} {h}', 'my {h}',
    'my {a} {h}', 'my {w}', 'my {w} {h}', 'our {h}', 'our {w} {h}', 'your {h}', 'his {h}', 'her {a} {h}', 'their {w} {h}', 'this {h}', 'that {a} {h}', 'the {h} of {name}', 'the {h} {n}', 'the {h} number {n}', '{l}{n}', '{n}{l}',
    '{h}-{n}', '{w}-{n}', '{h} {n}-{n}', 'the {n}th {h}', '{w}', 'the {w}', '{w} {w}', 'the {w} {w} {w}', "{name}'s {w}", "the {w}'s {h}", '{a} {h}', '{c} {h}', 'the {h} {name}', '{name} {n}', '{w} {n}', '{w} {l}', 'the {w}-{h}',
    'the {h} {h}', 'the {a} {h} {h}', '{h} {h} {n}', "my {h}'s {h}",
)
# Between two commands: what opens the first, what parts them, what follows the first at once.
_NUMBERS = (('1', '2'), ('1', '2'), ('a', 'b'), ('A', 'B'), ('I', 'II'), ('i', 'ii'), ('one', 'two'), ('first', 'second'), ('step 1', 'step 2'), ('task 1', 'task 2'), ('No 1', 'No 2'), ('part A', 'part B'), ('#1', '#2'))
_MARKS = ('{x}) ', '{x}. ', '{x}: ', '{x} - ', '{x}, ', '{x}/ ', '{x}.) ')
_PARTS = (' ', ' ', ', ', '. ', '; ', '\n', '\n\n', ' - ', ' and ')
_THEN = ('then', 'then', 'next', 'afterwards', 'afterward', 'after which', 'whereupon', 'in the end', 'at last', 'ultimately', 'next up', 'from there', 'following that', 'hereafter', 'thenceforth', 'upon that', 'presently', 'soon', 'soon after', 'directly after', 'straight after',
         'right after', 'after a while', 'after that', 'later on', 'a bit later', 'subsequently', 'finally', 'to finish', 'to end', 'when done', 'once done', 'when over', 'on completion', 'in second place', 'as a second step', 'too', 'also', 'as well', 'besides', 'plus',
         'in addition', 'on top', 'now', 'eventually', 'lastly', 'at the end', 'as the last thing', 'when you are through', 'having done that', 'with this out of the way', 'if that worked', 'as soon as you can', 'consequently', 'thereupon', 'thence', 'anon')
_SHADES = (
    '{c}', '{c}', '{c}', '{c}', '(dark|light|bright|pale|deep|soft|warm|cold|neon|pastel|signal|sky) {c}', '{w}', '{w} {c}', 'lime', 'ivory', 'rose', 'peach', 'mint', 'khaki', 'lilac', 'scarlet', 'tan', 'bronze', 'copper', 'cream', 'charcoal', 'emerald',
    'ruby', 'sapphire', 'coral', 'salmon', 'mustard', 'lavender', 'plum', 'azure', 'ochre', 'aqua', 'fuchsia', 'chestnut', 'rust', 'sand', 'jade', 'cherry', 'lemon', 'mauve', 'vermilion', 'ultramarine', 'warm white', 'cool white',
)
_JOINTS = (
    'the {w} joint', 'the {w}', '{w}', '{w}', 'the (left|right|upper|lower|inner|outer|first|second|third|last|middle) {w}', '(left|right|upper|lower|inner|outer|first|second|third|front|rear) {w}', '{w} {w}', '(motor|servo|joint|link|actuator|drive|hinge) {n}',
    '(motor|servo|joint|link|actuator) {l}', 'the {w} (motor|servo|link|actuator|hinge|joint)', 'j{n}', '{l}{n}', '(ankle|index finger|waist|spine|chin|jaw|little finger|palm|toe|heel|rib|tail|torso|trunk|collar|head|flipper)',
    '(left|right) (ankle|index finger|hip|foot|hand|elbow|shoulder|wrist|arm|leg|palm|heel|ear)', 'the (ankle|waist|spine|jaw|palm|torso|trunk|turret|boom|bucket|stick|wrist|shoulder|elbow)',
)
_HELLOS = ('hey', 'hi', 'hello', 'ok', 'okay', 'so', 'well', 'now', 'please', 'good morning', 'good evening', 'right', 'listen', 'attention', 'yes', 'no', 'oh', 'ah', 'um', 'sorry', 'dear', 'thanks',
           'my dear', 'look', 'all right', 'excuse me', 'come on', 'hmm')
_WHO = ('{name}', '{name}', '{name}', '{name}', 'robot', 'robot', '{w}', '{name} {name}', 'mister {name}', 'dear {name}', 'my {w}', 'you {w}', 'old {w}', 'robot {name}', '{name} {n}', 'number {n}', 'unit {n}', 'robot {n}', '{w} {w}')
_AFTER_WHO = (', ', ', ', ', ', ': ', '! ', ' - ', '... ', '. ', '; ', '\n', '? ', ' ')
_ENDS = (', {name}', ', {name}!', '. Thanks', '. Thank you, {name}', ' - {name}', '! {name} is here', ', my {w}', ' - thanks', '. That is all', '. I am {name}', '. {name} said so', ', robot {n}', '. Ok?', '. Right now',
         '. {w}!', ', you {w}', '. Good', '. I will wait', ". It is {n} o'clock", ' - {w}', '. It is urgent, {name}', ', will you, {name}', '. Over', '. Please')
# Frames whose words mean nothing, so that only the phrase in them counts.
_FRAMES = (
    'what I {w} is that you {b}', 'what {name} {w} is that you {b}', 'all I {w} is for you to {b}', 'all {w} is that you {b}', 'the {w} is that you {b}', 'the {w} {w} is to {b}', 'my {w} is for you to {b}', 'my {w} {w} is that you {b}', 'it is {w} that you {b}',
    'it is {w} to {b}', 'it would be {w} of you to {b}', 'I {w} that you {b}', 'I {w} you to {b}', 'I {w} for you to {b}', 'I am {w} to see you {b}', 'I am {w}, so {b}', 'we {w} you to {b}', 'we {w} that you {b}', '{name} {w} you to {b}', '{name} {w} that you {b}',
    'the {w} {w} you to {b}', 'you are {w} to {b}', 'you {w} to {b}', 'you {w} {w} to {b}', 'would you {w} to {b}?', 'could you {w} and {b}?', 'can you {w} to {b}?', '{w} to {b}', '{w} and {b}', 'be {w} and {b}', 'be a {w} and {b}', 'as a {w}, {b}', 'as the {w} {w}, {b}',
    'in the {w}, {b}', 'for the {w}, {b}', 'with {w}, {b}', 'by {w}, {b}', 'after the {w}, {b}', 'now that the {w} is {w}, {b}', 'when the {w} is {w}, {b}', 'if {name} is {w}, {b}', 'once {name} is {w}, {b}', 'while {name} is {w}, {b}', 'as soon as the {w} is {w}, {b}', 'because of the {w}, {b}', 'since it is {w}, {b}', 'the {w} has {w}, so {b}',
    'the {w} is {w}, {b}', '{w} {w} {w}: {b}', '{w}: {b}', '{w} {w} - {b}', 'thing number {n}: {b}', 'job {n} is to {b}', 'and {w}, {b}', 'oh {w}, {b}', "I'd {w} if you could {b}", 'I would be {w} if you {b}', 'there is a {w} {w}, {b}', 'no {w} now, {b}',
    'do you {w} to {b}?', 'can I {w} you to {b}?', 'may I {w} that you {b}?', 'is it {w} to {b}?', 'would it be {w} if you {b}?', 'could it be {w} to {b}?', 'might I {w} you to {b}?', 'will you {w} to {b}?', 'shall we {w} and {b}?',
    '(can|could|would|will|might) you {w} {b}?', '(may|might|can|could) I {w} you {b}?', 'would you be {w} to {b}?', 'are you {w} to {b}?', 'how about you {b}?', 'why not {w} and {b}?',
    '{name}, could you {w} {b}?',
    'as {name} is {w}, {b}', 'first of all, {w}, {b}', 'to the {w}: {b}', 'a {w} for you: {b}', 'for {n} {w}: {b}', 'it is {n}, {b}', '{n} more {w} and {b}',
)
_OOPS = ('no', 'no', 'wait', 'sorry', 'stop', 'oops', 'I mean', 'rather', 'actually', 'correction', 'hmm', 'wrong', 'nonsense', 'forget it', 'no wait', 'wait no', 'hold on', 'argh', 'uh', 'scrap that', 'not so',
         'on reflection', 'thinking again', 'let me rephrase', 'let me correct that', 'what I meant was', 'I meant to say', 'I should have said', 'instead', 'my mistake', 'pardon', 'that is wrong', 'that was wrong', 'not that', 'I was mistaken', 'I got it wrong',
         'I misspoke', 'mistake', 'new idea', 'better idea', 'change that', 'cancel this', 'ignore that', 'I take it back', 'it should be', 'please disregard', 'well no', 'ah', 'nah', 'it is the other thing', 'or rather', 'better', 'make it', 'sorry sorry',
         'that is not what I want', 'that is not it', 'not what I meant', 'I wanted something else', 'I confused it', 'slip of the tongue', 'strike it', 'take two', 'again', 'once more', 'listen')
_NOT = ("don't", "don't", 'do not', 'do not', 'never', 'you shall not', 'you should not', "you shouldn't", "please don't", 'please do not', 'under no circumstances', 'on no account', 'there is no need to', 'no need to', 'it is wrong to', "I don't want you to",
        'I do not wish you to', 'I never asked you to', 'I never said', 'not', 'nobody asked you to', 'you are not to', "you aren't to", 'you may not', 'you cannot', 'it would be a mistake to', 'it is a bad idea to', 'refrain from it: do not', 'no, do not',
        "for heaven's sake do not", 'in any case do not', 'at all costs do not', 'I forbid you to', 'stop it, do not', 'instead of that, do not', 'please never', 'no one wants you to', "we don't want you to", 'you were told not to')
_BUT = (', ', ', ', '; ', '. ', ': ', ' - ', '! ', ', but ', ', but please ', ', instead ', ' but ', ', rather ', ', just ', '. Instead, ', '. Rather ', '; instead ', ' - instead ', '. Please ', ', no, ', '. You should ', ', you should ', ', I want you to ', ', only ', '... ',
        '. What you should do is ', ', better ', '. Just ', '\n')
_BETWEEN = (', ', ', ', '. ', ' - ', '... ', '! ', '; ', ': ', '? ', '\n')
# fmt: on
# Words that tell which call is meant; noise leaves them.
_KEPT = frozenset(
    ['x', 'y', 'pan', 'tilt', 'radius', 'angle', 'arc', 'degrees', 'on', 'off', 'open', 'close', 'not', 'never', 'lock', 'unlock', 'and', 'then', 'up', 'down', 'left', 'right', 'minutes', 'seconds', 'percent', 'first', 'second', 'red', 'green', 'blue', 'forward', 'ahead', 'high']
)


_REASONS = apart(REASONS, ())
_PURPOSES = apart(PURPOSES, ())
_ALONE = re.compile(r'(^|[,.!;:?\n] ?| - | so )\{b\}')


def noun_phrase(rng: random.Random, place: bool) -> str:
    """A place or a thing as people point at it: articles, owners, colours, numbers, open words."""
    heads = _PLACE_HEADS if place else _OBJECT_HEADS

    def slot(name: str) -> str:
        if name == 'h':
            return pick(rng, heads)
        if name == 'a':
            return pick(rng, _ADJECTIVES)
        if name == 'w':
            return random_word(rng)
        return pick(rng, COLOURS) if name == 'c' else _general(name, rng)

    return expand(pick(rng, _PHRASES), rng, slot)


def _general(name: str, rng: random.Random) -> str:
    if name == 'name':
        return random_name(rng)
    if name == 'n':
        return str(rng.randint(1, 99) if rng.random() < 0.8 else rng.randint(100, 9999))
    if name == 'l':
        return pick(rng, CAPITALS)
    return random_word(rng)


def colour(rng: random.Random) -> str:
    """A colour, a shade of one, or a word that may be one."""
    return expand(pick(rng, _SHADES), rng, _with_colours(rng))


def joint(rng: random.Random) -> str:
    """A joint or a motor of a robot, by a word, a side or a number."""
    return expand(pick(rng, _JOINTS), rng, _with_colours(rng))


def _with_colours(rng: random.Random) -> Callable[[str], str]:
    return lambda name: pick(rng, COLOURS) if name == 'c' else _general(name, rng)


def person(rng: random.Random) -> str:
    """A name as it is said: one or two words, with a title, or without capitals."""
    draw = rng.random()
    name = random_name(rng)
    if draw < 0.7:
        return name
    if draw < 0.85:
        return f'{name} {random_name(rng)}'
    if draw < 0.93:
        return f'{pick(rng, ["Mr", "Mrs", "Ms", "Dr", "Dr.", "Professor", "Captain", "Sister", "Uncle", "Aunt"])} {name}'
    return name.lower()


def addressed(phrase: str, rng: random.Random, more: bool) -> str:
    """A command with a name or a greeting before it; `more`: words that mean nothing may follow."""
    who = pick(rng, _WHO) if rng.random() < 0.75 else ''
    hello = pick(rng, _HELLOS) if not who or rng.random() < 0.4 else ''
    between = pick(rng, (' ', ' ', ', ')) if who and hello else ''
    front = expand(hello + between + who, rng, lambda name: _general(name, rng))
    text = front + pick(rng, _AFTER_WHO) + ('please ' if rng.random() < 0.1 else '') + phrase
    if more and rng.random() < 0.25:
        end = pick(rng, _ENDS)
        text += ' ' * end.startswith(' ')
        text += expand(end, rng, lambda name: _general(name, rng))
    return text


def join(rng: random.Random) -> str:
    """A template of two commands, {a} and {b}, parted by signs, numbers or a word of order."""
    if rng.random() < 0.4:
        one, two = pick(rng, _NUMBERS)
        mark, part = pick(rng, _MARKS), pick(rng, _PARTS)
        if (one, mark, part) != ('A', '{x}) ', ' '):         # which the evaluation keeps
            return mark.replace('{x}', one) + '{a}' + part + mark.replace('{x}', two) + '{b}'
    part = pick(rng, (', ', ', ', '. ', '; ', ' - ', '\n', ' and ', ', and ', '... ', '! '))
    return '{a}' + part + pick(rng, _THEN) + pick(rng, (' ', ' ', ', ', ': ')) + '{b}'


def oops(rng: random.Random) -> str:
    """What stands between something said by mistake and what is meant."""
    return pick(rng, _BETWEEN) + pick(rng, _OOPS) + pick(rng, (*_BETWEEN, ' ', ' ', ', '))


def correction(rng: random.Random) -> str:
    """A template of what shall not be done, {bad}, and what shall, {good}."""
    draw = rng.random()
    if draw < 0.45:
        return f'{pick(rng, _NOT)} {{bad}}{pick(rng, _BUT)}{{good}}'
    oops = pick(rng, _OOPS)
    if rng.random() < 0.25:
        oops += pick(rng, (', ', ' ', '... ')) + pick(rng, _OOPS)
    first = '' if draw < 0.6 else '{bad}' + pick(rng, _BETWEEN)
    return first + oops + pick(rng, (*_BETWEEN, ' ')) + '{good}'


def negation(rng: random.Random) -> str:
    """A template of what shall not be done."""
    end = pick(rng, ('', '', '', '!', '.', ' please', ', please', ' now', ' today', ', ok?', ', thanks', ', {name}'))
    return f'{pick(rng, _NOT)} {{bad}}{end}'


def framed(phrase: str, rng: random.Random, more: bool) -> str:
    """A command in a frame of open words; `more`: it may be a question."""
    frame = pick(rng, _FRAMES)
    while frame.endswith('?') and not more:
        frame = pick(rng, _FRAMES)
    before, _, after = frame.partition('{b}')
    front = expand(before, rng, lambda name: _general(name, rng))
    if rng.random() < 0.2:
        after = ''
    return front + ' ' * before.endswith(' ') + phrase + after


def reasoned(phrase: str, rng: random.Random, more: bool, alone: bool = False) -> str:
    """A command and why it is wanted; `more`: words may follow it; `alone`: none begin its clause."""
    draw = rng.random()
    if more and draw < 0.2:
        return f'{phrase} {fill(pick(rng, _PURPOSES), rng, {})}'
    reason = fill(pick(rng, _REASONS), rng, {})
    if draw < 0.3:
        reason = f'{reason}{pick(rng, (" and ", ", ", " but ", ". "))}{fill(pick(rng, _REASONS), rng, {})}'
    template = pick(rng, REASON_LAST if more and draw > 0.65 else REASON_FIRST)
    while alone and not _ALONE.search(template):
        template = pick(rng, REASON_FIRST)
    if rng.random() < 0.3:
        reason = reason[:1].upper() + reason[1:]
    return template.replace('{r}', reason).replace('{b}', phrase)


def filled(template: str, slots: dict[str, str]) -> str:
    """A template without alternatives, its slots filled."""
    return re.sub(r'\{(\w+)\}', lambda slot: slots[slot[1]], template)


def noisy(template: str, rng: random.Random, said: dict[str, str]) -> str:
    """A reading of a template with one of its words exchanged, so that no word alone decides."""
    words = expand(template, rng).split(' ')
    places = [
        place
        for place, word in enumerate(words)
        if len(word) > 2 and word.isalpha() and word.lower() not in _KEPT
    ]
    if len(places) > 1 or (places and said):
        words[places[int(rng.random() * len(places))]] = random_word(rng)
    slots = {'w': random_word(rng), 'name': random_name(rng), **said}
    text = ' '.join(words)
    if all(slot in slots for slot in re.findall(r'\{(\w+)\}', text)):
        return filled(text, slots)
    return fill(template, rng, said)
