# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The op table: everything that models/ asks of a device, and the CPU's filling of it.

models/ calls these functions and nothing else; a second device fills the same fields with its own
launchers and weight forms. Arrays are opaque to the caller except for their shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from gemma_thor_ros.ops.attention import attention_ref, plan_attention
from gemma_thor_ros.ops.embed import embed_ref
from gemma_thor_ros.ops.geglu import geglu_ref
from gemma_thor_ros.ops.head import head_ref
from gemma_thor_ros.ops.kv_append import kv_append_ref, rope_table
from gemma_thor_ros.ops.linear import (
    CPU_TILES,
    LinearWeight,
    RowTiles,
    StoredWeight,
    TableWeight,
    linear_ref,
    values,
)
from gemma_thor_ros.ops.moe import ExpertWeights, moe_ref
from gemma_thor_ros.ops.moe_route import moe_route_ref
from gemma_thor_ros.ops.rms_norm import rms_norm_add_ref, rms_norm_ref, rms_norm_sum_ref
from gemma_thor_ros.ops.rounding import KvDtype, Rounding
from gemma_thor_ros.ops.scratch import Scratch

Op = Callable[..., Any]


@dataclass(frozen=True)
class OpTable:
    """The ops of one device in one numeric mode; each field's contract is its twin's docstring."""

    dtype: np.dtype[Any]         # what activations are computed in
    rounding: Rounding
    tiles: RowTiles              # row counts of each role are padded to these
    embed: Op
    rms_norm: Op
    rms_norm_add: Op
    rms_norm_sum: Op
    rope_table: Op
    kv_append: Op
    plan_attention: Op
    attention: Op
    linear: Op
    geglu: Op
    moe_route: Op
    moe: Op
    head: Op
    scope: Callable[[int], Any]  # context manager around one forward; its number of prompt rows


class WeightLoader:
    """Turns stored weights into what the CPU ops read, within a memory budget.

    Weights stay dequantised while they fit into `budget_bytes`; later ones are dequantised at
    every use, to the same values.
    """

    def __init__(self, dtype: npt.DTypeLike, budget_bytes: int) -> None:
        self.dtype = np.dtype(dtype)
        self.budget_bytes = budget_bytes
        self.resident_bytes = 0

    def _admit(self, num_numbers: int) -> bool:
        num_bytes = num_numbers * self.dtype.itemsize
        fits = self.resident_bytes + num_bytes <= self.budget_bytes
        self.resident_bytes += num_bytes if fits else 0
        return fits

    def vector(self, weight: StoredWeight) -> npt.NDArray[Any]:
        """A norm or scale, always resident."""
        return np.ascontiguousarray(values(weight, self.dtype), self.dtype)

    def linear(self, *parts: StoredWeight) -> LinearWeight:
        """One projection, or several that read the same rows, stacked."""
        size = sum(part.shape[0] * part.shape[1] for part in parts)
        return LinearWeight(parts, self.dtype, self._admit(size))

    def table(self, weight: StoredWeight) -> TableWeight:
        """The tied embedding table."""
        return TableWeight(weight, self.dtype, self._admit(weight.shape[0] * weight.shape[1]))

    def experts(self, gate: StoredWeight, up: StoredWeight, down: StoredWeight) -> ExpertWeights:
        """All experts of one layer."""
        size = 3 * gate.shape[0] * gate.shape[1] * gate.shape[2]
        return ExpertWeights(gate, up, down, self.dtype, self._admit(size))


class _Threads:
    """Holds the BLAS to a fixed number of threads while a forward runs."""

    def __init__(self, decode_threads: int, prefill_threads: int) -> None:
        self._controller = ThreadpoolController().select(user_api='blas')
        self._limits = (decode_threads, prefill_threads)

    @contextmanager
    def __call__(self, num_prefill_rows: int) -> Iterator[None]:
        with self._controller.limit(limits=self._limits[num_prefill_rows > 0]):
            yield


def cpu_op_table(dtype: npt.DTypeLike, rounding: Rounding, *, decode_threads: int = 1,
                 prefill_threads: int = 1, tiles: RowTiles = CPU_TILES,
                 kv_dtype: KvDtype | None = None) -> OpTable:
    """The NumPy twins as a device. dtype float32, or float64 for the oracle.

    K and V are rounded to kv_dtype; None: to bf16 for 'device', else not at all.
    """
    scratch = Scratch(dtype)
    return OpTable(
        dtype=np.dtype(dtype),
        rounding=rounding,
        tiles=tiles,
        embed=partial(embed_ref, rounding=rounding),
        rms_norm=partial(rms_norm_ref, rounding=rounding),
        rms_norm_add=partial(rms_norm_add_ref, scratch=scratch),
        rms_norm_sum=partial(rms_norm_sum_ref, scratch=scratch),
        rope_table=partial(rope_table, dtype=np.dtype(dtype)),
        kv_append=partial(kv_append_ref, scratch=scratch, rounding=rounding, kv_dtype=kv_dtype),
        plan_attention=partial(plan_attention, dtype=np.dtype(dtype)),
        attention=partial(attention_ref, scratch=scratch, rounding=rounding),
        linear=partial(linear_ref, tiles=tiles, rounding=rounding),
        geglu=partial(geglu_ref, rounding=rounding),
        moe_route=partial(moe_route_ref, tiles=tiles, scratch=scratch, rounding=rounding),
        moe=partial(moe_ref, scratch=scratch, rounding=rounding),
        head=partial(head_ref, tiles=tiles),
        scope=_Threads(decode_threads, prefill_threads),
    )
