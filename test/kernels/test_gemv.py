# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One row alone has the bits that it has among others, whatever ring its weights come through."""
from __future__ import annotations

from typing import Any

import pytest

from gemma_thor_ros.ops import affine_order, device, fragment_order, gemm_affine, gemm_nvfp4

from . import cases
from .affine_cases import random_affine

SHAPE = (253, 2112)                      # 16 row tiles of 33 column tiles: 11 warps, 3 tiles each
# (tiles of a stage, stages, held row): the ring is at its start again after 4, 10, 2, 1, 4 and 2
# row tiles
RINGS = ((1, 4, 1), (1, 10, 0), (1, 2, 0), (1, 3, 1), (3, 4, 0), (3, 2, 1))
SAMPLE = RINGS[:2]


@pytest.mark.parametrize('ring', RINGS)
@pytest.mark.parametrize('affine', [False, True])
def test_a_small_row_through_any_ring(small: tuple[Any, Any], grid: bool, affine: bool,
                                      ring: tuple[int, int, int]) -> None:
    """Blocks have more row tiles than a ring has stages, or fewer than it takes to come round."""
    if not grid and ring not in SAMPLE:
        pytest.skip('this ring is part of make grid')
    cp, stream = small
    limit = device.info().shared_bytes_per_block
    chosen = dict(zip(('STAGE_TILES', 'STAGES', 'HELD'), ring, strict=True), MIN_BLOCKS=1)
    x = cases.random_rows(cp, (2, SHAPE[1]), 18)
    together, alone = (cases.poisoned(cp, (2, SHAPE[0]), 'bf16') for _ in range(2))
    module: Any = gemm_affine if affine else gemm_nvfp4
    cp.cuda.runtime.deviceSynchronize()
    if affine:
        made: Any = affine_order.to_affine([random_affine(cp, 7, SHAPE, 4, 64)],
                                           interleaved=False, stream=stream)
        spec = gemm_affine.single_spec(SHAPE[1], 4, 64, 'plain', limit, num_row_tiles=16, **chosen)
    else:
        made = fragment_order.to_fragments([cases.random_weight(cp, SHAPE, 17, (0x20, 0x50),
                                                                0.01)], stream=stream)
        spec = gemm_nvfp4.single_spec(SHAPE[1], False, device.has_e2m1_conversion(), 16, limit,
                                      **chosen)
    assert spec is not None and made.num_row_tiles == 16
    product = getattr(module, module.__name__.rsplit('.', 1)[1])
    product(together, x, made, stream)
    for row in range(2):
        module.launch_single(alone[row:row + 1], x[row:row + 1], made, spec, 1.0, stream)
    stream.synchronize()
    assert bool((together == alone).all()) and not bool((alone[0] == alone[1]).all())
