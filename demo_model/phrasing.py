# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A tiny template language for phrasings, and the noise that people add to them.

`(a|b|c)` picks one, `[x]` is there half of the time, `{slot}` is filled by the caller. Knows nothing
of tools and robots. Everything is a function of the given random.Random.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

_BLANKS = re.compile(' {2,}')
_APOSTROPHE = re.compile(r"(?<=\w)'(?=(t|s|re|ve|m|d|ll)\b)")
# A node is a literal, ('slot', name) or ('choice', [sequence, ...]).
Node = str | tuple[str, object]
Sequence_ = list[Node]


def read_words(name: str) -> tuple[str, ...]:
    """The words of a list beside this file."""
    return tuple((Path(__file__).parent / name).read_text(encoding='utf-8').split())


WORDS = read_words('words.txt')
HELD_WORDS = read_words('words_held.txt')
_SYLLABLES = tuple(
    c + v + e
    for c in (
        'b',
        'br',
        'c',
        'ch',
        'd',
        'dr',
        'f',
        'fl',
        'g',
        'gr',
        'h',
        'j',
        'k',
        'kl',
        'l',
        'm',
        'n',
        'p',
        'pl',
        'qu',
        'r',
        's',
        'sh',
        'st',
        't',
        'tr',
        'v',
        'w',
        'x',
        'y',
        'z',
        'zh',
    )
    for v in ('a', 'e', 'i', 'o', 'u', 'ai', 'ee', 'oo', 'ia')
    for e in ('', '', 'n', 'r', 'l', 's', 't', 'k', 'x', 'm')
)
_LETTERS = 'abcdefghijklmnopqrstuvwxyz'


def _parse(text: str, start: int, closers: str) -> tuple[list[Sequence_], int]:
    """Read alternatives up to one of `closers`; give them and the position behind it."""
    options: list[Sequence_] = [[]]
    position = start
    literal = ''

    def flush() -> None:
        nonlocal literal
        if literal:
            options[-1].append(literal)
            literal = ''

    while position < len(text):
        char = text[position]
        if char in closers:
            flush()
            return options, position + 1
        if char == '|' and closers:
            flush()
            options.append([])
        elif char == '(':
            flush()
            inner, position = _parse(text, position + 1, ')')
            options[-1].append(('choice', inner))
            continue
        elif char == '[':
            flush()
            inner, position = _parse(text, position + 1, ']')
            options[-1].append(('choice', [*inner, *([[]] * len(inner))]))
            continue
        elif char == '{':
            flush()
            end = text.index('}', position)
            options[-1].append(('slot', text[position + 1 : end]))
            position = end
        else:
            literal += char
        position += 1
    if closers:
        raise ValueError(f'template {text!r} lacks a closing {closers!r}')
    flush()
    return options, position


@cache
def parsed(template: str) -> tuple[Node, ...]:
    """A template's parts: text, slots, and groups of alternatives."""
    return tuple(_parse(template, 0, '')[0][0])


def _expand(
    nodes: tuple[Node, ...] | Sequence_,
    rng: random.Random,
    fill: Callable[[str], str],
    out: list[str],
) -> None:
    for node in nodes:
        if isinstance(node, str):
            out.append(node)
        elif node[0] == 'slot':
            out.append(fill(str(node[1])))
        else:
            options = node[1]
            assert isinstance(options, list)
            _expand(options[int(rng.random() * len(options))], rng, fill, out)


def expand(template: str, rng: random.Random, fill: Callable[[str], str] | None = None) -> str:
    """One random reading of a template; runs of blanks are made one."""
    out: list[str] = []
    _expand(parsed(template), rng, fill or (lambda name: '{' + name + '}'), out)
    return _BLANKS.sub(' ', ''.join(out)).strip().replace(' ,', ',')


def unheld(verbs: tuple[tuple[str, str], ...], plain: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Verbs with their -ing forms; a plain one stands for each that the evaluation keeps."""
    held = frozenset(HELD_WORDS)
    return tuple(plain if held & set(' '.join(verb).split()) else verb for verb in verbs)


class TrainDraws(random.Random):
    """Draws for training: also names of people, and words made of pieces of the vocabulary.

    `all_open`: every name of a tool or an argument is of open words, as the evaluation's are.
    """

    all_open: bool = False


class HeldDraws(random.Random):
    """Draws for the evaluation: open words and names come from those that training never sees."""


def open_words(rng: random.Random) -> tuple[str, ...]:
    """The word list that these draws may use."""
    return HELD_WORDS if isinstance(rng, HeldDraws) else WORDS


def is_held_name(name: str) -> bool:
    """Whether a made-up name or word is kept out of training (1 of 8, by a checksum)."""
    return zlib.crc32(name.lower().encode()) % 8 == 0


_FIRST_NAME_SHARE = 0.25
_PIECE_SHARE = 0.2
FIRST_NAMES = tuple(name for name in read_words('first_names.txt') if not is_held_name(name))


def pick(rng: random.Random, items: tuple[str, ...] | list[str]) -> str:
    """One of the items; quicker than rng.choice."""
    return items[int(rng.random() * len(items))]


TOKENIZER_FILE = (
    Path(__file__).parent.parent / 'gemma_thor_ros' / 'demo' / 'model' / 'tokenizer.json'
)


def _pieces() -> tuple[str, ...]:
    """The vocabulary's pieces of words: each of them must be met before it can be copied."""
    vocabulary = json.loads(TOKENIZER_FILE.read_text(encoding='utf-8'))['model']['vocab']
    return tuple(sorted(piece for piece in vocabulary if len(piece) > 1 and piece.isalpha()))


PIECES = _pieces()
_HELD = frozenset(HELD_WORDS)


def piece_word(rng: random.Random) -> str:
    """One to three pieces of the vocabulary in a row; no word that is kept for the evaluation."""
    while True:
        word = ''.join(pick(rng, PIECES) for _ in range(rng.choice((1, 2, 2, 3))))
        if not is_held_name(word) and not _HELD & {word, *re.findall('[a-z]+', word)}:
            return word


def random_word(rng: random.Random) -> str:
    """An open word: mostly an English one, else syllables or bare letters; in training also pieces."""
    if isinstance(rng, TrainDraws) and rng.random() < _PIECE_SHARE:
        return piece_word(rng)
    draw = rng.random()
    if draw < 0.6:
        return pick(rng, open_words(rng))
    held = isinstance(rng, HeldDraws)
    while True:
        if draw < 0.9:
            word = ''.join(pick(rng, _SYLLABLES) for _ in range(rng.randint(1, 3)))
        else:
            word = ''.join(pick(rng, list(_LETTERS)) for _ in range(rng.randint(3, 7)))
        if is_held_name(word) == held and (held or word not in _HELD):
            return word


def random_name(rng: random.Random) -> str:
    """A capitalised name that no list holds; in training also what people are called."""
    if isinstance(rng, TrainDraws) and rng.random() < _FIRST_NAME_SHARE:
        return pick(rng, FIRST_NAMES)
    held = isinstance(rng, HeldDraws)
    while True:
        word = ''.join(pick(rng, _SYLLABLES) for _ in range(rng.randint(1, 3)))
        if is_held_name(word) == held:
            return word.capitalize()


def identifier(rng: random.Random, words: list[str]) -> str:
    """Words joined as programmers do: snake_case mostly, kebab-case or camelCase sometimes."""
    draw = rng.random()
    if draw < 0.75:
        return '_'.join(words)
    if draw < 0.85:
        return '-'.join(words)
    if draw < 0.95:
        return words[0] + ''.join(word.capitalize() for word in words[1:])
    return ''.join(words)


def _typo(word: str, rng: random.Random) -> str:
    position = rng.randint(1, len(word) - 2)
    draw = rng.random()
    if draw < 0.35:
        return word[:position] + word[position + 1] + word[position] + word[position + 2 :]
    if draw < 0.7:
        return word[:position] + word[position + 1 :]
    if draw < 0.9:
        return word[:position] + word[position] + word[position:]
    return word[:position] + pick(rng, list(_LETTERS)) + word[position + 1 :]


def roughen(
    text: str, rng: random.Random, keep: frozenset[str] = frozenset(), typo_rate: float = 0.1
) -> str:
    """What hurried people do to a sentence: letter case, full stop, a typo in one word.

    Words in `keep` (the numbers) never get a typo.
    """
    if rng.random() < typo_rate:
        words = text.split(' ')
        places = [
            i
            for i, word in enumerate(words)
            if len(word) >= 4 and word.isalpha() and word.lower() not in keep
        ]
        for _ in range(1 if rng.random() < 0.75 else 2):
            if places:
                place = places[int(rng.random() * len(places))]
                if len(words[place]) >= 4:
                    words[place] = _typo(words[place], rng)
        text = ' '.join(words)
    if isinstance(rng, TrainDraws) and "'" in text and rng.random() < 0.25:
        text = _APOSTROPHE.sub('', text)
    draw = rng.random()
    if draw < 0.45:
        text = text[:1].upper() + text[1:]
    elif draw < 0.5:
        text = text.upper()
    elif draw < 0.53:
        text = text.title()
    draw = rng.random()
    if text[-1:] not in '.!?':
        if draw < 0.4:
            text += '.'
        elif draw < 0.47:
            text += '!'
        elif draw < 0.49:
            text += '...'
    return text
