# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Open words, nouns and clauses for the slots of templates."""

from __future__ import annotations

import random
from typing import Any

from demo_model import heldout_phrases as held_phrases
from demo_model import motion_phrases as phrases
from demo_model.intents import COLOURS
from demo_model.phrasing import TrainDraws, expand, open_words, pick, random_name, random_word

# fmt: off
_SMALL_WORDS = (
    'the', 'a', 'is', 'and', 'to', 'of', 'in', 'it', 'you', 'we', 'I', 'my', 'not', 'at', 'on', 'will', 'are', 'for',
    'has', 'can', 'be', 'this', 'that', 'your', 'with', 'was', 'do', 'no', 'please')
# fmt: on
CAPITALS = tuple('ABCDEFGHKLMNPQRSTUVXYZ')


def open_text(rng: random.Random) -> str:
    """A sentence of open words with small words, names and numbers between them."""
    words = []
    for _ in range(rng.randint(1, 10)):
        draw = rng.random()
        words.append(
            random_word(rng)
            if draw < 0.55
            else pick(rng, _SMALL_WORDS)
            if draw < 0.88
            else random_name(rng)
            if draw < 0.94
            else str(rng.randint(1, 999))
        )
        if rng.random() < 0.04:
            words[-1] += ','
    return ' '.join(words).rstrip(',')


def noun_slots(rng: random.Random) -> dict[str, str]:
    """Fillers that any template may use."""
    return {
        'thing': pick(rng, phrases.THINGS) if rng.random() < 0.8 else pick(rng, open_words(rng)),
        'name': random_name(rng),
        'w': pick(rng, open_words(rng)),
        'n': str(rng.randint(1, 99) if rng.random() < 0.8 else rng.randint(100, 999)),
        'l': pick(rng, CAPITALS),
        'place': pick(rng, open_words(rng)),
        'c': pick(rng, COLOURS),
    }


def training_noun(name: str, rng: random.Random) -> str:
    """One filler as noun_slots has it, without the draws for the others."""
    if name == 'n':
        return str(rng.randint(1, 99) if rng.random() < 0.8 else rng.randint(100, 999))
    if name == 'thing':
        return pick(rng, phrases.THINGS) if rng.random() < 0.8 else pick(rng, open_words(rng))
    if name == 'l':
        return pick(rng, CAPITALS)
    return pick(rng, COLOURS) if name == 'c' else pick(rng, open_words(rng))


def fill(template: str, rng: random.Random, slots: dict[str, str]) -> str:
    """One reading of a template with the given slots; nouns and clauses are drawn."""

    def slot(name: str) -> str:
        if name == 'w':
            return pick(rng, open_words(rng))
        if name == 'name':
            return random_name(rng)
        if name == 'clause':
            return fill(clause(rng), rng, {})
        if name in slots:
            return slots[name]
        return training_noun(name, rng) if isinstance(rng, TrainDraws) else noun_slots(rng)[name]

    return expand(template, rng, slot)


def clause(rng: random.Random) -> str:
    """The template of words that change nothing; training has more of them."""
    return pick(rng, phrases.TRAIN_CLAUSES if isinstance(rng, TrainDraws) else phrases.CLAUSES)


def source_of(held: bool) -> Any:
    """The module with the templates: for training, or kept out of it."""
    return held_phrases if held else phrases
