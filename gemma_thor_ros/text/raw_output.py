# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads the answer to a raw prompt: token ids to plain text, nothing in it has a meaning.

Stands where parser.py's OutputParser stands for chats, with the same two methods. Control tokens
add no text. Knows no engine and no stop strings.
"""

from __future__ import annotations

from collections.abc import Iterable

from gemma_thor_ros.schema import FinishReason
from gemma_thor_ros.text.detokenize import Detokenizer
from gemma_thor_ros.text.parser import ParsedOutput, ParserDelta
from gemma_thor_ros.text.tokenizer import Tokenizer


class RawOutput:
    """Joined deltas of push and finish are the whole text, however the ids are cut."""

    reasoning_tokens = 0

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = Detokenizer(tokenizer, keep_controls=False)

    def push(self, token_ids: Iterable[int]) -> list[ParserDelta]:
        """Return the text that these ids complete."""
        text = self._detokenizer.push(token_ids)
        return [ParserDelta(text=text)] if text else []

    def finish(self, reason: FinishReason) -> ParsedOutput:
        """Return what is left: nothing but the reason. ChatStream keeps the text."""
        rest = self._detokenizer.flush()
        deltas = (ParserDelta(text=rest),) if rest else ()
        return ParsedOutput('', '', (), reason, deltas=deltas)
