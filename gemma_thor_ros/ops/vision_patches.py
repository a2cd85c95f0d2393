# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The ends of a vision part: pixels to numbers, position embeddings, pooling to soft tokens.

Patches stand row by row, `columns` of them in a row. One image is one call, so that its bits
depend on nothing else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops.rounding import Array, Rounding, stored

Levels = npt.NDArray[np.uint8]


def patch_numbers_ref(out: Array, patches: Levels, centred: bool,
                      rounding: Rounding = 'none') -> None:
    """Write x / 255, or 2 (x / 255 - 1/2) where `centred`, of patches (P, M) to out (P, M).

    'device' rounds the result to bf16.
    """
    number = out.dtype.type
    np.multiply(patches, number(1 / 255), out=out)
    if centred:
        out -= number(0.5)
        out *= number(2)
    stored(out, rounding)


def add_positions_ref(x: Array, x_table: Array, y_table: Array, columns: int) -> None:
    """x (P, H) += x_table[p mod columns] + y_table[p div columns]; tables (rows, H).

    Never rounded: the sum stays in the residual.
    """
    places = np.arange(x.shape[0])
    x += x_table[places % columns]
    x += y_table[places // columns]


def pool_ref(out: Array, x: Array, columns: int, size: int, scale: float) -> None:
    """out (N, H) = the mean of each size x size block of x (P, H), times scale; never rounded."""
    hidden = x.shape[1]
    rows = x.shape[0] // columns
    blocks = x.reshape(rows // size, size, columns // size, size, hidden)
    total = out.reshape(rows // size, columns // size, hidden)
    total[...] = 0
    for row in range(size):                              # in one order, whatever the shape
        for column in range(size):
            total += blocks[:, row, :, column]
    out *= out.dtype.type(scale / (size * size))


def standardize_ref(x: Array, bias: Array, scale: Array, rounding: Rounding = 'none') -> None:
    """x (N, H) = (x - bias) * scale in place; 'device' rounds the result to bf16."""
    x -= bias
    x *= scale
    stored(x, rounding)


def bytes_moved(num_patches: int, hidden_size: int, element_bytes: int) -> int:
    """Rows read and rows written."""
    return 2 * num_patches * hidden_size * element_bytes
