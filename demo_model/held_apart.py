# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Takes readings out of training templates that the evaluation keeps for itself.

Many phrasings were written without a look at the held-out ones, and people think alike: where a
reading of a template is a held-out one, or has a held-out word in it, that reading is dropped and the
others stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from demo_model.phrasing import HELD_WORDS, Node, parsed

_WORD = re.compile('[a-z]+')
_HELD_WORDS = frozenset(HELD_WORDS)
_MOST = 20000                            # readings of one template


def readings(template: str) -> tuple[str, ...]:
    """All readings of a template, with its slots as they are."""
    return tuple(re.sub(r' +', ' ', text).strip(' ') for text in _joined(parsed(template)))


def key(reading: str) -> str:
    """What two readings have in common that differ in case, punctuation or articles alone."""
    text = re.sub(r'["\',:;.!?()]', ' ', reading.lower()).replace('-', ' ')
    return ' '.join(word for word in text.split() if word not in ('the', 'your', 'a'))


def apart(
    templates: Iterable[str], held: Iterable[str], common: Iterable[str] = ()
) -> tuple[str, ...]:
    """The templates without the readings of the held ones; `common` are allowed in both."""
    held = tuple(held)
    allowed = {key(reading) for template in common for reading in readings(template)}
    kept_apart = {key(reading) for template in held for reading in readings(template)} - allowed
    same = set(held)
    found = []
    for template in templates:
        if template in same:
            continue
        told = readings(template)
        kept = [
            reading
            for reading in told
            if key(reading) not in kept_apart and not _HELD_WORDS & set(_WORD.findall(reading))
        ]
        if len(kept) == len(told):
            found.append(template)
        elif kept:
            found.append('(' + '|'.join(dict.fromkeys(kept)) + ')')
    return tuple(found)


def apart_by_words(
    templates: Iterable[str], held: Iterable[str]
) -> tuple[str, ...]:
    """As `apart` for templates whose punctuation counts (joins of two commands)."""
    kept_apart = {reading for template in held for reading in readings(template)}
    found = []
    for template in templates:
        kept = [reading for reading in readings(template) if reading not in kept_apart]
        if kept:
            found.append('(' + '|'.join(kept) + ')' if len(kept) > 1 else kept[0])
    return tuple(found)


def _joined(nodes: tuple[Node, ...] | list[Node]) -> list[str]:
    texts = ['']
    for node in nodes:
        if isinstance(node, str):
            ends = [node]
        elif node[0] == 'slot':
            ends = ['{' + str(node[1]) + '}']
        else:
            options = node[1]
            assert isinstance(options, list)
            ends = [text for option in options for text in _joined(option)]
        texts = [text + end for text in texts for end in ends]
        if len(texts) > _MOST:
            raise ValueError(f'a template with more than {_MOST} readings')
    return texts
