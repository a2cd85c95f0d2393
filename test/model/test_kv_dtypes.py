# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""bf16 and FP8 (e4m3) K and V: the rounding itself, static scales, and the gates on top of it.

Each gate is followed by the errors that it must catch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from engine_gates import Job, chunk_gate, concurrent_gate, make_request
from forward import TINY_DENSE, TINY_MOE, Role, Rows, page_table, random_model, step
from hypothesis import given, settings
from hypothesis import strategies as st
from preempt_gates import dropped_once, preempt_gate
from prefix_gates import interleaved, length_visits, warm_gate

from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops.kv_append import fp8_scales, kv_append_ref
from gemma_thor_ros.ops.rounding import e4m3_scale, round_to_e4m3, stored_kv
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.weights.number_formats import E4M3_VALUES

E4M3 = np.unique(E4M3_VALUES[np.isfinite(E4M3_VALUES)])
MODES = [('moe', 'fp8'), ('dense', 'fp8'), ('dense', 'bf16')]
PAGE = 16
request = partial(make_request, vocab_size=96, max_tokens=5)


@cache
def model(name: str, kv_dtype: Any) -> Gemma4:
    """MoE with the device's rounding, dense in plain float32."""
    if name == 'moe':
        return random_model(TINY_MOE, rounding='device', kv_dtype=kv_dtype)
    return random_model(TINY_DENSE, kv_dtype=kv_dtype)


@pytest.fixture(params=MODES, ids=lambda mode: '-'.join(mode))
def gemma(request: pytest.FixtureRequest) -> Gemma4:
    return model(*request.param)


class TestRounding:

    @given(x=st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=20),
           dtype=st.sampled_from([np.float32, np.float64]))
    @settings(max_examples=200, deadline=None)
    def test_nearest_with_ties_to_even(self, x: list[float], dtype: Any) -> None:
        values = np.array(x, dtype)
        rounded = round_to_e4m3(values.copy())
        assert np.isin(rounded, E4M3).all()
        inside = np.abs(values) <= 448
        distance = np.abs(values[:, None].astype(np.float64) - E4M3)
        assert (np.abs(values - rounded)[inside] == distance.min(axis=1)[inside]).all()
        assert (np.abs(rounded[~inside]) == 448).all()

    def test_every_number_and_every_midpoint(self) -> None:
        """The table's own numbers stay; halfway between two, the one with the even code wins."""
        assert (round_to_e4m3(E4M3.copy()) == E4M3).all()
        middle = (E4M3[1:] + E4M3[:-1]) / 2
        rounded = round_to_e4m3(middle.copy())
        code = {float(value): code for code, value in enumerate(E4M3_VALUES.tolist())
                if np.isfinite(value)}
        assert all(code[float(value)] % 2 == 0 or value == 0 for value in rounded)
        assert (np.minimum(rounded - E4M3[:-1], E4M3[1:] - rounded) == 0).all()

    def test_edges(self) -> None:
        x = np.array([np.inf, -np.inf, 449.0, 2.0 ** -10, 2.0 ** -11, -0.0, np.nan], np.float32)
        rounded = round_to_e4m3(x)
        assert rounded[:6].tolist() == [448.0, -448.0, 448.0, 0.0, 0.0, 0.0]
        assert np.isnan(rounded[6])

    def test_scales_change_the_exponent_alone(self) -> None:
        x = np.random.default_rng(0).standard_normal((5, 2, 8)).astype(np.float32)
        scales = np.array([0.125, 4.0])
        stored = stored_kv(x.copy(), 'fp8', scales)
        for head in range(2):
            assert (stored[:, head] == round_to_e4m3(x[:, head] / scales[head])
                    * scales[head]).all()
        assert (stored_kv(x.copy(), 'float32', None) == x).all()


class TestScales:

    @given(largest=st.floats(1e-20, 1e20))
    def test_the_least_power_of_two(self, largest: float) -> None:
        scale = e4m3_scale(largest)
        assert np.frexp(scale)[0] == 0.5
        assert largest / scale <= 448 < 2 * largest / scale

    @given(seed=st.integers(0, 10 ** 6), head_dim=st.sampled_from([16, 32, 64]),
           spike=st.floats(0, 1e4))
    @settings(max_examples=60, deadline=None)
    def test_nothing_saturates(self, seed: int, head_dim: int, spike: float) -> None:
        """Not even a head that is one spike, rotated by any angle."""
        rng = np.random.default_rng(seed)
        weight = np.abs(rng.standard_normal(head_dim)).astype(np.float32) * 4
        raw = rng.standard_normal((3, 1, head_dim)).astype(np.float32)
        raw[:, 0, int(rng.integers(head_dim))] += spike
        normed = raw / np.sqrt((raw ** 2).mean(-1, keepdims=True))
        k_scales, v_scales = fp8_scales(weight, 1)
        angle = rng.uniform(0, 7, head_dim // 2)
        k = normed * weight
        low, high = k[..., :head_dim // 2], k[..., head_dim // 2:]
        turned = np.concatenate([low * np.cos(angle) - high * np.sin(angle),
                                 high * np.cos(angle) + low * np.sin(angle)], axis=-1)
        assert (np.abs(turned) <= 448 * k_scales[0]).all()
        assert (np.abs(normed) <= 448 * v_scales[0]).all()

    def test_weights_of_zero(self) -> None:
        assert np.isfinite(fp8_scales(np.zeros(16, np.float32), 2)[0]).all()


class TestPages:

    @pytest.mark.parametrize('kv_dtype, limit', [('bf16', 2.0 ** -8), ('fp8', 2.0 ** -4)])
    def test_pages_hold_rounded_numbers(self, kv_dtype: Any, limit: float) -> None:
        """Each K and V of the first layer is the exact one rounded once; later layers follow."""
        exact, rounded = random_model(TINY_DENSE), model('dense', kv_dtype)
        tokens, pages = list(range(40)), page_table(5)
        caches = [m.new_kv_cache(5, 5, PAGE) for m in (exact, rounded)]
        for m, kv_cache in zip((exact, rounded), caches, strict=True):
            step(m, kv_cache, Rows(tokens, 0, Role.PREFILL, pages))
        for name in ('k_pages', 'v_pages'):
            want, got = (getattr(kv_cache, name)[0] for kv_cache in caches)
            scales = rounded._layers[0].kv_scales[name == 'v_pages']
            assert (got == stored_kv(want.copy(), kv_dtype, scales)).all()
            assert (got != want).any()
            assert np.abs(got - want).max() <= limit * np.abs(want).max()

    @pytest.mark.parametrize('kv_dtype, limit', [('bf16', 0.02), ('fp8', 0.2)])
    def test_the_logits_stay_near(self, kv_dtype: Any, limit: float) -> None:
        """How far is docs/numerics.md's affair; here: a rounding, not a wrong cache."""
        tokens, pages = list(range(90)), page_table(6)
        logits = []
        for m in (random_model(TINY_DENSE), model('dense', kv_dtype)):
            logits.append(step(m, m.new_kv_cache(6, 6, PAGE), Rows(tokens, 0, Role.PREFILL,
                                                                   pages))[0])
        error = np.linalg.norm(logits[1] - logits[0]) / np.linalg.norm(logits[0])
        assert 0.0 < error < limit


OPTIONS: dict[str, Any] = {'page_size': PAGE, 'stop_ids': ()}
JOBS = [Job(request('long', 150, 1, max_tokens=20)), Job(request('short', 3, 2)),
        Job(request('late', 33, 3), 4), Job(request('gone', 40, 4), 2, 9),
        Job(request('hot', 20, 6, temperature=1.5, top_k=0), 6)]
PROMPTS = [Job(request('p60', 60, 60, max_tokens=3))]
CHUNKS = (1, 15, 17, 40)


class TestGates:

    def test_concurrent_equals_solo(self, gemma: Gemma4) -> None:
        assert concurrent_gate(gemma, JOBS, prefill_chunk=23, **OPTIONS) == []

    def test_chunked_equals_one_prefill(self, gemma: Gemma4) -> None:
        assert chunk_gate(gemma, PROMPTS, chunks=CHUNKS, **OPTIONS) == []

    def test_resumed_equals_fresh(self, gemma: Gemma4) -> None:
        visits = length_visits(request, [17, 41, 57, 80], PAGE) + interleaved(request, 70, 14)
        assert warm_gate(gemma, visits, page_size=PAGE) == []

    def test_dropped_equals_undisturbed(self, gemma: Gemma4) -> None:
        victim, intruder = request('v', 41, 1, max_tokens=40), request('i', 45, 2, max_tokens=2)
        assert preempt_gate(gemma, victim, intruder, [1, 7, 20, 39], expect=dropped_once,
                            page_size=PAGE, num_full_pages=6, num_sliding_pages=8,
                            prefill_chunk=23) == []


class Unrounded(Gemma4):
    """K and V stay unrounded until the end of the step that writes them."""

    def forward(self, batch: Batch, kv_cache: Any, tap: Any = None) -> Any:
        right = self.ops
        self.ops = replace(right, kv_append=partial(
            kv_append_ref, scratch=Scratch(self.dtype), rounding=self.rounding,
            kv_dtype='float32'))
        try:
            return super().forward(batch, kv_cache, tap)
        finally:
            self.ops = right
            for layer, k, v in zip(self._layers, kv_cache.k_pages, kv_cache.v_pages, strict=True):
                for pages, scales in zip((k, v), layer.kv_scales, strict=True):
                    stored_kv(pages.reshape(-1, *pages.shape[2:]), 'fp8', scales)


class ScaleOfTheContent:
    """FP8 with a scale from the largest number that the step writes, as dynamic caches do."""

    def __init__(self, right: Callable[..., None]) -> None:
        self.right = partial(right, kv_dtype='float32')

    def __call__(self, q: Any, k_pages: Any, v_pages: Any, qkv: Any, norm: Any, cos: Any, sin: Any,
                 where: Any, eps: float, kv_scales: Any) -> None:
        self.right(q, k_pages, v_pages, qkv, norm, cos, sin, where, eps, kv_scales)
        for pages in (k_pages, v_pages):
            for page in np.unique(where.pages):
                slots = where.slots[where.pages == page]
                content = pages[page, slots]
                scale = np.float32(np.abs(content).max() / 448)
                pages[page, slots] = round_to_e4m3(content / scale) * scale


class TestPlantedErrors:

    @pytest.mark.parametrize('name', ['moe', 'dense'])
    def test_chunk_that_attends_to_unrounded_k_and_v(self, name: str) -> None:
        raw, rounding = (TINY_MOE, 'device') if name == 'moe' else (TINY_DENSE, 'none')
        wrong = random_model(raw, rounding=rounding, kv_dtype='fp8')
        wrong.__class__ = Unrounded
        found = chunk_gate(wrong, PROMPTS, chunks=CHUNKS, **OPTIONS)
        assert {line.split(':')[0] for line in found} == {f'chunk {chunk}' for chunk in CHUNKS}
        assert warm_gate(wrong, length_visits(request, [57], PAGE), page_size=PAGE) != []

    def test_scale_from_a_pages_content(self) -> None:
        wrong = random_model(TINY_DENSE, kv_dtype='fp8')
        wrong.ops = replace(wrong.ops, kv_append=ScaleOfTheContent(partial(
            kv_append_ref, scratch=Scratch(wrong.dtype))))
        found = chunk_gate(wrong, PROMPTS, chunks=CHUNKS, **OPTIONS)
        assert {line.split(':')[0] for line in found} == {f'chunk {chunk}' for chunk in CHUNKS}
        victim, intruder = request('v', 41, 1, max_tokens=40), request('i', 45, 2, max_tokens=2)
        assert preempt_gate(wrong, victim, intruder, [20, 39], expect=dropped_once,
                            page_size=PAGE, num_full_pages=6, num_sliding_pages=8) != []
