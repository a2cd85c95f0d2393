# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""e2m1, e4m3 and bf16 against definitions written out bit by bit."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_thor_ros.weights.canonical import Nvfp4Weight
from gemma_thor_ros.weights.number_formats import (
    E2M1_VALUES,
    E4M3_VALUES,
    bf16_to_float32,
    encode_e2m1,
    encode_e4m3,
    float32_to_bf16,
)

from .reference_formats import decode, e2m1, e4m3

FINITE = [code for code in range(256) if code & 127 != 127]


def every_product(global_scale: float) -> Nvfp4Weight:
    """Row i: scale code FINITE[i] over all 16 element codes, even column in the low nibble."""
    codes = np.arange(16, dtype=np.uint8)
    row = codes[0::2] | (codes[1::2] << 4)
    return Nvfp4Weight(np.tile(row, (254, 1)), np.array(FINITE, np.uint8)[:, None],
                       np.asarray(global_scale, np.float32))


@pytest.mark.parametrize('global_scale', [1.0, 1 / 3, 0.0019903670, 3.0e-39, 7.5e30])
def test_all_254_scales_times_16_codes_are_the_float64_product(global_scale: float) -> None:
    weight = every_product(global_scale)
    scale = float(weight.global_scale)
    want = np.array([[e2m1(code) * e4m3(group) * scale for code in range(16)] for group in FINITE])
    assert weight.dequantize(np.float64).tobytes() == want.tobytes()
    assert weight.dequantize(np.float32).tobytes() == want.astype(np.float32).tobytes()


def test_swapped_nibbles_and_a_wrong_bias_would_be_seen() -> None:
    weight = every_product(1.0)
    want = decode(weight.packed, weight.group_scales, 1.0)
    swapped = Nvfp4Weight(weight.packed << 4 | weight.packed >> 4, weight.group_scales,
                          weight.global_scale)
    assert not np.array_equal(swapped.dequantize(np.float64), want)
    shifted = Nvfp4Weight(weight.packed, weight.group_scales ^ 8, weight.global_scale)
    assert not np.array_equal(shifted.dequantize(np.float64), want)


def test_tables_match_the_definitions() -> None:
    assert [e2m1(code) for code in range(16)] == E2M1_VALUES.tolist()
    assert [e4m3(code) for code in FINITE] == E4M3_VALUES[FINITE].tolist()
    assert np.isnan(E4M3_VALUES[[127, 255]]).all()


def nearest(value: float, table: list[float]) -> int:
    """Index of the nearest entry, ties to the even index."""
    best = min(abs(entry - value) for entry in table)
    candidates = [index for index, entry in enumerate(table) if abs(entry - value) == best]
    return next((index for index in candidates if index % 2 == 0), candidates[0])


def test_e2m1_rounds_to_the_nearest_and_ties_to_the_even_code() -> None:
    magnitudes = [e2m1(code) for code in range(8)]
    middles = [(a + b) / 2 for a, b in pairwise(magnitudes)]
    points = magnitudes + middles + [100.0]
    points += [float(np.nextafter(np.float32(point), np.float32(side)))
               for point in middles for side in (0, 9)]
    got = encode_e2m1(np.array(points, np.float32))
    assert got.tolist() == [nearest(point, magnitudes) for point in points]
    negative = encode_e2m1(-np.array(points, np.float32))
    assert negative.tolist() == [code | 8 for code in got.tolist()]


def test_e4m3_rounds_every_code_tie_and_neighbour_right() -> None:
    values = [e4m3(code) for code in range(127)]
    middles = [(a + b) / 2 for a, b in pairwise(values)]
    points = values + middles + [1e4, 448.1]
    points += [float(np.nextafter(np.float32(point), np.float32(side)))
               for point in middles for side in (0, 999)]
    got = encode_e4m3(np.array(points, np.float32)).tolist()
    assert got == [nearest(point, values) for point in points]


@given(st.floats(0, 500, width=32))
def test_e4m3_any_value(value: float) -> None:
    values = [e4m3(code) for code in range(127)]
    assert encode_e4m3(np.array([value], np.float32))[0] == nearest(value, values)


@given(st.floats(width=32))
def test_bf16_rounds_to_the_nearest(value: float) -> None:
    got = float(bf16_to_float32(float32_to_bf16(np.array([value], np.float32)))[0])
    if math.isnan(value):
        assert math.isnan(got)
        return
    below = np.array([value], np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    above = below + np.uint32(0x10000)
    options = [float(bits.view(np.float32)[0]) for bits in (below, above)]
    if math.isinf(value):
        assert got == value
    elif math.isfinite(options[1]):
        assert abs(got - value) == min(abs(option - value) for option in options)


def test_bf16_ties_go_to_even_and_widening_is_exact() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    values = bf16_to_float32(bits)
    finite = np.isfinite(values)
    assert np.array_equal(float32_to_bf16(values[finite]), bits[finite])
    tie = (np.uint32(0x3F80) << 16 | 0x8000).astype(np.uint32)
    odd = (np.uint32(0x3F81) << 16 | 0x8000).astype(np.uint32)
    got = float32_to_bf16(np.array([tie, odd], np.uint32).view(np.float32))
    assert got.tolist() == [0x3F80, 0x3F82]
