# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Small random inputs of the self test, and the way of its arrays to the device and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.rounding import round_to_bf16

Array = npt.NDArray[Any]
SCALE = np.float32(0.02)                 # of all matrices
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@dataclass
class Matrix:
    """A random NVFP4 matrix, or E of them, and its numbers."""

    packed: Array
    group_scales: Array
    global_scale: Any

    @classmethod
    def random(cls, seed: int, *shape: int) -> Matrix:
        """All codes, scales that are normal and positive."""
        rng = np.random.default_rng(seed)
        scales = rng.integers(0x28, 0x48, (*shape[:-1], shape[-1] // 16)).astype(np.uint8)
        packed = rng.integers(0, 256, (*shape[:-1], shape[-1] // 2)).astype(np.uint8)
        return cls(packed, scales, np.full(shape[:-2], SCALE) if shape[:-2] else SCALE)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers."""
        return (*self.packed.shape[:-1], 2 * self.packed.shape[-1])

    def __getitem__(self, index: int | slice) -> Matrix:
        return Matrix(self.packed[index], self.group_scales[index], self.global_scale[index])

    def dequantize(self, dtype: npt.DTypeLike = np.float64) -> Array:
        """The numbers, exact."""
        codes = np.stack([self.packed & 15, self.packed >> 4], axis=-1).reshape(self.shape)
        numbers = np.where(codes & 8, -1.0, 1.0) * _E2M1[codes & 7]
        bits = self.group_scales.astype(np.int64)        # normal and positive
        scales = (1 + (bits & 7) / 8) * 2.0 ** ((bits >> 3) - 7)
        numbers *= np.repeat(scales, 16, axis=-1)
        result: Array = (numbers * float(SCALE)).astype(dtype)
        return result


def normal(seed: int, *shape: int) -> Array:
    """Float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits(numbers: Array) -> Array:
    """bf16 bits of float32 numbers."""
    rounded = round_to_bf16(np.ascontiguousarray(numbers, np.float32).copy())
    return (rounded.view(np.uint32) >> 16).astype(np.uint16)


def wide(halves: Array) -> Array:
    """Float64 of bf16 bits."""
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def fetch(array: Any, stream: Any) -> Array:
    """What the device has written, bf16 as float64."""
    host = np.empty(array.shape, array.dtype)
    device.copy_out(host, array, stream)
    stream.synchronize()
    return wide(host) if host.dtype == np.uint16 else host


def out(*shape: int, dtype: Any = np.uint16) -> Any:
    """An array of the device with numbers that no op leaves, so that it must write all."""
    poison = 0x7FC0 if dtype == np.uint16 else np.nan if dtype == np.float32 else -7
    return device.put(np.full(shape, poison, dtype))
