# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Random MLX affine matrices, and their values in float64; for tests and bench/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from machine import from_bf16, to_bf16

Array = npt.NDArray[Any]


@dataclass
class Affine:
    """One matrix as packs store it; arrays of the host or the device."""

    words: Any                           # (N, M * bits / 32) u32
    scales: Any                          # (N, M / group_size) bf16 bits
    biases: Any
    bits: int
    group_size: int

    @property
    def columns(self) -> int:
        """M."""
        return int(self.words.shape[1]) * 32 // self.bits

    def values(self) -> Array:
        """(N, M) in float64, exact; of a matrix of the host."""
        stream = np.unpackbits(self.words.view(np.uint8), axis=1, bitorder='little')
        codes = (stream.reshape(len(stream), -1, self.bits)
                 * 2.0 ** np.arange(self.bits)).sum(-1)
        scales, biases = (np.repeat(from_bf16(part), self.group_size, axis=1)
                          for part in (self.scales, self.biases))
        return codes * scales + biases

    def on(self, xp: Any) -> Affine:
        """A copy where xp's arrays are."""
        return Affine(*(xp.asarray(part) for part in (self.words, self.scales, self.biases)),
                      self.bits, self.group_size)


def random_affine(seed: int, shape: tuple[int, int], bits: int, group_size: int,
                  coarse: bool = False) -> Affine:
    """All codes; scales of both signs, rows of a 2-norm of about 1.

    coarse: scales of 1 or -1 and biases that are whole numbers, so that sums with rows of small
    integers are exact in float32.
    """
    rng = np.random.default_rng(seed)
    rows, columns = shape
    groups = (rows, columns // group_size)
    words = rng.integers(0, 1 << 32, (rows, columns * bits // 32), np.uint32)
    signs = rng.integers(0, 2, groups) * 2.0 - 1
    if coarse:
        return Affine(words, to_bf16(signs), to_bf16(rng.integers(-9, 10, groups).astype(float)),
                      bits, group_size)
    steps = (1 << bits) - 1
    sizes = rng.uniform(0.5, 2.0, groups) * columns ** -0.5 / (steps / 3.4)
    scales = to_bf16(sizes * signs)
    biases = to_bf16(from_bf16(scales) * -steps * rng.uniform(0.4, 0.6, groups))
    return Affine(words, scales, biases, bits, group_size)
