# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The activations of one forward pass.

On the CPU allocated for the largest step seen and reused; on a CUDA device allocated once, because
graphs hold their addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.config import ModelConfig

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Activations:
    """Views for one row count T. Every array is C-contiguous; None: not needed there."""

    residual: Array              # (T, H)
    normed: Array                # (T, H)
    branch: Array                # (T, H)
    routed: Array | None         # (T, H) what the router reads, where it has its own norm
    expert_in: Array | None      # (T, H)
    dense_parts: Array | None    # (T, J, H) where the dense MLP beside experts writes parts
    branch_sum: Array | None     # (T, H) dense MLP and experts, where the sum is written
    qkv: dict[str, Array]        # layer type -> (T, (Q + KV [+ KV]) D)
    q: dict[str, Array]          # layer type -> (T, Q, D)
    attended: dict[str, Array]   # layer type -> (T, Q, D)
    gate_up: Array | None        # (T, 2I) where the products are written
    inner: Array                 # (T, I)
    wide_gate_up: Array | None   # the same of layers with the double-wide MLP
    wide_inner: Array | None
    layer_inputs: Array | None   # (T, L P) per-layer embeddings of the rows
    layer_gate: Array | None     # (T, P)
    expert_ids: Array | None     # (T, K)
    expert_weights: Array | None         # (T, K)
    expert_inner: Array | None   # (T, K, I) where the experts' results are kept apart
    expert_out: Array | None     # (T, H), or (T, K, H)


def device_activations(config: ModelConfig, num_rows: int,
                       zeros: Callable[[tuple[int, ...], npt.DTypeLike], Any],
                       dense_products: bool, dense_parts: tuple[int, int] = (0, 0),
                       ) -> Activations:
    """The activations of a CUDA device for up to num_rows rows, allocated once.

    The residual is f32, what goes into a product bf16 (its bits). dense_products: keep room for
    gate and up of the dense MLP, which only a bf16 weight writes. dense_parts: (T, J) of those
    that the experts' launches write of it for generated rows.
    """
    hidden, chosen = config.hidden_size, config.top_k_experts
    geometries = (config.sliding, config.full)
    heads = {g.layer_type: (num_rows, g.num_q_heads, g.head_dim) for g in geometries}

    def bf16(*shape: int) -> Any:
        return zeros((num_rows, *shape), np.uint16)

    experts = config.enable_moe_block
    return Activations(
        residual=zeros((num_rows, hidden), np.float32), normed=bf16(hidden), branch=bf16(hidden),
        routed=bf16(hidden) if experts else None, expert_in=bf16(hidden) if experts else None,
        dense_parts=zeros((*dense_parts, hidden), np.float32) if dense_parts[1] else None,
        branch_sum=None,
        qkv={g.layer_type: bf16(g.qkv_rows) for g in geometries},
        q={kind: zeros(shape, np.uint16) for kind, shape in heads.items()},
        attended={kind: zeros(shape, np.uint16) for kind, shape in heads.items()},
        gate_up=bf16(2 * config.intermediate_size) if dense_products else None,
        inner=bf16(config.intermediate_size),
        wide_gate_up=None, wide_inner=None, layer_inputs=None, layer_gate=None,
        expert_ids=zeros((num_rows, chosen), np.int32) if experts else None,
        expert_weights=zeros((num_rows, chosen), np.float32) if experts else None,
        expert_inner=bf16(chosen, config.moe_intermediate_size) if experts else None,
        expert_out=bf16(chosen, hidden) if experts else None)


class Workspace:
    """Gives Activations for any row count; allocates only when a count is larger than before."""

    def __init__(self, config: ModelConfig, dtype: npt.DTypeLike) -> None:
        self._config = config
        self._dtype = np.dtype(dtype)
        self._capacity = 0
        self._whole: Activations | None = None
        self._views: dict[int, Activations] = {}

    def rows(self, num_rows: int) -> Activations:
        """The activations of a step of num_rows rows; they hold what earlier steps left."""
        if num_rows > self._capacity or self._whole is None:
            self._capacity = num_rows
            self._whole = self._allocate(num_rows)
            self._views = {}
        view = self._views.get(num_rows)
        if view is None:
            view = self._views[num_rows] = first_rows(self._whole, num_rows)
        return view

    def _allocate(self, num_rows: int) -> Activations:
        config, dtype = self._config, self._dtype
        hidden = (num_rows, config.hidden_size)
        geometries = (config.sliding, config.full)
        heads = {g.layer_type: (num_rows, g.num_q_heads, g.head_dim) for g in geometries}
        return Activations(
            residual=np.zeros(hidden, dtype), normed=np.zeros(hidden, dtype),
            branch=np.zeros(hidden, dtype), routed=None, expert_in=np.zeros(hidden, dtype),
            dense_parts=None, branch_sum=np.zeros(hidden, dtype),
            qkv={g.layer_type: np.zeros((num_rows, g.qkv_rows), dtype) for g in geometries},
            q={kind: np.zeros(shape, dtype) for kind, shape in heads.items()},
            attended={kind: np.zeros(shape, dtype) for kind, shape in heads.items()},
            gate_up=np.zeros((num_rows, 2 * config.intermediate_size), dtype),
            inner=np.zeros((num_rows, config.intermediate_size), dtype),
            **self._small_parts(num_rows),
            expert_ids=np.zeros((num_rows, config.top_k_experts), np.int64),
            expert_weights=np.zeros((num_rows, config.top_k_experts), dtype),
            expert_inner=None, expert_out=np.zeros(hidden, dtype))


    def _small_parts(self, num_rows: int) -> dict[str, Array | None]:
        """What only E2B and E4B have."""
        config = self._config
        wide = config.mlp_size(config.num_hidden_layers - 1)
        inputs = config.hidden_size_per_layer_input
        sizes = {'wide_gate_up': 2 * wide, 'wide_inner': wide} if (
            wide != config.intermediate_size) else {}
        if inputs:
            sizes.update(layer_inputs=config.num_hidden_layers * inputs, layer_gate=inputs)
        names = ('wide_gate_up', 'wide_inner', 'layer_inputs', 'layer_gate')
        return {name: np.zeros((num_rows, sizes[name]), self._dtype) if name in sizes else None
                for name in names}


def first_rows(whole: Activations, num_rows: int) -> Activations:
    """Views of the first rows of every array."""
    cut: dict[str, Any] = {}
    for name, value in vars(whole).items():
        if isinstance(value, dict):
            cut[name] = {kind: array[:num_rows] for kind, array in value.items()}
        else:
            cut[name] = None if value is None else value[:num_rows]
    return Activations(**cut)
