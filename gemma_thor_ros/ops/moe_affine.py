# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The experts of generated and of prompt rows in MLX affine codes: gate-up with geglu, down.

The pairs are sorted by expert (those of generated rows by moe_items, of prompt rows by
prefill_moe.prefill_sort with tiles of ROWS), and each tile of them runs gemm_affine. The twins are
moe_nvfp4's, which take any stored weight; the weighted sum over a token's experts is
moe_nvfp4_combine, or rms_norm_sum_add takes the results itself.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from gemma_thor_ros.ops import device, gemm_affine
from gemma_thor_ros.ops.affine_order import AffineFragments
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.prefill_moe import ExpertOrder, max_tiles
from gemma_thor_ros.ops.shapes import check

ROWS = 16                                # of a tile of pairs
_THREADS = 256                           # pairs that one launch sorts


def moe_items_ref(expert_ids: npt.NDArray[Any]) -> tuple[list[int], list[tuple[int, ...]]]:
    """(order, items) of expert_ids (T, K), -1 for padding; items without left-overs."""
    flat = expert_ids.reshape(-1).tolist()
    order: list[int] = []
    items: list[tuple[int, ...]] = []
    for expert in dict.fromkeys(expert for expert in flat if expert >= 0):
        pairs = [pair for pair, other in enumerate(flat) if other == expert]
        items.append((expert, len(order), len(pairs), 0))
        order += pairs
    return order, items


def moe_items(scratch: ExpertOrder, expert_ids: Any, num_experts: int, stream: Any) -> None:
    """Enqueue the order of the pairs of generated rows, expert_ids (T, K) i32, -1 for padding."""
    assert expert_ids.shape[0] <= ROWS and expert_ids.size <= _THREADS, expert_ids.shape
    count = max_tiles(expert_ids.size, num_experts, ROWS)
    device.launch(device.compiled(items_spec()), (1,), _THREADS,
                  (scratch.order, scratch.tiles, expert_ids, expert_ids.size, count), stream)


def items_spec() -> KernelSpec:
    """What is compiled for any model."""
    return KernelSpec.of('moe_items', THREADS=_THREADS)


def moe_affine_gate_up(inner: Any, x: Any, expert_ids: Any, scratch: ExpertOrder,
                       weight: AffineFragments, stream: Any, *, prompt: bool = False) -> None:
    """Enqueue inner (T, K, I) bf16 from x (T, H) bf16; rows of padding stay as they are."""
    assert weight.interleaved
    sizes = check('moe_nvfp4_gate_up', {'I': weight.num_outputs, 'H': weight.columns},
                  inner=inner, x=x, expert_ids=expert_ids)
    _launch(inner, x, sizes['T'], sizes['K'], sizes['K'], scratch, weight, stream, prompt)


def moe_affine_down(results: Any, inner: Any, expert_ids: Any, scratch: ExpertOrder,
                    weight: AffineFragments, stream: Any, *, prompt: bool = False) -> None:
    """Enqueue results (T, K, H) bf16 from inner (T, K, I) bf16, not weighted yet."""
    assert not weight.interleaved
    sizes = check('moe_nvfp4_down', {'H': weight.num_outputs, 'I': weight.columns},
                  results=results, inner=inner, expert_ids=expert_ids)
    _launch(results, inner, sizes['T'], sizes['K'], 1, scratch, weight, stream, prompt)


def _launch(out: Any, x: Any, num_tokens: int, num_chosen: int, divisor: int,
            scratch: ExpertOrder, weight: AffineFragments, stream: Any, prompt: bool) -> None:
    # an expert has no more pairs than there are tokens: each takes it once
    kernel = device.compiled(gemm_affine.spec(
        weight.columns, num_tokens, weight.bits, weight.group_size,
        'geglu' if weight.interleaved else 'plain', prompt, True,
        num_row_tiles=gemm_affine.EXPERTS_READ * weight.num_row_tiles))
    constants = dict(kernel.spec.defines)
    tiles = weight.num_row_tiles
    grid = (-(-tiles // constants['ROW_TILES']),
            max_tiles(num_tokens * num_chosen, weight.num_experts, ROWS))
    device.launch(kernel, grid[::-1] if prompt else grid, constants['K_WARPS'] * 32,
                  (out, x, weight.words, weight.scales, scratch.order, scratch.tiles, divisor, 0,
                   tiles, weight.num_outputs, weight.num_outputs, 1.0), stream,
                  gemm_affine.shared_bytes(constants))
