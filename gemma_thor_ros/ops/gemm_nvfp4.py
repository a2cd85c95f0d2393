# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""y = x W^T for generated rows with W in NVFP4; with gate and up interleaved, geglu(x G^T, x U^T).

The projections of attention and of the dense MLP in decode and verify steps. A row has the same
bits alone and among others: how the columns are cut depends on M alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS, Nvfp4Fragments, row_tiles
from gemma_thor_ros.ops.geglu import geglu_ref
from gemma_thor_ros.ops.linear import StoredWeight, values
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.shapes import check

ROWS_PER_LAUNCH_TILE = 16                # activation rows of one pass over the weights
_MAX_WARPS = 16
_MAX_PREFETCH = 4                        # tiles in flight of a warp: 4 + 1 registers each; long
                                         # loops have room for 3
_REGISTERS = 56                          # of a thread, for as many resident blocks as that lets


def gemm_nvfp4_ref(out: Array, x: Array, parts: Sequence[StoredWeight], *,
                   interleaved: bool = False, rounding: Rounding = 'none') -> None:
    """Write out (T, N) from x (T, M) and matrices (N, M) stacked by rows.

    interleaved: the parts are gate and up (I, M), out is (T, I). 'device' rounds every product,
    and geglu's result, to bf16.
    """
    products = [x @ values(part, x.dtype).T for part in parts]
    product = np.ascontiguousarray(np.concatenate(products, axis=1))
    stored(product, rounding)
    if interleaved:
        geglu_ref(out, product, rounding)
    else:
        out[...] = product


def gemm_nvfp4(out: Any, x: Any, weight: Nvfp4Fragments, stream: Any) -> None:
    """Enqueue out (T, N) bf16 = x (T, M) bf16 times the weight; T >= 1, in passes of 16 rows."""
    num_tokens = check('gemm_nvfp4', {'N': weight.num_outputs, 'M': weight.columns}, out=out,
                       x=x)['T']
    kernel = device.compiled(spec(weight.columns, num_tokens, weight.interleaved,
                                  device.has_e2m1_conversion()))
    constants = dict(kernel.spec.defines)
    tiles = weight.num_row_tiles
    grid = (-(-tiles // constants['ROW_TILES']), -(-num_tokens // ROWS_PER_LAUNCH_TILE))
    device.launch(kernel, grid, constants['K_WARPS'] * 32,
                  (out, x, weight.codes, weight.scales, weight.row_scales, num_tokens, tiles,
                   weight.num_outputs), stream)


def spec(columns: int, num_tokens: int, interleaved: bool, hardware: bool,
         **override: int) -> KernelSpec:
    """What is compiled for M columns and a number of rows; `override` is for measurements.

    Two row tiles a block halve how often the activations are fetched; with more than 8 of them
    that beats more resident blocks (bench/LOG.md). Neither changes a bit of the result.
    """
    warps, tiles = cut(columns)
    blocks = blocks_of(num_tokens)
    constants = {
        'COLUMNS': columns, 'COLUMN_TILES': -(-columns // TILE_COLUMNS), 'K_WARPS': warps,
        'WARP_TILES': tiles, 'BLOCKS': blocks, 'ROW_TILES': blocks, 'GEGLU': int(interleaved),
        'MIN_BLOCKS': 1 if blocks == 2 else max(1, 65536 // (_REGISTERS * warps * 32)),
        'PREFETCH': min(tiles, _MAX_PREFETCH if tiles <= 8 else 3),
        'E2M1_HARDWARE': int(hardware), **override}
    return KernelSpec.of('gemm_nvfp4', **constants)


def blocks_of(num_tokens: int) -> int:
    """Blocks of 8 activation rows that a pass handles."""
    return 1 if num_tokens <= 8 else 2


def cut(columns: int) -> tuple[int, int]:
    """(warps that share the columns, tiles of each): a function of the weight's shape alone.

    The fewest wasted tiles, then the most warps.
    """
    tiles = -(-columns // TILE_COLUMNS)
    if tiles <= _MAX_WARPS:
        return tiles, 1
    options = [(warps, -(-tiles // warps)) for warps in range(8, _MAX_WARPS + 1)]
    return min(options, key=lambda option: (option[0] * option[1], -option[0]))


def bytes_moved(num_tokens: int, num_outputs: int, columns: int, interleaved: bool = False) -> int:
    """The weights once, the rows in and out."""
    tiles = row_tiles(num_outputs, interleaved) * -(-columns // TILE_COLUMNS)
    return tiles * 576 + num_tokens * (num_outputs + columns) * 2
