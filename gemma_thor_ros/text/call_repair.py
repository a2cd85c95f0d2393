# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads tool calls that break the grammar in ways that models are known to break it.

JSON or Python quotes, quoted keys, "=" for ":", round brackets, bare words, a delimiter inside a
string, a missing "call:". Never guesses at unclosed brackets or strings and at empty elements.
What comes from here is shown to clients and never acts. Time is linear in the length of the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container

from gemma_thor_ros.text.call_syntax import DELIMITER, Bare, Malformed, Node, Quoted, RawCall
from gemma_thor_ros.text.normalize_tools import NAME
from gemma_thor_ros.text.writer import MAX_DEPTH

_AROUND_NAME = f'"\'`: \t\r\n{DELIMITER}'
_QUOTES = (DELIMITER, '"', "'")
_BLANK = re.compile(r'\s*+')
_PREFIX = re.compile(r'\s*+(?:call\b)?+\s*+:')
_KEY = re.compile(rf'(?:{DELIMITER}([^{DELIMITER}]*+){DELIMITER}|"([^"]*+)"|\'([^\']*+)\''
                  rf'|([^,:={{}}()\[\]"\'\n{DELIMITER}]++))\s*+[:=]')
_NEXT_KEY = re.compile(rf'\s*+{_KEY.pattern}')
_BARE = {close: re.compile(rf'[^,{{}}\[\]{DELIMITER}{extra}]*+')
         for close, extra in (('}', ''), (']', ''), (')', '()'))}
_CLOSERS = re.compile(rf'[\s}}\])"\'{DELIMITER}]*+')


def read_tolerant(body: str, declared: Container[str]) -> RawCall | None:
    """The call in a body, or None when it can't be read without guessing.

    `declared` are the names of the request's tools: one of them passes even with odd characters.
    """
    starts = [start for start in (body.find('{'), body.find('(')) if start >= 0]
    if not starts:
        return None
    start = min(starts)
    prefix = _PREFIX.match(body, 0, start)
    name = body[prefix.end() if prefix else 0:start].strip(_AROUND_NAME)
    if not name or (name not in declared and not NAME.fullmatch(name)):
        return None
    reader = _Reader(body)
    try:
        arguments, end = reader.arguments(start)
    except Malformed:
        return None
    rest = _CLOSERS.match(body, end)
    if rest is None or rest.end() != len(body):
        return None
    return RawCall(name, arguments)


class _Reader:
    """Recursive descent over one body; methods take a position and return the one behind."""

    def __init__(self, body: str) -> None:
        self.body = body

    def arguments(self, position: int) -> tuple[dict[str, Node], int]:
        """The arguments at an opening bracket: {..}, (..) or ({..})."""
        if self.body[position] == '{':
            return self._object(position, '}', 1)
        inner = self._skip(position + 1)
        if not self.body.startswith('{', inner):
            return self._object(position, ')', 1)
        pairs, end = self._object(inner, '}', 1)
        end = self._skip(end)
        if not self.body.startswith(')', end):
            raise Malformed
        return pairs, end + 1

    def _object(self, position: int, close: str, depth: int) -> tuple[dict[str, Node], int]:
        body = self.body
        pairs: dict[str, Node] = {}
        position = self._skip(position + 1)
        if body.startswith(close, position):
            return pairs, position + 1
        while True:
            match = _KEY.match(body, position)
            key = next((group for group in match.groups() if group is not None), '') if match \
                else ''
            key = key.strip().replace(DELIMITER, '"')
            if match is None or not key:
                raise Malformed
            pairs[key], position = self._value(match.end(), close, depth)
            position, more = self._separator(position, close)
            if not more:
                return pairs, position

    def _array(self, position: int, depth: int) -> tuple[list[Node], int]:
        items: list[Node] = []
        position = self._skip(position + 1)
        if self.body.startswith(']', position):
            return items, position + 1
        while True:
            item, position = self._value(position, ']', depth)
            items.append(item)
            position, more = self._separator(position, ']')
            if not more:
                return items, position

    def _separator(self, position: int, close: str) -> tuple[int, bool]:
        """Behind a value: a comma (more follows) or the closing bracket."""
        position = self._behind_string(position)
        if self.body.startswith(close, position):
            return position + 1, False
        if not self.body.startswith(',', position):
            raise Malformed
        return self._skip(position + 1), True

    def _value(self, position: int, close: str, depth: int) -> tuple[Node, int]:
        position = self._skip(position)
        first = self.body[position:position + 1]
        if first in ('{', '['):
            if depth >= MAX_DEPTH:
                raise Malformed
            if first == '{':
                return self._object(position, '}', depth + 1)
            return self._array(position, depth + 1)
        if first and first in _QUOTES:
            return self._string(position, first, close)
        return self._bare(position, close)

    def _string(self, position: int, quote: str, close: str) -> tuple[Node, int]:
        """A quoted string: a quote ends it only where a value can end, else it is part of it."""
        body = self.body
        end = body.find(quote, position + 1)
        while end >= 0:
            escaped = quote != DELIMITER and body[end - 1] == '\\' and body[end - 2] != '\\'
            if not escaped and self._ends(end + 1, close):
                break
            end = body.find(quote, end + 1)
        if end < 0:
            raise Malformed
        text = body[position + 1:end]
        if '\\' in text and quote != DELIMITER:
            text = _unescaped(text, quote)
        return Quoted(text.replace(DELIMITER, '"')), end + 1

    def _ends(self, position: int, close: str) -> bool:
        """Can a value end here: before the closing bracket, or a comma and what it needs."""
        position = self._behind_string(position)
        following = self.body[position:position + 1]
        if following == ',':
            return close == ']' or _NEXT_KEY.match(self.body, position + 1) is not None
        return following in ('', close)

    def _behind_string(self, position: int) -> int:
        """Skip blanks and one stray delimiter ('abc'<|"|> is a known mixture)."""
        position = self._skip(position)
        if self.body.startswith(DELIMITER, position):
            position = self._skip(position + 1)
        return position

    def _bare(self, position: int, close: str) -> tuple[Node, int]:
        """A value without quotes: a comma ends it in an object only where a key follows."""
        start = position
        while True:
            match = _BARE[close].match(self.body, position)
            position = match.end() if match else position
            following = self.body[position:position + 1]
            if following == ',' and close != ']' \
                    and _NEXT_KEY.match(self.body, position + 1) is None:
                position += 1
                continue
            text = self.body[start:position].strip()
            if not text or text[-1] == ',' or not following or following not in (',', close):
                raise Malformed
            return Bare(text), position

    def _skip(self, position: int) -> int:
        match = _BLANK.match(self.body, position)
        return match.end() if match else position


def _unescaped(text: str, quote: str) -> str:
    """Resolve the escapes of a JSON or Python string where they are valid, else keep them."""
    if quote == "'":
        text = text.replace("\\'", "'").replace('"', '\\"')
    try:
        decoded = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return text.replace('\\"', '"')
    # An escaped lone surrogate is no text; keep its spelling.
    if not isinstance(decoded, str) or any('\ud800' <= char <= '\udfff' for char in decoded):
        return text
    return decoded
