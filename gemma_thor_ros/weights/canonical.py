# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The weight types that leave this package, whatever the checkpoint's own form was.

Arrays may be views of a mapped file: read-only, perhaps unaligned. Knows no names and no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.weights import mlx_bits
from gemma_thor_ros.weights.number_formats import (
    E4M3_VALUES,
    Bytes,
    FloatArray,
    bf16_to_float32,
    e2m1_pairs,
)

GROUP_SIZE = 16                          # columns that share one e4m3 scale


@dataclass(frozen=True, eq=False)
class DenseWeight:
    """A tensor stored value by value: `data` is uint16 (bf16 bits) or float32, any shape."""

    data: npt.NDArray[Any]
    kind: Literal['bf16', 'f32']

    def __post_init__(self) -> None:
        expected = np.uint16 if self.kind == 'bf16' else np.float32
        assert self.data.dtype == expected, (self.kind, self.data.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape, the same as the stored one."""
        return self.data.shape

    @property
    def nbytes(self) -> int:
        """Stored size in bytes."""
        return self.data.nbytes

    def to_float(self, dtype: npt.DTypeLike = np.float32) -> FloatArray:
        """The values as float32 or float64; exact."""
        single = bf16_to_float32(self.data) if self.kind == 'bf16' else self.data
        return single.astype(dtype, copy=self.kind == 'f32')

    def __getitem__(self, index: int | slice) -> DenseWeight:
        """Part of the leading axis, as a view: one expert, or some rows."""
        return DenseWeight(self.data[index], self.kind)


@dataclass(frozen=True, eq=False)
class Nvfp4Weight:
    """e2m1 codes under one e4m3 scale per 16 columns and one float32 scale per matrix.

    packed (..., N, M/2) uint8, the even column in the low nibble; group_scales (..., N, M/16)
    uint8, e4m3 bits, linear order; global_scale float32, shape () or (E,), always a MULTIPLIER:
    w = e2m1 * e4m3 * global_scale. The leading axis, if any, is E.
    """

    packed: Bytes
    group_scales: Bytes
    global_scale: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        *lead, half = self.packed.shape
        assert self.packed.dtype == np.uint8 and self.group_scales.dtype == np.uint8
        assert self.group_scales.shape == (*lead, half * 2 // GROUP_SIZE), (
            self.packed.shape, self.group_scales.shape)
        assert half * 2 % GROUP_SIZE == 0, self.packed.shape
        assert self.global_scale.dtype == np.float32, self.global_scale.dtype
        assert self.global_scale.shape == self.packed.shape[:-2], (
            self.global_scale.shape, self.packed.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape (N, M) or (E, N, M)."""
        *lead, half = self.packed.shape
        return (*lead, half * 2)

    @property
    def nbytes(self) -> int:
        """Stored size in bytes, scales included."""
        return self.packed.nbytes + self.group_scales.nbytes + self.global_scale.nbytes

    def dequantize(self, dtype: npt.DTypeLike = np.float32) -> FloatArray:
        """The values as float32 or float64.

        float64 is the exact product. float32 is that product rounded once: e2m1 * e4m3 needs six
        bits and is exact, so only the product with global_scale rounds.
        """
        values = _pairs(np.dtype(dtype))[self.packed].reshape(self.shape)
        grouped = values.reshape(*self.shape[:-1], -1, GROUP_SIZE)
        grouped *= E4M3_VALUES.astype(dtype)[self.group_scales][..., None]
        values *= self.global_scale.astype(dtype)[..., None, None]
        return values

    def __getitem__(self, index: int | slice) -> Nvfp4Weight:
        """Part of the leading axis, as a view: one expert of (E, N, M), or rows of (N, M)."""
        scale = self.global_scale[index] if self.global_scale.ndim else self.global_scale
        if not self.global_scale.ndim and not isinstance(index, slice):
            raise TypeError('rows of a matrix are taken with a slice')
        return Nvfp4Weight(self.packed[index], self.group_scales[index], np.asarray(scale))


@dataclass(frozen=True, eq=False)
class Nvfp4Stack:
    """E matrices (N, M) that lie apart in the files, as views: one Nvfp4Weight without a copy."""

    matrices: tuple[Nvfp4Weight, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape (E, N, M)."""
        return (len(self.matrices), *self.matrices[0].shape)

    def __getitem__(self, index: int) -> Nvfp4Weight:
        """One expert."""
        return self.matrices[index]


@dataclass(frozen=True, eq=False)
class AffineWeight:
    """MLX affine codes: w = scale * q + bias, one scale and bias for `group_size` columns.

    words (..., N, M * bits / 32) uint32, see mlx_bits; scales and biases (..., N, M / group_size).
    Scales may be negative. The leading axis, if any, is E.
    """

    words: npt.NDArray[np.uint32]
    scales: DenseWeight
    biases: DenseWeight
    bits: int
    group_size: int

    def __post_init__(self) -> None:
        assert self.words.dtype == np.uint32, self.words.dtype
        assert self.scales.shape == self.biases.shape, (self.scales.shape, self.biases.shape)
        assert self.scales.shape == (*self.words.shape[:-1], self.shape[-1] // self.group_size)

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape (N, M) or (E, N, M)."""
        *lead, words = self.words.shape
        return (*lead, words * 32 // self.bits)

    @property
    def nbytes(self) -> int:
        """Stored size in bytes, scales and biases included."""
        return self.words.nbytes + self.scales.nbytes + self.biases.nbytes

    def dequantize(self, dtype: npt.DTypeLike = np.float32) -> FloatArray:
        """The values as float32 or float64, rounded once.

        A bf16 scale times a code has 16 bits, exact in float32: only the sum rounds. Scales of
        more bits go through float64.
        """
        narrow = self.scales.kind == 'bf16' and self.biases.kind == 'bf16'
        number = np.dtype(dtype) if narrow else np.dtype(np.float64)
        values = mlx_bits.unpack(self.words, self.bits, number)
        grouped = values.reshape(*self.shape[:-1], -1, self.group_size)
        grouped *= self.scales.to_float(number)[..., None]
        grouped += self.biases.to_float(number)[..., None]
        return values.astype(dtype, copy=False)

    def __getitem__(self, index: int | slice) -> AffineWeight:
        """Part of the leading axis, as a view: one expert of (E, N, M), or rows of (N, M)."""
        if self.words.ndim == 2 and not isinstance(index, slice):
            raise TypeError('rows of a matrix are taken with a slice')
        return AffineWeight(self.words[index], self.scales[index], self.biases[index], self.bits,
                            self.group_size)


Weight = DenseWeight | Nvfp4Weight | AffineWeight


def dense_bf16(bits: npt.NDArray[np.uint16]) -> DenseWeight:
    """A weight of bf16 bits."""
    return DenseWeight(bits, 'bf16')


def to_float(weight: Weight, dtype: npt.DTypeLike = np.float32) -> FloatArray:
    """The values of any type as float32 or float64."""
    if isinstance(weight, DenseWeight):
        return weight.to_float(dtype)
    return weight.dequantize(dtype)


@cache
def _pairs(dtype: np.dtype[Any]) -> FloatArray:
    return e2m1_pairs(dtype)
