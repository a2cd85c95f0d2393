# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Keeps keys that a model invents unique within their object, which no grammar can.

Follows the brackets of a call and names the tokens that would finish a key for a second time. A
longer key is always possible, so that no call gets stuck. Knows token bytes only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# A key and its colon behind a bracket or comma of the same token: left out altogether, as the
# model can write it in two.
_WHOLE_PAIR = re.compile(rb'[{,\[\]}][^:]*:')


class KeyState(NamedTuple):
    """Where a call is: the open brackets, the key being written, within a string or not.

    A bracket is the keys of its object so far, or None for an array.
    """

    brackets: tuple[tuple[bytes, ...] | None, ...] = ()
    key: bytes | None = None
    quoted: bool = False


class UniqueKeys:
    """For one vocabulary: `tokens[i]` are the bytes of id i, b'' for control tokens."""

    def __init__(self, tokens: Sequence[bytes], quote_id: int) -> None:
        self._tokens = tokens
        self._quote_id = quote_id
        self._pairs: list[int] = []
        self._ends: dict[bytes, list[int]] = {}          # before the colon -> ids
        for token_id, token in enumerate(tokens):
            if b':' not in token:
                continue
            if _WHOLE_PAIR.search(token):
                self._pairs.append(token_id)
            else:
                self._ends.setdefault(token.partition(b':')[0], []).append(token_id)

    def after(self, state: KeyState, token_id: int) -> KeyState:
        """The state behind one more token."""
        brackets, key, quoted = state
        if token_id == self._quote_id:
            return KeyState(brackets, key, not quoted)
        if quoted:
            return state
        for byte in self._tokens[token_id]:
            char = byte.to_bytes(1, 'big')
            if char in (b'{', b'['):
                brackets += (() if char == b'{' else None,)
                key = b'' if char == b'{' else None
            elif char in (b'}', b']'):
                brackets, key = brackets[:-1], None
            elif char == b',':
                key = b'' if brackets and brackets[-1] is not None else None
            elif key is not None and char == b':':
                brackets = (*brackets[:-1], (*(brackets[-1] or ()), key))
                key = None
            elif key is not None:
                key += char
        return KeyState(brackets, key, quoted)

    def forbidden(self, state: KeyState) -> list[int]:
        """Ids that would finish a key that its object has already."""
        if state.quoted or not state.brackets:
            return []
        found = self._pairs
        if state.key is not None:
            for used in state.brackets[-1] or ():
                if used.startswith(state.key):
                    found = found + self._ends.get(used[len(state.key):], [])
        return found
