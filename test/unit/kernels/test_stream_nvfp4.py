# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How products of 2 to 16 rows are shared out over clusters, blocks and shared memory."""

from __future__ import annotations

import pytest

from gemma_thor_ros.ops import gemm_nvfp4, stream_nvfp4

LARGE, SMALL = 232448, 101376            # bytes that a block may ask for
# row tiles and columns: 26B, 12B, 31B, demo
SHAPES = ((512, 2816), (176, 4096), (176, 8192), (1920, 3840), (240, 4096), (240, 15360),
          (2688, 5376), (336, 21504), (336, 16384), (64, 256), (16, 384), (1, 64))


@pytest.mark.parametrize('row_tiles', [1, 7, 65, 131, 176, 336, 2688])
@pytest.mark.parametrize('multiprocessors', [3, 20, 132])
@pytest.mark.parametrize('cluster', [1, 2, 4, 8])
def test_clusters_take_all_row_tiles_evenly(row_tiles: int, multiprocessors: int,
                                            cluster: int) -> None:
    clusters, each, more = stream_nvfp4.share(row_tiles, multiprocessors, cluster)
    assert clusters * each + more == row_tiles and each >= 1 and more < clusters
    assert clusters == 1 or clusters * cluster <= multiprocessors


@pytest.mark.parametrize('multiprocessors', [3, 20, 132])
@pytest.mark.parametrize('limit', [LARGE, SMALL])
@pytest.mark.parametrize(('row_tiles', 'columns'), SHAPES)
def test_what_is_planned_keeps_what_the_kernel_asks_for(row_tiles: int, columns: int, limit: int,
                                                        multiprocessors: int) -> None:
    for rows in (2, 16):
        for cluster in (1, 2, 4, 8):
            spec = stream_nvfp4.spec(columns, rows, False, False, row_tiles,
                                     gemm_nvfp4.cut(columns), limit, multiprocessors,
                                     CLUSTER=cluster)
            if spec is None:
                continue
            values = dict(spec.defines)
            threads = stream_nvfp4.warps(values) * 32
            assert limit == LARGE or cluster == 1        # where there are clusters
            assert values['K_WARPS'] * values['WARP_TILES'] * 64 == columns
            assert (values['K_WARPS'], values['WARP_TILES']) == gemm_nvfp4.cut(columns)
            assert values['WARP_TILES'] % values['STAGE_TILES'] == 0
            assert values['STAGE_TILES'] * values['ROW_TILES'] <= 8 and values['STAGES'] >= 2
            assert values['TEAMS'] * values['ROW_TILES'] <= 16 and threads <= 512
            assert stream_nvfp4.shared_bytes(values) + 128 <= limit


def test_the_cheapest_way_that_fits_is_taken() -> None:
    found = [stream_nvfp4.spec(2816, 16, False, False, 512, (11, 4), LARGE, 132, ROW_TILES=count)
             for count in (1, 2, 4)]
    costs = [stream_nvfp4.cost(dict(spec.defines), 512, 132) for spec in found if spec]
    best = stream_nvfp4.spec(2816, 16, False, False, 512, (11, 4), LARGE, 132)
    assert best and len(costs) == 3
    assert stream_nvfp4.cost(dict(best.defines), 512, 132) <= min(costs)


def test_settled_ways_are_those_of_a_large_device() -> None:
    for (column_tiles, row_tiles, blocks), way in stream_nvfp4._FASTEST.items():
        columns, rows = 64 * column_tiles, 8 * blocks
        for pair in (False, True):
            spec = gemm_nvfp4.stream_spec(columns, rows, pair, False, row_tiles, LARGE, 132)
            assert spec                  # though rows_nvfp4 goes before it
            values = dict(spec.defines)
            assert tuple(values[name] for name in ('CLUSTER', 'TEAMS', 'ROW_TILES', 'STAGE_TILES',
                                                   'STAGES', 'HELD')) == way
    assert gemm_nvfp4.served_spec(4096, 16, False, False, 176, LARGE, 132).file == 'gemm_nvfp4'
    assert gemm_nvfp4.served_spec(5376, 8, False, False, 1024, LARGE, 132).file == 'gemm_nvfp4'
    small = dict(gemm_nvfp4.served_spec(2816, 16, False, False, 512, LARGE, 20).defines)
    assert small['HELD'] == 0 and stream_nvfp4.served(2816, 16, 512, 20) == {}


def test_where_no_stream_serves() -> None:
    cut = gemm_nvfp4.cut(64 * 17)
    assert stream_nvfp4.spec(64 * 17, 16, False, False, 512, cut, LARGE) is None  # a tile too many
    cut = gemm_nvfp4.cut(8192)                       # 262 KB of rows in one block
    assert stream_nvfp4.spec(8192, 16, False, False, 512, cut, LARGE, CLUSTER=1) is None
    assert stream_nvfp4.spec(8192, 16, False, False, 512, cut, LARGE, CLUSTER=4)
    assert stream_nvfp4.spec(8192, 16, False, False, 512, cut, SMALL, CLUSTER=4) is None
    spec = gemm_nvfp4.served_spec(64 * 17, 16, False, False, 512, LARGE, 132)
    assert spec.file == 'gemm_nvfp4'
