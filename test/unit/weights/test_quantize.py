# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The NVFP4 quantiser against a naive one, in both conventions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.weights.canonical import DenseWeight
from gemma_thor_ros.weights.number_formats import bf16_to_float32
from gemma_thor_ros.weights.quantize import (
    Convention,
    quantize_matrix,
    quantize_nvfp4,
    stored_scale_for,
)

from .reference_formats import bf16, decode, e2m1, e4m3
from .test_number_formats import nearest

MAGNITUDES = [e2m1(code) for code in range(8)]
SCALES = [e4m3(code) for code in range(127)]
BOTH = pytest.mark.parametrize('convention', list(Convention))


def normal(rows: int, columns: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def naive(values: Any, convention: Convention) -> Any:
    """The rule of the two formats in float64, value by value; gives decoded values."""
    amax = float(np.abs(values).max())
    multiplier = amax / 2688
    out = np.empty(values.shape)
    for row in range(values.shape[0]):
        for start in range(0, values.shape[1], 16):
            group = values[row, start:start + 16].astype(np.float64)
            scale = SCALES[nearest(np.abs(group).max() / 6 / multiplier, SCALES)]
            if scale == 0:
                scale = 2.0 ** -9 if convention is Convention.MODELOPT else 0.125
            for index, value in enumerate(group):
                code = nearest(abs(value) / (scale * multiplier), MAGNITUDES)
                out[row, start + index] = np.sign(value) * MAGNITUDES[code] * scale * multiplier
    return out


@BOTH
def test_equals_the_naive_rule(convention: Convention) -> None:
    values = normal(24, 64)
    values[3] *= 1e-4                    # groups with small scales
    values[5] *= 3e-7                    # groups whose scale underflows
    got = quantize_matrix(values, convention).weight.dequantize(np.float64)
    want = naive(values, convention)
    # One rounding of float32 in the global scale is the only other difference.
    assert np.abs(got - want).max() <= 2e-7 * np.abs(values).max()
    close = np.isclose(got, want, rtol=1e-6, atol=0)
    assert close.mean() > 0.999          # a value that sits on a tie to 7 digits may go either way


@BOTH
def test_stored_scale_follows_the_convention(convention: Convention) -> None:
    values = normal(16, 32)
    tensor = quantize_matrix(values, convention)
    amax = float(np.abs(values).max())
    wanted = amax / 2688 if convention is Convention.MODELOPT else 2688 / amax
    assert float(tensor.stored_scale) == pytest.approx(wanted, rel=1e-6)
    divisor = float(tensor.stored_scale)
    multiplier = divisor if convention is Convention.MODELOPT else float(np.float32(1 / divisor))
    want = decode(tensor.packed, tensor.group_scales, multiplier)
    assert np.array_equal(tensor.weight.dequantize(np.float64), want)


@BOTH
def test_wrong_conventions_and_layouts_are_far_off(convention: Convention) -> None:
    values = normal(32, 32)              # square in groups, so that a transposed table fits
    tensor = quantize_matrix(values, convention)
    multiplier = float(tensor.weight.global_scale)
    right = decode(tensor.packed, tensor.group_scales, multiplier)
    assert relative(right, values) < 0.12
    wrong = {
        'divisor used as multiplier': decode(tensor.packed, tensor.group_scales, 1 / multiplier),
        'nibbles swapped': decode(tensor.packed << 4 | tensor.packed >> 4, tensor.group_scales,
                                  multiplier),
        'scales transposed': decode(tensor.packed, tensor.group_scales.T.reshape(32, 2),
                                    multiplier),
        'rows reversed': decode(tensor.packed[::-1], tensor.group_scales, multiplier),
    }
    for name, decoded in wrong.items():
        assert relative(decoded, values) > 0.15, name


def relative(got: Any, want: Any) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@BOTH
def test_error_statistics_are_those_of_the_decoded_matrix(convention: Convention) -> None:
    values = normal(300, 512)            # more than one chunk
    tensor = quantize_matrix(values, convention)
    decoded = tensor.weight.dequantize(np.float64)
    assert tensor.squared_error == pytest.approx(float(((decoded - values) ** 2).sum()), rel=1e-4)
    assert tensor.squared_sum == pytest.approx(float((values.astype(float) ** 2).sum()), rel=1e-5)
    assert (tensor.squared_error / tensor.squared_sum) ** 0.5 < 0.11


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(Convention)), st.integers(0, 2 ** 32 - 1), st.floats(-20, 20),
       st.floats(0, 6))
def test_quantising_decoded_values_changes_nothing(convention: Convention, seed: int,
                                                   exponent: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((8, 64)) * 2.0 ** exponent
    values *= 2.0 ** -rng.uniform(0, spread, (8, 4)).repeat(16, axis=1)
    values[2, 16:32] = 0
    first = quantize_matrix(values.astype(np.float32), convention)
    second = quantize_matrix(first.weight.dequantize(), convention)
    assert np.array_equal(first.packed, second.packed)
    assert np.array_equal(first.group_scales, second.group_scales)
    assert abs(float(second.stored_scale / first.stored_scale) - 1) < 2e-7


@BOTH
def test_zero_matrices_and_tiny_or_huge_values(convention: Convention) -> None:
    zero = quantize_matrix(np.zeros((2, 32), np.float32), convention)
    assert not zero.weight.dequantize().any()
    for magnitude in (1e-36, 1e-30, 1e30, 3e38):
        values = normal(4, 32) * np.float32(magnitude / 4)
        decoded = quantize_matrix(values, convention).weight.dequantize(np.float64)
        assert np.isfinite(decoded).all()
        if magnitude > 1e-35:
            assert relative(decoded, values.astype(float)) < 0.15
    assert stored_scale_for(0.0, convention) == 1


@BOTH
def test_scales_of_empty_and_of_very_weak_groups(convention: Convention) -> None:
    values = np.zeros((1, 48), np.float32)
    values[0, 0], values[0, 20] = 1.0, 1e-7      # strong, weaker than any scale, empty
    tensor = quantize_matrix(values, convention)
    scales = [e4m3(int(code)) for code in tensor.group_scales[0]]
    empty = {Convention.MODELOPT: [448, 2.0 ** -9, 1],       # what the two writers store
             Convention.COMPRESSED_TENSORS: [448, 0.125, 0.125]}
    assert scales == empty[convention]
    assert tensor.weight.dequantize()[0].tolist() == [1.0, *[0.0] * 47]


@BOTH
@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(convention: Convention, bad: float) -> None:
    values = normal(4, 32)
    values[1, 7] = bad
    with pytest.raises(ValueError, match=r'NaN or infinite'):
        quantize_matrix(values, convention)
    with pytest.raises(ValueError, match=r'NaN or infinite'):
        quantize_matrix(DenseWeight(bf16(values), 'bf16'), convention)


def test_columns_must_be_groups() -> None:
    with pytest.raises(ValueError, match=r'24 input features are no multiple of 16'):
        quantize_matrix(np.ones((2, 24), np.float32), Convention.MODELOPT)


@BOTH
def test_a_shared_global_scale_keeps_both_matrices_accurate(convention: Convention) -> None:
    gate, up = normal(16, 64), normal(16, 64, 1) * np.float32(0.05)
    amax = float(np.abs(gate).max())
    tensors = [quantize_matrix(values, convention, amax) for values in (gate, up)]
    assert tensors[0].stored_scale == tensors[1].stored_scale
    for tensor, values in zip(tensors, (gate, up), strict=True):
        assert relative(tensor.weight.dequantize(), values) < 0.12


@BOTH
def test_bf16_and_stacked_experts(convention: Convention) -> None:
    bits = bf16(np.stack([normal(16, 32, seed) * (seed + 1) for seed in range(3)]))
    weight = quantize_nvfp4(DenseWeight(bits, 'bf16'), convention)
    assert weight.shape == (3, 16, 32) and weight.global_scale.shape == (3,)
    for expert in range(3):
        alone = quantize_matrix(bf16_to_float32(bits[expert]), convention).weight
        assert np.array_equal(weight[expert].dequantize(), alone.dequantize())
        assert np.array_equal(weight.dequantize()[expert], alone.dequantize())
    rows = quantize_nvfp4(normal(8, 32))[2:4]
    assert np.array_equal(rows.dequantize(), quantize_nvfp4(normal(8, 32)).dequantize()[2:4])
