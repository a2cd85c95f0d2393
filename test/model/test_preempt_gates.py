# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""preempted == undisturbed: pauses, and drops with recomputation, at every step of an answer.

On a model of random logits whose pages know whose they are and which role filled them, and on tiny
Gemma 4 models bit by bit. Each gate is followed by the errors that it must catch.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from engine_gates import HashModel, make_request
from forward import TINY_DENSE, TINY_MOE, random_model
from preempt_gates import (
    Stepped,
    dropped_once,
    every_step_gate,
    paused_once,
    preempt_gate,
    with_priority,
)

from gemma_thor_ros.engine import plan, scheduler
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.batch import Role
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.schema import Priority

TOKENS = 64
VICTIM = make_request('victim', 37, 1, max_tokens=TOKENS, repetition_penalty=1.2)
INTRUDER = make_request('intruder', 50, 2, max_tokens=3)
LATER = range(3, TOKENS, 7)              # steps at which planted errors have had time to show
# memory for one of the two: 13 pages of 8 for the victim, 7 for the intruder
SCARCE: dict[str, Any] = {'num_full_pages': 15, 'num_sliding_pages': 17, 'prefill_chunk': 16}

gemma_request = partial(make_request, vocab_size=96)
GEMMA_VICTIM = gemma_request('victim', 41, 1, max_tokens=TOKENS)
GEMMA_INTRUDER = gemma_request('intruder', 45, 2, max_tokens=2)
GEMMA_SCARCE: dict[str, Any] = {'page_size': 16, 'num_full_pages': 8, 'num_sliding_pages': 8,
                                'prefill_chunk': 23}


@cache
def model(name: str) -> Gemma4:
    if name == 'moe':
        return random_model(TINY_MOE, rounding='device')
    return random_model(TINY_DENSE)


class TestPreemptedEqualsUndisturbed:

    def test_paused_at_every_step(self) -> None:
        assert preempt_gate(HashModel(), VICTIM, INTRUDER, range(1, TOKENS + 2),
                            expect=paused_once, prefill_chunk=16) == []

    def test_dropped_at_every_step(self) -> None:
        """In the middle of its prompt as well: 37 tokens are three chunks."""
        assert preempt_gate(HashModel(), VICTIM, INTRUDER, range(1, TOKENS + 2),
                            expect=dropped_once, **SCARCE) == []

    def test_dropped_after_every_token(self) -> None:
        assert every_step_gate(HashModel(), VICTIM, INTRUDER, **SCARCE) == []

    @pytest.mark.parametrize('name', ['moe', 'dense'])
    def test_dropped_at_every_step_of_a_gemma_answer(self, name: str) -> None:
        assert preempt_gate(model(name), GEMMA_VICTIM, GEMMA_INTRUDER, range(1, TOKENS + 1, 7),
                            expect=dropped_once, **GEMMA_SCARCE) == []

    @pytest.mark.parametrize('name', ['moe', 'dense'])
    def test_dropped_after_every_token_of_a_gemma_answer(self, name: str) -> None:
        assert every_step_gate(model(name), GEMMA_VICTIM, GEMMA_INTRUDER, **GEMMA_SCARCE) == []

    def test_what_is_computed_again_and_how(self) -> None:
        """The prompt from its checkpoint as prompt rows, the answer as decode rows, 16 a step."""
        stepped = Stepped(HashModel(), max_sequences=1, num_full_pages=15, num_sliding_pages=40)
        stepped.submit(with_priority(VICTIM, Priority.BACKGROUND))
        stepped.step(1 + 40)                             # 41 tokens, 40 of them in the cache
        stepped.submit(with_priority(make_request('short', 9, 2, max_tokens=1),
                                     Priority.OPERATOR))
        stepped.model.steps.clear()
        stepped.step()
        assert stepped.engine.stats().drops == 0, 'there was room for two'
        stepped.submit(with_priority(INTRUDER, Priority.OPERATOR))
        stepped.step(3)
        assert stepped.engine.stats().drops == 1
        stepped.model.steps.clear()
        stepped.step(6)
        spans = [span for step in stepped.model.steps for span in step]
        assert spans == [(Role.PREFILL, 5, 32), (Role.DECODE, 16, 37), (Role.DECODE, 16, 53),
                         (Role.DECODE, 9, 69), (Role.DECODE, 1, 78), (Role.DECODE, 1, 79)]
        stepped.finish()
        stepped.close()


class TestPlantedErrors:

    def test_answer_computed_again_as_prompt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One prefill over prompt and answer, as engines with recomputation do."""
        def role(self: Sequence) -> Role:
            return Role.PREFILL if self.num_committed < self.num_tokens - 1 else Role.DECODE

        def choose(running: Any, prefill_chunk: int, max_rows: int) -> Any:
            return [(s, min(prefill_chunk, s.num_tokens - s.num_committed)) for s in running]
        monkeypatch.setattr(Sequence, 'role', property(role))
        monkeypatch.setattr(scheduler, 'choose_rows', choose)
        assert preempt_gate(HashModel(), VICTIM, INTRUDER, LATER, expect=dropped_once,
                            **SCARCE) != []
        assert preempt_gate(model('dense'), GEMMA_VICTIM, GEMMA_INTRUDER, [30, 60],
                            expect=dropped_once, **GEMMA_SCARCE) != []

    def test_sequence_that_forgets_its_drop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It goes on where it was, on pages that are not its own any more."""
        right = scheduler.Scheduler._start

        def wrong(self: scheduler.Scheduler, sequence: Sequence) -> bool:
            if not right(self, sequence):
                return False
            if sequence.num_generated:
                self.pages.grow(sequence.pages, sequence.num_tokens - 1)
                sequence.num_committed = sequence.num_tokens - 1
            return True
        monkeypatch.setattr(scheduler.Scheduler, '_start', wrong)
        assert preempt_gate(HashModel(), VICTIM, INTRUDER, LATER, expect=dropped_once,
                            **SCARCE) != []

    def test_token_that_is_drawn_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The recomputed prompt asks for a first token again."""
        right = plan.build_plan

        def wrong(chosen: Any, *args: Any) -> Any:
            held = [(s, s.num_tokens) for s, _ in chosen]
            for sequence, num_rows in chosen:
                if sequence.num_committed + num_rows == sequence.num_prompt:
                    sequence.num_tokens = sequence.num_prompt
            built = right(chosen, *args)
            for sequence, num_tokens in held:
                sequence.num_tokens = num_tokens
            return built
        monkeypatch.setattr(scheduler, 'build_plan', wrong)
        assert preempt_gate(HashModel(), VICTIM, INTRUDER, LATER, expect=dropped_once,
                            **SCARCE) != []

    def test_pages_lost_by_a_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The slot is taken and the pages too, but nobody notes it."""
        right = scheduler._insert

        def wrong(queue: Any, sequence: Sequence) -> None:
            if sequence.pages is not None and sequence.num_generated:
                for pool, table in ((pages.full, sequence.pages.full),
                                    (pages.sliding, sequence.pages.sliding)):
                    pool._on_freed(pool.geometry, [int(i) for i in table if i >= 0])
            right(queue, sequence)
        pages: Any = None
        original = scheduler.Scheduler.__init__

        def init(self: scheduler.Scheduler, *args: Any, **options: Any) -> None:
            nonlocal pages
            original(self, *args, **options)
            pages = self.pages
        monkeypatch.setattr(scheduler.Scheduler, '__init__', init)
        monkeypatch.setattr(scheduler, '_insert', wrong)
        assert preempt_gate(HashModel(), VICTIM, INTRUDER, LATER, expect=paused_once,
                            prefill_chunk=16) != []

    def test_penalties_that_count_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The history is filled anew at a drop, and what was in it stays."""
        victim = make_request('victim', 37, 1, max_tokens=TOKENS, frequency_penalty=1.0,
                              temperature=0.3)
        assert preempt_gate(HashModel(), victim, INTRUDER, LATER, expect=dropped_once,
                            **SCARCE) == []
        right = scheduler.Scheduler.drop

        def wrong(self: scheduler.Scheduler, sequence: Sequence) -> None:
            right(self, sequence)
            for token_id in sequence.token_ids[sequence.num_prompt:sequence.num_tokens]:
                sequence.history.append(int(token_id))
        monkeypatch.setattr(scheduler.Scheduler, 'drop', wrong)
        assert preempt_gate(HashModel(), victim, INTRUDER, LATER, expect=dropped_once,
                            **SCARCE) != []


def test_rows_of_one_step_and_of_many_are_the_same_to_the_gate() -> None:
    """The undisturbed answers are not trivial: 64 tokens, many of them different."""
    stepped = Stepped(HashModel(), max_sequences=1)
    stepped.submit(VICTIM)
    answer = stepped.finish()['victim']
    stepped.close()
    assert len(answer.token_ids) == TOKENS
    assert len(np.unique(answer.token_ids)) > 30
