# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A real drafter whose guesses are written down and replaced by an oracle's.

So drafts are kept and refused in every pattern, while the drafter works on what the engine showed
it. Its own guesses are then compared with those for the same history on fresh pages: a wrong tap
row, a stale key or a page freed too early shows, although no answer depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from draft_cases import Bench
from draft_gates import Oracle
from engine_gates import Answer, Job
from forward import Role

from gemma_thor_ros.models.drafter import Drafts, DraftSpan
from gemma_thor_ros.models.scripted_drafter import ScriptedDrafter

_CHUNK = 9                               # rows of a fresh run's steps; the engine cuts otherwise
_CLOSE = 1e-4                            # drafters need not have the same bits in each batch


@dataclass
class Guess:
    """What a drafter guessed for a history, whose last token is the newest one."""

    history: np.ndarray
    num_prompt: int
    span: DraftSpan
    token_ids: np.ndarray
    confidence: np.ndarray


class Helped:
    """Drafts right tokens as often as `right` says, from the state of a real drafter."""

    def __init__(self, drafter: Any, answers: dict[str, Answer], jobs: Sequence[Job],
                 right: float) -> None:
        self.drafter = drafter
        self.config = drafter.config
        self.guesses: list[Guess] = []
        self._oracle = Oracle(answers, jobs)
        self._helper = ScriptedDrafter(self._answer, 128, right=right,
                                       window=drafter.config.window or 1)
        self._seen: list[tuple[np.ndarray, int]] = []

    def _answer(self, history: np.ndarray, generated: np.ndarray) -> Sequence[int]:
        self._seen.append((history, history.size - int(generated.sum())))
        return self._oracle(history, generated)

    def new_cache(self, *sizes: int) -> Any:
        return self.drafter.new_cache(*sizes), self._helper.new_cache(*sizes)

    def absorb(self, batch: Any, hidden: Any, cache: Any) -> None:
        self.drafter.absorb(batch, hidden, cache[0])
        self._helper.absorb(batch, hidden, cache[1])

    def draft(self, spans: Sequence[DraftSpan], cache: Any, target_cache: Any) -> Drafts:
        own = self.drafter.draft(spans, cache[0], target_cache)
        self._seen = []
        helped = self._helper.draft(spans, cache[1], target_cache)
        for b, (span, (history, num_prompt)) in enumerate(zip(spans, self._seen, strict=True)):
            count = span.num_drafts
            self.guesses.append(Guess(history, num_prompt, span, own.token_ids[b, :count].copy(),
                                      own.confidence[b, :count].copy()))
        return helped


def fresh_guess(model: Any, drafter: Any, guess: Guess) -> Drafts:
    """The same draft on fresh pages: the prompt as prompt rows, the rest as generated ones."""
    tokens, position = guess.history.tolist(), guess.history.size - 1
    bench = Bench(model, drafter, position + 17)
    for role, first, last in ((Role.PREFILL, 0, guess.num_prompt),
                              (Role.DECODE, guess.num_prompt, position)):
        for start in range(first, last, _CHUNK):
            bench.run(tokens[start:min(start + _CHUNK, last)], start, role)
    span = bench.span(tokens[-1], position, guess.span.num_drafts)
    span = DraftSpan(span.token_id, span.position, span.num_drafts, span.sliding_pages,
                     span.full_pages, span.hidden, guess.span.first)
    return drafter.draft([span], bench.cache, bench.kv_cache)  # type: ignore[no-any-return]


def stale_guesses(model: Any, drafter: Any, guesses: Sequence[Guess]) -> list[str]:
    """Which guesses differ from those on fresh pages, in ids or in probabilities."""
    lines = []
    for guess in guesses:
        fresh = fresh_guess(model, drafter, guess)
        if not (np.array_equal(fresh.token_ids[0], guess.token_ids)
                and np.allclose(fresh.confidence[0], guess.confidence, rtol=_CLOSE, atol=0.0)):
            lines.append(f'behind {guess.history.size} tokens: {guess} instead of {fresh}')
    return lines
