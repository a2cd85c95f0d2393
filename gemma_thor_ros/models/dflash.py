# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""DFlash: a thin draft model that fills a whole block of tokens in one pass.

The target's tapped rows become K and V of every draft layer once, and stay in pages beside the
target's; a draft runs the newest token and masks after it through the layers. Knows no request and
no acceptance. Source of the mathematics: docs/speculation.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch, Int32
from gemma_thor_ros.models.config import FULL, SLIDING
from gemma_thor_ros.models.draft_config import DFlashConfig
from gemma_thor_ros.models.draft_target import DraftTarget, get_weight
from gemma_thor_ros.models.drafter import Drafts, DraftSpan, pick_drafts
from gemma_thor_ros.models.page_planes import Planes
from gemma_thor_ros.ops.attention import AttentionSpan
from gemma_thor_ros.ops.draft_table import DraftOps
from gemma_thor_ros.ops.kv_append import PageRows
from gemma_thor_ros.ops.linear import LinearWeight, StoredWeight
from gemma_thor_ros.ops.rounding import Rounding
from gemma_thor_ros.ops.table import WeightLoader

Array = npt.NDArray[Any]

_AT_ONCE = 8                             # sequences of one pass; each has scratch pages
_DEFAULT_BUDGET_BYTES = 4 << 30


@dataclass(frozen=True)
class _Layer:
    """The weights of one draft layer in the device's form."""

    kind: str
    causal: bool
    input_layernorm: Any                 # (H,)
    q_proj: LinearWeight                 # (Q D, H)
    kv_rows: tuple[int, int, int]        # its rows of the stacked kv_proj: k, v, end
    q_norm: Any                          # (D,)
    k_norm: Any                          # (D,)
    o_proj: LinearWeight                 # (H, Q D)
    post_attention_layernorm: Any        # (H,)
    gate_up_proj: LinearWeight           # (2I, H)
    down_proj: LinearWeight              # (H, I)


class DFlashCache:
    """K and V of the context in every draft layer, at the target's pages, and scratch pages.

    k_pages[layer] and v_pages[layer] (P + scratch, S, KV, D). A block's own K and V live in the
    scratch pages of its place in the pass and are never part of the context.
    """

    def __init__(self, config: DFlashConfig, num_sliding_pages: int, num_full_pages: int,
                 page_size: int, dtype: npt.DTypeLike) -> None:
        self.page_size = page_size
        self.num_pages = {SLIDING: num_sliding_pages, FULL: num_full_pages}
        # a block starts anywhere in its first page
        self.pages_per_block = (config.block_size + page_size - 2) // page_size + 1
        self.k_pages: list[Array] = []
        self.v_pages: list[Array] = []
        for kind in config.layer_types:
            shape = (self.num_pages[kind] + _AT_ONCE * self.pages_per_block, page_size,
                     config.num_key_value_heads, config.head_dim)
            self.k_pages.append(np.zeros(shape, dtype))
            self.v_pages.append(np.zeros(shape, dtype))
        self._kinds = tuple(config.layer_types)

    def planes(self) -> Planes:
        """K and V of the context; the scratch pages lie behind all others."""
        found: dict[str, list[Array]] = {SLIDING: [], FULL: []}
        for kind, k_pages, v_pages in zip(self._kinds, self.k_pages, self.v_pages, strict=True):
            found[kind] += [k_pages, v_pages]
        return Planes(tuple(found[SLIDING]), tuple(found[FULL]))


@dataclass(frozen=True)
class _Places:
    """Where a pass's blocks lie in the pages of one layer type."""

    sources: Int32               # pages that a block's first slots are copied from
    targets: Int32               # the scratch pages they go to
    where: PageRows              # the block rows' own slots
    spans: tuple[AttentionSpan, ...]


class DFlash:
    """A DFlash drafter on the CPU. One thread may use it."""

    def __init__(self, config: DFlashConfig, weights: Mapping[str, StoredWeight],
                 target: DraftTarget, dtype: npt.DTypeLike = np.float32,
                 rounding: Rounding = 'none', *, num_threads: int = 1,
                 weight_budget_bytes: int = _DEFAULT_BUDGET_BYTES) -> None:
        """Take the weights in: canonical name -> stored weight. dtype and rounding as Gemma4's."""
        self.config = config
        self.dtype = np.dtype(dtype)
        self.ops = DraftOps(dtype, rounding, num_threads)
        self._target = target
        loader = WeightLoader(dtype, weight_budget_bytes)
        self._fc = loader.linear(get_weight(weights, 'fc'))
        self._hidden_norm = loader.vector(get_weight(weights, 'hidden_norm'))
        self._norm = loader.vector(get_weight(weights, 'norm'))
        self._kv_proj = loader.linear(*(          # of all layers: the context meets them at once
            get_weight(weights, f'layers.{layer}.self_attn.{name}')
            for layer in range(len(config.layer_types)) for name in ('k_proj', 'v_proj')))
        self._layers = [self._load_layer(weights, layer, loader)
                        for layer in range(len(config.layer_types))]
        self._q_scale = config.head_dim ** -0.5

    def _load_layer(self, weights: Mapping[str, StoredWeight], index: int,
                    loader: WeightLoader) -> _Layer:
        config = self.config

        def get(name: str) -> StoredWeight:
            return get_weight(weights, f'layers.{index}.{name}')

        size = config.num_key_value_heads * config.head_dim
        return _Layer(
            kind=config.layer_types[index], causal=config.causal_layers[index],
            q_proj=loader.linear(get('self_attn.q_proj')),
            kv_rows=(2 * index * size, (2 * index + 1) * size, (2 * index + 2) * size),
            q_norm=loader.vector(get('self_attn.q_norm')),
            k_norm=loader.vector(get('self_attn.k_norm')),
            o_proj=loader.linear(get('self_attn.o_proj')),
            gate_up_proj=loader.linear(get('mlp.gate_proj'), get('mlp.up_proj')),
            down_proj=loader.linear(get('mlp.down_proj')),
            input_layernorm=loader.vector(get('input_layernorm')),
            post_attention_layernorm=loader.vector(get('post_attention_layernorm')))

    def new_cache(self, num_sliding_pages: int, num_full_pages: int,
                  page_size: int) -> DFlashCache:
        """Pages beside the target's."""
        return DFlashCache(self.config, num_sliding_pages, num_full_pages, page_size, self.dtype)

    def absorb(self, batch: Batch, hidden: Array, cache: DFlashCache) -> None:
        """Write K and V of every row of a target step: hidden (len(taps), T, H)."""
        ops, config = self.ops, self.config
        with ops.scope():
            features = ops.concatenate(tuple(hidden))
            context = ops.rms_norm(ops.linear(features, self._fc), self._hidden_norm,
                                   config.rms_norm_eps)
            kv = ops.linear(context, self._kv_proj)      # (T, layers 2 KV D)
            rope = self._rope(batch.positions)
            where = {kind: _page_rows(batch, kind, cache.page_size)
                     for kind in set(config.layer_types)}
            for index, layer in enumerate(self._layers):
                k, v, end = layer.kv_rows
                self._write(cache, index, kv[:, k:v], kv[:, v:end], rope, where[layer.kind])

    def draft(self, spans: Sequence[DraftSpan], cache: DFlashCache, target_cache: Any) -> Drafts:
        """Fill the masks after the newest token of B sequences; target_cache is not read."""
        longest = max(span.num_drafts for span in spans)
        token_ids = np.zeros((len(spans), longest), np.int32)
        confidence = np.zeros((len(spans), longest), np.float32)
        for start in range(0, len(spans), _AT_ONCE):
            part = spans[start:start + _AT_ONCE]
            logits = self.block_logits(part, cache)
            for row, span in enumerate(part):
                num = span.num_drafts
                (token_ids[start + row, :num],
                 confidence[start + row, :num]) = pick_drafts(logits[row, :num], span)
        return Drafts(token_ids, confidence)

    def block_logits(self, spans: Sequence[DraftSpan], cache: DFlashCache) -> Array:
        """Logits (B, N, V) of the tokens after the newest one; N is the largest num_drafts."""
        ops, config, target = self.ops, self.config, self._target
        num, block = len(spans), config.block_size
        longest = max(span.num_drafts for span in spans)
        assert num <= _AT_ONCE and longest < block, (num, longest)
        steps = np.arange(block)
        starts = np.array([span.position for span in spans])
        token_ids = np.full((num, block), config.mask_token_id, np.int64)
        token_ids[:, 0] = [span.token_id for span in spans]
        with ops.scope():
            residual = ops.embed(token_ids.reshape(-1), target.table, target.embed_scale)
            rope = self._rope((starts[:, None] + steps).reshape(-1))
            places = {kind: self._places(spans, kind, cache) for kind in set(config.layer_types)}
            plans = {(layer.kind, layer.causal): self._plan(places[layer.kind], layer, cache)
                     for layer in self._layers}
            for index, layer in enumerate(self._layers):
                self._run_layer(residual, index, layer, rope, places[layer.kind],
                                plans[layer.kind, layer.causal], cache)
            rows = residual.reshape(num, block, -1)[:, 1:longest + 1]
            normed = ops.rms_norm(rows.reshape(num * longest, -1), self._norm,
                                  config.rms_norm_eps)
            logits = ops.head(normed, target.table, config.final_logit_softcapping)
        return logits.reshape(num, longest, -1)

    def _run_layer(self, residual: Array, index: int, layer: _Layer, rope: tuple[Array, Array],
                   places: _Places, plan: Any, cache: DFlashCache) -> None:
        ops, config = self.ops, self.config
        eps, dim = config.rms_norm_eps, config.head_dim
        k_pages, v_pages = cache.k_pages[index], cache.v_pages[index]
        for pages in (k_pages, v_pages):
            ops.copy_pages(pages, places.sources, places.targets)
        normed = ops.rms_norm(residual, layer.input_layernorm, eps)
        q = ops.linear(normed, layer.q_proj).reshape(-1, config.num_attention_heads, dim)
        q = ops.norm_rope(q, layer.q_norm, rope, eps, self._q_scale)
        k, v, end = layer.kv_rows
        kv = ops.linear(normed, self._kv_proj, k, end)
        self._write(cache, index, kv[:, :v - k], kv[:, v - k:], rope, places.where)
        attended = ops.attention(q, k_pages, v_pages, plan)
        ops.add(residual, ops.linear(attended, layer.o_proj))
        normed = ops.rms_norm(residual, layer.post_attention_layernorm, eps)
        inner = ops.swiglu(ops.linear(normed, layer.gate_up_proj))
        ops.add(residual, ops.linear(inner, layer.down_proj))

    def _write(self, cache: DFlashCache, index: int, k: Array, v: Array,
               rope: tuple[Array, Array], where: PageRows) -> None:
        """Norm and turn k, leave v, and put both into their slots."""
        config, layer = self.config, self._layers[index]
        heads = (-1, config.num_key_value_heads, config.head_dim)
        k = self.ops.norm_rope(k.reshape(heads), layer.k_norm, rope, config.rms_norm_eps)
        self.ops.write_pages(cache.k_pages[index], k, where)
        self.ops.write_pages(cache.v_pages[index], v.reshape(heads), where)

    def _rope(self, positions: npt.NDArray[Any]) -> tuple[Array, Array]:
        config = self.config
        return self.ops.rope(positions, config.rope_theta, config.head_dim, config.head_dim // 2)

    def _places(self, spans: Sequence[DraftSpan], kind: str, cache: DFlashCache) -> _Places:
        """Page tables whose pages from the newest position on are scratch pages."""
        size, block = cache.page_size, self.config.block_size
        sources, targets, pages, slots, found = [], [], [], [], []
        for row, span in enumerate(spans):
            table = span.sliding_pages if kind == SLIDING else span.full_pages
            first, last = span.position // size, (span.position + block - 1) // size
            scratch = (cache.num_pages[kind] + row * cache.pages_per_block
                       + np.arange(last - first + 1, dtype=np.int32))
            if span.position % size:
                sources.append(table[first])
                targets.append(scratch[0])
            own = np.concatenate((table[:first], scratch))
            positions = np.arange(span.position, span.position + block)
            pages.append(own[positions // size])
            slots.append(positions % size)
            found.append(AttentionSpan(row * block, block, span.position, own))
        where = PageRows(np.arange(len(spans) * block), np.concatenate(pages),
                         np.concatenate(slots))
        return _Places(np.array(sources, np.int32), np.array(targets, np.int32), where,
                       tuple(found))

    def _plan(self, places: _Places, layer: _Layer, cache: DFlashCache) -> Any:
        spans = [AttentionSpan(span.start_row, span.num_rows, span.start_position, span.pages,
                               sees_block=not layer.causal) for span in places.spans]
        window = self.config.sliding_window if layer.kind == SLIDING else None
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        return self.ops.plan_attention(spans, window, cache.page_size, group)


def _page_rows(batch: Batch, kind: str, page_size: int) -> PageRows:
    """Pages and slots of a batch's rows in the layers of one type."""
    pages, positions = [], []
    for span in batch.spans:
        table = span.sliding_pages if kind == SLIDING else span.full_pages
        where = np.arange(span.start_position, span.start_position + span.num_rows)
        pages.append(table[where // page_size])
        positions.append(where)
    return PageRows(np.arange(batch.token_ids.size), np.concatenate(pages),
                    np.concatenate(positions) % page_size)
