# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The bound on thoughts: where it closes them, what it leaves alone, and going back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.text.prompt import PromptState
from gemma_thor_ros.text.tokenizer import Tokenizer
from gemma_thor_ros.thought_budget import ThoughtBudget, ThoughtMarks

TOKENIZER = Tokenizer.from_folder(DEMO_FOLDER)
MARKS = ThoughtMarks(TOKENIZER)
OPEN, CLOSE, LINE = MARKS.channel, MARKS.channel_end, MARKS.newline
LABEL = TOKENIZER.encode('thought')
WORD = TOKENIZER.encode('robot')[0]
NO_THOUGHT = PromptState()


def only(guide: ThoughtBudget) -> int | None:
    """The one id that may come next, or None where many may."""
    bits = guide.allowed()
    if bits is None:
        return None
    ids = [8 * i + bit for i, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]
    assert len(ids) == 1
    return ids[0]


def after(budget: int, *token_ids: int, prompt: PromptState = NO_THOUGHT) -> ThoughtBudget:
    guide = ThoughtBudget(budget, MARKS, prompt, None)
    for token_id in token_ids:
        guide.accept(token_id)
    return guide


def test_a_thought_is_closed_after_its_tokens() -> None:
    begin = (OPEN, *LABEL, LINE)
    assert only(after(3, *begin, WORD, WORD)) is None
    assert only(after(3, *begin, WORD, WORD, WORD)) == LINE
    assert only(after(3, *begin, WORD, WORD, WORD, LINE)) == CLOSE
    assert only(after(3, *begin, WORD, WORD, LINE)) == CLOSE
    assert only(after(3, *begin, WORD, WORD, WORD, LINE, CLOSE)) is None


def test_label_and_text_do_not_count() -> None:
    assert only(after(1, OPEN, *LABEL)) is None
    assert only(after(1, OPEN, *LABEL, LINE)) is None
    assert only(after(1, *[WORD] * 20)) is None
    assert only(after(1, OPEN, *[WORD] * 8)) is None         # a label that never ends
    assert only(after(1, OPEN, *[WORD] * 9)) == LINE


def test_a_spent_budget_lets_no_second_thought_begin() -> None:
    first = (OPEN, *LABEL, LINE, WORD, WORD, LINE, CLOSE)
    assert after(2, *first).banned == (OPEN,)
    assert after(9, *first).banned == ()
    assert only(after(4, *first, OPEN, *LABEL, LINE, WORD)) == LINE      # 3 tokens and 1


@pytest.mark.parametrize(('text', 'expected'), [('thought\n', None), ('thought\nhm', None),
                                                ('thought', None)])
def test_prompts_that_end_in_a_thought(text: str, expected: None) -> None:
    prompt = PromptState(channel_text=text)
    assert only(after(2, prompt=prompt)) is expected
    begun = () if '\n' in text else (LINE,)
    assert only(after(2, *begun, WORD, WORD, prompt=prompt)) == LINE


class _Guide:
    """Another guide, which counts."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.banned = (7,)
        self.finished = False

    def allowed(self) -> bytes | None:
        return b'\x02'

    def accept(self, token_id: int) -> None:
        self.taken.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        del self.taken[len(self.taken) - num_tokens:]


def test_another_guide_holds_beside_it() -> None:
    inner = _Guide()
    guide = ThoughtBudget(1, MARKS, NO_THOUGHT, inner)
    assert (guide.allowed(), guide.banned) == (b'\x02', (7,))
    for token_id in (OPEN, *LABEL, LINE, WORD):
        guide.accept(token_id)
    assert only(guide) == LINE
    guide.accept(LINE)
    guide.accept(CLOSE)
    assert (guide.allowed(), guide.banned) == (b'\x02', (7, OPEN))
    guide.rollback(2)
    assert inner.taken == [OPEN, *LABEL, LINE, WORD]
    assert only(guide) == LINE
    inner.finished = True
    assert guide.finished


@given(st.lists(st.sampled_from([OPEN, CLOSE, LINE, WORD, *LABEL]), max_size=40),
       st.lists(st.integers(0, 5), max_size=8))
def test_going_back_leaves_no_trace(token_ids: list[int], steps: list[int]) -> None:
    guide = after(3, *token_ids)
    for count in steps:
        tried = token_ids[:count]
        for token_id in tried:
            guide.accept(token_id)
        guide.rollback(len(tried))
    plain = after(3, *token_ids)
    assert (guide.allowed(), guide.banned) == (plain.allowed(), plain.banned)
