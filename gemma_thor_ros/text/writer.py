# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Writes prompt segments and Gemma's own notation of values ({key:value}, quotes as a token).

Knows no messages and no tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.controls import CONTROL_TEXTS, QUOTE
from gemma_thor_ros.text.segments import Segment

MAX_DEPTH = 64                     # objects and arrays inside each other, in prompts and in calls
_CONTROL = {text: Segment(text, True) for text in CONTROL_TEXTS}
_QUOTE = _CONTROL[QUOTE]


class Writer:
    """Collects segments; neighbouring text becomes one segment."""

    __slots__ = ('_run', '_segments')

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._run: list[str] = []

    def text(self, text: str) -> None:
        """Append ordinary text."""
        self._run.append(text)

    def control(self, marker: str) -> None:
        """Append one control token by its marker text."""
        self._end_run()
        self._segments.append(_CONTROL[marker])

    def quoted(self, text: str) -> None:
        """Append a string between two delimiter tokens; nothing in it is escaped."""
        self._end_run()
        if text:
            self._segments += (_QUOTE, Segment(text), _QUOTE)
        else:
            self._segments += (_QUOTE, _QUOTE)

    def value(self, value: Any, quote_keys: bool, where: str, depth: int = 0) -> None:
        """Append a JSON-like value. Raises RequestError naming `where` when it is none."""
        if isinstance(value, str):
            self.quoted(value)
        elif value is True:
            self._run.append('true')
        elif value is False:
            self._run.append('false')
        elif value is None:
            self._run.append('null')
        elif isinstance(value, int | float):
            self._run.append(str(value))
        elif isinstance(value, Mapping):
            self._run.append('{')
            self.pairs(value, quote_keys, where, depth + 1)
            self._run.append('}')
        elif isinstance(value, list | tuple):
            if depth >= MAX_DEPTH:
                raise _too_deep(where)
            self._run.append('[')
            for index, item in enumerate(value):
                if index:
                    self._run.append(',')
                self.value(item, quote_keys, where, depth + 1)
            self._run.append(']')
        else:
            raise RequestError(ErrorCode.INVALID_REQUEST,
                               f'{where} holds a {type(value).__name__}, which is not JSON', where)

    def pairs(self, mapping: Mapping[str, Any], quote_keys: bool, where: str,
              depth: int = 1) -> None:
        """Append the pairs of an object, keys sorted without regard to case."""
        if depth > MAX_DEPTH:
            raise _too_deep(where)
        first = True
        for key, item in sorted_items(mapping):
            if not first:
                self._run.append(',')
            first = False
            if quote_keys:
                self.quoted(key)
                self._run.append(':')
            else:
                self._run.append(key + ':')
            self.value(item, quote_keys, where, depth)

    def finish(self) -> list[Segment]:
        """The segments so far."""
        self._end_run()
        return self._segments

    def _end_run(self) -> None:
        if self._run:
            text = ''.join(self._run)
            self._run.clear()
            if text:
                self._segments.append(Segment(text))


def sorted_items(mapping: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The pairs in the template's order: keys sorted without case, equal ones as they came."""
    if len(mapping) < 2:
        return [(str(key), item) for key, item in mapping.items()]
    return sorted(((str(key), item) for key, item in mapping.items()), key=_folded)


def _folded(pair: tuple[str, Any]) -> str:
    return pair[0].lower()


def _too_deep(where: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST,
                        f'{where} is nested deeper than {MAX_DEPTH} levels', where)
