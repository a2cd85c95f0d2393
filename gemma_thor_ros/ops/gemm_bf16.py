# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""y = x W^T for few rows with W in bf16 (drafters, bf16 checkpoints), gated MLPs, the bf16 head.

The weight lies as the checkpoint stores it, so the tied table also serves the embedding. Where the
rows fit into registers stream_bf16 does it, else gemm_bf16, with the same bits.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS, TILE_ROWS
from gemma_thor_ros.ops.gemm_nvfp4 import ROWS_PER_LAUNCH_TILE, blocks_of, cut
from gemma_thor_ros.ops.gemv import MULTIPROCESSORS
from gemma_thor_ros.ops.linear import StoredWeight, values
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.shapes import check

Gate = Literal['none', 'gelu', 'silu']
_GATES: tuple[Gate, ...] = ('none', 'gelu', 'silu')
_PREFETCH = 2                            # tiles in flight of a warp: 16 registers each
_FEW_TILES = 4                           # of a warp; longer loops need more registers, so that
_LONG_WARPS = 8                          # two blocks fit on a multiprocessor with so many warps
# stream_bf16 serves warps of at least so many tiles, in blocks of at most so many warps: there it
# takes half as long on an H200 where blocks are few, a tenth less at 2,816 columns (bench/LOG.md)
FEWEST_STREAMED = 4
_MOST_STREAMED_WARPS = 12
_STREAM_BYTES = 96 << 10                 # of all rings of a block, about
_STREAM_STAGES = 12                      # of a ring, at most
_OTHER_REGISTERS = 56                    # beside the activations
_MOST_TILES = 8                          # row tiles of a block
_RESERVED_BYTES = 1024                   # of a multiprocessor's shared memory, for each block


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


def gated_bf16(out: Any, x: Any, weight: Any, gate: Gate, stream: Any) -> None:
    """Enqueue out (T, I) bf16 = gate(x G^T) * (x U^T); weight (2 I, M) bf16 is G above U.

    The twins are gemm_bf16_ref and then geglu_ref or swiglu_ref.
    """
    sizes = check('gated_bf16', out=out, x=x, weight=weight)
    assert sizes['2I'] == 2 * sizes['I'] and sizes['I'] % 8 == 0, sizes
    _launch(out, x, weight, sizes['T'], sizes['I'], sizes['M'], None, stream, gate)


def head_bf16(logits: Any, x: Any, weight: Any, softcap: float, stream: Any) -> None:
    """Enqueue logits (R, V) f32 = cap tanh(x W^T / cap) with the tied table in bf16."""
    sizes = check('head_bf16', logits=logits, x=x, weight=weight)
    _launch(logits, x, weight, sizes['R'], sizes['V'], sizes['H'], softcap, stream)


def _launch(out: Any, x: Any, weight: Any, num_tokens: int, num_outputs: int, columns: int,
            softcap: float | None, stream: Any, gate: Gate = 'none') -> None:
    if softcap is None:
        chosen = served_spec(columns, num_outputs, num_tokens, gate,
                             device.info().shared_bytes_per_block)
        if chosen.file == 'stream_bf16':
            _stream(chosen, out, x, weight, num_tokens, num_outputs, stream)
            return
    kernel = device.compiled(spec(columns, num_tokens, softcap is not None, gate))
    constants = dict(kernel.spec.defines)
    rows = TILE_ROWS if gate == 'none' else TILE_ROWS // 2
    grid = (-(-num_outputs // rows), -(-num_tokens // ROWS_PER_LAUNCH_TILE))
    device.launch(kernel, grid, constants['K_WARPS'] * 32,
                  (out, x, weight, num_tokens, num_outputs, float(softcap or 1.0)), stream)


def spec(columns: int, num_tokens: int, softcap: bool, gate: Gate = 'none',
         **override: int) -> KernelSpec:
    """What is compiled for M columns and a number of rows."""
    warps, tiles = _cut(columns)
    blocks = blocks_of(num_tokens)
    # one of two blocks reads weights while the other adds its results, where nothing spills
    resident = 2 if tiles > _FEW_TILES or (blocks == 2 and tiles != 3) else 1
    constants = {
        'COLUMNS': columns, 'COLUMN_TILES': -(-columns // TILE_COLUMNS), 'K_WARPS': warps,
        'WARP_TILES': tiles, 'PREFETCH': min(tiles, _PREFETCH), 'BLOCKS': blocks,
        'SOFTCAP': int(softcap), 'GATED': _GATES.index(gate), 'MIN_BLOCKS': resident, **override}
    return KernelSpec.of('gemm_bf16', **constants)


def served_spec(columns: int, num_outputs: int, num_tokens: int, gate: Gate,
                shared_limit: int) -> KernelSpec:
    """What serves a weight (N, M), or (2 N, M) gated, at a number of rows.

    shared_limit: bytes that a block may ask for.
    """
    warps, tiles = _cut(columns)
    if tiles >= FEWEST_STREAMED and warps <= _MOST_STREAMED_WARPS:
        streamed = stream_spec(columns, num_outputs, num_tokens, gate, shared_limit)
        if streamed is not None:
            return streamed
    return spec(columns, num_tokens, False, gate)


def stream_spec(columns: int, num_outputs: int, num_tokens: int, gate: Gate, shared_limit: int,
                **override: int) -> KernelSpec | None:
    """As served_spec, of stream_bf16 alone; None where the rows do not fit into registers."""
    warps, tiles = _cut(columns)
    blocks = blocks_of(num_tokens)
    groups = override.get('GROUPS', 2 if gate != 'none' or _even(num_outputs) else 1)
    constants = {
        'COLUMNS': columns, 'COLUMN_TILES': -(-columns // TILE_COLUMNS), 'K_WARPS': warps,
        'WARP_TILES': tiles, 'STAGES': 0, 'GROUPS': groups, 'BLOCKS': blocks,
        'GATED': _GATES.index(gate), 'MIN_BLOCKS': 1, **override}
    resident, warps, tiles = (constants[name] for name in ('MIN_BLOCKS', 'K_WARPS', 'WARP_TILES'))
    room = (shared_limit + _RESERVED_BYTES) // resident - _RESERVED_BYTES
    room -= _stream_bytes(constants, 8 * blocks, _MOST_TILES)
    stages = min(room, _STREAM_BYTES // resident) // (warps * groups * 1024)
    registers = min(255, (1 << 16) // (32 * warps * resident) // 8 * 8) - _OTHER_REGISTERS
    if 8 * tiles * blocks > registers or stages < 2:
        return None
    return KernelSpec.of('stream_bf16', **{
        **constants, 'STAGES': min(stages, _STREAM_STAGES), **override})


def _even(num_outputs: int) -> bool:
    """Whether row tiles of 16 weight rows leave no more blocks idle than those of 8 rows."""
    def rounds(rows: int) -> int:
        return -(-num_outputs // (rows * MULTIPROCESSORS)) * rows

    return rounds(16) <= rounds(8)


def _stream(chosen: KernelSpec, out: Any, x: Any, weight: Any, num_tokens: int, num_outputs: int,
            stream: Any) -> None:
    constants = dict(chosen.defines)
    rows = 8 if constants['GATED'] else 8 * constants['GROUPS']
    num_tiles = -(-num_outputs // rows)
    together = device.info().num_multiprocessors * constants['MIN_BLOCKS']
    blocks = min(num_tiles, together * -(-num_tiles // (together * _MOST_TILES)))
    each, more = divmod(num_tiles, blocks)
    shared = _stream_bytes(constants, min(num_tokens, ROWS_PER_LAUNCH_TILE), each + (more > 0))
    device.launch(device.compiled(chosen), (blocks, -(-num_tokens // ROWS_PER_LAUNCH_TILE)),
                  constants['K_WARPS'] * 32,
                  (out, x, weight, num_tokens, num_outputs, each, more), stream, shared)


def _stream_bytes(constants: dict[str, int], num_rows: int, num_tiles: int) -> int:
    """Dynamic shared memory of a block: rings, and totals of its row tiles."""
    tile = constants['GROUPS'] * 1024
    return constants['K_WARPS'] * (constants['STAGES'] * tile
                                   + num_tiles * num_rows * constants['GROUPS'] * 32)


def _cut(columns: int) -> tuple[int, int]:
    """Warps that share the columns, and tiles of each: a function of M alone."""
    assert columns % 8 == 0, columns
    warps, tiles = cut(columns)
    if tiles > _FEW_TILES:
        return _LONG_WARPS, -(-columns // (TILE_COLUMNS * _LONG_WARPS))
    return warps, tiles


def bytes_moved(num_tokens: int, num_outputs: int, columns: int, out_bytes: int = 2) -> int:
    """The weights once, the rows in and out."""
    return num_outputs * columns * 2 + num_tokens * (num_outputs * out_bytes + columns * 2)
