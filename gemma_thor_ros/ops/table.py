# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The op table: everything that models/ asks of a device, and the CPU's filling of it.

models/ calls the methods of `LayerOps` and nothing else. The CPU's are made of its ops one by one;
a CUDA device (cuda_table.py) has one launch for several. Arrays are opaque to the caller except
for their shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from gemma_thor_ros.ops.attention import attention_ref, plan_attention
from gemma_thor_ros.ops.embed import embed_ref
from gemma_thor_ros.ops.geglu import geglu_ref
from gemma_thor_ros.ops.head import head_ref
from gemma_thor_ros.ops.kv_append import fp8_scales, kv_append_ref, queries_ref, rope_table
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
from gemma_thor_ros.ops.per_layer import (
    narrowed_ref,
    per_layer_gate_ref,
    per_layer_inputs_ref,
)
from gemma_thor_ros.ops.rms_norm import rms_norm_add_ref, rms_norm_ref, rms_norm_sum_ref
from gemma_thor_ros.ops.rounding import KvDtype, Rounding
from gemma_thor_ros.ops.scratch import Scratch

Op = Callable[..., Any]
Arrays = Sequence[Any]


class Geometry(Protocol):
    """What the layers of one type share, as far as a step's places need it."""

    @property
    def window(self) -> int | None: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def num_rotary_pairs(self) -> int: ...
    @property
    def group(self) -> int: ...


@dataclass(frozen=True)
class StepRows:
    """The rows of one step in a device's form: num_decode_rows generated ones, then prompt rows.

    token_ids (T,), -1 for padding; rows says which are real, places[layer type] where their K and
    V go and what they attend to.
    """

    token_ids: Any
    num_decode_rows: int
    rows: Any
    places: dict[str, Any]
    soft_rows: tuple[tuple[Any, Any], ...] = ()  # (rows, their embedding): image tokens


@dataclass(frozen=True)
class Router:
    """A layer's router: scale (H,) times H^(-1/2), proj (E, H), per_expert_scale (E,)."""

    scale: Any
    proj: Any
    per_expert_scale: Any


class DenseMlp(NamedTuple):
    """The dense MLP of a layer with experts: its weights, what it reads and where it writes."""

    gate_up: Any                 # (2I, H)
    down: Any                    # (H, I)
    x: Any                       # (T, H)
    inner: Any                   # (T, I)
    products: Any                # (T, 2I), where they are written
    branch: Any                  # (T, H)
    parts: Any                   # (T, J, H) of a device that writes branch in parts


class ExpertRows(NamedTuple):
    """The experts of a layer: what they read and where they write."""

    x: Any                       # (T, H)
    ids: Any                     # (T, K)
    shares: Any                  # (T, K)
    inner: Any                   # (T, K, I), where it is written
    out: Any                     # (T, H) the weighted sum, or (T, K, H) before it


class LayerOps(Protocol):
    """What models/gemma4 calls, in the order of a layer. Outputs come first.

    The residual (T, H) is changed in place by the ops with `add` in their name, which then write
    its norms by `weights` to `outs`; an output that is None is one that the device does not need.
    """

    def embed(self, residual: Any, token_ids: Any, table: Any, scale: float) -> None: ...
    def norms(self, outs: Arrays, x: Any, weights: Arrays, eps: float) -> None: ...
    def linear(self, out: Any, x: Any, weight: Any, num_decode_rows: int) -> None: ...
    def append(self, q: Any, k_pages: Any, v_pages: Any, qkv: Any, head_norms: Any, place: Any,
               eps: float, kv_scales: Any) -> None: ...
    def attend(self, out: Any, q: Any, k_pages: Any, v_pages: Any, place: Any,
               kv_scales: Any) -> None: ...
    def add_norms(self, residual: Any, outs: Arrays, branch: Any, weight: Any, weights: Arrays,
                  eps: float, scale: float) -> None: ...
    def gate_up(self, inner: Any, products: Any, x: Any, weight: Any,
                num_decode_rows: int) -> None: ...
    def mixture(self, dense: DenseMlp, experts: ExpertRows, weights: Any, residual: Any,
                routed: Any, router: Router, eps: float, rows: Any, num_decode_rows: int) -> Any:
        """Dense MLP, router and experts; gives dense.branch or dense.parts."""
        ...

    def sum_add_norms(self, residual: Any, outs: Arrays, total: Any, branch: Any, weight: Any,
                      experts: tuple[Any, Any, Any], expert_weight: Any, sum_weight: Any,
                      weights: Arrays, eps: float, scale: float) -> None: ...


class SmallModelOps(LayerOps, Protocol):
    """What E2B and E4B need besides: layers without K and V, and per-layer embeddings."""

    def turn_queries(self, q: Any, q_norm: Any, place: Any, eps: float) -> None: ...
    def per_layer_inputs(self, out: Any, token_ids: Any, table: Any, norm_weight: Any,
                         hidden_size: int, eps: float) -> None: ...
    def narrow(self, out: Any, x: Any) -> None: ...
    def per_layer_gate(self, gate: Any, inputs: Any) -> None: ...


class SoftRowOps(LayerOps, Protocol):
    """What images need besides."""

    def place_rows(self, residual: Any, rows: Any, values: Any) -> None: ...


class CpuPlace(NamedTuple):
    """StepRows.places of the CPU."""

    rope: tuple[Any, Any]
    where: Any
    attend: Any


@dataclass(frozen=True)
class OpTable:
    """The CPU's ops in one numeric mode, and LayerOps made of them.

    Each field's contract is its twin's docstring.
    """

    dtype: np.dtype[Any]         # what activations are computed in
    rounding: Rounding
    tiles: RowTiles              # row counts of each role are padded to these
    embed: Op
    rms_norm: Op
    rms_norm_add: Op
    rms_norm_sum: Op
    rope_table: Op
    kv_append: Op
    queries: Op
    plan_attention: Op
    attention: Op
    linear: Op
    geglu: Op
    moe_route: Op
    moe: Op
    head: Op
    per_layer_inputs: Op
    narrow: Op
    per_layer_gate: Op
    scope: Callable[[int], Any]  # context manager around one forward; its number of prompt rows

    def place(self, positions: Any, where: Any, spans: Any, geometry: Geometry,
              page_size: int) -> CpuPlace:
        """Prepare one layer type for a step: rope of the rows, their slots, what they attend."""
        rope = self.rope_table(positions, geometry.rope_theta, geometry.head_dim,
                               geometry.num_rotary_pairs)
        return CpuPlace(rope, where, self.plan_attention(spans, geometry.window, page_size,
                                                         geometry.group))

    def place_rows(self, residual: Any, rows: Any, values: Any) -> None:
        """residual[rows] = values: soft tokens take the place of embeddings, unscaled."""
        residual[rows] = values

    def norms(self, outs: Arrays, x: Any, weights: Arrays, eps: float) -> None:
        """outs[i] = rms(x; weights[i])."""
        for out, weight in zip(outs, weights, strict=True):
            if out is not None:
                self.rms_norm(out, x, weight, eps)

    def append(self, q: Any, k_pages: Any, v_pages: Any, qkv: Any, head_norms: Any,
               place: CpuPlace, eps: float, kv_scales: Any) -> None:
        """Norm and turn the heads of qkv; K and V go to their pages."""
        self.kv_append(q, k_pages, v_pages, qkv, head_norms, *place.rope, place.where, eps,
                       kv_scales)

    def turn_queries(self, q: Any, q_norm: Any, place: CpuPlace, eps: float) -> None:
        """Norm and turn raw queries q (T, Q, D) in place, in a layer without K and V."""
        self.queries(q, q_norm, *place.rope, eps)

    def attend(self, out: Any, q: Any, k_pages: Any, v_pages: Any, place: CpuPlace,
               kv_scales: Any) -> None:
        """softmax(q k^T) v."""
        self.attention(out, q, k_pages, v_pages, place.attend)

    def add_norms(self, residual: Any, outs: Arrays, branch: Any, weight: Any, weights: Arrays,
                  eps: float, scale: float) -> None:
        """residual = (residual + rms(branch; weight)) * scale, then its norms."""
        self.rms_norm_add(residual, branch, weight, eps, scale)
        self.norms(outs, residual, weights, eps)

    def gate_up(self, inner: Any, products: Any, x: Any, weight: Any,
                num_decode_rows: int) -> None:
        """inner = geglu(x G^T, x U^T); products (T, 2I) holds the two."""
        self.linear(products, x, weight, num_decode_rows)
        self.geglu(inner, products)

    def mixture(self, dense: DenseMlp, experts: ExpertRows, weights: Any, residual: Any,
                routed: Any, router: Router, eps: float, rows: Any, num_decode_rows: int) -> Any:
        """Dense MLP, router and experts one by one; the router norms the residual itself."""
        self.gate_up(dense.inner, dense.products, dense.x, dense.gate_up, num_decode_rows)
        self.linear(dense.branch, dense.inner, dense.down, num_decode_rows)
        self.moe_route(experts.ids, experts.shares, residual, router.scale, router.proj,
                       router.per_expert_scale, eps, num_decode_rows)
        self.moe(experts.out, experts.x, experts.ids, experts.shares, weights, rows)
        return dense.branch

    def sum_add_norms(self, residual: Any, outs: Arrays, total: Any, branch: Any, weight: Any,
                      experts: tuple[Any, Any, Any], expert_weight: Any, sum_weight: Any,
                      weights: Arrays, eps: float, scale: float) -> None:
        """As add_norms with total = rms(branch; weight) + rms(experts[0]; expert_weight)."""
        self.rms_norm_sum(total, branch, weight, experts[0], expert_weight, eps)
        self.add_norms(residual, outs, total, sum_weight, weights, eps, scale)


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

    def gate_up(self, gate: StoredWeight, up: StoredWeight) -> LinearWeight:
        """gate and up of the dense MLP."""
        return self.linear(gate, up)

    def head_norms(self, q_norm: StoredWeight, k_norm: StoredWeight, num_q_heads: int,
                   num_kv_heads: int) -> npt.NDArray[Any]:
        """(Q + KV, D), repeated per head."""
        return np.concatenate([np.tile(self.vector(norm), (count, 1)) for norm, count in
                               ((q_norm, num_q_heads), (k_norm, num_kv_heads))])

    def kv_scales(self, k_norm: StoredWeight, num_kv_heads: int) -> Any:
        """(KV,) of k and of v, for an FP8 cache."""
        return fp8_scales(self.vector(k_norm), num_kv_heads)

    def router(self, scale: StoredWeight, proj: StoredWeight, per_expert_scale: StoredWeight,
               hidden_size: int) -> Router:
        """The router; H^(-1/2) joins the scale in float64, so that it rounds once."""
        wide = self.vector(scale).astype(np.float64) * hidden_size ** -0.5
        return Router(wide.astype(self.dtype), self.linear(proj), self.vector(per_expert_scale))

    def table(self, weight: StoredWeight) -> TableWeight:
        """The tied embedding table."""
        return TableWeight(weight, self.dtype, self._admit(weight.shape[0] * weight.shape[1]))

    def rows_table(self, weight: StoredWeight) -> TableWeight:
        """A table whose rows are looked up and nothing else: stays as it is stored."""
        return TableWeight(weight, self.dtype, resident=False)

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

    K and V are rounded to kv_dtype; None: not at all for 'none', else to bf16.
    """
    scratch = Scratch(dtype)
    return OpTable(
        dtype=np.dtype(dtype),
        rounding=rounding,
        tiles=tiles,
        embed=partial(embed_ref, rounding=rounding),
        rms_norm=partial(rms_norm_ref, rounding=rounding),
        rms_norm_add=partial(rms_norm_add_ref, scratch=scratch, rounding=rounding),
        rms_norm_sum=partial(rms_norm_sum_ref, scratch=scratch, rounding=rounding),
        rope_table=partial(rope_table, dtype=np.dtype(dtype)),
        kv_append=partial(kv_append_ref, scratch=scratch, rounding=rounding, kv_dtype=kv_dtype),
        plan_attention=partial(plan_attention, dtype=np.dtype(dtype)),
        attention=partial(attention_ref, scratch=scratch, rounding=rounding),
        linear=partial(linear_ref, tiles=tiles, rounding=rounding),
        geglu=partial(geglu_ref, rounding=rounding),
        moe_route=partial(moe_route_ref, tiles=tiles, scratch=scratch, rounding=rounding),
        moe=partial(moe_ref, scratch=scratch, rounding=rounding),
        head=partial(head_ref, tiles=tiles, rounding=rounding),
        queries=partial(queries_ref, scratch=scratch, rounding=rounding),
        per_layer_inputs=partial(per_layer_inputs_ref, rounding=rounding),
        narrow=partial(narrowed_ref, rounding=rounding),
        per_layer_gate=partial(per_layer_gate_ref, rounding=rounding),
        scope=_Threads(decode_threads, prefill_threads),
    )
