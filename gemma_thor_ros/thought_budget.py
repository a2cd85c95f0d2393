# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A bound on the thought alone: a guide that closes it after so many tokens, beside another guide.

The close is forced token by token, the line end first as the model itself would write it, so that
the answer goes on in the form it was trained on. What comes next depends on the tokens alone, so
drafted, streamed and resumed answers stay equal. Knows no engine and no arrays.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from gemma_thor_ros.schema import Guide
from gemma_thor_ros.text.prompt import PromptState
from gemma_thor_ros.text.tokenizer import Tokenizer

_MAX_ROLLBACK = 64  # as the grammars have it
_LONGEST_LABEL = 8  # tokens; the label is `thought` and a line end


class ThoughtMarks:
    """The ids that tell where a thought begins, ends and breaks its lines."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.channel = tokenizer.controls.channel
        self.channel_end = tokenizer.controls.channel_end
        self.newline = tokenizer.encode('\n')[0]
        self.newlines = frozenset(
            token_id
            for token_id, piece in enumerate(tokenizer.pieces)
            if piece and not piece.strip('\n')
        )


class _State(NamedTuple):
    inside: bool  # of a thought
    label: int  # tokens of its label so far; -1 = the label is over
    used: int = 0  # tokens of all thoughts, labels and markers not counted
    at_line_end: bool = True


class ThoughtBudget:
    """See schema.Guide. `budget`: tokens of thought, at least 1; the line end that closes a cut
    one comes on top. `guide`: what else holds the answer.
    """

    def __init__(
        self, budget: int, marks: ThoughtMarks, prompt: PromptState, guide: Guide | None
    ) -> None:
        self._budget = budget
        self._marks = marks
        self._guide = guide
        text = prompt.channel_text
        if text is None:
            self._state = _State(False, -1)
        else:  # the prompt ends inside a thought
            self._state = _State(True, -1 if '\n' in text else 0, 0, text.endswith('\n'))
        self._past: deque[_State] = deque(maxlen=_MAX_ROLLBACK)

    @property
    def finished(self) -> bool:
        """Whether the answer is over."""
        return self._guide is not None and self._guide.finished

    @property
    def banned(self) -> tuple[int, ...]:
        """Ids that may not come next where `allowed` gives None."""
        banned = self._guide.banned if self._guide is not None else ()
        spent = self._state.used >= self._budget and not self._state.inside
        return (*banned, self._marks.channel) if spent else banned

    def allowed(self) -> bytes | None:
        """Bits of the ids that may come next, or None: all but `banned`."""
        inside, label, used, at_line_end = self._state
        if inside and label < 0 and used >= self._budget:
            return _bit(self._marks.channel_end if at_line_end else self._marks.newline)
        return self._guide.allowed() if self._guide is not None else None

    def accept(self, token_id: int) -> None:
        """Go on behind a token."""
        if self._guide is not None:
            self._guide.accept(token_id)
        self._past.append(self._state)
        self._state = self._after(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        if num_tokens > len(self._past):
            raise ValueError(f'{num_tokens} tokens can not be taken back')
        if self._guide is not None:
            self._guide.rollback(num_tokens)
        for _ in range(num_tokens):
            self._state = self._past.pop()

    def _after(self, token_id: int) -> _State:
        state, marks = self._state, self._marks
        if token_id == marks.channel:
            return _State(True, 0, state.used)
        if token_id == marks.channel_end:
            return _State(False, -1, state.used)
        if not state.inside:
            return state
        at_line_end = token_id in marks.newlines
        if state.label >= 0:
            over = at_line_end or state.label + 1 >= _LONGEST_LABEL
            return _State(True, -1 if over else state.label + 1, state.used, at_line_end)
        return _State(True, -1, state.used + 1, at_line_end)


def _bit(token_id: int) -> bytes:
    return bytes(token_id >> 3) + bytes((1 << (token_id & 7),))
