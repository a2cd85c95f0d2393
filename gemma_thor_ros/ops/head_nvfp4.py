# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""logits = cap tanh(x W^T / cap) with the tied table requantised to NVFP4: the head of a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemma_thor_ros.ops import device, gemm_nvfp4, gemv
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS, Nvfp4Fragments
from gemma_thor_ros.ops.gemm_nvfp4 import ROWS_PER_LAUNCH_TILE, blocks_of
from gemma_thor_ros.ops.linear import StoredWeight, values
from gemma_thor_ros.ops.rounding import Array
from gemma_thor_ros.ops.shapes import check

_STAGE_TILES, _STAGES = 4, 3             # of a warp's ring in shared memory
_FEWER_WARPS = {'WARPS': 8, 'ROW_TILES': 2, 'STAGE_TILES': 3, 'STAGES': 4}       # beside many rows
_VOCAB_TILES = 16384                     # row tiles of a table of 262,144
_WARPS, _FEWEST_WARPS = 16, 4            # of a block; the rings of so many fit anywhere


def head_nvfp4_ref(logits: Array, x: Array, table: StoredWeight, softcap: float) -> None:
    """Write logits (R, V) from normed rows x (R, H); the products are not rounded."""
    np.matmul(x, values(table, x.dtype).T, out=logits)
    logits /= softcap
    np.tanh(logits, out=logits)
    logits *= softcap


def head_nvfp4(logits: Any, x: Any, weight: Nvfp4Fragments, softcap: float, stream: Any) -> None:
    """Enqueue logits (R, V) f32 from x (R, H) bf16; V a multiple of 16."""
    num_rows = check('head_nvfp4', {'V': weight.num_outputs, 'H': weight.columns}, logits=logits,
                     x=x)['R']
    assert weight.num_outputs % 16 == 0, weight.num_outputs
    info, hardware = device.info(), device.has_e2m1_conversion()
    served = served_spec(weight.columns, num_rows, info.shared_bytes_per_block, hardware,
                         weight.num_row_tiles, info.num_multiprocessors)
    if served.file != 'head_nvfp4':
        launch = (gemm_nvfp4.launch_single if served.file == 'gemv_nvfp4' else
                  gemm_nvfp4.launch_rows)
        launch(logits, x, weight, served, float(softcap), stream)
        return
    kernel = device.compiled(served)
    constants = dict(kernel.spec.defines)
    groups = min(info.num_multiprocessors * constants['MIN_BLOCKS'],
                 -(-weight.num_row_tiles // (constants['WARPS'] * constants['ROW_TILES'])))
    device.launch(kernel, (groups, -(-num_rows // ROWS_PER_LAUNCH_TILE)), constants['WARPS'] * 32,
                  (logits, x, weight.codes, weight.scales, weight.row_scales, num_rows,
                   weight.num_row_tiles, weight.num_outputs, float(softcap)), stream,
                  shared_bytes(constants))


def served_spec(columns: int, num_rows: int, shared_limit: int, hardware: bool,
                num_row_tiles: int = _VOCAB_TILES,
                multiprocessors: int = gemv.MULTIPROCESSORS) -> KernelSpec:
    """What serves so many rows: a kernel of one row, or of rows in registers, else `spec`'s."""
    if num_rows == 1:
        found = gemm_nvfp4.single_spec(columns, False, hardware, num_row_tiles, shared_limit,
                                       head=True)
    else:
        found = gemm_nvfp4.rows_spec(columns, num_rows, hardware, num_row_tiles, shared_limit,
                                     multiprocessors, head=True)
    return found or spec(columns, num_rows, shared_limit, hardware)


def spec(columns: int, num_rows: int, shared_limit: int, hardware: bool,
         **override: int) -> KernelSpec:
    """What is compiled for H columns: rows are staged in shared memory where they fit.

    There are as many warps as have room for their rings.
    """
    tiles, blocks = -(-columns // TILE_COLUMNS), blocks_of(num_rows)
    constants = {
        'COLUMNS': columns, 'COLUMN_TILES': tiles, 'WARPS': _WARPS, 'BLOCKS': blocks,
        'SINGLE': int(num_rows == 1), 'STAGED': 1, 'SEGMENT': gemm_nvfp4.head_cut(columns)[1],
        'STAGE_TILES': _STAGE_TILES, 'STAGES': _STAGES, 'ROW_TILES': 1, 'MIN_BLOCKS': 1,
        'E2M1_HARDWARE': int(hardware), **override}
    if blocks == 2 and shared_bytes(constants) > shared_limit and not override:
        fewer = {**constants, **_FEWER_WARPS}        # two row tiles at a time instead
        constants = fewer if shared_bytes(fewer) <= shared_limit else constants
    if shared_bytes(constants) > shared_limit:
        constants['STAGED'] = 0
    while shared_bytes(constants) > shared_limit and constants['WARPS'] > _FEWEST_WARPS:
        constants['WARPS'] -= _FEWEST_WARPS
    return KernelSpec.of('head_nvfp4', **constants)


def shared_bytes(constants: dict[str, int]) -> int:
    """Dynamic shared memory of a block: its warps' rings, and rows in fragment order."""
    row = 128 if constants['SINGLE'] else 1024 * constants['BLOCKS']
    rows = constants['STAGED'] * constants['COLUMN_TILES'] * row
    ring = constants['STAGES'] * (constants['STAGE_TILES'] * 576 + 16)
    return constants['WARPS'] * ring + rows


def bytes_moved(num_rows: int, vocab_size: int, columns: int) -> int:
    """The table once, rows in, logits out in float32."""
    tiles = -(-vocab_size // 16) * -(-columns // TILE_COLUMNS)
    return tiles * 576 + num_rows * (columns * 2 + vocab_size * 4)
