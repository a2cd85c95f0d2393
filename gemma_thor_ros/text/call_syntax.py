# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The grammar of a tool call, read strictly: what matches here may act, all else is repaired.

    call   := "call" ":" name object          object := "{" [pair ("," pair)*] "}"
    pair   := key ":" value                   array  := "[" [value ("," value)*] "]"
    value  := string | JSON number | true | false | null | object | array

A string stands between two delimiter tokens and has no escapes. Blanks may stand between tokens.
Objects and arrays nest up to writer.MAX_DEPTH levels. Time is linear in the length of the body.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from gemma_thor_ros.text.normalize_tools import NAME
from gemma_thor_ros.text.writer import MAX_DEPTH

# Stands for the delimiter token in a call's body: a lone surrogate, which decoded text can't hold.
DELIMITER = '\udcff'


class Quoted(str):
    """A value that was written as a string."""

    __slots__ = ()


class Bare(str):
    """A value that was written without quotes, as spelled."""

    __slots__ = ()


Node: TypeAlias = 'Quoted | Bare | list[Node] | dict[str, Node]'


class RawCall(NamedTuple):
    """A call as written: values keep their spelling until a schema is known."""

    name: str
    arguments: dict[str, Node]


class Malformed(Exception):
    """The body of a call can't be read."""


_BLANK = re.compile(r'[ \t\r\n]*+')
_HEAD = re.compile(rf'[ \t\r\n]*+call[ \t\r\n]*+:[ \t\r\n]*+({NAME.pattern})[ \t\r\n]*+(?=\{{)')
_KEY = re.compile(rf'([^,:{{}}\[\]="\'<>\r\n{DELIMITER}]++)[ \t\r\n]*+:[ \t\r\n]*+')
NUMBER = re.compile(r'-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?')
_LITERAL = re.compile(rf'true|false|null|{NUMBER.pattern}')


def read_strict(body: str) -> RawCall | None:
    """The call in a body, or None when it isn't grammatical to the last character."""
    try:
        return _read(body)
    except Malformed:
        return None


def _read(body: str) -> RawCall:
    head = _HEAD.match(body)
    if head is None:
        raise Malformed
    arguments, position = _object(body, head.end(), 1)
    if _skip(body, position) != len(body):
        raise Malformed
    return RawCall(head[1], arguments)


def _object(body: str, position: int, depth: int) -> tuple[dict[str, Node], int]:
    """An object whose brace is at `position`, and the position behind it."""
    pairs: dict[str, Node] = {}
    position = _skip(body, position + 1)
    if body.startswith('}', position):
        return pairs, position + 1
    while True:
        match = _KEY.match(body, position)
        key = match[1].rstrip(' \t') if match else ''
        if match is None or not key or key in pairs:
            raise Malformed
        pairs[key], position = _value(body, match.end(), depth)
        position = _skip(body, position)
        if body.startswith('}', position):
            return pairs, position + 1
        if not body.startswith(',', position):
            raise Malformed
        position = _skip(body, position + 1)


def _array(body: str, position: int, depth: int) -> tuple[list[Node], int]:
    items: list[Node] = []
    position = _skip(body, position + 1)
    if body.startswith(']', position):
        return items, position + 1
    while True:
        item, position = _value(body, position, depth)
        items.append(item)
        position = _skip(body, position)
        if body.startswith(']', position):
            return items, position + 1
        if not body.startswith(',', position):
            raise Malformed
        position = _skip(body, position + 1)


def _value(body: str, position: int, depth: int) -> tuple[Node, int]:
    first = body[position:position + 1]
    if first == DELIMITER:
        end = body.find(DELIMITER, position + 1)
        if end < 0:
            raise Malformed
        return Quoted(body[position + 1:end]), end + 1
    if first in ('{', '['):
        if depth >= MAX_DEPTH:
            raise Malformed
        if first == '{':
            return _object(body, position, depth + 1)
        return _array(body, position, depth + 1)
    match = _LITERAL.match(body, position)
    if match is None:
        raise Malformed
    return Bare(match[0]), match.end()


def _skip(body: str, position: int) -> int:
    match = _BLANK.match(body, position)
    return match.end() if match else position
