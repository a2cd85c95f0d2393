# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The kernels that MLX affine weights need in the place of NVFP4's, with their constants.

For whoever compiles them ahead: the loader, the tests and the record of all architectures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gemma_thor_ros.ops import affine_order, embed_affine, gemm_affine, moe_affine
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import row_tiles

ROWS = (1, 8, 16)                        # each has a kernel of its own


class AffineUse(NamedTuple):
    """What one matrix is for. form 'head': the tied table, which is the embedding too."""

    outputs: int                         # N, or I of gate and up
    columns: int                         # M
    bits: int
    group_size: int
    form: gemm_affine.Form
    experts: bool = False


def affine_specs(uses: Iterable[AffineUse], shared_limit: int,
                 rows: Iterable[int] = ROWS) -> list[KernelSpec]:
    """Every spec of a model's affine matrices, each once.

    shared_limit: bytes that a block may ask for.
    """
    specs: list[KernelSpec] = []
    for use in dict.fromkeys(uses):
        outputs, columns, bits, group_size, form, experts = use
        tiles = row_tiles(outputs, form == 'geglu') * (gemm_affine.EXPERTS_READ if experts else 1)
        specs.append(affine_order.spec(bits, group_size))
        single = None if experts else gemm_affine.single_spec(
            columns, bits, group_size, form, shared_limit, num_row_tiles=tiles)
        specs += [single if single and count == 1 else gemm_affine.spec(
            columns, count, bits, group_size, form, experts=experts, num_row_tiles=tiles)
            for count in rows]
        if experts:
            specs.append(moe_affine.items_spec())
        if form == 'head':
            specs.append(embed_affine.spec(columns, bits, group_size))
        else:
            specs.append(gemm_affine.spec(columns, max(ROWS), bits, group_size, form, True,
                                          experts, num_row_tiles=tiles))
    return list(dict.fromkeys(specs))
