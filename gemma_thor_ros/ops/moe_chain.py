# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The experts' gate-up and down in one launch: what moe_nvfp4 does in two, to the same bits.

The device reads on from one product into the other; only its own units keep down waiting. The
twins are moe_nvfp4's.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ops import device, moe_nvfp4
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import Nvfp4Fragments
from gemma_thor_ros.ops.moe_nvfp4 import DenseDown, DenseGateUp
from gemma_thor_ros.ops.shapes import check

_APART = 32                              # words between two counters, as in arrivals.cuh
_MOST_PARTS = 16                         # of a dense MLP


def arrivals_size(num_experts: int) -> int:
    """Words of the counters of a mixture; they are zero before the first launch."""
    return (_MOST_PARTS + min(num_experts, moe_nvfp4.MAX_PAIRS)) * _APART


def moe_chain(results: Any, inner: Any, x: Any, expert_ids: Any, gate_up: Nvfp4Fragments,
              down: Nvfp4Fragments, arrivals: Any, stream: Any,
              dense: tuple[DenseGateUp, DenseDown] | None = None) -> None:
    """Enqueue inner (T, K, I) and results (T, K, H) bf16.

    x (T, H) bf16; expert_ids (T, K) i32, -1 for padding; T at most moe_nvfp4.MAX_TOKENS. arrivals:
    arrivals_size(E) u32, zero before and after. No other launch of this kind may run at the same
    time.
    """
    assert gate_up.interleaved and not down.interleaved
    sizes = check('moe_chain', {'I': gate_up.num_outputs, 'H': gate_up.columns},
                  results=results, inner=inner, x=x, expert_ids=expert_ids, arrivals=arrivals)
    tokens, num_experts = sizes['T'], gate_up.num_experts
    assert tokens <= moe_nvfp4.MAX_TOKENS, sizes
    assert (down.columns, down.num_outputs, down.num_experts) == (
        gate_up.num_outputs, gate_up.columns, num_experts), (down, gate_up)
    first = DenseGateUp(inner, x, gate_up)               # not looked at without dense
    second, parts = DenseDown(results, inner, down), 0
    if dense:
        first, second = dense
        parts = moe_nvfp4.check_dense(tokens, gate_up, down, dense)
    assert parts <= _MOST_PARTS and sizes['N'] >= arrivals_size(num_experts), sizes
    kernel = device.compiled(spec(gate_up.columns, down.columns, tokens, sizes['K'], num_experts,
                                  device.has_e2m1_conversion(), parts))
    tiles = gate_up.num_row_tiles
    items = (moe_nvfp4.most_experts(tokens, sizes['K'], gate_up) + parts) * tiles
    moe_nvfp4.launch(kernel, items, (
        results, second.parts, inner, first.inner, arrivals, x, first.x, expert_ids,
        *moe_nvfp4.arrays(gate_up), *moe_nvfp4.arrays(first.weight), *moe_nvfp4.arrays(down),
        *moe_nvfp4.arrays(second.weight), tokens * sizes['K'], tiles, down.num_row_tiles,
        down.num_outputs), stream)


def spec(hidden_size: int, expert_size: int, num_tokens: int, num_chosen: int, num_experts: int,
         hardware: bool, dense: int = 0, **override: int) -> KernelSpec:
    """What is compiled: the constants of both launches, down's own ones with DOWN_ in front."""
    sizes = (num_tokens, num_chosen, num_experts, hardware, dense)
    constants = dict(moe_nvfp4.gate_up_spec(hidden_size, *sizes).defines)
    down = dict(moe_nvfp4.down_spec(expert_size, *sizes).defines)
    assert down['SPLIT'] == 1, down
    own = {f'DOWN_{name}': down[name] for name in (
        'COLUMNS', 'ACTIVATIONS', 'WIDE_ACTIVATIONS', 'WIDE', 'NARROW')}
    del constants['ENTRY'], constants['WARM']
    several = constants['COLUMN_TILES'] // constants['SPLIT'] > constants['STAGE_TILES']
    return KernelSpec.of('moe_chain', **{**constants, **own, 'ONE_BODY': int(several),
                                         **override})

