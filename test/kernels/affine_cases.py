# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Random MLX affine matrices where the test runs, and their values in float64; for bench/ too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cases
import numpy as np

ALL = slice(None)


@dataclass
class Affine:
    """One matrix as packs store it, in arrays of NumPy or CuPy."""

    words: Any                           # (N, M * bits / 32) u32
    scales: Any                          # (N, M / group_size) bf16 bits
    biases: Any
    bits: int
    group_size: int

    def codes(self, xp: Any, rows: slice = ALL) -> Any:
        """(n, M) u32 of some rows: the bits of a value may lie in two words."""
        words = self.words[rows]
        columns = words.shape[1] * 32 // self.bits
        first = np.arange(columns) * self.bits
        word, shift = first // 32, (first % 32).astype(np.uint32)
        after = np.minimum(word + 1, words.shape[1] - 1)
        upper = np.where(shift > 32 - self.bits, 32 - shift, 31).astype(np.uint32)
        codes = words[:, word] >> xp.asarray(shift)
        codes |= xp.where(xp.asarray(shift > 32 - self.bits),
                          words[:, after] << xp.asarray(upper), xp.uint32(0))
        return codes & xp.uint32((1 << self.bits) - 1)

    def values(self, xp: Any, rows: slice = ALL) -> Any:
        """(n, M) in float64, exact."""
        numbers = self.codes(xp, rows).astype(xp.float64)
        numbers *= self._wide(xp, self.scales[rows])
        numbers += self._wide(xp, self.biases[rows])
        return numbers

    def _wide(self, xp: Any, part: Any) -> Any:
        return xp.repeat(cases.from_bf16(xp, part), self.group_size, axis=1)


def random_affine(xp: Any, seed: int, shape: tuple[int, int], bits: int, group_size: int,
                  coarse: bool = False) -> Affine:
    """All codes; scales of both signs, rows of a 2-norm of about 1.

    coarse: scales of 1 or -1 and biases that are whole numbers, so that sums with rows of small
    integers are exact in float32.
    """
    random = xp.random.RandomState(seed)
    rows, columns = shape
    groups = (rows, columns // group_size)
    words = random.randint(0, 256, (rows, columns * bits // 8)).astype(xp.uint8).view(xp.uint32)
    signs = random.randint(0, 2, groups) * 2.0 - 1
    if coarse:
        biases = random.randint(-9, 10, groups).astype(xp.float64)
        return Affine(words, cases.to_bf16(xp, signs), cases.to_bf16(xp, biases), bits, group_size)
    steps = (1 << bits) - 1
    sizes = random.uniform(0.5, 2.0, groups) * columns ** -0.5 / (steps / 3.4)
    scales = cases.to_bf16(xp, sizes * signs)
    biases = cases.from_bf16(xp, scales) * -steps * random.uniform(0.4, 0.6, groups)
    return Affine(words, scales, cases.to_bf16(xp, biases), bits, group_size)
