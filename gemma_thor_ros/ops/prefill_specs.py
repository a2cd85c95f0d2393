# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The kernels that prompt rows need beside those of generated rows, with their constants.

For whoever compiles them ahead: the loader, the tests and the record of all architectures. Norms,
rope and cache write, routing, geglu and the experts' sum serve any number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from gemma_thor_ros.ops import (
    prefill_attention,
    prefill_attention_wgmma,
    prefill_gemm,
    prefill_moe,
)
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.row_specs import Geometry

_BLOCKS = {'causal': 0, 'in window': 1, 'whole': 2}


def prefill_specs(geometries: Iterable[Geometry], num_experts: int, page_size: int, fp8: bool,
                  shared_limit: int, hardware: bool, arch: str) -> list[KernelSpec]:
    """Every spec of one model, each once; num_experts 0: a dense model.

    shared_limit: bytes of shared memory that a block may ask for; arch: as 'sm_90a'.
    """
    specs = [prefill_gemm.spec(tile, interleaved, hardware)
             for tile in prefill_gemm.TILES for interleaved in (False, True)]
    specs += [prefill_gemm.bf16_spec(tile) for tile in prefill_gemm.BF16_TILES]
    if num_experts:
        specs += [prefill_gemm.experts_spec(shape, interleaved, hardware)
                  for shape in prefill_moe.TILES.values() for interleaved in (False, True)]
        specs += [prefill_moe.sort_spec(entry, num_experts)
                  for entry in ('prefill_sort', 'prefill_tiles')]
    specs += [_attention(shape, page_size, fp8, shared_limit, arch) for shape in geometries]
    return list(dict.fromkeys(specs))


def image_specs(geometries: Iterable[Geometry], blocks: Iterable[str], page_size: int, fp8: bool,
                shared_limit: int, arch: str) -> list[KernelSpec]:
    """The attention of prompts with images; blocks: models/config.ImageBlocks, one a geometry."""
    return [_attention(shape, page_size, fp8, shared_limit, arch, _BLOCKS[seen])
            for shape, seen in zip(geometries, blocks, strict=True) if _BLOCKS[seen]]


def _attention(shape: Geometry, page_size: int, fp8: bool, shared_limit: int, arch: str,
               blocks: int = 0) -> KernelSpec:
    layer = (shape.head_dim, shape.num_q_heads // shape.num_kv_heads, shape.num_kv_heads,
             page_size, shape.window, fp8)
    if prefill_attention_wgmma.serves(shape.head_dim, arch):
        return prefill_attention_wgmma.spec(*layer, blocks)
    block = prefill_attention.block_of(shape.head_dim, fp8, shared_limit)
    return prefill_attention.spec(*layer, block, blocks)
