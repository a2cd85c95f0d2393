# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The exactness gates on Gemma 4 itself: tiny random models, with experts and dense.

The gates compare logits bit by bit, so that errors show which only the real arithmetic has: a
matrix product that depends on its row count, a chunk that attends to its own K and V unrounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from engine_gates import (
    TEMPERATURES,
    Job,
    cancel_gate,
    chunk_gate,
    concurrent_gate,
    make_request,
    run,
    stream_gate,
    with_temperature,
)
from forward import TINY_DENSE, TINY_INPUTS, TINY_MOE, random_model
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.engine import page_pool, runner
from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops.kv_append import kv_append_ref
from gemma_thor_ros.ops.linear import LinearWeight
from gemma_thor_ros.ops.rounding import round_to_bf16
from gemma_thor_ros.ops.scratch import Scratch

VOCAB_SIZE = TINY_MOE['vocab_size']
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    'moe': (TINY_MOE, 'device'), 'dense': (TINY_DENSE, 'none'),
    'inputs': (TINY_INPUTS, 'device')}
OPTIONS: dict[str, Any] = {'stop_ids': (), 'page_size': 16}
SCARCE = {**OPTIONS, 'num_full_pages': 9, 'num_sliding_pages': 9, 'prefill_chunk': 17}

request = partial(make_request, vocab_size=VOCAB_SIZE, max_tokens=8)
JOBS = [Job(request('long', 150, 1, max_tokens=20)), Job(request('short', 3, 2)),
        Job(request('late', 33, 3, repetition_penalty=1.2), 4),
        Job(request('gone', 40, 4), 2, 9), Job(request('hot', 20, 6, top_k=0), 6)]
PROMPTS = [Job(request(f'p{n}', n, n, max_tokens=3)) for n in (17, 256)]
THREE = (request('a', 60, 1), request('b', 50, 2), request('c', 30, 3))


@cache
def model(name: str) -> Gemma4:
    raw, rounding = MODELS[name]
    return random_model(raw, np.float32, rounding)


@pytest.fixture(params=MODELS)
def gemma(request: pytest.FixtureRequest) -> Gemma4:
    return model(request.param)


# the third model differs in ways that no temperature meets
EACH = [(name, temperature) for name in MODELS
        for temperature in TEMPERATURES if name != 'inputs' or temperature == TEMPERATURES[-1]]


class TestGates:

    @pytest.mark.parametrize(('gemma', 'temperature'), EACH, indirect=['gemma'])
    def test_concurrent_equals_solo(self, gemma: Gemma4, temperature: float) -> None:
        jobs = with_temperature(JOBS, temperature)
        assert concurrent_gate(gemma, jobs, prefill_chunk=23, **OPTIONS) == []

    @given(seed=st.integers(0, 10 ** 6), chunk=st.integers(1, 70),
           max_sequences=st.integers(1, 4), spare=st.integers(0, 20))
    @settings(max_examples=6, deadline=None, derandomize=True)
    def test_random_joins_leaves_and_cancels(self, seed: int, chunk: int, max_sequences: int,
                                             spare: int) -> None:
        rng = np.random.default_rng(seed)
        jobs = [Job(request(f'r{i}', int(rng.integers(1, 120)), seed,
                            temperature=float(rng.choice(TEMPERATURES)),
                            max_tokens=int(rng.integers(1, 12))),
                    int(rng.integers(0, 12)), int(rng.choice([-1, -1, 5, 10]))) for i in range(5)]
        for name in MODELS:
            assert concurrent_gate(
                model(name), jobs, prefill_chunk=chunk, max_sequences=max_sequences,
                num_sliding_pages=9 + spare, num_full_pages=9 + spare, **OPTIONS) == []

    @pytest.mark.parametrize(('gemma', 'temperature'), EACH, indirect=['gemma'])
    def test_chunked_equals_one_prefill(self, gemma: Gemma4, temperature: float) -> None:
        jobs = with_temperature(PROMPTS, temperature)
        assert [line for job in jobs for line in chunk_gate(gemma, [job], **OPTIONS)] == []

    @pytest.mark.parametrize(('gemma', 'temperature'), EACH, indirect=['gemma'])
    def test_cancel_leaves_the_next_request_right(self, gemma: Gemma4, temperature: float) -> None:
        requests = [job.request for job in with_temperature(
            [Job(request) for request in THREE], temperature)]
        assert cancel_gate(gemma, *requests, [2, 7], **SCARCE) == []

    def test_streamed_equals_whole(self, gemma: Gemma4) -> None:
        jobs = [Job(job.request) for job in with_temperature(JOBS, 1.5)]
        assert stream_gate(gemma, jobs, **OPTIONS) == []

    def test_the_answers_are_not_trivial(self, gemma: Gemma4) -> None:
        answers = run(gemma, JOBS, prefill_chunk=23, **OPTIONS)
        assert len(answers['long'].token_ids) == 20
        assert len({i for answer in answers.values() for i in answer.token_ids}) > 20


class RowVariantMatmul:
    """op linear that adds up in another order as soon as two generated rows stand together."""

    def __init__(self, right: Callable[..., None]) -> None:
        self.right = right

    def __call__(self, out: np.ndarray, x: np.ndarray, weight: LinearWeight,
                 num_decode_rows: int) -> None:
        self.right(out, x, weight, num_decode_rows)
        if num_decode_rows > 1:
            matrix = weight.rows(0, weight.shape[0])
            out[:num_decode_rows] = x[:num_decode_rows, ::-1].copy() @ matrix[:, ::-1].T.copy()


class UnroundedChunk(Gemma4):
    """K and V stay unrounded until the step's end: a chunk attends to other values than later."""

    def forward(self, batch: Batch, kv_cache: Any, tap: Any = None) -> Any:
        right = self.ops
        self.ops = replace(right, kv_append=partial(kv_append_ref, scratch=Scratch(self.dtype),
                                                    rounding='none'))
        try:
            return super().forward(batch, kv_cache, tap)
        finally:
            self.ops = right
            for pages in (*kv_cache.k_pages, *kv_cache.v_pages):
                round_to_bf16(pages)


class TestPlantedErrors:

    def test_row_variant_matmul(self) -> None:
        wrong = random_model(TINY_DENSE)
        wrong.ops = replace(wrong.ops, linear=RowVariantMatmul(wrong.ops.linear))
        assert concurrent_gate(wrong, JOBS, prefill_chunk=23, **OPTIONS) != []

    def test_chunk_that_attends_to_unrounded_k_and_v(self) -> None:
        wrong = random_model(TINY_MOE, np.float32, 'device')
        wrong.__class__ = UnroundedChunk
        found = chunk_gate(wrong, PROMPTS[:1], **OPTIONS)
        assert {line.split(':')[0] for line in found} >= {'chunk 1', 'chunk 2', 'chunk 15'}

    def test_page_freed_one_page_early(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = page_pool.PageManager.num_dead
        jobs = [Job(request('a', 60, max_tokens=30)), Job(request('b', 70, max_tokens=30))]
        assert concurrent_gate(model('dense'), jobs, prefill_chunk=23, **OPTIONS) == []
        monkeypatch.setattr(page_pool.PageManager, 'num_dead', lambda self, committed: (
            right(self, committed + self.page_size)))
        assert concurrent_gate(model('dense'), jobs, prefill_chunk=23, **OPTIONS) != []

    def test_noise_key_of_the_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = runner.sample_row

        def wrong(logits: Any, row: Any) -> int:
            offset = logits.ctypes.data - logits.base.ctypes.data
            return right(logits, replace(row, position=offset // logits.nbytes))
        monkeypatch.setattr(runner, 'sample_row', wrong)
        assert concurrent_gate(model('dense'), JOBS, prefill_chunk=23, **OPTIONS) != []
