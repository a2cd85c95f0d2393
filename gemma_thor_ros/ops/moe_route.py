# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which experts a token goes to, and with what weight.

z = (rms(r) * scale * H^(-1/2)) W^T over all experts, from the raw residual r; the K largest z are
taken (ties to the lowest id); weights = softmax of those K, times per_expert_scale, so they need
not sum to 1. That equals softmax over all experts, top K, renormalise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops.linear import CPU_TILES, LinearWeight, RowTiles, linear_ref
from gemma_thor_ros.ops.rms_norm import rms_norm_ref
from gemma_thor_ros.ops.rounding import Array, Rounding
from gemma_thor_ros.ops.scratch import Scratch


def moe_route_ref(expert_ids: npt.NDArray[Any], expert_weights: Array, residual: Array,
                  scale: Array, proj: LinearWeight, per_expert_scale: Array, eps: float,
                  num_decode_rows: int, *, scratch: Scratch, tiles: RowTiles = CPU_TILES,
                  rounding: Rounding = 'none') -> None:
    """Write expert_ids (T, K) and expert_weights (T, K), best first.

    residual (T, H); scale (H,) is router.scale times H^(-1/2); proj (E, H). 'device' rounds the
    normed input to bf16; z and the weights stay as they are.
    """
    normed = scratch.get('moe_route_x', *residual.shape)
    rms_norm_ref(normed, residual, scale, eps, rounding)
    scores = scratch.get('moe_route_z', residual.shape[0], proj.shape[0])
    linear_ref(scores, normed, proj, num_decode_rows, tiles=tiles)
    np.negative(scores, out=scores)
    best = np.argsort(scores, axis=-1, kind='stable')[:, :expert_ids.shape[1]]
    expert_ids[...] = best
    # negated scores ascend, so column 0 holds the maximum
    chosen = np.take_along_axis(scores, best, axis=-1)
    np.subtract(chosen[:, :1], chosen, out=expert_weights)
    np.exp(expert_weights, out=expert_weights)
    expert_weights /= expert_weights.sum(axis=-1, keepdims=True)
    expert_weights *= per_expert_scale[best]


def bytes_moved(num_tokens: int, hidden_size: int, num_experts: int, element_bytes: int) -> int:
    """The residual and the router's matrix."""
    return (num_tokens + num_experts) * hidden_size * element_bytes
