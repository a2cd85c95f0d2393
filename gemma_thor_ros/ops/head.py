# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""logits = cap * tanh((x E^T) / cap): the last op of a forward pass."""

from __future__ import annotations

import numpy as np

from gemma_thor_ros.ops.linear import CPU_TILES, RowTiles, TableWeight, linear_ref
from gemma_thor_ros.ops.rounding import Array


def head_ref(logits: Array, x: Array, table: TableWeight, softcap: float, *,
             tiles: RowTiles = CPU_TILES) -> None:
    """Write logits (R, V) from normed rows x (R, H); R is a multiple of the decode tile.

    One kernel for all rows, whatever their role: logits belong to the token that is drawn next.
    The products are not rounded to a narrower type.
    """
    linear_ref(logits, x, table.linear, x.shape[0], tiles=tiles)
    logits /= logits.dtype.type(softcap)
    np.tanh(logits, out=logits)
    logits *= logits.dtype.type(softcap)


def bytes_moved(num_rows: int, vocab_size: int, hidden_size: int, table_bytes: int,
                element_bytes: int) -> int:
    """The table once, rows in, logits out in float32."""
    return table_bytes + num_rows * (hidden_size * element_bytes + vocab_size * 4)
