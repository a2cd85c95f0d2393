# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""y = x W^T for few rows with W in bf16 (drafters, bf16 checkpoints), and the bf16 head.

The weight lies as the checkpoint stores it, so the tied table also serves the embedding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS, TILE_ROWS
from gemma_thor_ros.ops.gemm_nvfp4 import ROWS_PER_LAUNCH_TILE, blocks_of, cut
from gemma_thor_ros.ops.linear import StoredWeight, values
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.shapes import check

_PREFETCH = 2                            # tiles in flight of a warp: 16 registers each


def gemm_bf16_ref(out: Array, x: Array, weight: StoredWeight, *, softcap: float | None = None,
                  rounding: Rounding = 'none') -> None:
    """Write out (T, N) from x (T, M) and weight (N, M).

    'device' rounds the product to bf16. With a softcap out is cap tanh(x W^T / cap), unrounded.
    """
    np.matmul(x, values(weight, x.dtype).T, out=out)
    if softcap is None:
        stored(out, rounding)
        return
    out /= softcap
    np.tanh(out, out=out)
    out *= softcap


def gemm_bf16(out: Any, x: Any, weight: Any, stream: Any) -> None:
    """Enqueue out (T, N) bf16 = x (T, M) bf16 times weight (N, M) bf16; M a multiple of 8."""
    sizes = check('gemm_bf16', out=out, x=x, weight=weight)
    _launch(out, x, weight, sizes['T'], sizes['N'], sizes['M'], None, stream)


def head_bf16(logits: Any, x: Any, weight: Any, softcap: float, stream: Any) -> None:
    """Enqueue logits (R, V) f32 = cap tanh(x W^T / cap) with the tied table in bf16."""
    sizes = check('head_bf16', logits=logits, x=x, weight=weight)
    _launch(logits, x, weight, sizes['R'], sizes['V'], sizes['H'], softcap, stream)


def _launch(out: Any, x: Any, weight: Any, num_tokens: int, num_outputs: int, columns: int,
            softcap: float | None, stream: Any) -> None:
    kernel = device.compiled(spec(columns, num_tokens, softcap is not None))
    constants = dict(kernel.spec.defines)
    grid = (-(-num_outputs // TILE_ROWS), -(-num_tokens // ROWS_PER_LAUNCH_TILE))
    device.launch(kernel, grid, constants['K_WARPS'] * 32,
                  (out, x, weight, num_tokens, num_outputs, float(softcap or 1.0)), stream)


def spec(columns: int, num_tokens: int, softcap: bool, **override: int) -> KernelSpec:
    """What is compiled for M columns and a number of rows."""
    assert columns % 8 == 0, columns
    warps, tiles = cut(columns)
    constants = {
        'COLUMNS': columns, 'COLUMN_TILES': -(-columns // TILE_COLUMNS), 'K_WARPS': warps,
        'WARP_TILES': tiles, 'PREFETCH': min(tiles, _PREFETCH), 'BLOCKS': blocks_of(num_tokens),
        'SOFTCAP': int(softcap), 'MIN_BLOCKS': 1, **override}
    return KernelSpec.of('gemm_bf16', **constants)


def bytes_moved(num_tokens: int, num_outputs: int, columns: int, out_bytes: int = 2) -> int:
    """The weights once, the rows in and out."""
    return num_outputs * columns * 2 + num_tokens * (num_outputs * out_bytes + columns * 2)
