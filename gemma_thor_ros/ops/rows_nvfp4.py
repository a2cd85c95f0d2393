# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which products of 2 to 16 rows keep the rows in registers: constants of rows_nvfp4.cu.

Knows no arrays: gemm_nvfp4, whose cut of the columns it keeps, launches what this plans.
"""

from __future__ import annotations

from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS

_TILE_BYTES = 576                        # codes and scales
_TOKEN_BYTES = 80                        # of a part's totals of one row tile
_NEEDS_BYTES = 200 << 10                 # of shared memory; devices with it count handovers, too
_FIXED_BYTES = 256                       # of shared memory: the handovers
_MOST_WARPS = 16
_MANY = 100                              # multiprocessors of a device where these are fastest
NAMES = ('STAGE_TILES', 'STAGES', 'PLACES', 'ADDERS')
# What was fastest in a whole step on an H200 (bench/LOG.md), by column tiles, row tiles, BLOCKS.
_FASTEST = {
    (44, 512, 1): (4, 2, 2, 2), (44, 576, 1): (4, 2, 2, 2), (44, 16384, 1): (4, 3, 4, 2),
    (44, 512, 2): (4, 2, 2, 1), (44, 576, 2): (4, 2, 2, 1)}


def served(columns: int, num_tokens: int, num_row_tiles: int, multiprocessors: int,
           shared_limit: int) -> dict[str, int] | None:
    """Constants of `spec`; None: rows gain nothing by lying in registers."""
    fastest = _FASTEST.get((-(-columns // TILE_COLUMNS), num_row_tiles, _blocks(num_tokens)))
    if fastest is None or multiprocessors < _MANY or not can(shared_limit):
        return None
    return dict(zip(NAMES, fastest, strict=True))


def can(shared_limit: int) -> bool:
    """Whether a device whose blocks may ask for so many bytes counts handovers."""
    return shared_limit >= _NEEDS_BYTES


def spec(columns: int, num_tokens: int, head: bool, hardware: bool, cut: tuple[int, int],
         **values: int) -> KernelSpec:
    """What is compiled; cut: parts of the columns and tiles of each, none of them empty."""
    parts, tiles = cut
    column_tiles = -(-columns // TILE_COLUMNS)
    assert parts * tiles == column_tiles and parts + values['ADDERS'] <= _MOST_WARPS, cut
    # a warp that adds begins within the first round of places, and never skips one: else the
    # parity of a round that has not come looks like that of the one before
    assert values['ADDERS'] <= values['PLACES'], values
    return KernelSpec.of(
        'rows_nvfp4', COLUMNS=columns, COLUMN_TILES=column_tiles, K_WARPS=parts, WARP_TILES=tiles,
        BLOCKS=_blocks(num_tokens), HEAD=int(head), E2M1_HARDWARE=int(hardware), **values)


def threads(values: dict[str, int]) -> int:
    """Of a block."""
    return 32 * (values['K_WARPS'] + values['ADDERS'])


def shared_bytes(values: dict[str, int]) -> int:
    """Dynamic shared memory of a block: rings and places."""
    ring = values['STAGES'] * values['STAGE_TILES'] * _TILE_BYTES
    place = 8 * values['BLOCKS'] * _TOKEN_BYTES
    return values['K_WARPS'] * (ring + values['PLACES'] * place)


def fits(values: dict[str, int], shared_limit: int) -> bool:
    """Whether a block may ask for that much."""
    return shared_bytes(values) + _FIXED_BYTES <= shared_limit


def _blocks(num_tokens: int) -> int:
    return 1 if num_tokens <= 8 else 2
