# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How the products of 2 to 16 rows are shared out: constants and blocks of stream_nvfp4.cu.

Knows no arrays: gemm_nvfp4, whose cut of the columns it keeps, launches what this plans.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS

MULTIPROCESSORS = 132                    # of an H200, where the costs below were measured
TILE_BYTES = 576                         # codes and scales
_CLUSTER_BYTES = 200 << 10               # devices whose blocks have as much have clusters, too
_FIXED_BYTES = 128                       # of shared memory: the scales of a turn's rows
CLUSTERS = (1, 2, 4, 8)                  # blocks of one, that are considered
_MOST_WARPS, _MOST_STAGES = 16, 8
_REGISTERS = 65536
# What was fastest on an H200, (CLUSTER, TEAMS, ROW_TILES, STAGE_TILES, STAGES, HELD) by column
# tiles, row tiles and BLOCKS. Shallow rings, where they leave room for a block of the next launch.
_FASTEST = {
    (44, 512, 2): (1, 1, 2, 2, 2, 1), (44, 576, 2): (1, 1, 1, 4, 2, 1),            # 26B
    (60, 1920, 2): (1, 1, 1, 4, 2, 1), (240, 240, 2): (4, 4, 2, 1, 3, 0),          # 12B
    (84, 2688, 2): (2, 2, 2, 3, 2, 0), (84, 1024, 2): (2, 2, 2, 3, 2, 0),          # 31B
    (84, 1152, 2): (2, 2, 2, 3, 2, 0), (336, 336, 2): (8, 4, 2, 3, 4, 0),
    (128, 336, 2): (4, 3, 4, 1, 3, 0), (256, 336, 2): (8, 4, 3, 1, 8, 0),
    (84, 2688, 1): (1, 1, 3, 2, 4, 1), (336, 336, 1): (4, 3, 4, 1, 3, 0),
    (128, 336, 1): (4, 3, 4, 2, 2, 0)}
_MANY = 100                              # multiprocessors of a device like that one
_WORTH_BYTES = 180_000                   # of weights for each multiprocessor, elsewhere
# ns, of one multiprocessor of an H200 (bench/LOG.md)
_WEIGHTS = 34.0                          # bytes of weights a ns, when all read
_ROWS = 45.0                             # bytes a ns out of the L2
_TILE_NS = {1: 28.0, 2: 24.0, 3: 22.0, 4: 20.0}  # of a tile, by ROW_TILES, with so many warps:
_ENOUGH_WARPS = 11
_TURN_NS, _CLUSTER_NS = 650.0, 400.0     # a meeting; more for each doubling of blocks
_ENOUGH_BYTES = 40 << 10                 # under way keep the memory busy


class Share(NamedTuple):
    """Row tiles of the clusters: cluster b has `each`, and one more where b < `more`."""

    clusters: int
    each: int
    more: int


def served(columns: int, num_tokens: int, num_row_tiles: int,
           multiprocessors: int) -> dict[str, int] | None:
    """Constants of `spec` that are settled, {} if none are; None: a stream gains nothing."""
    column_tiles = -(-columns // TILE_COLUMNS)
    blocks = 1 if num_tokens <= 8 else 2
    fastest = _FASTEST.get((column_tiles, num_row_tiles, blocks))
    if fastest and multiprocessors >= _MANY:
        return dict(zip(('CLUSTER', 'TEAMS', 'ROW_TILES', 'STAGE_TILES', 'STAGES', 'HELD'),
                        fastest, strict=True))
    weights = num_row_tiles * column_tiles * TILE_BYTES
    return {} if blocks == 2 and weights >= _WORTH_BYTES * multiprocessors else None


@cache
def spec(columns: int, num_tokens: int, interleaved: bool, hardware: bool, num_row_tiles: int,
         cut: tuple[int, int], shared_limit: int, multiprocessors: int = MULTIPROCESSORS,
         **override: int) -> KernelSpec | None:
    """What is compiled, or None where gemm_nvfp4.cu serves; `override` is for measurements.

    cut: parts of the columns and tiles of each. None: a part is not full, or the rows do not fit
    into shared memory. The cheapest of all ways that fit; none changes a bit of the result.
    """
    parts, tiles = cut
    column_tiles = -(-columns // TILE_COLUMNS)
    if parts * tiles != column_tiles:
        return None
    fixed = {'COLUMNS': columns, 'COLUMN_TILES': column_tiles, 'K_WARPS': parts,
             'WARP_TILES': tiles, 'BLOCKS': 1 if num_tokens <= 8 else 2, 'GEGLU': int(interleaved),
             'E2M1_HARDWARE': int(hardware)}
    best: tuple[float, dict[str, int]] | None = None
    for cluster in CLUSTERS:
        if override.get('CLUSTER', cluster) > (parts if has_clusters(shared_limit) else 1):
            continue
        for teams in (1, 2, 3, 4):
            for row_tiles in (1, 2, 3, 4):
                for stage_tiles in (1, 2):
                    values = {**fixed, 'CLUSTER': cluster, 'TEAMS': teams, 'ROW_TILES': row_tiles,
                              'STAGE_TILES': stage_tiles, 'HELD': 0, **override}
                    values.setdefault('STAGES', _stages(values, num_row_tiles, shared_limit,
                                                        multiprocessors))
                    if not fits(values, shared_limit):
                        continue
                    found = cost(values, num_row_tiles, multiprocessors)
                    if best is None or found < best[0]:
                        best = found, values
    return KernelSpec.of('stream_nvfp4', **best[1]) if best else None


def share(num_row_tiles: int, multiprocessors: int, cluster: int, at_once: int = 0) -> Share:
    """One block on each multiprocessor, as far as clusters find enough of them in one place.

    at_once: how many clusters do, where it is known.
    """
    usable = multiprocessors * 10 // 11 if cluster > 2 else multiprocessors
    room = at_once or usable // cluster
    clusters = max(1, min(num_row_tiles, room))
    return Share(clusters, num_row_tiles // clusters, num_row_tiles % clusters)


def has_clusters(shared_limit: int) -> bool:
    """Whether a device whose blocks may ask for so many bytes has clusters of them."""
    return shared_limit >= _CLUSTER_BYTES


def warps(values: dict[str, int]) -> int:
    """Of a block."""
    return -(-values['K_WARPS'] // values['CLUSTER']) * values['TEAMS']


def shared_bytes(values: dict[str, int]) -> int:
    """Dynamic shared memory of a block: rings, rows, totals."""
    ring = values['STAGES'] * values['ROW_TILES'] * values['STAGE_TILES'] * TILE_BYTES
    return warps(values) * ring + _rows_bytes(values) + _totals_bytes(values)


def fits(values: dict[str, int], shared_limit: int) -> bool:
    """Whether a block may be like this."""
    count = warps(values)
    return (count <= _MOST_WARPS and values['STAGES'] >= 2
            and values['WARP_TILES'] % values['STAGE_TILES'] == 0
            and values['STAGE_TILES'] * values['ROW_TILES'] <= 8
            and _registers(values) * count * 32 <= _REGISTERS
            and shared_bytes(values) + _FIXED_BYTES <= shared_limit)


def cost(values: dict[str, int], num_row_tiles: int, multiprocessors: int) -> float:
    """About how many ns a launch takes, to compare ways."""
    _, each, more = share(num_row_tiles, multiprocessors, values['CLUSTER'])
    most = each + bool(more)
    at_once = values['TEAMS'] * values['ROW_TILES']
    turns = _turns(values, num_row_tiles, multiprocessors)
    tiles = -(-values['K_WARPS'] // values['CLUSTER']) * values['WARP_TILES']
    ring = (values['STAGES'] - 1) * values['ROW_TILES'] * values['STAGE_TILES'] * TILE_BYTES
    under_way = min(warps(values) * ring, most * tiles * TILE_BYTES)
    reading = most * tiles * TILE_BYTES / _WEIGHTS * max(1.0, _ENOUGH_BYTES / under_way)
    work = turns * at_once * tiles * _TILE_NS[values['ROW_TILES']] * max(
        1.0, _ENOUGH_WARPS / warps(values))
    work += turns * (_TURN_NS + _CLUSTER_NS * math.log2(values['CLUSTER']))
    return max(reading, work) + _rows_bytes(values) / _ROWS


def _stages(values: dict[str, int], num_row_tiles: int, shared_limit: int,
            multiprocessors: int) -> int:
    """As many as have room, or as there are and one more, so that all are under way at first."""
    there = _turns(values, num_row_tiles, multiprocessors) * (
        values['WARP_TILES'] // values['STAGE_TILES'])
    stage = warps(values) * values['ROW_TILES'] * values['STAGE_TILES'] * TILE_BYTES
    room = shared_limit - _FIXED_BYTES - _rows_bytes(values) - _totals_bytes(values)
    return min(room // stage, _MOST_STAGES, there + 1)


def _turns(values: dict[str, int], num_row_tiles: int, multiprocessors: int) -> int:
    _, each, more = share(num_row_tiles, multiprocessors, values['CLUSTER'])
    return -(-(each + bool(more)) // (values['TEAMS'] * values['ROW_TILES']))


def _rows_bytes(values: dict[str, int]) -> int:
    parts = -(-values['K_WARPS'] // values['CLUSTER'])
    return (1 - values['HELD']) * parts * values['WARP_TILES'] * values['BLOCKS'] * 1024


def _totals_bytes(values: dict[str, int]) -> int:
    tokens = 8 * values['BLOCKS'] // values['CLUSTER']
    numbers = tokens * (20 if values['CLUSTER'] == 1 else 24)
    return values['TEAMS'] * values['ROW_TILES'] * values['K_WARPS'] * numbers * 4


def _registers(values: dict[str, int]) -> int:
    """Of a thread, about: sums, a tile of rows, and what else a tile needs."""
    rows = values['WARP_TILES'] if values['HELD'] else 1
    return (48 if values['HELD'] else 56) + 8 * values['BLOCKS'] * (values['ROW_TILES'] + rows)
