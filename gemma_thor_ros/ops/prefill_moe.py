# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The experts of prompt rows in NVFP4: sort the pairs by expert, gate-up with geglu, down.

The twins are moe_nvfp4's; the weighted sum over a token's experts is moe_nvfp4_combine, or
rms_norm_sum_add takes the results itself. Weights are the ones of generated rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import Nvfp4Fragments
from gemma_thor_ros.ops.prefill_gemm import (
    WARPS,
    Shape,
    experts_spec,
    row_blocks,
    shared_bytes,
    tokens,
)
from gemma_thor_ros.ops.shapes import check

# Rows of a tile -> its shape. 64 rows of a prompt are 4 pairs for the average of 128 experts. The
# rows of a tile that are not filled are multiplied all the same: larger ones lose (bench/LOG.md).
TILES: dict[int, Shape] = {16: (16, 1, 2, 4, 4), 32: (32, 1, 2, 4, 2)}
_LEAST_PAIRS = 8                         # of the average expert, for tiles of 32
_THREADS = 1024


@dataclass(frozen=True)
class ExpertOrder:
    """Scratch of one launch of the experts; layers may share it. Arrays of the device.

    order (max_pairs,) i32: pairs by expert; offsets (E + 1,) i32; tiles (max_tiles, 4) i32.
    """

    order: Any
    offsets: Any
    tiles: Any

    @classmethod
    def empty(cls, xp: Any, num_tokens: int, num_chosen: int, num_experts: int) -> ExpertOrder:
        """Room for T tokens of K experts; xp: the array module."""
        pairs = num_tokens * num_chosen
        return cls(xp.empty(pairs, 'int32'), xp.empty(num_experts + 1, 'int32'),
                   xp.empty((max_tiles(pairs, num_experts, min(TILES)), 4), 'int32'))


def prefill_sort_ref(expert_ids: npt.NDArray[Any], num_experts: int,
                     tile_rows: int) -> tuple[npt.NDArray[Any], ...]:
    """(order, offsets, tiles) of expert_ids (T, K), -1 for padding; tiles without left-overs."""
    flat = expert_ids.reshape(-1)
    order = np.argsort(flat, kind='stable')
    order = order[flat[order] >= 0].astype(np.int32)
    offsets = np.searchsorted(flat[order], np.arange(num_experts + 1)).astype(np.int32)
    tiles = [(expert, start, min(tile_rows, int(offsets[expert + 1]) - start), 0)
             for expert in range(num_experts)
             for start in range(int(offsets[expert]), int(offsets[expert + 1]), tile_rows)]
    return order, offsets, np.array(tiles, np.int32).reshape(-1, 4)


def prefill_sort(scratch: ExpertOrder, expert_ids: Any, num_experts: int, stream: Any,
                 tile: int | None = None) -> None:
    """Enqueue the order of the pairs of expert_ids (T, K) i32, -1 for padding.

    Both launches of the experts read it; they must be given the same tile (default: from T).
    """
    pairs = expert_ids.size
    assert scratch.order.size >= pairs and scratch.offsets.size == num_experts + 1, pairs
    rows = tile or tile_of(pairs, num_experts)
    count = max_tiles(pairs, num_experts, rows)
    assert scratch.tiles.shape[0] >= count, (scratch.tiles.shape, count)
    device.launch(device.compiled(sort_spec('prefill_sort', num_experts)), (num_experts,),
                  _THREADS, (scratch.order, scratch.offsets, expert_ids, pairs), stream)
    device.launch(device.compiled(sort_spec('prefill_tiles', num_experts)), (1,), _THREADS,
                  (scratch.tiles, scratch.offsets, rows, count), stream)


def prefill_gate_up(inner: Any, x: Any, expert_ids: Any, scratch: ExpertOrder,
                    weight: Nvfp4Fragments, stream: Any, tile: int | None = None) -> None:
    """Enqueue inner (T, K, I) bf16 from x (T, H) bf16; rows of padding stay as they are."""
    assert weight.interleaved
    sizes = check('moe_nvfp4_gate_up', {'I': weight.num_outputs, 'H': weight.columns},
                  inner=inner, x=x, expert_ids=expert_ids)
    _experts(inner, x, sizes['T'] * sizes['K'], sizes['K'], scratch, weight, stream, tile)


def prefill_down(results: Any, inner: Any, expert_ids: Any, scratch: ExpertOrder,
                 weight: Nvfp4Fragments, stream: Any, tile: int | None = None) -> None:
    """Enqueue results (T, K, H) bf16 from inner (T, K, I) bf16, not weighted yet."""
    assert not weight.interleaved
    sizes = check('moe_nvfp4_down', {'H': weight.num_outputs, 'I': weight.columns},
                  results=results, inner=inner, expert_ids=expert_ids)
    _experts(results, inner, sizes['T'] * sizes['K'], 1, scratch, weight, stream, tile)


def _experts(out: Any, x: Any, pairs: int, divisor: int, scratch: ExpertOrder,
             weight: Nvfp4Fragments, stream: Any, tile: int | None) -> None:
    assert weight.num_outputs % 8 == 0 and weight.columns % 8 == 0, (
        f'{weight.num_outputs} x {weight.columns}: multiples of 8 are supported')
    rows = tile or tile_of(pairs, weight.num_experts)
    chosen = experts_spec(TILES[rows], weight.interleaved, device.has_e2m1_conversion())
    constants = dict(chosen.defines)
    assert tokens(constants) == rows, (constants, rows)
    grid = (row_blocks(constants, weight.num_row_tiles),
            max_tiles(pairs, weight.num_experts, rows))
    device.launch(device.compiled(chosen), grid, WARPS * 32,
                  (out, x, scratch.order, scratch.tiles, weight.codes, weight.scales,
                   weight.row_scales, divisor, weight.num_row_tiles, weight.num_outputs,
                   weight.columns), stream, shared_bytes(constants))


def tile_of(num_pairs: int, num_experts: int) -> int:
    """Rows of a tile for so many pairs."""
    return 32 if num_pairs >= _LEAST_PAIRS * num_experts else 16


def max_tiles(num_pairs: int, num_experts: int, tile_rows: int) -> int:
    """As many tiles as these pairs can fill."""
    return num_pairs // tile_rows + min(num_experts, num_pairs)


def sort_spec(entry: str, num_experts: int) -> KernelSpec:
    """What is compiled for E experts."""
    assert num_experts <= _THREADS, f'{num_experts} experts: up to {_THREADS} are supported'
    return KernelSpec.of('prefill_sort', entry, NUM_EXPERTS=num_experts)
