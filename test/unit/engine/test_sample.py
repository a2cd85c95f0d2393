# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The sampler's rules: order of settings, total order, fixed arithmetic, keys; bad rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.ops.sample import (
    SampleError,
    SampleRow,
    SampleSettings,
    bytes_moved,
    fixed_exp,
    fixed_log,
    gumbel,
    logprobs_ref,
    noise_bits,
    sample_ref,
    sample_row,
)

MASK = (1 << 64) - 1
INF = np.inf


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def slow_bits(seed: int, choice: int, position: int, token_id: int) -> int:
    """The noise in plain integers, written from the docstring."""
    def mix(x: int) -> int:
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
        return x ^ x >> 31
    golden = 0x9E3779B97F4A7C15
    state = mix(mix((seed + golden) & MASK) ^ (choice << 32 | position))
    x = (token_id * golden + mix((state + golden) & MASK)) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x ^= mix((state + 2 * golden) & MASK)
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def slow_kept(logits: np.ndarray, top_k: int, top_p: float) -> list[int]:
    """Top-k, then top-p in the total order, in float64 with sorts: ids ascending."""
    order = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    order = [i for i in order if logits[i] > -INF]
    if top_k:
        order = order[:top_k]
    weights = [math.exp(float(logits[i]) - float(logits[order[0]])) for i in order]
    kept, before = [], 0.0
    for token_id, weight in zip(order, weights, strict=True):
        if top_p < 1.0 and kept and before >= top_p * sum(weights):
            break
        kept.append(token_id)
        before += weight
    return sorted(kept)


def drawn(logits: np.ndarray, base: SampleSettings, count: int = 400) -> set[int]:
    return {sample_row(logits, SampleRow(base, position)) for position in range(count)}


class TestArithmetic:

    @pytest.mark.parametrize('low, high', [(-60.0, 60.0), (-1e-3, 1e-3), (0.4, 1.4), (-87.0, 88.0)
                                           ])
    def test_log_is_good_to_1e_6_relative(self, low: float, high: float) -> None:
        x = np.exp(np.linspace(low, high, 20001)).astype(np.float32)
        exact = np.log(x.astype(np.float64))
        error = np.abs(fixed_log(x) - exact)
        assert np.all(error <= 1e-6 * np.abs(exact)), float((error / np.abs(exact)).max())

    def test_exp_is_good_to_1e_6_relative(self) -> None:
        z = np.linspace(-28.0, 0.0, 50001).astype(np.float32)
        exact = np.exp(z.astype(np.float64))
        assert np.all(np.abs(fixed_exp(z) - exact) <= 1e-6 * exact)
        assert fixed_exp(floats(0.0, -0.0, -28.5, -1e9, -INF)).tolist() == [1, 1, 0, 0, 0]

    def test_types_stay_float32(self) -> None:
        assert fixed_log(floats(2.0)).dtype == np.float32
        assert fixed_exp(floats(-2.0)).dtype == np.float32
        assert gumbel(np.array([1 << 40], np.uint64)).dtype == np.float32

    def test_bits_are_those_of_every_other_backend(self) -> None:
        """Frozen results: a change here changes answers, and must change the CUDA twin as well."""
        x = floats(1e-20, 0.3, 0.99999, 1.0, 1.5, 3e7)
        assert fixed_log(x).view(np.uint32).tolist() == LOG_BITS
        z = floats(-27.9, -3.3, -0.7, -1e-5)
        assert fixed_exp(z).view(np.uint32).tolist() == EXP_BITS
        bits = noise_bits(2 ** 63 + 5, 3, 70000, ids(0, 1, 106, 262143))
        assert gumbel(bits).view(np.uint32).tolist() == GUMBEL_BITS

    @given(st.integers(0, MASK), st.integers(0, 2 ** 32 - 1), st.integers(0, 2 ** 31),
           st.integers(0, 262143))
    @settings(max_examples=100, deadline=None)
    def test_noise_is_the_stated_hash(self, seed: int, choice: int, position: int,
                                      token_id: int) -> None:
        assert int(noise_bits(seed, choice, position, ids(token_id))[0]) == slow_bits(
            seed, choice, position, token_id)

    def test_gumbel_against_float64_at_every_magnitude(self) -> None:
        rng = np.random.default_rng(0)
        bits = rng.integers(0, 2 ** 64, 60000, np.uint64, endpoint=False)
        bits >>= rng.integers(0, 64, 60000).astype(np.uint64)
        bits[::2] = ~bits[::2]                           # u next to 0 as well as next to 1
        bits |= np.uint64(1)
        upper = bits >= np.uint64(1 << 63)
        v = np.where(upper, 0, bits).astype(np.float64) * 2.0 ** -64
        u = (~bits | np.uint64(1)).astype(np.float64) * 2.0 ** -64
        exact = np.where(upper, -np.log(u), -np.log1p(-v))
        noise = gumbel(bits)
        assert np.all(np.abs(noise + np.log(exact)) <= 1e-6 * np.maximum(1.0, np.abs(noise)))
        assert noise.min() > -3.8 and noise.max() < 44.4

    def test_gumbel_of_the_extreme_words(self) -> None:
        noise = gumbel(np.array([0, 1, MASK >> 1, (MASK >> 1) + 1, MASK], np.uint64))
        assert np.all(np.isfinite(noise))
        assert np.all(np.diff(noise) <= 0.0)


LOG_BITS = [3258463473, 3214547912, 3072852023, 0, 1053792543, 1099545553]
EXP_BITS = [727127938, 1024922318, 1056850030, 1065353048]
GUMBEL_BITS = [3205912260, 1070497419, 1043071682, 1048272782]


class TestChoice:

    def test_greedy_takes_the_lowest_id_among_equals(self) -> None:
        row = SampleRow(SampleSettings(temperature=0.0), 5)
        assert sample_row(floats(1.0, 3.0, 3.0, 2.0), row) == 1
        assert sample_row(floats(-INF, -INF, 0.0), row) == 2

    @pytest.mark.parametrize('temperature', [1e-50, 1e-38, 1e-30, 1e-6])
    def test_tiny_temperatures_are_greedy(self, temperature: float) -> None:
        logits = np.random.default_rng(1).normal(size=300).astype(np.float32)
        assert drawn(logits, SampleSettings(temperature), 50) == {int(logits.argmax())}

    @pytest.mark.parametrize('temperature', [1e6, 1e38, 1e300])
    def test_huge_temperatures_are_uniform(self, temperature: float) -> None:
        assert drawn(floats(0.0, 10.0, -10.0, 30.0), SampleSettings(temperature)) == {0, 1, 2, 3}

    def test_huge_temperature_keeps_the_order_for_top_k(self) -> None:
        logits = floats(0.0, 10.0, -10.0, 30.0)
        assert drawn(logits, SampleSettings(1e38, top_k=2)) == {1, 3}

    def test_top_k_ties_go_to_the_lowest_ids(self) -> None:
        logits = floats(1.0, 2.0, 1.0, 2.0, 1.0, 1.0)
        assert drawn(logits, SampleSettings(100.0, top_k=4)) == {0, 1, 2, 3}
        assert drawn(logits, SampleSettings(100.0, top_k=1)) == {1}

    @pytest.mark.parametrize('top_k', [0, 6, 7, 10 ** 9])
    def test_top_k_of_all_or_more_is_off(self, top_k: int) -> None:
        logits = floats(1.0, 2.0, 1.0, 2.0, 1.0, 1.0)
        assert drawn(logits, SampleSettings(100.0, top_k=top_k)) == set(range(6))

    @pytest.mark.parametrize('top_p', [0.0, 1e-300, 1e-9])
    def test_top_p_keeps_at_least_one(self, top_p: float) -> None:
        assert drawn(floats(1.0, 5.0, 5.0, 0.0), SampleSettings(10.0, top_p=top_p)) == {1}

    def test_top_p_at_an_exact_border(self) -> None:
        """Four equal tokens: half the mass is two of them, one unit more is three."""
        logits = floats(0.0, 0.0, 0.0, 0.0)
        assert drawn(logits, SampleSettings(top_p=0.5)) == {0, 1}
        assert drawn(logits, SampleSettings(top_p=0.500001)) == {0, 1, 2}

    def test_min_p(self) -> None:
        logits = np.log(floats(0.5, 0.3, 0.15, 0.05))
        assert drawn(logits, SampleSettings(min_p=0.25)) == {0, 1, 2}
        assert drawn(logits, SampleSettings(min_p=1.0)) == {0}

    @given(st.integers(1, 40), st.integers(0, 45), st.floats(0.0, 1.0), st.integers(0, 2 ** 32))
    @settings(max_examples=60, deadline=None)
    def test_kept_ids_against_a_slow_reference(self, size: int, top_k: int, top_p: float,
                                               seed: int) -> None:
        rng = np.random.default_rng(seed)
        logits = rng.integers(-4, 5, size).astype(np.float32)        # many ties
        logits[rng.random(size) < 0.1] = -INF
        logits[rng.integers(size)] = 1.0
        kept = slow_kept(logits, top_k, top_p)
        near = slow_kept(logits, top_k, top_p - 1e-6), slow_kept(logits, top_k, top_p + 1e-6)
        if near[0] != near[1]:
            return                                       # on a border; see the test above
        got = {sample_row(logits, SampleRow(SampleSettings(1.0, top_k, top_p), p))
               for p in range(30)}
        assert got <= set(kept)
        bits = noise_bits(0, 0, 0, np.array(kept))
        scores = (logits[kept] - logits.max()) + gumbel(bits)
        assert sample_row(logits, SampleRow(SampleSettings(1.0, top_k, top_p), 0)) \
            == kept[int(scores.argmax())]

    def test_a_token_below_every_noise_is_dropped_without_effect(self) -> None:
        logits = floats(0.0, -48.0, -60.0, -200.0)
        assert drawn(logits, SampleSettings()) == {0}

    def test_same_key_same_token_other_key_other_tokens(self) -> None:
        logits = np.zeros(50000, np.float32)
        base = SampleSettings(seed=7, choice=1)
        token = sample_row(logits, SampleRow(base, 9))
        assert token == sample_row(logits, SampleRow(base, 9))
        others = [sample_row(logits, SampleRow(base, 10)),
                  sample_row(logits, SampleRow(replace(base, seed=8), 9)),
                  sample_row(logits, SampleRow(replace(base, choice=2), 9))]
        assert token not in others and len(set(others)) == 3

    def test_rows_do_not_depend_on_their_neighbours(self) -> None:
        rng = np.random.default_rng(3)
        logits = rng.normal(0.0, 3.0, (6, 500)).astype(np.float32)
        rows = [SampleRow(SampleSettings(t, k, p, seed=9), 40 + i) for i, (t, k, p) in enumerate(
            [(0.0, 0, 1.0), (0.7, 64, 0.95), (1.5, 0, 1.0), (1.0, 3, 1.0), (2.0, 0, 0.5),
             (0.7, 64, 0.95)])]
        together = sample_ref(logits, rows)
        assert together.dtype == np.int32
        for order in (rng.permutation(6) for _ in range(5)):
            got = sample_ref(logits[order], [rows[i] for i in order])
            assert got.tolist() == together[order].tolist()

    def test_float64_logits_are_rounded_once(self) -> None:
        logits = np.random.default_rng(4).normal(size=100)
        row = SampleRow(SampleSettings(), 3)
        assert sample_row(logits, row) == sample_row(logits.astype(np.float32), row)

    def test_input_is_not_changed(self) -> None:
        logits = floats(1.0, 2.0, 3.0)
        before = logits.copy()
        sample_row(logits, SampleRow(SampleSettings(bias_ids=ids(0), bias_values=floats(9.0)), 0,
                                     suppress_ids=ids(1)))
        assert np.array_equal(logits, before)

    def test_a_large_vocabulary_with_ties(self) -> None:
        logits = np.zeros(262144, np.float32)
        assert drawn(logits, SampleSettings(top_k=3), 60) == {0, 1, 2}
        logits[200000] = 20.0
        assert drawn(logits, SampleSettings(top_k=64, top_p=0.95), 5) == {200000}

    def test_bytes_moved(self) -> None:
        assert bytes_moved(2, 262144) == 2 * (262144 * 4 + 4)


class TestAdjustments:
    """Each adjustment, checked by the greedy choice or the kept set that it leads to."""

    def greedy(self, logits: np.ndarray, row: SampleRow | None = None, **fields: object) -> int:
        base = SampleSettings(temperature=0.0, **fields)
        return sample_row(logits, replace(row or SampleRow(base, 0), settings=base))

    def test_bias(self) -> None:
        logits = floats(1.0, 2.0, 3.0)
        assert self.greedy(logits, bias_ids=ids(0), bias_values=floats(2.5)) == 0
        assert self.greedy(logits, bias_ids=ids(2), bias_values=floats(-100.0)) == 1

    def test_suppressed_ids_beat_a_bias(self) -> None:
        row = SampleRow(SampleSettings(), 0, suppress_ids=ids(2))
        assert self.greedy(floats(1.0, 2.0, 3.0), row, bias_ids=ids(2),
                           bias_values=floats(100.0)) == 1

    def test_mask(self) -> None:
        row = SampleRow(SampleSettings(), 0, allowed=np.array([True, False, False]))
        assert self.greedy(floats(1.0, 2.0, 3.0), row) == 0

    def test_repetition_divides_positive_and_multiplies_negative(self) -> None:
        row = SampleRow(SampleSettings(), 0, seen_ids=ids(0, 1))
        assert self.greedy(floats(3.0, 0.0, 2.0), row, repetition_penalty=2.0) == 2
        assert self.greedy(floats(-1.0, -5.0, -1.5), row, repetition_penalty=2.0) == 2
        assert self.greedy(floats(3.0, 0.0, 2.0), row) == 0

    def test_presence_and_frequency_count_generated_tokens_alone(self) -> None:
        row = SampleRow(SampleSettings(), 0, seen_ids=ids(0, 1), counted_ids=ids(0),
                        counts=floats(3.0))
        assert self.greedy(floats(3.0, 2.9, 1.0), row, presence_penalty=0.2) == 1
        assert self.greedy(floats(3.0, 2.9, 1.0), row, frequency_penalty=0.05) == 1
        assert self.greedy(floats(3.0, 2.9, 1.0), row, frequency_penalty=0.03) == 0

    def test_repetition_comes_before_presence(self) -> None:
        """4 / 2 - 1 = 1 beats 0.75; (4 - 1) / 2 = 1.5 in the other order would beat 1.25 too."""
        row = SampleRow(SampleSettings(), 0, seen_ids=ids(0), counted_ids=ids(0), counts=floats(1))
        assert self.greedy(floats(4.0, 0.75), row, repetition_penalty=2.0, presence_penalty=1) == 0
        assert self.greedy(floats(4.0, 1.25), row, repetition_penalty=2.0, presence_penalty=1) == 1

    def test_penalties_come_before_top_k(self) -> None:
        row = SampleRow(SampleSettings(10.0, top_k=1, repetition_penalty=3.0), 0, seen_ids=ids(0))
        assert {sample_row(floats(3.0, 2.0), replace(row, position=p)) for p in range(50)} == {1}


class TestBadRows:

    @pytest.mark.parametrize('temperature', [0.0, 1.0])
    def test_nan(self, temperature: float) -> None:
        with pytest.raises(SampleError, match='NaN'):
            sample_row(floats(1.0, np.nan, 2.0), SampleRow(SampleSettings(temperature), 0))

    @pytest.mark.parametrize('temperature', [0.0, 1.0])
    def test_everything_masked(self, temperature: float) -> None:
        row = SampleRow(SampleSettings(temperature), 0, suppress_ids=ids(0, 1))
        with pytest.raises(SampleError, match='masked'):
            sample_row(floats(1.0, 2.0), row)

    def test_infinity(self) -> None:
        with pytest.raises(SampleError, match='infinity'):
            sample_row(floats(1.0, INF), SampleRow(SampleSettings(), 0))


class TestLogprobs:

    def test_against_float64(self) -> None:
        logits = np.random.default_rng(5).normal(0.0, 4.0, 1000).astype(np.float32)
        exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
        logprob, top = logprobs_ref(logits, 17, 5)
        assert logprob == pytest.approx(exact[17], abs=1e-12)
        best = sorted(range(1000), key=lambda i: (-logits[i], i))[:5]
        assert [token_id for token_id, _ in top] == best
        assert [value for _, value in top] == pytest.approx(exact[best].tolist(), abs=1e-12)

    def test_ties_and_more_alternatives_than_ids(self) -> None:
        _, top = logprobs_ref(floats(1.0, 2.0, 2.0), 0, 20)
        assert [token_id for token_id, _ in top] == [1, 2, 0]
        assert logprobs_ref(floats(0.0, 0.0), 0, 0) == (pytest.approx(math.log(0.5)), ())
