# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The repacked layout and both ways to decode it, proved without a GPU for all codes."""
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma_thor_ros.ops.fragment_order import (
    LEFT_IN,
    encode_scales,
    fragment_order_ref,
    row_tiles,
)
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import Nvfp4Weight
from gemma_thor_ros.weights.number_formats import E2M1_VALUES, E4M3_VALUES, pack_e2m1

from . import emulation

Array = npt.NDArray[Any]
HARDWARE = pytest.mark.parametrize('hardware', [True, False], ids=['conversion', 'bit trick'])


def matrix(rng: np.random.Generator, num_rows: int, num_columns: int) -> Nvfp4Weight:
    """All codes, and all scales from 0 over subnormals to 448."""
    codes = rng.integers(0, 16, (num_rows, num_columns), np.uint8)
    scales = rng.integers(0, 0x7F, (num_rows, num_columns // 16), np.uint8)
    return Nvfp4Weight(pack_e2m1(codes), scales, np.float32(1.0).reshape(()))


def codes_of(weight: Nvfp4Weight) -> Array:
    return np.stack([weight.packed & 15, weight.packed >> 4], -1).reshape(weight.shape)


@HARDWARE
def test_scales_decode_to_their_values(hardware: bool) -> None:
    e4m3 = np.arange(0x7F, dtype=np.uint8)
    encoded = encode_scales(e4m3).astype(np.uint32)
    words = encoded | (encoded << 8) | (encoded << 16) | (encoded << 24)
    factor = 2.0 ** (LEFT_IN[hardware] if hardware else 107)
    for half in (0, 1):
        for bits in emulation.decode_scales(words, half, hardware):
            values = emulation.bf16(bits)
            assert np.array_equal(values[1:], E4M3_VALUES[1:0x7F] * factor)
            assert np.isfinite(values[0])            # times codes that are 0


@HARDWARE
def test_every_product_of_code_and_scale_is_exact(hardware: bool) -> None:
    codes = np.arange(16)
    e4m3 = np.arange(1, 0x7F)
    scale_bits = emulation.decode_scales(encode_scales(e4m3).astype(np.uint32), 0, hardware)[0]
    raw = E2M1_VALUES[codes] * (1.0 if hardware else 2.0 ** -126)
    exact = raw[:, None] * emulation.bf16(scale_bits)
    assert np.array_equal(exact, E2M1_VALUES[codes, None] * E4M3_VALUES[None, e4m3]
                          * 2.0 ** LEFT_IN[hardware])
    single = exact.astype(np.float32)
    assert np.array_equal(single, exact)
    assert not (single.view(np.uint32) & 0xFFFF).any()           # bf16 holds it
    assert (np.abs(single[single != 0]) >= 2.0 ** -126).all()    # and it is no subnormal


def test_bit_trick_decodes_all_pairs_of_words() -> None:
    # every code in every place, with random neighbours
    rng = np.random.default_rng(0)
    weight = matrix(rng, 16 * 64, 64)
    weight = Nvfp4Weight(weight.packed, np.maximum(weight.group_scales, 1), weight.global_scale)
    words, _ = fragment_order_ref(weight, None, False)
    codes = codes_of(weight).reshape(-1, 2, 8, 2, 4, 2, 2, 2)   # R high g half t step r2 parity
    expected = E2M1_VALUES[codes] * 2.0 ** -126
    seen = set()
    for lane in range(32):
        g, t = lane >> 2, lane & 3
        for half in (0, 1):
            a = emulation.decode_bits(*(words[:, 0, lane, 2 * half + s] for s in (0, 1)))
            for step in (0, 1):
                for register in range(4):
                    low, high = emulation.halves(a[4 * step + register])
                    want = expected[:, register & 1, g, half, t, step, register >> 1]
                    assert np.array_equal(low, want[:, 0]) and np.array_equal(high, want[:, 1])
                    seen |= {(step, register, code) for code in
                             codes[:, register & 1, g, half, t, step, register >> 1].flat}
    assert len(seen) == 2 * 4 * 16


@pytest.mark.parametrize('rotations', [(9, 12), (10, 11)])
def test_a_wrong_rotation_is_caught(rotations: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    words, _ = fragment_order_ref(matrix(rng, 64, 64), None, False)
    w0, w1 = words[:, 0, :, 0], words[:, 0, :, 1]
    right, wrong = emulation.decode_bits(w0, w1), emulation.decode_bits(w0, w1, rotations)
    assert any(not np.array_equal(a, b) for a, b in zip(right, wrong, strict=True))


@HARDWARE
@pytest.mark.parametrize(('num_rows', 'num_columns'), [(16, 64), (40, 176), (32, 128)])
def test_lanes_give_the_product(hardware: bool, num_rows: int, num_columns: int) -> None:
    rng = np.random.default_rng(num_rows)
    weight = matrix(rng, num_rows, num_columns)
    x = rng.integers(-9, 10, (8, num_columns)).astype(np.float64)
    words, scales = fragment_order_ref(weight, None, hardware)
    out = emulation.product(words, scales, x, hardware)
    expected = (x @ weight.dequantize(np.float64).T) * 2.0 ** LEFT_IN[hardware]
    assert np.array_equal(out[:, :num_rows], expected)           # integers over 2^k: no rounding
    assert not out[:, num_rows:].any()


@HARDWARE
def test_gate_and_up_interleave_by_eight_rows(hardware: bool) -> None:
    rng = np.random.default_rng(3)
    gate, up = matrix(rng, 24, 64), matrix(rng, 24, 64)
    x = rng.integers(-9, 10, (8, 64)).astype(np.float64)
    words, scales = fragment_order_ref(gate, up, hardware)
    assert words.shape[0] == row_tiles(24, True) == 3
    out = emulation.product(words, scales, x, hardware).reshape(8, 3, 2, 8)
    for index, part in enumerate((gate, up)):
        expected = (x @ part.dequantize(np.float64).T) * 2.0 ** LEFT_IN[hardware]
        assert np.array_equal(out[:, :, index].reshape(8, 24), expected)


@HARDWARE
def test_nothing_is_lost(hardware: bool) -> None:
    """Codes and scales come back byte by byte, but for the codes under a scale of 0."""
    rng = np.random.default_rng(4)
    weight = matrix(rng, 48, 192)
    words, scales = fragment_order_ref(weight, None, hardware)
    value_to_code = {value: code for code, value in enumerate(E2M1_VALUES[:8])}
    factor = 1.0 if hardware else 2.0 ** 126
    codes = np.zeros(weight.shape, np.uint8)
    groups = np.zeros(weight.group_scales.shape, np.uint8)
    decode = emulation.decode_hardware if hardware else emulation.decode_bits
    inverse = np.zeros(256, np.uint8)
    inverse[encode_scales(np.arange(0x7F, dtype=np.uint8))] = np.arange(0x7F)
    for row_tile, tile, lane, half in np.ndindex(3, 3, 32, 2):
        g, t = lane >> 2, lane & 3
        a = decode(*(words[row_tile, tile, lane:lane + 1, 2 * half + s] for s in (0, 1)))
        for index, register in enumerate(a):
            step, r = index >> 2, index & 3
            for parity, value in enumerate(emulation.halves(register)):
                row = 16 * row_tile + g + 8 * (r & 1)
                column = 64 * tile + 32 * half + 8 * t + 4 * step + 2 * (r >> 1) + parity
                sign = 8 if np.signbit(value[0]) else 0
                codes[row, column] = sign | value_to_code[abs(value[0]) * factor]
        word = int(scales[row_tile, tile, lane >> 1])
        for high in (0, 1):
            group = 4 * tile + 2 * half + (t >> 1)
            groups[16 * row_tile + g + 8 * high, group] = inverse[
                word >> (16 * half + 8 * high) & 255]
    zero = np.repeat(weight.group_scales == 0, 16, axis=1)
    assert zero.any()
    assert np.array_equal(groups, weight.group_scales)
    assert np.array_equal(codes, np.where(zero, 0, codes_of(weight)))


@pytest.mark.parametrize('bits', [0x7F, 0x80, 0xB8, 0xFF])
def test_negative_and_nan_scales_are_refused(bits: int) -> None:
    weight = matrix(np.random.default_rng(5), 16, 64)
    weight.group_scales[3, 2] = bits
    with pytest.raises(ConfigError, match='negative or not a number'):
        fragment_order_ref(weight, None, True)
