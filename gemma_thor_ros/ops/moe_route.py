# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which experts a token goes to, and with what weight.

z = (rms(r) * scale * H^(-1/2)) W^T over all experts, from the raw residual r; the K largest z are
taken (ties to the lowest id); weights = softmax of those K, times per_expert_scale, so they need
not sum to 1. That equals softmax over all experts, top K, renormalise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.linear import CPU_TILES, LinearWeight, RowTiles, linear_ref
from gemma_thor_ros.ops.rms_norm import rms_norm_ref
from gemma_thor_ros.ops.rounding import Array, Rounding, stored_by_mlx
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.ops.shapes import check

_MOST_TOGETHER = 256                     # experts: threads of a block
_MOST_ADDED, _MOST_COLUMNS = 16, 4096    # rows of moe_route_add, and numbers of each
_FEW_ROWS = 4
_CLUSTER = 8                             # blocks of a cluster; 1: none
_ROWS = 16                               # of one tile


def moe_route_ref(expert_ids: npt.NDArray[Any], expert_weights: Array, residual: Array,
                  scale: Array, proj: LinearWeight, per_expert_scale: Array, eps: float,
                  num_decode_rows: int, *, scratch: Scratch, tiles: RowTiles = CPU_TILES,
                  rounding: Rounding = 'none') -> None:
    """Write expert_ids (T, K) and expert_weights (T, K), best first.

    residual (T, H); scale (H,) is router.scale times H^(-1/2); proj (E, H). 'device' rounds the
    normed input to bf16, z and the weights stay as they are; 'mlx' rounds those and scale too.
    """
    normed = scratch.get('moe_route_x', *residual.shape)
    rms_norm_ref(normed, residual, stored_by_mlx(scale.copy(), rounding), eps, rounding)
    scores = scratch.get('moe_route_z', residual.shape[0], proj.shape[0])
    linear_ref(scores, normed, proj, num_decode_rows, tiles=tiles)
    stored_by_mlx(scores, rounding)
    np.negative(scores, out=scores)
    best = np.argsort(scores, axis=-1, kind='stable')[:, :expert_ids.shape[1]]
    expert_ids[...] = best
    # negated scores ascend, so column 0 holds the maximum
    chosen = np.take_along_axis(scores, best, axis=-1)
    np.subtract(chosen[:, :1], chosen, out=expert_weights)
    np.exp(expert_weights, out=expert_weights)
    expert_weights /= expert_weights.sum(axis=-1, keepdims=True)
    stored_by_mlx(expert_weights, rounding)
    expert_weights *= per_expert_scale[best]
    stored_by_mlx(expert_weights, rounding)


def moe_route(expert_ids: Any, expert_weights: Any, scores: Any, tickets: Any, x: Any,
              weight: Any, per_expert_scale: Any, sequences: Any, stream: Any) -> None:
    """Enqueue expert_ids (T, K) i32 and expert_weights (T, K) f32, best first; padding: -1 and 0.

    x (T, H) bf16 is the residual's norm by router.scale * H^(-1/2) (rms_norm writes it); weight
    (E, H) bf16, or (parts, E, H) whose sum it is; sequences (T,) i32, -1 in padding rows. scores
    and tickets: `scratch_sizes`.
    """
    parts = weight.shape[0] if len(weight.shape) == 3 else 1
    sizes = check('moe_route', expert_ids=expert_ids, expert_weights=expert_weights, x=x,
                  weight=weight.reshape(parts, *weight.shape[-2:])[0],
                  per_expert_scale=per_expert_scale, sequences=sequences)
    need = scratch_sizes(sizes['T'], sizes['H'], sizes['E'])
    assert scores.size >= need[0] and tickets.size >= need[1], (scores.size, tickets.size, need)
    kernel = device.compiled(spec(sizes['H'], sizes['E'], sizes['K'], parts))
    grid = (sizes['E'] // 8, _splits(sizes['H']), -(-sizes['T'] // _ROWS))
    device.launch(kernel, grid, 256, (expert_ids, expert_weights, scores, tickets, x, weight,
                                      per_expert_scale, sequences, sizes['T']), stream)


def moe_route_add(expert_ids: Any, expert_weights: Any, scores: Any, tickets: Any, x: Any,
                  normed: Sequence[Any], a: Any, weight_a: Any, weights: Sequence[Any], eps: float,
                  scale: float, weight: Any, per_expert_scale: Any, sequences: Any,
                  stream: Any) -> None:
    """Enqueue rms_norm_add and moe_route of some rows as one launch, the same bits as of the two.

    x (T, H) f32 in place; normed two arrays (T, H) bf16; a (T, H) bf16; weight_a and weights
    (H,) f32, those of the two norms and of the router's, which is not written.
    """
    parts = weight.shape[0] if len(weight.shape) == 3 else 1
    sizes = check('moe_route_add', expert_ids=expert_ids, expert_weights=expert_weights, x=x,
                  normed_0=normed[0], normed_1=normed[1], a=a, weight_a=weight_a, w_0=weights[0],
                  w_1=weights[1], routed=weights[2],
                  weight=weight.reshape(parts, *weight.shape[-2:])[0],
                  per_expert_scale=per_expert_scale, sequences=sequences)
    need = scratch_sizes(sizes['T'], sizes['H'], sizes['E'])
    assert can_add(sizes['T'], sizes['H'], sizes['E']) and scores.size >= need[0], (sizes, need)
    assert tickets.size >= need[1], (tickets.size, need)
    cluster = 1
    if sizes['T'] <= _FEW_ROWS and compiler.arch_number(device.info().arch) >= 90:
        cluster = _CLUSTER
    chosen = add_spec(sizes['H'], sizes['E'], sizes['K'], parts, sizes['T'], cluster)
    values = dict(chosen.defines)
    if values['CLUSTER'] > 1:
        grid, threads = (values['CLUSTER'], 1, sizes['T']), 256 * values['SPLITS']
    else:
        experts = 8 * values['EIGHTS']                   # of a block
        grid, threads = (-(-sizes['E'] // experts), values['SPLITS'], sizes['T']), 256
    device.launch(device.compiled(chosen), grid, threads,
                  (expert_ids, expert_weights, scores, tickets, x, *normed, a, weight_a, *weights,
                   weight, per_expert_scale, sequences, float(eps), float(scale)), stream)


def can_add(num_rows: int, hidden_size: int, num_experts: int) -> bool:
    """Whether `moe_route_add` runs here: a block has a row's norms in 48 KB of shared memory."""
    return (num_rows <= _MOST_ADDED and hidden_size <= _MOST_COLUMNS
            and num_experts <= _MOST_TOGETHER)


def scratch_sizes(num_tokens: int, hidden_size: int, num_experts: int) -> tuple[int, int]:
    """Numbers of the two scratch arrays: scores f32, and tickets u32 that start as zeros."""
    tiles = -(-num_tokens // _ROWS)
    return tiles * _splits(hidden_size) * _ROWS * num_experts, num_tokens


def spec(hidden_size: int, num_experts: int, num_chosen: int, parts: int = 1) -> KernelSpec:
    """What is compiled for H columns, E experts and K of them; the cut depends on H alone."""
    assert hidden_size % 32 == 0 and num_experts % 8 == 0, (hidden_size, num_experts)
    assert num_chosen <= min(32, num_experts), (num_chosen, num_experts)
    splits = _splits(hidden_size)
    return KernelSpec.of('moe_route', H=hidden_size, E=num_experts, K=num_chosen, SPLITS=splits,
                         UNITS=-(-hidden_size // (splits * 8 * 32)), PARTS=parts)


def add_spec(hidden_size: int, num_experts: int, num_chosen: int, parts: int = 1,
             num_rows: int = 1, cluster: int = 1, **override: int) -> KernelSpec:
    """What is compiled for `moe_route_add`; cluster: blocks of one.

    Each block of a row does its norms anew: among several rows there are fewer of them.
    """
    constants = dict(spec(hidden_size, num_experts, num_chosen, parts).defines)
    eighths = 4 if num_rows > _FEW_ROWS else 1
    if cluster > 1:
        eighths = -(-num_experts // (8 * cluster))
    constants |= {'CLUSTER': cluster, 'EIGHTS': eighths, 'MIN_BLOCKS': 2 if eighths == 1 else 1}
    return KernelSpec.of('moe_route_add', **constants | override)


def _splits(hidden_size: int) -> int:
    return 2 if hidden_size > 1024 else 1


def add_specs(hidden_size: int, num_experts: int, num_chosen: int,
              rows: Iterable[int]) -> list[KernelSpec]:
    """What `moe_route_add` launches for these numbers of rows, with and without clusters."""
    return list(dict.fromkeys(
        add_spec(hidden_size, num_experts, num_chosen, 1, count, cluster)
        for count in rows for cluster in ((1, _CLUSTER) if count <= _FEW_ROWS else (1,))
        if can_add(count, hidden_size, num_experts)))


def bytes_moved(num_tokens: int, hidden_size: int, num_experts: int, element_bytes: int) -> int:
    """The residual and the router's matrix."""
    return (num_tokens + num_experts) * hidden_size * element_bytes
