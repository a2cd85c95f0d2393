# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""logits = cap * tanh((x E^T) / cap): the last op of a forward pass."""

from __future__ import annotations

import numpy as np

from gemma_thor_ros.ops.linear import CPU_TILES, RowTiles, TableWeight, linear_ref
from gemma_thor_ros.ops.rounding import Array, Rounding, stored_by_mlx


def head_ref(logits: Array, x: Array, table: TableWeight, softcap: float, *,
             tiles: RowTiles = CPU_TILES, rounding: Rounding = 'none') -> None:
    """Write logits (R, V) from normed rows x (R, H); R is a multiple of the decode tile.

    One kernel for all rows, whatever their role: logits belong to the token that is drawn next.
    'device' rounds nothing here; 'mlx' computes products and soft cap in bf16.
    """
    linear_ref(logits, x, table.linear, x.shape[0], tiles=tiles)
    stored_by_mlx(logits, rounding)
    logits /= logits.dtype.type(softcap)
    stored_by_mlx(logits, rounding)
    np.tanh(logits, out=logits)
    stored_by_mlx(logits, rounding)
    logits *= logits.dtype.type(softcap)
    stored_by_mlx(logits, rounding)


def bytes_moved(num_rows: int, vocab_size: int, hidden_size: int, table_bytes: int,
                element_bytes: int) -> int:
    """The table once, rows in, logits out in float32."""
    return table_bytes + num_rows * (hidden_size * element_bytes + vocab_size * 4)
