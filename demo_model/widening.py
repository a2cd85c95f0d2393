# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What training draws wider than any list: phrases for things and places, people, addresses, noise.

Written from general knowledge, so that the model copies what is said and leaves the rest alone. Knows no
tools; the evaluation draws none of it.
"""

from __future__ import annotations

import random
import re

from demo_model.filling import fill
from demo_model.intents import COLOURS
from demo_model.phrasing import expand, pick, random_name, random_word, read_words

FREE_SHARE = 0.45                        # of places and objects
NOISE_SHARE = 0.07                       # of commands for other tools
ADDRESS_SHARE = 0.12                     # of sentences
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
_HELLOS = ('hey', 'hi', 'hello', 'ok', 'okay', 'so', 'well', 'now', 'please', 'good morning', 'good evening', 'right', 'listen', 'attention', 'yes', 'no', 'oh', 'ah', 'um', 'sorry', 'dear', 'thanks',
           'my dear', 'look', 'all right', 'excuse me', 'come on', 'hmm')
_WHO = ('{name}', '{name}', '{name}', '{name}', 'robot', 'robot', '{w}', '{name} {name}', 'mister {name}', 'dear {name}', 'my {w}', 'you {w}', 'old {w}', 'robot {name}', '{name} {n}', 'number {n}', 'unit {n}', 'robot {n}', '{w} {w}')
_AFTER_WHO = (', ', ', ', ', ', ': ', '! ', ' - ', '... ', '. ', '; ', '\n', '? ', ' ')
_ENDS = (', {name}', ', {name}!', '. Thanks', '. Thank you, {name}', ' - {name}', '! {name} is here', ', my {w}', ' - thanks', '. That is all', '. I am {name}', '. {name} said so', ', robot {n}', '. Ok?', '. Right now',
         '. {w}!', ', you {w}', '. Good', '. I will wait', ". It is {n} o'clock", ' - {w}', '. It is urgent, {name}', ', will you, {name}', '. Over', '. Please')
# fmt: on
# Words that tell which call is meant; noise leaves them.
_KEPT = frozenset(
    ['x', 'y', 'pan', 'tilt', 'radius', 'angle', 'arc', 'degrees', 'on', 'off', 'open', 'close', 'not', 'never', 'lock', 'unlock', 'and', 'then', 'up', 'down', 'left', 'right', 'minutes', 'seconds', 'percent']
)


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
        return pick(rng, list('ABCDEFGHKLMNPQRSTUVXYZ'))
    return random_word(rng)


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
