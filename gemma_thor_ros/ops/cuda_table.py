# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""LayerOps of a CUDA device: the launches of one step, in the order of models/gemma4.

Every method only enqueues; arrays and scratch exist before the first call, so that a graph may
hold the launches. Generated and prompt rows run the kernels of their role. Knows no batch, no
graph and no order of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import (
    attention_decode,
    device,
    embed,
    embed_affine,
    geglu,
    gemm_affine,
    gemm_bf16,
    gemm_nvfp4,
    head_nvfp4,
    kv_append,
    moe_affine,
    moe_chain,
    moe_nvfp4,
    moe_route,
    prefill_attention,
    prefill_attention_wgmma,
    prefill_gemm,
    prefill_moe,
    rms_norm,
    vision_patches,
)
from gemma_thor_ros.ops.affine_order import AffineFragments, AffineStack
from gemma_thor_ros.ops.fragment_order import Nvfp4Fragments
from gemma_thor_ros.ops.table import DenseMlp, ExpertRows, Router

Arrays = Sequence[Any]
Zeros = Callable[[tuple[int, ...] | int, npt.DTypeLike], Any]
_NO_CAP = 1e6                            # cap tanh(x / cap) of a logit is the logit in float32
# Layer types whose attention writes K and V of one row alone. In windows a launch of its own is
# faster in the whole step, in full layers the attention is, where its warps have a head or two
# each (bench/LOG.md).
APPENDED_KINDS: tuple[str, ...] = ('full',)
_APPENDED_GROUP = 8                      # query heads of a kv head, at most
MAX_ROWS = 16                            # generated rows of one pass: what their kernels take


@dataclass(frozen=True)
class CudaPlace:
    """StepRows.places of the device: one layer type's pages, rows and scratch.

    turns (pairs,) u64; sequences, positions (T,) i32; page_table (B, max_pages) i32; spans (B, 4)
    i32 of at most max_rows rows each. prompt: the rows are of prompts. blocks, whole_blocks: as in
    prefill_attention.
    """

    turns: Any
    sequences: Any
    positions: Any
    page_table: Any
    spans: Any
    scratch: attention_decode.AttentionScratch
    window: int | None
    max_rows: int
    prompt: bool = False
    blocks: Any = None
    whole_blocks: bool = False


@dataclass(frozen=True)
class KvScales:
    """(KV,) f32 of k and of v: what pages are multiplied by, and what goes into them."""

    scales: tuple[Any, Any]
    inverse: tuple[Any, Any]


@dataclass(frozen=True)
class CudaTable:
    """The tied table (V, H) bf16, and the head in NVFP4 where it was asked for.

    In affine codes it is rows and head in one.
    """

    rows: Any
    head: Nvfp4Fragments | AffineFragments | None


@dataclass(frozen=True)
class CudaExperts:
    """All experts of a layer: gate and up interleaved, and down."""

    gate_up: Nvfp4Fragments
    down: Nvfp4Fragments


@dataclass(frozen=True)
class AffineExperts:
    """The same in MLX affine codes."""

    gate_up: AffineFragments
    down: AffineFragments


class CudaOps:
    """The launches of one stream: up to MAX_ROWS generated rows, or max_rows of prompts."""

    def __init__(self, stream: Any, hidden_size: int, experts: tuple[int, int] | None,
                 max_rows: int, zeros: Zeros, branches: bool = True, joined: bool = True,
                 appended: bool = True, chained: bool = False) -> None:
        """Make the scratch that the launches share; experts: (E, K), None for a dense model.

        joined: the experts' launches do the dense MLP of generated rows too, where its size lets
        them. branches: else it runs beside the router and the experts. appended: one row alone has
        its K and V written by its attention; norms before the router are the router's. chained:
        the experts of generated rows are one launch.
        """
        self.branches, self.joined, self.appended = branches, joined, appended
        self.chained = chained
        self._append: tuple[Any, ...] | None = None      # what the next attention is to do too
        self._norms: tuple[Any, ...] | None = None       # and what the next router
        self.stream = stream
        self._main, self._side = stream, device.new_stream()
        self._forked = False             # the side stream has work that must be waited for
        self._route_scratch: tuple[Any, Any] | None = None
        self._order: prefill_moe.ExpertOrder | None = None
        self._num_experts = 0
        self._arrivals: Any = None
        if experts:
            self._num_experts, num_chosen = experts
            sizes = moe_route.scratch_sizes(max_rows, hidden_size, experts[0])
            self._route_scratch = zeros(sizes[0], np.float32), zeros(sizes[1], np.uint32)
            self._arrivals = zeros(moe_chain.arrivals_size(experts[0]), np.uint32)
            pairs = max_rows * num_chosen
            tiles = prefill_moe.max_tiles(pairs, experts[0], min(prefill_moe.TILES))
            self._order = prefill_moe.ExpertOrder(
                zeros(pairs, np.int32), zeros(experts[0] + 1, np.int32),
                zeros((tiles, 4), np.int32))

    def embed(self, residual: Any, token_ids: Any, table: CudaTable, scale: float) -> None:
        """The first launch of a step: it does not overlap the one before it."""
        embed_rows(residual, token_ids, table, scale, self.stream)

    def place_rows(self, residual: Any, rows: slice, values: Any) -> None:
        """residual[rows] = values (n, H) bf16: soft tokens take the place of embeddings."""
        vision_patches.vision_widen(residual[rows], values, self.stream)

    def norms(self, outs: Arrays, x: Any, weights: Arrays, eps: float) -> None:
        """outs[i] = rms(x; weights[i])."""
        rms_norm.rms_norm(outs, x, weights, eps, self.stream)

    def linear(self, out: Any, x: Any, weight: Any, num_decode_rows: int) -> None:
        """out (T, N) = x (T, M) by a weight in NVFP4, affine codes or bf16."""
        if isinstance(weight, AffineFragments | AffineStack):
            gemm_affine.gemm_affine(out, x, weight, self.stream, prompt=not num_decode_rows)
            return
        if isinstance(weight, Nvfp4Fragments):
            run = gemm_nvfp4.gemm_nvfp4 if num_decode_rows else prefill_gemm.prefill_gemm
        else:
            run = gemm_bf16.gemm_bf16 if num_decode_rows else prefill_gemm.prefill_gemm_bf16
        run(out, x, weight, self.stream)

    def append(self, q: Any, k_pages: Any, v_pages: Any, qkv: Any, head_norms: tuple[Any, Any],
               place: CudaPlace, eps: float, kv_scales: KvScales) -> None:
        """Norm and turn the heads of qkv; K and V go to their pages, maybe by the attention."""
        kind = 'full' if place.window is None else 'sliding'
        if (self.appended and kind in APPENDED_KINDS and not place.prompt
                and q.shape[0] == place.spans.shape[0] == 1
                and q.shape[1] <= _APPENDED_GROUP * k_pages.shape[2]
                and attention_decode.can_append(k_pages.shape[2])):
            self._append = (qkv, head_norms, place.turns, kv_scales.inverse, eps)
            return
        kv_append.kv_append(q, k_pages, v_pages, qkv, *head_norms, place.turns, place.sequences,
                            place.positions, place.page_table, kv_scales.inverse, eps, self.stream)

    def attend(self, out: Any, q: Any, k_pages: Any, v_pages: Any, place: CudaPlace,
               kv_scales: KvScales) -> None:
        """softmax(q k^T) v; rows of no span stay as they are."""
        if place.prompt:
            run = (prefill_attention_wgmma.prefill_attention_wgmma
                   if prefill_attention_wgmma.serves(q.shape[2], device.info().arch)
                   else prefill_attention.prefill_attention)
            run(out, q, k_pages, v_pages, place.spans, place.page_table, kv_scales.scales,
                place.window, place.max_rows, self.stream, blocks=place.blocks,
                whole_blocks=place.whole_blocks)
            return
        if self._append:
            (qkv, head_norms, turns, inverse, eps), self._append = self._append, None
            attention_decode.attention_append(
                out, qkv, k_pages, v_pages, place.scratch, place.spans, place.page_table,
                head_norms, turns, kv_scales.scales, inverse, place.window, eps, self.stream)
            return
        attention_decode.attention_decode(
            out, q, k_pages, v_pages, place.scratch, place.spans, place.page_table,
            kv_scales.scales, place.window, place.max_rows, self.stream)

    def add_norms(self, residual: Any, outs: Arrays, branch: Any, weight: Any, weights: Arrays,
                  eps: float, scale: float) -> None:
        """residual = (residual + rms(branch; weight)) * scale, then its norms."""
        if self.appended and len(outs) == 3 and residual.shape[0] <= MAX_ROWS:
            self._norms = residual, outs, branch, weight, weights, eps, scale, self.stream
            return
        rms_norm.rms_norm_add(residual, outs, branch, weight, weights, eps, scale, self.stream)

    def gate_up(self, inner: Any, products: Any, x: Any, weight: Any,
                num_decode_rows: int) -> None:
        """inner = geglu(x G^T, x U^T), in one launch where gate and up interleave."""
        if getattr(weight, 'interleaved', False):
            self.linear(inner, x, weight, num_decode_rows)
            return
        self.linear(products, x, weight, num_decode_rows)
        geglu.geglu(inner, products, self.stream)

    @contextmanager
    def beside(self, num_decode_rows: int) -> Iterator[None]:
        """Enqueue on a second stream: a few rows' launches leave most of the device idle."""
        if not num_decode_rows or not self.branches:
            yield
            return
        device.follow(self._side, self._main)
        self.stream = self._side
        try:
            yield
        finally:
            self.stream, self._forked = self._main, True

    def mixture(self, dense: DenseMlp, experts: ExpertRows, weights: CudaExperts | AffineExperts,
                residual: Any, routed: Any, router: Router, eps: float, rows: Any,
                num_decode_rows: int) -> Any:
        """Dense MLP, router on the residual's norm by its scale, experts, not summed yet."""
        assert self._route_scratch is not None
        joined = (num_decode_rows and self.joined and dense.parts is not None
                  and isinstance(dense.gate_up, Nvfp4Fragments)
                  and isinstance(dense.down, Nvfp4Fragments)
                  and isinstance(weights, CudaExperts))
        norms, self._norms = self._norms, None
        together = joined and moe_route.can_add(residual.shape[0], residual.shape[1],
                                                self._num_experts)
        if norms and not together:
            rms_norm.rms_norm_add(*norms)
        if not joined:
            with self.beside(num_decode_rows):
                self.gate_up(dense.inner, dense.products, dense.x, dense.gate_up, num_decode_rows)
                self.linear(dense.branch, dense.inner, dense.down, num_decode_rows)
        chosen = experts.ids, experts.shares, *self._route_scratch       # and scratch
        if norms and together:
            _, outs, branch, own, others, _, scale, _ = norms
            moe_route.moe_route_add(*chosen, residual, (outs[0], outs[2]), branch, own,
                                    (others[0], others[2], others[1]), eps, scale, router.proj,
                                    router.per_expert_scale, rows, self.stream)
        else:
            moe_route.moe_route(*chosen, routed, router.proj, router.per_expert_scale, rows,
                                self.stream)
        if isinstance(weights, AffineExperts):
            self._affine_experts(experts, weights, not num_decode_rows)
            return dense.branch
        if not num_decode_rows:
            self._prompt_experts(experts, weights)
            return dense.branch
        both = None
        if joined:
            both = (moe_nvfp4.DenseGateUp(dense.inner, dense.x, dense.gate_up),
                    moe_nvfp4.DenseDown(dense.parts, dense.inner, dense.down))
        if self.chained:
            moe_chain.moe_chain(experts.out, experts.inner, experts.x, experts.ids,
                                weights.gate_up, weights.down, self._arrivals, self.stream, both)
        else:
            first, second = both or (None, None)
            moe_nvfp4.moe_nvfp4_gate_up(experts.inner, experts.x, experts.ids, weights.gate_up,
                                        self.stream, first)
            moe_nvfp4.moe_nvfp4_down(experts.out, experts.inner, experts.ids, weights.down,
                                     self.stream, second)
        return dense.parts if joined else dense.branch

    def _affine_experts(self, experts: ExpertRows, weights: AffineExperts, prompt: bool) -> None:
        order = self._order
        assert order is not None
        if prompt:
            prefill_moe.prefill_sort(order, experts.ids, self._num_experts, self.stream,
                                     moe_affine.ROWS)
        else:
            moe_affine.moe_items(order, experts.ids, self._num_experts, self.stream)
        moe_affine.moe_affine_gate_up(experts.inner, experts.x, experts.ids, order,
                                      weights.gate_up, self.stream, prompt=prompt)
        moe_affine.moe_affine_down(experts.out, experts.inner, experts.ids, order, weights.down,
                                   self.stream, prompt=prompt)

    def _prompt_experts(self, experts: ExpertRows, weights: CudaExperts) -> None:
        assert self._order is not None
        prefill_moe.prefill_sort(self._order, experts.ids, self._num_experts, self.stream)
        prefill_moe.prefill_gate_up(experts.inner, experts.x, experts.ids, self._order,
                                    weights.gate_up, self.stream)
        prefill_moe.prefill_down(experts.out, experts.inner, experts.ids, self._order,
                                 weights.down, self.stream)

    def sum_add_norms(self, residual: Any, outs: Arrays, total: Any, branch: Any, weight: Any,
                      experts: tuple[Any, Any, Any], expert_weight: Any, sum_weight: Any,
                      weights: Arrays, eps: float, scale: float) -> None:
        """As add_norms with the sum of dense MLP and experts, which is not written."""
        if self._forked:
            device.follow(self._main, self._side)
            self._forked = False
        results, expert_ids, expert_weights = experts
        rms_norm.rms_norm_sum_add(
            residual, outs, branch, results, weight, expert_weight, sum_weight, weights, eps,
            scale, self.stream, (expert_ids, expert_weights))

    def head(self, logits: Any, x: Any, table: CudaTable, softcap: float) -> None:
        """logits (R, V) f32 from normed rows x (R, H)."""
        head(logits, x, table, softcap, self.stream)


def embed_rows(residual: Any, token_ids: Any, table: CudaTable, scale: float, stream: Any) -> None:
    """Enqueue residual (T, H) f32 from token_ids (T,) i32, -1 for padding."""
    if isinstance(table.rows, AffineFragments):
        embed_affine.embed_affine(residual, token_ids, table.rows, scale, stream)
    else:
        embed.embed(residual, token_ids, table.rows, scale, stream)


def head(logits: Any, x: Any, table: CudaTable, softcap: float | None, stream: Any) -> None:
    """Enqueue logits (R, V) f32 from normed rows x (R, H), in NVFP4 where the table has that."""
    cap = softcap or _NO_CAP
    if isinstance(table.head, AffineFragments):
        gemm_affine.head_affine(logits, x, table.head, cap, stream)
    elif table.head is not None:
        head_nvfp4.head_nvfp4(logits, x, table.head, cap, stream)
    else:
        gemm_bf16.head_bf16(logits, x, table.rows, cap, stream)
