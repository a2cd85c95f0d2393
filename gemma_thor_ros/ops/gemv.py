# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How the product of a single row is shared out: constants, memory and blocks of kernels/gemv.cuh.

Knows no format of weights: gemm_nvfp4 and gemm_affine, whose cut of the columns it keeps, say how
many bytes a tile has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS

MULTIPROCESSORS = 132                    # what constants are chosen for: an H200 (bench/LOG.md)
MOST_TILES = 16                          # row tiles of a block
_RESERVED_BYTES = 1024                   # of a multiprocessor's shared memory, for each block
FEW = MULTIPROCESSORS * 9 // 2           # row tiles
_FEW_WARPS = 11                          # of a block that has a multiprocessor's share to itself
_HELD_TILES = 4                          # of the row in registers, at most
_HELD_ROW_TILES = 4096
_REGISTERS = 65536                       # of a multiprocessor
_RING_BYTES = 9000                       # of a warp, at most
# (tiles of a stage, stages of a ring), best first. All stages but one are under way; a stage's own
# costs are shared by its tiles.
_SHORT_RINGS = ((4, 2), (3, 2), (2, 4), (2, 3), (2, 2), (1, 4), (1, 2))
_LONG_RINGS = ((4, 3), (3, 4), (2, 6), (3, 3), (2, 4), (4, 2), *_SHORT_RINGS)
_MANY_RINGS = ((4, 2), (2, 3), (3, 3), *_SHORT_RINGS)
_TILE_BYTES = 576


class Ring(NamedTuple):
    """What was chosen in whole steps, by bench/step_rings.py."""

    stage_tiles: int
    stages: int
    resident: int                        # blocks of a multiprocessor
    held: int | None = None              # the row in registers; None: where there are some
    next: int = 0                        # where the next launch is let in (gemv.cuh)


# What was fastest in a whole step, by column tiles and row tiles; of NVFP4, and of affine codes of
# 4 bits. Among launches of its like a product may be faster with others; in a step deep rings of
# few blocks count, which are full when the launch in front ends, and what leaves room for the next
# one. The 12B's were found by a walk over all of its shapes at once.
_TUNED: dict[bool, dict[tuple[int, int], Ring]] = {
    False: {
        (44, 512): Ring(2, 2, 2),
        (44, 576): Ring(2, 2, 2),
        (44, 16384): Ring(4, 3, 1),
        (60, 512): Ring(2, 2, 2),
        (60, 544): Ring(2, 6, 1),
        (60, 1920): Ring(4, 4, 1, next=3),
        (60, 16384): Ring(2, 3, 1),
        (64, 240): Ring(2, 2, 2, held=1, next=3),
        (84, 1024): Ring(3, 3, 2),
        (84, 2688): Ring(2, 4, 2),
        (84, 16384): Ring(2, 4, 2),
        (128, 240): Ring(8, 2, 1, next=1),
        (240, 240): Ring(5, 2, 1, next=3),
    },
    True: {
        (60, 512): Ring(4, 3, 1, held=0, next=2),
        (60, 544): Ring(4, 3, 1, held=0, next=1),
        (60, 1920): Ring(2, 10, 2, next=2),
        (60, 16384): Ring(2, 3, 4),
        (64, 240): Ring(4, 3, 1, held=0, next=2),
        (84, 1024): Ring(3, 4, 3),
        (84, 1152): Ring(6, 3, 2),
        (84, 2688): Ring(4, 3, 3),
        (84, 16384): Ring(4, 3, 3),
        (128, 240): Ring(4, 3, 1),
        (128, 336): Ring(4, 6, 1),
        (240, 240): Ring(3, 4, 1, next=3),
        (336, 336): Ring(4, 5, 1),
    }}


class Share(NamedTuple):
    """Row tiles of the blocks: block b has `each`, and one more where b < `more`."""

    blocks: int
    each: int
    more: int


def constants(columns: int, num_row_tiles: int, cut: tuple[int, int], tile_bytes: int, sums: int,
              shared_limit: int, **override: int) -> dict[str, int] | None:
    """What is compiled, or None where the kernels for up to 16 rows serve a single one.

    cut: warps and tiles of each; sums: numbers that are kept of each column tile; shared_limit:
    bytes that a block may ask for. None: the cut leaves columns over, memory does not suffice, or
    the second row tile of a few multiprocessors would cost more than there is to gain.
    """
    warps, tiles = cut
    column_tiles = -(-columns // TILE_COLUMNS)
    uneven = MULTIPROCESSORS < num_row_tiles < 1.5 * MULTIPROCESSORS and tiles <= 4
    other_ring = bool(override.keys() - {'HELD'})
    if warps * tiles != column_tiles or (uneven and not other_ring):
        return None
    fixed = {'COLUMNS': columns, 'COLUMN_TILES': column_tiles, 'K_WARPS': warps,
             'WARP_TILES': tiles}
    tuned = _TUNED[sums > 0].get((column_tiles, num_row_tiles)
                                 ) if tile_bytes == _TILE_BYTES else None
    for ring in _choices(tuned, num_row_tiles, warps, tiles):
        found = {**fixed, 'STAGE_TILES': ring.stage_tiles, 'STAGES': ring.stages,
                 'MIN_BLOCKS': ring.resident, 'NEXT': ring.next, **override}
        # eight registers a tile, beside 72; a head is slower with them (bench/LOG.md)
        held = (tiles <= _HELD_TILES and num_row_tiles <= _HELD_ROW_TILES
                and found['MIN_BLOCKS'] * warps * 32 * (72 + 8 * tiles) <= _REGISTERS)
        found.setdefault('HELD', int(held) if ring.held is None else ring.held)
        ring_bytes = found['STAGES'] * found['STAGE_TILES'] * tile_bytes
        short = other_ring or ring == tuned or ring_bytes <= _RING_BYTES
        if (short and found['WARP_TILES'] % found['STAGE_TILES'] == 0
                and fits(found, tile_bytes, sums, shared_limit)):
            return found
    return None


def _choices(tuned: Ring | None, num_row_tiles: int, warps: int, tiles: int) -> Iterator[Ring]:
    """Best first."""
    if tuned:
        yield tuned
    most, rings = _wanted(num_row_tiles, warps, tiles)
    for resident in range(most, 0, -1):
        for stage_tiles, stages in rings:
            yield Ring(stage_tiles, stages, resident)


def _wanted(num_row_tiles: int, warps: int,
            tiles: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Blocks resident on a multiprocessor, and rings, best first.

    Of few row tiles each multiprocessor gets the same number only if it has one block, or as many
    as have room; and one block leaves room for the next launch's, which then request early.
    """
    if num_row_tiles <= FEW:
        if warps >= _FEW_WARPS:
            return 1, _SHORT_RINGS if tiles <= 6 else _LONG_RINGS
        return max(1, 24 // warps), _SHORT_RINGS
    if warps <= 8:
        return max(1, 28 // warps), ((2, 6), *_SHORT_RINGS[2:], *_SHORT_RINGS) if warps <= 6 else (
            *_SHORT_RINGS[2:], *_SHORT_RINGS)
    return max(1, 28 // warps), _MANY_RINGS


def fits(values: dict[str, int], tile_bytes: int, sums: int, shared_limit: int) -> bool:
    """Whether the blocks that are to be resident have room on a multiprocessor."""
    own = shared_bytes(values, tile_bytes, sums) + _RESERVED_BYTES
    return own * values['MIN_BLOCKS'] <= shared_limit + _RESERVED_BYTES


def shared_bytes(values: dict[str, int], tile_bytes: int, sums: int,
                 tiles: int = MOST_TILES) -> int:
    """Dynamic shared memory of a block of so many row tiles: rings, the row, its sums, totals."""
    warps = values['K_WARPS']
    return (warps * values['STAGES'] * values['STAGE_TILES'] * tile_bytes
            + values['COLUMN_TILES'] * (TILE_COLUMNS * 2 + 4 * sums) + warps * tiles * 64)


def launch_bytes(values: dict[str, int], tile_bytes: int, sums: int, shared_limit: int,
                 rows: Share) -> int:
    """What a launch asks for: so much that no more blocks are resident than are meant to be.

    Else some multiprocessors, those that are free first, have more of them and others none. A
    single one leaves room for a block of the next launch, which then requests early.
    """
    own = shared_bytes(values, tile_bytes, sums, rows.each + (rows.more > 0))
    resident = values['MIN_BLOCKS']
    if resident == 1:
        return own
    crowded = (shared_limit + _RESERVED_BYTES) // (resident + 1) - _RESERVED_BYTES
    return max(own, crowded // 16 * 16 + 16)


def share(num_row_tiles: int, multiprocessors: int, resident: int) -> Share:
    """All blocks resident at once, if no block has too many row tiles then."""
    together = multiprocessors * resident
    rounds = -(-num_row_tiles // (together * MOST_TILES))
    blocks = min(num_row_tiles, together * rounds)
    return Share(blocks, num_row_tiles // blocks, num_row_tiles % blocks)
