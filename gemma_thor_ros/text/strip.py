# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Strips blanks at both ends of a text that arrives in pieces. Knows nothing of tokens."""

from __future__ import annotations


class StripStream:
    """A text made of blocks, each stripped, joined by `between`.

    With `between=None` the whole is one block: blanks inside stay. `push` gives what is certain:
    blanks wait until something follows them. Truthy once something came out.
    """

    def __init__(self, between: str | None = None) -> None:
        self._between = between
        self._out: list[str] = []
        self._blanks: list[str] = []     # blanks that may turn out to be at the end
        self._started = False            # this block has given something out
        self._keep_start = False

    def __bool__(self) -> bool:
        return bool(self._out)

    def keep_start(self) -> None:
        """Keep blanks at the start: the text goes on from something before it."""
        self._keep_start = True

    def push(self, text: str) -> str:
        """Add a piece; returns the text that it makes certain."""
        body = text.rstrip()
        if not body:
            if self._started or self._keep_start:
                self._blanks.append(text)
            return ''
        tail = text[len(body):]
        if self._started or self._keep_start:
            body = ''.join(self._blanks) + body
            self._blanks.clear()
        else:
            body = body.lstrip()
            if self._between and self._out:
                body = self._between + body
        self._started, self._keep_start = True, False
        if tail:
            self._blanks.append(tail)
        self._out.append(body)
        return body

    def end_block(self) -> None:
        """The next piece starts a block of its own."""
        self._blanks.clear()
        self._started = False

    def text(self) -> str:
        """Everything given out so far."""
        return ''.join(self._out)
