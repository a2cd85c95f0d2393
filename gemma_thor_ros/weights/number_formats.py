# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The small float formats of NVFP4 checkpoints: e2m1, e4m3 and bf16, as tables and conversions.

Knows bits only; no tensors, names or files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]
Bytes = npt.NDArray[np.uint8]
Bf16 = npt.NDArray[np.uint16]

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_MIN_NORMAL = 2.0 ** -6
E4M3_MIN = 2.0 ** -9

# Code = sign bit, then the index of the magnitude (OCP Microscaling formats 1.0).
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_VALUES: npt.NDArray[np.float64] = np.array(
    [sign * value for sign in (1.0, -1.0) for value in _E2M1_MAGNITUDES])


def _e4m3_table() -> npt.NDArray[np.float64]:
    codes = np.arange(256)
    exponent = (codes >> 3) & 15
    mantissa = codes & 7
    magnitude = np.where(exponent == 0, mantissa * E4M3_MIN,
                         (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(codes & 127) == 127] = np.nan             # 'fn': no infinities, one NaN per sign
    return np.where(codes & 128, -magnitude, magnitude)


E4M3_VALUES: npt.NDArray[np.float64] = _e4m3_table()     # (256,) by code; 0x7F and 0xFF are NaN


def e2m1_pairs(dtype: npt.DTypeLike) -> FloatArray:
    """Table (256, 2): the two values of a packed byte, the even column in the low nibble."""
    codes = np.arange(256)
    pairs = np.stack([E2M1_VALUES[codes & 15], E2M1_VALUES[codes >> 4]], axis=1)
    return pairs.astype(dtype)


def encode_e2m1(ratio: npt.NDArray[np.float32]) -> Bytes:
    """Nearest e2m1 code of each value; ties go to the even code, |ratio| > 5 saturates at 6.

    The sign bit is kept where the magnitude becomes zero, as other NVFP4 writers do.
    """
    magnitude = np.abs(ratio)
    codes = np.zeros(ratio.shape, np.uint8)
    for reached in (magnitude > 0.25, magnitude >= 0.75, magnitude > 1.25, magnitude >= 1.75,
                    magnitude > 2.5, magnitude >= 3.5, magnitude > 5.0):
        codes += reached.view(np.uint8)
    codes |= np.signbit(ratio).view(np.uint8) << np.uint8(3)
    return codes


def pack_e2m1(codes: Bytes) -> Bytes:
    """Two codes a byte along the last axis: (..., M) -> (..., M / 2)."""
    packed: Bytes = codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
    return packed


def encode_e4m3(values: npt.NDArray[np.float32]) -> Bytes:
    """Nearest e4m3 code of non-negative finite values; ties to the even code, at most 448."""
    values = np.minimum(np.asarray(values, dtype=np.float32), np.float32(E4M3_MAX))
    _, exponent = np.frexp(values)
    # A normal value in [2^e, 2^(e+1)) has steps of 2^(e-3); frexp counts the exponent one higher.
    step = np.ldexp(np.float32(1.0), np.maximum(exponent - 4, -9)).astype(np.float32)
    rounded = (np.rint(values / step) * step).astype(np.float32)
    bits = rounded.view(np.uint32)
    normal = ((bits >> 20) & 0x7FF).astype(np.int32) - ((127 - 7) << 3)
    subnormal = (rounded * np.float32(512.0)).astype(np.int32)
    codes: Bytes = np.where(rounded >= E4M3_MIN_NORMAL, normal, subnormal).astype(np.uint8)
    return codes


def bf16_to_float32(bits: Bf16) -> npt.NDArray[np.float32]:
    """Exact widening of bf16 bits."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return np.asarray(wide.view(np.float32), np.float32)


def float32_to_bf16(values: FloatArray) -> Bf16:
    """Bits of the nearest bf16, ties to even; NaN stays NaN."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(single), np.uint32(0x7FC0), rounded).astype(np.uint16)
