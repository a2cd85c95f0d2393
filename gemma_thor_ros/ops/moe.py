# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The experts: out[t] = sum over k of weight[t, k] * down_e(geglu(gate_up_e x[t])), e = ids[t, k].

Rows are grouped by expert so that each expert's matrices are fetched once, but every row is a
product of its own, and a row's K results are added best expert first: its bits do not depend on
which rows share its experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops.geglu import geglu_ref
from gemma_thor_ros.ops.linear import StoredWeight, tiled_matmul, values
from gemma_thor_ros.ops.rounding import Array, Rounding, stored, stored_by_mlx
from gemma_thor_ros.ops.scratch import Scratch


class ExpertWeights:
    """gate, up and down of all experts of one layer: (E, I, H), (E, I, H), (E, H, I)."""

    def __init__(self, gate: StoredWeight, up: StoredWeight, down: StoredWeight,
                 dtype: npt.DTypeLike, resident: bool = True) -> None:
        self.num_experts, self.intermediate_size, self.hidden_size = gate.shape
        self.dtype = np.dtype(dtype)
        self._parts: tuple[StoredWeight, ...] = (gate, up, down)
        self._resident: tuple[Array, Array] | None = None
        if resident:
            size = 2 * self.intermediate_size
            gate_up = np.empty((self.num_experts, size, self.hidden_size), self.dtype)
            down_all = np.empty((self.num_experts, self.hidden_size, self.intermediate_size),
                                self.dtype)
            for expert in range(self.num_experts):
                gate_up[expert], down_all[expert] = self.gate_up(expert), self.down(expert)
            self._resident = gate_up, down_all
            self._parts = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of the resident form, whether it is resident or not."""
        return (3 * self.num_experts * self.intermediate_size * self.hidden_size
                * self.dtype.itemsize)

    def gate_up(self, expert: int) -> Array:
        """(2I, H) of one expert, gate first."""
        both: Array
        if self._resident is not None:
            both = self._resident[0][expert]
            return both
        both = np.concatenate([values(part[expert], self.dtype)
                                      for part in self._parts[:2]])
        return both

    def down(self, expert: int) -> Array:
        """(H, I) of one expert."""
        matrix: Array
        if self._resident is not None:
            matrix = self._resident[1][expert]
            return matrix
        matrix = np.ascontiguousarray(values(self._parts[2][expert], self.dtype))
        return matrix


def moe_ref(out: Array, x: Array, expert_ids: npt.NDArray[Any], expert_weights: Array,
            weights: ExpertWeights, rows: npt.NDArray[Any], *, scratch: Scratch,
            rounding: Rounding = 'none') -> None:
    """Write out (T, H) from x (T, H), expert_ids and expert_weights (T, K).

    rows: the real rows; the others get 0. 'device' rounds the two products and geglu's result of
    each expert to bf16, not the sum; 'mlx' rounds the weighted results and the sum too.
    """
    num_pairs, num_chosen = rows.size * expert_ids.shape[1], expert_ids.shape[1]
    # pair p is (row, k) = (p // K, p % K); order lists the pairs by expert
    pairs = expert_ids[rows].reshape(-1)
    order = np.argsort(pairs, kind='stable')
    ids = pairs[order]
    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    groups = list(zip(ids[starts].tolist(), starts.tolist(),
                      [*starts[1:].tolist(), num_pairs], strict=True))
    grouped = x[rows[order // num_chosen]]
    gate_up = scratch.get('moe_gate_up', num_pairs, 2 * weights.intermediate_size)
    inner = scratch.get('moe_inner', num_pairs, weights.intermediate_size)
    result = scratch.get('moe_result', num_pairs, x.shape[1])
    for expert, start, end in groups:
        tiled_matmul(gate_up[start:end], grouped[start:end], weights.gate_up(expert), 1)
    stored(gate_up, rounding)
    geglu_ref(inner, gate_up, rounding)
    for expert, start, end in groups:
        tiled_matmul(result[start:end], inner[start:end], weights.down(expert), 1)
    stored(result, rounding)
    by_pair = scratch.get('moe_by_pair', num_pairs, x.shape[1])
    by_pair[order] = result
    by_pair *= expert_weights[rows].reshape(-1, 1)
    stored_by_mlx(by_pair, rounding)
    total = by_pair.reshape(rows.size, num_chosen, -1)
    combined = total[:, 0]
    for k in range(1, num_chosen):
        combined += total[:, k]
    if rounding == 'mlx':
        combined = stored(np.ascontiguousarray(combined), rounding)
    out[...] = 0
    out[rows] = combined


def bytes_moved(num_tokens: int, num_chosen: int, distinct_experts: int, hidden_size: int,
                intermediate_size: int, weight_bits: int, element_bytes: int) -> int:
    """The chosen experts' weights once, and the rows in and out of every chosen expert."""
    weights = 3 * distinct_experts * hidden_size * intermediate_size * weight_bits // 8
    return weights + 2 * num_tokens * num_chosen * hidden_size * element_bytes
