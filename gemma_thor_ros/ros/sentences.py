# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A stream of answer text -> pieces that can be spoken, each as soon as it is certain.

Where to cut is decided character by character, so the pieces do not depend on how the text came.
What is said for a piece is spoken.py's. Knows no ROS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemma_thor_ros.ros.spoken import spoken

MAX_CHARS = 240  # of the text that one piece speaks
FIRST_CHARS = 80  # the same for the first piece, which the listener is waiting for
CLAUSE_CHARS = 24  # the first piece may end at a comma behind so many
_CLOSERS = '"\'”’»)]*_`'
_END = re.compile(rf'[.!?…]+[{re.escape(_CLOSERS)}]*\s$')
_ELLIPSIS = re.compile(rf'(?:\.\.+|…)[{re.escape(_CLOSERS)}]*\s+$')
_CLAUSE = re.compile(r'[,;:—–][*_`]*\s$')
_WORD = re.compile(r'([^\s(["\'*_]+)\.[^\w\s]*\s$')
_FULL_STOPS = '。！？'
_FENCES = ('```', '~~~')
# A full stop behind these does not end a sentence; compared in lower case.
ABBREVIATIONS = frozenset((
    'dr', 'mr', 'mrs', 'ms', 'prof', 'st', 'sr', 'jr', 'vs', 'etc', 'approx', 'dept', 'fig',
    'figs', 'no', 'nr', 'vol', 'ca', 'cf', 'ed', 'eq', 'eqs', 'e.g', 'i.e', 'eg', 'ie', 'a.m',
    'p.m', 'u.s', 'u.k', 'inc', 'ltd', 'co', 'max', 'min', 'avg', 'resp', 'incl', 'excl', 'tel',
    'ext', 'est', 'jan', 'feb', 'mar', 'apr', 'jun', 'jul', 'aug', 'sep', 'sept', 'oct', 'nov',
    'dec', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun', 'z.b', 'd.h', 'bzw', 'usw', 'ggf',
))  # fmt: skip
# Those that may end a sentence too: before a capital letter they do.
_EITHER = frozenset(
    ('a.m', 'co', 'etc', 'inc', 'ltd', 'max', 'min', 'no', 'p.m', 'sat', 'sun')
)
_DOTTED = re.compile(r'(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}')  # U.S, Ph.D, M.Sc


@dataclass(frozen=True)
class Piece:
    """`text` to say for the characters [start, end) of the answer; they follow on one another."""

    text: str
    start: int
    end: int


class SentenceSplitter:
    """Cuts one answer into pieces; used by one thread.

    The spans of all pieces cover the text without gap or overlap: what is not said (code, rules,
    blank lines) belongs to the piece behind it, or to the last one.
    """

    def __init__(
        self, *, units: bool = True, max_chars: int = MAX_CHARS, first_chars: int = FIRST_CHARS
    ) -> None:
        self._units = units
        self._max_chars = max_chars
        self._first_chars = min(first_chars, max_chars)
        self._raw = ''  # of the present line, not spoken yet
        self._start = 0  # of the next piece
        self._position = 0
        self._at_line_start = True
        self._in_code = False
        self._num_pieces = 0

    def push(self, text: str) -> list[Piece]:
        """Take more text and return the pieces that it completes."""
        pieces: list[Piece] = []
        for character in text:
            self._take(character, pieces)
        return pieces

    def end_round(self) -> list[Piece]:
        """Return what is open: other text follows, but not in this sentence."""
        pieces: list[Piece] = []
        self._end_line(pieces)
        self._in_code = False
        return pieces

    def finish(self, *, cut: bool = False, silent: bool = False) -> Piece:
        """Return the last piece; its text may be empty.

        Args:
            cut: the answer ended in the middle: a half word at its end is not said.
            silent: the answer was cancelled or failed: nothing more is said.
        """
        raw = '' if self._in_code or self._is_fence() else self._raw
        if cut and raw:
            raw = raw[: _last_space(raw)]
        text = '' if silent else spoken(raw, self._at_line_start, self._units)
        return Piece(text, self._start, self._position)

    def _take(self, character: str, pieces: list[Piece]) -> None:
        self._position += 1
        if character == '\n':
            self._end_line(pieces)
            return
        held = self._raw
        self._raw += character
        if self._in_code or self._is_fence():
            return
        if character.isspace():
            if self._ends_sentence() or self._ends_first_clause():
                self._emit(len(self._raw), pieces)
        elif self._ended_before(held, character):
            self._emit(len(held), pieces)
        limit = self._first_chars if self._num_pieces == 0 else self._max_chars
        if len(self._raw) >= limit:
            self._emit(_cut_at(self._raw, limit), pieces)

    def _end_line(self, pieces: list[Piece]) -> None:
        if self._is_fence():
            self._in_code = not self._in_code
            self._raw = ''
        elif self._in_code:
            self._raw = ''
        self._emit(len(self._raw), pieces)
        self._at_line_start = True

    def _emit(self, length: int, pieces: list[Piece]) -> None:
        """Speak the first `length` characters of what is held."""
        raw, self._raw = self._raw[:length], self._raw[length:]
        text = spoken(raw, self._at_line_start, self._units)
        self._at_line_start = False
        if text:
            end = self._position - len(self._raw)
            pieces.append(Piece(text, self._start, end))
            self._start = end
            self._num_pieces += 1

    def _is_fence(self) -> bool:
        return self._at_line_start and self._raw.lstrip().startswith(_FENCES)

    def _ends_sentence(self) -> bool:
        raw = self._raw
        if not _END.search(raw) or _ELLIPSIS.search(raw):
            return False
        word = _WORD.search(raw)
        if word is None:
            return True
        begins_line = self._at_line_start and not raw[: word.start()].strip()
        if begins_line and word[1].isdigit():
            return False  # the number of a list item
        return not _is_abbreviation(word[1])

    def _ended_before(self, held: str, character: str) -> bool:
        """Whether what is held turns out to be a whole sentence, seen its next character."""
        if _ELLIPSIS.search(held):
            return not character.islower()
        if held[-1:] and held[-1] in _FULL_STOPS:
            return character not in _CLOSERS + _FULL_STOPS
        word = _WORD.search(held) if held.endswith(' ') else None
        return word is not None and word[1].lower() in _EITHER and character.isupper()

    def _ends_first_clause(self) -> bool:
        return (
            self._num_pieces == 0
            and len(self._raw) >= CLAUSE_CHARS
            and _CLAUSE.search(self._raw) is not None
        )


def _is_abbreviation(word: str) -> bool:
    lower = word.lower()
    if lower in ABBREVIATIONS or _DOTTED.fullmatch(word) is not None:
        return True
    return len(word) == 1 and word.isalpha() and word.isupper()


def _cut_at(raw: str, limit: int) -> int:
    """Return where to cut what has become too long: behind a clause, a word, or at the limit."""
    for index in range(limit - 1, limit // 2, -1):
        if raw[index].isspace() and raw[index - 1] in ',;:—–)':
            return index + 1
    # A number stays with its unit.
    for index in range(limit - 1, 0, -1):
        if raw[index].isspace() and not raw[index - 1].isdigit() and raw[:index].strip():
            return index + 1
    return limit


def _last_space(raw: str) -> int:
    return max((i for i, c in enumerate(raw) if c.isspace()), default=0)
