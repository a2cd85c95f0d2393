# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Stop strings in streamed text: nothing of a stop string leaks, nothing else is lost.

Works on visible text alone; knows no tokens and no engine. Used by chat.py.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Cuts a stream of text before the stop string that is complete first.

    Text that may be the beginning of a stop string is held back, and so are trailing blanks:
    whether they are part of the answer shows only when more text follows.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ''
        self.hit = ''  # the stop string that was found

    def push(self, text: str) -> str:
        """Return what may be shown after `text` has been added."""
        if not self._stops or self.hit:
            return '' if self.hit else text
        held = self._held + text
        found = [(position, stop) for stop in self._stops if (position := held.find(stop)) >= 0]
        if found:
            # What is complete first wins, of two the longer: so it does not matter how the text
            # was cut, although a longer one may have begun before.
            position, self.hit = min(found, key=lambda item: (item[0] + len(item[1]), item[0]))
            self._held = ''
            return held[:position].rstrip()
        keep = len(held) - self._held_back(held)
        shown = held[:keep].rstrip()
        self._held = held[len(shown) :]
        return shown

    def flush(self) -> str:
        """Return what was held back: the stream has ended without a stop string."""
        held, self._held = self._held, ''
        return '' if self.hit else held

    def _held_back(self, text: str) -> int:
        """Return the length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
