# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How the product of a single row is shared out: constants, memory and blocks of kernels/gemv.cuh.

Knows no format of weights: gemm_nvfp4 and gemm_affine, whose cut of the columns it keeps, say how
many bytes a tile has.
"""

from __future__ import annotations

from typing import NamedTuple

from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS

_MOST_TILES = 12                         # row tiles of a block
_RESIDENT_WARPS = 32                     # of a multiprocessor, at 64 registers
_RESERVED_BYTES = 1024                   # of its shared memory, for each block
# Tiles of a stage, stages of a ring: a stage's own costs are shared by its tiles, and all stages
# but one are under way.
_RINGS = ((3, 3), (2, 4), (2, 3), (3, 2), (2, 2), (1, 4), (1, 3), (1, 2))
_RING_BYTES = 6600                       # of a warp, at most


class Share(NamedTuple):
    """Row tiles of the blocks: block b has `each`, and one more where b < `more`."""

    blocks: int
    each: int
    more: int


def constants(columns: int, cut: tuple[int, int], tile_bytes: int, sums: int, shared_limit: int,
              **override: int) -> dict[str, int] | None:
    """What is compiled, or None where the cut leaves columns over or memory does not suffice.

    cut: warps and tiles of each; sums: numbers that are kept of each column tile; shared_limit:
    bytes that a block may ask for.
    """
    warps, tiles = cut
    column_tiles = -(-columns // TILE_COLUMNS)
    if warps * tiles != column_tiles:
        return None
    fixed = {'COLUMNS': columns, 'COLUMN_TILES': column_tiles, 'K_WARPS': warps,
             'WARP_TILES': tiles}
    for resident in range(max(1, _RESIDENT_WARPS // warps), 0, -1):
        for stage_tiles, stages in _RINGS:
            found = {**fixed, 'STAGE_TILES': stage_tiles, 'STAGES': stages,
                     'MIN_BLOCKS': resident, **override}
            ring = found['STAGES'] * found['STAGE_TILES'] * tile_bytes
            if (found['WARP_TILES'] % found['STAGE_TILES'] == 0
                    and (override or ring <= _RING_BYTES)
                    and fits(found, tile_bytes, sums, shared_limit)):
                return found
    return None


def fits(values: dict[str, int], tile_bytes: int, sums: int, shared_limit: int) -> bool:
    """Whether the blocks that are to be resident have room on a multiprocessor."""
    own = shared_bytes(values, tile_bytes, sums) + _RESERVED_BYTES
    return own * values['MIN_BLOCKS'] <= shared_limit + _RESERVED_BYTES


def shared_bytes(values: dict[str, int], tile_bytes: int, sums: int) -> int:
    """Dynamic shared memory of a block: rings, the row, its sums, totals."""
    warps = values['K_WARPS']
    return (warps * values['STAGES'] * values['STAGE_TILES'] * tile_bytes
            + values['COLUMN_TILES'] * (TILE_COLUMNS * 2 + 4 * sums) + warps * _MOST_TILES * 64)


def share(num_row_tiles: int, multiprocessors: int, resident: int) -> Share:
    """All blocks resident at once, if no block has too many row tiles then."""
    together = multiprocessors * resident
    rounds = -(-num_row_tiles // (together * _MOST_TILES))
    blocks = min(num_row_tiles, together * rounds)
    return Share(blocks, num_row_tiles // blocks, num_row_tiles % blocks)
