# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Codes of MLX affine packs: bit streams of 2 to 8 bits a value, and the choice of codes.

A row is one little-endian stream of bits, lowest first, in 32-bit words: 8 values lie in as many
bytes as a value has bits, for every width. Knows arrays alone; no names, no files.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.weights.number_formats import (
    Bf16,
    Bytes,
    bf16_to_float32,
    float32_to_bf16,
)

Words = npt.NDArray[np.uint32]
Single = npt.NDArray[np.float32]

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
_TINY_SCALE = np.float32(1e-7)           # what the format's own quantiser gives a constant group


def unpack(words: Words, bits: int, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
    """Codes (..., M) as numbers of a type, from rows of words (..., M * bits / 32).

    M is a multiple of 32. Goes through tables of all codes that lie in 8, 10 or 12 bits.
    """
    stream = np.ascontiguousarray(words, '<u4').view(np.uint8)
    lead = stream.shape[:-1]
    if bits == 8:
        return stream.astype(dtype)
    if bits in (2, 4):                   # no value crosses a byte
        index: npt.NDArray[Any] = stream
    else:
        size = 5 if bits == 5 else 3     # bytes of 4 tens of bits, or of 2 dozens
        low, *rest = np.moveaxis(stream.reshape(*lead, -1, size), -1, 0).astype(np.uint16)
        index = np.empty((*low.shape, 4 if bits == 5 else 2), np.uint16)
        if bits == 5:
            index[..., 0] = low | (rest[0] & 0x03) << 8
            index[..., 1] = rest[0] >> 2 | (rest[1] & 0x0F) << 6
            index[..., 2] = rest[1] >> 4 | (rest[2] & 0x3F) << 4
            index[..., 3] = rest[2] >> 6 | rest[3] << 2
        else:
            index[..., 0] = low | (rest[0] & 0x0F) << 8
            index[..., 1] = rest[0] >> 4 | rest[1] << 4
    return np.take(_codes(bits, np.dtype(dtype)), index, axis=0).reshape(*lead, -1)


@cache
def _codes(bits: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """(2^width, width / bits) codes that lie in so many bits, lowest first."""
    width = {2: 8, 4: 8, 5: 10}.get(bits, 12)
    numbers = np.arange(1 << width)[:, None] >> np.arange(0, width, bits)
    return (numbers & ((1 << bits) - 1)).astype(dtype)


def pack(codes: Bytes, bits: int) -> Words:
    """Words (..., M * bits / 32) of codes (..., M) below 2^bits; the inverse of `unpack`."""
    lead = codes.shape[:-1]
    eights = codes.reshape(*lead, -1, 8).astype(np.uint64)
    wide = np.zeros(eights.shape[:-1], np.uint64)
    for index in range(8):
        wide |= eights[..., index] << np.uint64(bits * index)
    stream = np.empty((*wide.shape, bits), np.uint8)
    for byte in range(bits):
        stream[..., byte] = (wide >> np.uint64(8 * byte)) & np.uint64(0xFF)
    return np.ascontiguousarray(stream.reshape(*lead, -1)).view('<u4')


class AffineCodes(NamedTuple):
    """A quantised matrix: words (N, M * bits / 32), bf16 scales and biases (N, M / G)."""

    words: Words
    scales: Bf16
    biases: Bf16
    squared_error: float                 # sum over the matrix of (w - decoded)^2
    squared_sum: float                   # sum of w^2


def quantize_affine(values: Single, bits: int, group_size: int) -> AffineCodes:
    """Quantise rows (N, M) as MLX does: w = scale * q + bias, q in 0 .. 2^bits - 1.

    The end of a group with the larger magnitude is the bias, and the scale, which is negative
    where that is the upper end, is chosen so that zero is a code too. Codes are the nearest under
    the scales as bf16 stores them.
    """
    rows, columns = values.shape
    groups = values.reshape(rows, columns // group_size, group_size)
    low, high = groups.min(-1), groups.max(-1)
    steps = np.float32((1 << bits) - 1)
    scales = np.maximum((high - low) / steps, _TINY_SCALE)
    lower_edge = np.abs(low) > np.abs(high)
    scales = np.where(lower_edge, scales, -scales)
    edges = np.where(lower_edge, low, high)
    count = np.rint(edges / scales)
    with np.errstate(divide='ignore', invalid='ignore'):
        scales = np.where(count != 0, edges / count, scales)
    stored_scales = float32_to_bf16(scales)
    stored_biases = float32_to_bf16(np.where(count != 0, edges, np.float32(0)))
    scale, bias = bf16_to_float32(stored_scales), bf16_to_float32(stored_biases)
    with np.errstate(divide='ignore', invalid='ignore'):
        codes = np.rint((groups - bias[..., None]) / scale[..., None])
    codes = np.clip(np.nan_to_num(codes), 0, steps)
    lost = groups - (scale[..., None] * codes + bias[..., None])
    words = pack(codes.astype(np.uint8).reshape(rows, columns), bits)
    return AffineCodes(words, stored_scales, stored_biases, float(np.vdot(lost, lost)),
                       float(np.vdot(values, values)))


def row_words(columns: int, bits: int) -> int:
    """Words of a row of `columns` values."""
    return columns * bits // 32


def sizes_of(words: int, groups: int, columns: int) -> tuple[Any, Any]:
    """Bits and group size of rows of `columns` values in so many words and groups, or None."""
    bits = next((b for b in BITS if row_words(columns, b) == words), None)
    group = next((g for g in GROUP_SIZES if groups and columns == g * groups), None)
    return bits, group
