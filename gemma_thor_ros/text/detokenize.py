# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Token ids to text as they come, never half a code point.

Characters outside the vocabulary arrive as several byte tokens; their text comes out with the last
of them. Knows no chat format.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from gemma_thor_ros.text.tokenizer import Tokenizer

_Utf8 = codecs.getincrementaldecoder('utf-8')


class Detokenizer:
    """Incremental `Tokenizer.decode`: joined results are equal to it however the ids are cut.

    Control tokens come out as their marker texts, or as nothing with `keep_controls=False`. Bytes
    that aren't UTF-8 are dropped; ids outside the vocabulary add nothing.
    """

    def __init__(self, tokenizer: Tokenizer, *, keep_controls: bool = True) -> None:
        self._pieces = tokenizer.pieces
        self._bytes = tokenizer.byte_values
        self._hidden = frozenset() if keep_controls else tokenizer.control_ids
        self._decoder = _Utf8('ignore')
        self._waiting = False            # bytes of an unfinished code point are in the decoder

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that these ids complete."""
        return ''.join([self.push_one(token_id) for token_id in token_ids])

    def push_one(self, token_id: int) -> str:
        """Text that one id completes; '' while a code point is unfinished."""
        if not 0 <= token_id < len(self._pieces):
            return ''
        piece = self._pieces[token_id]
        if piece is None:
            text = self._decoder.decode(bytes((self._bytes[token_id],)))
            self._waiting = not text
            return text
        if token_id in self._hidden:
            piece = ''
        if self._waiting:
            return self.flush() + piece
        return piece

    def flush(self) -> str:
        """End a run and start anew; an unfinished code point gives nothing."""
        self._waiting = False
        text = self._decoder.decode(b'', True)
        self._decoder.reset()
        return text
