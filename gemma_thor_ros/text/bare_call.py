# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Holds back visible text that may turn out to be structure whose opening token is missing.

Three things that models do: a thought without its opener ("thought", newline, text, then the
closer), text behind a call that was made inside a thought, and "call:name{...}" without its
opener, for a declared tool. Only the closing token decides; until it comes, or can't come any
more, the text waits here. Knows text and names only.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from gemma_thor_ros.text.call_syntax import DELIMITER

_THOUGHT = 'thought\n'
_CALL = 'call:'
_MAX_NAME = 128                    # characters; bare calls of longer names stay text
_MAX_HELD = 8192                   # characters of a bare call; longer ones stay text


class _Mode(Enum):
    START = 'start'                # the first characters: may become "thought\n"
    FREE = 'free'
    THOUGHT = 'thought'            # everything waits for the closer
    CALL = 'call'                  # behind call:name{


class BareCallWatch:
    """`push` visible text; returns what is certainly text. `begin` starts a run of text.

    `names` are the declared tools; without any, no bare call is looked for.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name for name in names if 0 < len(name) <= _MAX_NAME)
        self._longest = len(_CALL) + max(map(len, self._names), default=0)
        self._held: list[str] = []
        self._mode = _Mode.START
        self._probe = ''               # START: the first characters without leading blanks
        self._last = ''                # FREE: the character before what is held
        self._depth = 0                # CALL: open brackets
        self._in_string = False        # CALL: between two delimiter tokens
        self._length = 0               # CALL: characters held

    def begin(self, *, watch_thought: bool = True, after_open_thought: bool = False) -> None:
        """A new run of visible text begins; what was held must have been taken before."""
        self._held.clear()
        self._probe = self._last = ''
        self._mode = _Mode.START if watch_thought else _Mode.FREE
        if after_open_thought:
            self._mode = _Mode.THOUGHT

    def push(self, text: str) -> str:
        """Take text; returns the part that is certainly visible text."""
        if self._mode is _Mode.FREE and not self._names:
            return text
        out: list[str] = []
        while text:
            if self._mode is _Mode.FREE:
                text = self._free(text, out)
            elif self._mode is _Mode.CALL:
                text = self._in_call(text, out)
            elif self._mode is _Mode.START:
                text = self._start(text)
            else:
                self._held.append(text)
                break
        return ''.join(out)

    def quote(self) -> None:
        """A delimiter token: part of a bare call, nothing anywhere else."""
        if self._mode is _Mode.CALL:
            self._held.append(DELIMITER)
            self._in_string = not self._in_string

    def thought_closed(self) -> tuple[str, bool]:
        """A channel closer came: the held text, and whether it was a thought."""
        mode, probe = self._mode, self._probe
        held = self.release()
        if mode is _Mode.START:
            return ('', True) if probe == 'thought' else (held, False)
        if mode is _Mode.THOUGHT:
            start = held.lstrip()
            return (start[len(_THOUGHT):] if start.startswith(_THOUGHT) else held), True
        return held, False

    def bare_call(self) -> str | None:
        """A call closer came: the body of a complete bare call, or None."""
        if self._mode is not _Mode.CALL or self._depth > 0 or self._in_string:
            return None
        body = ''.join(self._held)
        self.begin()
        return body

    def release(self) -> str:
        """Give up waiting: what was held is text, without its delimiter tokens."""
        held = ''.join(self._held).replace(DELIMITER, '')
        self._held.clear()
        self._last = held[-1:] or self._last
        self._mode = _Mode.FREE
        return held

    def _start(self, text: str) -> str:
        self._probe = self._probe + text if self._probe else text.lstrip()
        self._held.append(text)
        if self._probe.startswith(_THOUGHT):
            self._mode = _Mode.THOUGHT
        elif not _THOUGHT.startswith(self._probe):
            held = self.release()
            self._last = ''
            return held
        return ''

    def _free(self, text: str, out: list[str]) -> str:
        """Pass text on up to where a bare call begins, or may begin; returns the rest."""
        pending = ''.join(self._held) + text
        self._held.clear()
        start = pending.find(_CALL[0])
        while start >= 0:
            name = start + len(_CALL)
            if not self._in_word(pending, start):
                brace = pending.find('{', name, start + self._longest + 1)
                if brace > name and pending.startswith(_CALL, start) \
                        and pending[name:brace] in self._names:
                    self._pass(pending[:start], out)
                    self._held.append(pending[start:brace + 1])
                    self._mode, self._depth, self._in_string = _Mode.CALL, 1, False
                    self._length = brace + 1 - start
                    return pending[brace + 1:]
                if len(pending) - start <= self._longest and self._may_begin(pending[start:]):
                    self._pass(pending[:start], out)
                    self._held.append(pending[start:])
                    return ''
            start = pending.find(_CALL[0], start + 1)
        self._pass(pending, out)
        return ''

    def _in_word(self, pending: str, start: int) -> bool:
        before = pending[start - 1] if start else self._last
        return before.isalnum() or before == '_'

    def _may_begin(self, tail: str) -> bool:
        """Tell whether more text can make this a bare call of a declared tool."""
        if not tail.startswith(_CALL):
            return _CALL.startswith(tail)
        begun = tail[len(_CALL):]
        return any(name.startswith(begun) for name in self._names)

    def _pass(self, text: str, out: list[str]) -> None:
        if text:
            self._last = text[-1]
            out.append(text)

    def _in_call(self, text: str, out: list[str]) -> str:
        """Follow the brackets of a bare call; text behind the last one shows that it is none."""
        for index, char in enumerate(text):
            if self._depth <= 0:
                if not char.isspace():
                    self._held.append(text[:index])
                    out.append(self.release())
                    return text[index:]
            elif self._in_string:
                continue
            elif char in '{[(':
                self._depth += 1
            elif char in '}])':
                self._depth -= 1
        self._held.append(text)
        self._length += len(text)
        if self._length > _MAX_HELD:
            out.append(self.release())
        return ''
