# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""resumed == fresh on tiny Gemma 4 models, bit by bit, each gate followed by planted errors."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
from engine_gates import TEMPERATURES, make_request
from forward import TINY_DENSE, TINY_INPUTS, TINY_MOE, random_model
from prefix_gates import (
    conversation,
    forget_the_windows,
    hit_past_the_checkpoint,
    interleaved,
    length_visits,
    warm_gate,
)
from test_engine_gemma import UnroundedChunk

from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.batch import Role
from gemma_thor_ros.models.gemma4 import Gemma4

PAGE = 16                                # the tiny models' window is 40
OPTIONS: dict[str, Any] = {'page_size': PAGE}
EDGES = [15, 16, 17, 32, 39, 40, 41, 48, 55, 57, 80]
request = partial(make_request, vocab_size=96, max_tokens=4)


@cache
def model(name: str) -> Gemma4:
    if name == 'moe':
        return random_model(TINY_MOE, rounding='device')
    return random_model(TINY_INPUTS if name == 'inputs' else TINY_DENSE)


@pytest.fixture(params=['moe', 'dense', 'inputs'])
def gemma(request: pytest.FixtureRequest) -> Gemma4:
    return model(request.param)


# the third model differs in ways that no temperature meets
EACH = [(name, temperature) for name in ('moe', 'dense', 'inputs')
        for temperature in TEMPERATURES if name != 'inputs' or temperature == TEMPERATURES[-1]]


class TestResumedEqualsFresh:

    @pytest.mark.parametrize(('gemma', 'temperature'), EACH, indirect=['gemma'])
    def test_prefixes_around_page_and_window_edges(self, gemma: Gemma4, temperature: float,
                                                   ) -> None:
        visits = length_visits(partial(request, temperature=temperature), EDGES, PAGE)
        assert warm_gate(gemma, visits, **OPTIONS) == []

    def test_chunked(self, gemma: Gemma4) -> None:
        visits = length_visits(request, [17, 41, 57, 80], PAGE)
        assert warm_gate(gemma, visits, prefill_chunk=19, **OPTIONS) == []

    def test_turns_of_a_conversation(self, gemma: Gemma4) -> None:
        make = partial(request, max_tokens=11)
        visits = conversation(gemma, make, 5, PAGE, num_system=45)
        assert visits[-1].cached > 64
        assert warm_gate(gemma, visits, **OPTIONS) == []

    @pytest.mark.parametrize('together', [1, 3])
    def test_interleaved_users(self, gemma: Gemma4, together: int) -> None:
        """Case H11, on memory so short that pages are evicted and overwritten."""
        visits = interleaved(request, 100, 14)
        assert warm_gate(gemma, visits, together=together, num_sliding_pages=30,
                         num_full_pages=26, max_checkpoint_pages=12, **OPTIONS) == []


class TestPlantedErrors:

    VISITS = length_visits(request, [41, 57], PAGE)

    def test_hit_one_token_past_a_checkpoint(self, gemma: Gemma4, monkeypatch: pytest.MonkeyPatch,
                                             ) -> None:
        hit_past_the_checkpoint(monkeypatch)
        found = warm_gate(gemma, self.VISITS, **OPTIONS)
        assert sum('again' in line for line in found) == 2, found

    def test_chunk_that_attends_to_unrounded_k_and_v(self) -> None:
        wrong = random_model(TINY_MOE, rounding='device')
        wrong.__class__ = UnroundedChunk
        assert warm_gate(wrong, self.VISITS, **OPTIONS) != []

    def test_window_that_is_not_held(self, gemma: Gemma4, monkeypatch: pytest.MonkeyPatch) -> None:
        forget_the_windows(monkeypatch)
        assert warm_gate(gemma, self.VISITS, audit=False, **OPTIONS) != []

    def test_prompt_rows_that_run_as_decode_rows_after_a_hit(
            self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The family follows the row count: what a hit leaves is short, so it takes decode."""
        def role(self: Sequence) -> Role:
            left = self.num_prompt - self.num_committed
            return Role.DECODE if left <= 0 or (self.cached_tokens and left < 9) else Role.PREFILL
        monkeypatch.setattr(Sequence, 'role', property(role))
        visits = length_visits(request, [33, 49], PAGE)
        assert warm_gate(model('dense'), visits, **OPTIONS) != []
