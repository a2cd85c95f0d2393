# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How the product of a single row is shared out over blocks and shared memory."""

from __future__ import annotations

import pytest

from gemma_thor_ros.ops import gemm_affine, gemm_nvfp4, gemv

LARGE, SMALL = 232448, 101376            # bytes that a block may ask for
# row tiles and columns: 31B, 12B, 26B
SHAPES = ((2688, 5376), (1024, 5376), (336, 21504), (336, 8192), (336, 16384), (1920, 3840),
          (512, 3840), (240, 4096), (240, 15360), (512, 2816), (16384, 3840))


@pytest.mark.parametrize('row_tiles', [1, 7, 131, 132, 133, 336, 2688, 16384])
@pytest.mark.parametrize('multiprocessors', [3, 20, 132])
def test_blocks_take_all_row_tiles_evenly(row_tiles: int, multiprocessors: int) -> None:
    for resident in (1, 2, 4):
        blocks, each, more = gemv.share(row_tiles, multiprocessors, resident)
        assert blocks * each + more == row_tiles and each >= 1 and more < blocks
        assert each + bool(more) <= gemv.MOST_TILES


@pytest.mark.parametrize('limit', [LARGE, SMALL])
@pytest.mark.parametrize(('row_tiles', 'columns'), SHAPES)
def test_as_many_blocks_are_resident_as_are_reckoned_with(row_tiles: int, columns: int,
                                                          limit: int) -> None:
    found = [(gemv.constants(columns, row_tiles, gemm_nvfp4.cut(columns), 576, 0, limit), 576, 0)]
    for bits in (2, 4, 8):
        found.append((gemv.constants(columns, row_tiles, gemm_affine.cut(row_tiles, columns),
                                     128 * bits + 64, 1, limit), 128 * bits + 64, 1))
    if limit == LARGE:
        assert all(values for values, *_ in found)
    for values, tile_bytes, sums in found:
        if values is None:
            continue
        resident = values['MIN_BLOCKS']
        assert values['K_WARPS'] * values['WARP_TILES'] * 64 == columns
        assert values['WARP_TILES'] % values['STAGE_TILES'] == 0 and values['STAGES'] >= 2
        rows = gemv.share(row_tiles, 132, resident)
        asked = gemv.launch_bytes(values, tile_bytes, sums, limit, rows)
        own = gemv.shared_bytes(values, tile_bytes, sums, rows.each + bool(rows.more))
        assert own <= asked <= limit and asked % 16 == 0
        assert (asked + 1024) * resident <= limit + 1024
        if resident > 1:
            assert (asked + 1024) * (resident + 1) > limit + 1024


def test_a_block_that_asks_for_its_own_memory_alone_would_be_crowded() -> None:
    values = gemv.constants(2816, 512, gemm_nvfp4.cut(2816), 576, 0, LARGE)
    assert values is not None and values['MIN_BLOCKS'] == 2
    assert (gemv.shared_bytes(values, 576, 0) + 1024) * 3 <= LARGE + 1024


def test_where_the_kernels_of_more_rows_serve_one() -> None:
    assert gemv.constants(4096, 176, (16, 4), 576, 0, LARGE) is None     # o of the 26B
    assert gemv.constants(4096, 240, (16, 4), 576, 0, LARGE)
    assert gemv.constants(64 * 17, 240, (9, 2), 576, 0, LARGE) is None   # a tile too many
    assert gemv.constants(21504, 336, (16, 21), 576, 0, 50000) is None
