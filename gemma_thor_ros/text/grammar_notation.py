# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The two ways to write a value that a guide can hold a model to: Gemma's call syntax and JSON.

Each gives pieces of a grammar in the library's Lark dialect. Knows no schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from gemma_thor_ros.text.grammar_text import ANY_TEXT, regex_literal
from gemma_thor_ros.text.writer import sorted_items

# Adds a terminal and gives its name: the conjunction of some regular expressions ('~' before one:
# its negation), within a text before and behind it. The library reads greedily and never goes
# back, so what may begin alike has to be whole terminals.
Terminal = Callable[..., str]

# No blank, quote, bracket or sign of the notation, whatever the language. In keys that a model
# invents; declared ones may have blanks inside. A call's may be of any length: there a longer one
# has to be possible where a key has been used.
_FREE_SIGN = r'[^\s,:{}\[\]="\'<>\\\x00-\x1F\x7F]'
_KEY_SIGNS = frozenset(',:{}[]="\'<>\r\n')
# JSON's escapes but those of half characters.
_JSON_UNIT = (r'([^"\\\x00-\x1F\x7F]|\\(["\\\/bfnrt]'
              r'|u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})))')
_JSON_PLAIN = r'[^"\\\x00-\x1F\x7F]*'
# After a bracket, comma or colon, and before a closing bracket: nothing, a blank, or a new line
# with some indentation. Never more, so that no answer gets lost in blanks.
_JSON_BLANKS = r' |\n {0,6}'


class Notation(Protocol):
    """How values are written."""

    unique_keys: bool                  # the guide sees to it that invented keys differ

    def blanks(self, terminal: Terminal) -> str:
        """What may stand between brackets, commas and values; '' for nothing."""

    def order(self, properties: Iterable[str]) -> list[str]:
        """The order in which an object's properties are written."""

    def string(self, text: str) -> str | None:
        """One given string; None when it can't be written."""

    def text(self, terminal: Terminal, least: int, most: int | None,
             patterns: Sequence[str]) -> str:
        """Strings of so many characters that match all patterns (whole)."""

    def key(self, name: str) -> str | None:
        """A declared key and its colon; None when it can't be written."""

    def free_key(self, terminal: Terminal, without: Iterable[str]) -> str:
        """Any other key and its colon."""


class CallNotation:
    """Arguments of a call: bare keys in sorted order, strings between two quote tokens."""

    unique_keys = True

    def __init__(self, quote_id: int) -> None:
        self._quote = f'<[{quote_id}]>'

    def blanks(self, terminal: Terminal) -> str:
        return ''

    def order(self, properties: Iterable[str]) -> list[str]:
        return [name for name, _ in sorted_items(dict.fromkeys(properties))]

    def string(self, text: str) -> str | None:
        body = _lark(text)
        return None if body is None else self._quoted(body if text else '')

    def text(self, terminal: Terminal, least: int, most: int | None,
             patterns: Sequence[str]) -> str:
        regexes = list(patterns)
        if least or most is not None:
            regexes.append(_repeated('(?s:.)', least, most))
        return self._quoted(terminal(*(regexes or (ANY_TEXT,))))

    def key(self, name: str) -> str | None:
        if not name or name != name.strip() or not _KEY_SIGNS.isdisjoint(name):
            return None
        return _lark(name + ':')

    def free_key(self, terminal: Terminal, without: Iterable[str]) -> str:
        return terminal(f'{_FREE_SIGN}+', *_negated(without), end=':')

    def _quoted(self, body: str) -> str:
        return f'{self._quote} {body} {self._quote}'


class JsonNotation:
    """JSON text; properties in the order of their schema."""

    unique_keys = False

    def blanks(self, terminal: Terminal) -> str:
        return terminal(_JSON_BLANKS) + '?'

    def order(self, properties: Iterable[str]) -> list[str]:
        return list(properties)

    def string(self, text: str) -> str | None:
        return _lark(json.dumps(text, ensure_ascii=False))

    def text(self, terminal: Terminal, least: int, most: int | None,
             patterns: Sequence[str]) -> str:
        if not patterns:
            return terminal(f'"{_repeated(_JSON_UNIT, least, most)}"')
        # A pattern is about the text, not about its escapes, so that there must be none.
        regexes = [*patterns, _JSON_PLAIN]
        if least or most is not None:
            regexes.append(_repeated('(?s:.)', least, most))
        return terminal(*regexes, start='"', end='"')

    def key(self, name: str) -> str | None:
        return _lark(json.dumps(name, ensure_ascii=False) + ':')

    def free_key(self, terminal: Terminal, without: Iterable[str]) -> str:
        return terminal(f'{_FREE_SIGN}{{1,64}}', *_negated(without), start='"', end='":')


def literal(notation: Notation, value: Any) -> str | None:
    """One given value; None when it can't be written."""
    if isinstance(value, str):
        return notation.string(value)
    if isinstance(value, list | tuple):
        items = [literal(notation, item) for item in value]
        return None if None in items else _between('[', [str(item) for item in items], ']')
    if not isinstance(value, Mapping):
        return _lark(json.dumps(value))
    pairs = []
    for name in notation.order(value):
        key, item = notation.key(name), literal(notation, value[name])
        if key is None or item is None:
            return None
        pairs.append(f'{key} {item}')
    return _between('{', pairs, '}')


def _lark(text: str) -> str | None:
    """A text as a literal of the grammar; None for half characters, which no token can write."""
    if any('\ud800' <= char <= '\udfff' for char in text):
        return None
    return json.dumps(text)


def _between(start: str, items: list[str], end: str) -> str:
    return ' '.join([f'"{start}"', ' "," '.join(items), f'"{end}"'])


def _repeated(unit: str, least: int, most: int | None) -> str:
    if most is None:
        return f'{unit}{{{least},}}' if least else f'{unit}*'
    return f'{unit}{{{least},{most}}}'


def _negated(names: Iterable[str]) -> list[str]:
    words = '|'.join(regex_literal(name) for name in names)
    return [f'~({words})'] if words else []
