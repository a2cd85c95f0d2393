# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The MTP assistant: a small Gemma that drafts one token after another from the target's state.

Its layers have no K and V: they read the target's, of its last layer of each type. It keeps
nothing between rounds. Knows no request and no acceptance. Source of the mathematics:
docs/speculation.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.config import SLIDING
from gemma_thor_ros.models.draft_config import MtpConfig
from gemma_thor_ros.models.draft_target import DraftTarget, get_weight
from gemma_thor_ros.models.drafter import Drafts, DraftSpan, pick_drafts
from gemma_thor_ros.models.kv_cache import KVCache
from gemma_thor_ros.ops.attention import AttentionSpan
from gemma_thor_ros.ops.draft_table import DraftOps
from gemma_thor_ros.ops.linear import LinearWeight, StoredWeight, TableWeight, values
from gemma_thor_ros.ops.rounding import Rounding
from gemma_thor_ros.ops.table import WeightLoader

Array = npt.NDArray[Any]

_DEFAULT_BUDGET_BYTES = 4 << 30


@dataclass(frozen=True)
class _Layer:
    """The weights of one assistant layer in the device's form; h is the assistant's width."""

    kind: str
    input_layernorm: Any                 # (h,)
    q_proj: LinearWeight                 # (Q D, h)
    q_norm: Any                          # (D,)
    o_proj: LinearWeight                 # (h, Q D)
    post_attention_layernorm: Any        # (h,)
    pre_feedforward_layernorm: Any       # (h,)
    gate_up_proj: LinearWeight           # (2I, h)
    down_proj: LinearWeight              # (h, I)
    post_feedforward_layernorm: Any      # (h,)
    layer_scalar: float


@dataclass(frozen=True)
class _Round:
    """What is the same in all steps of a round, by layer type."""

    rope: dict[str, tuple[Array, Array]]
    plans: dict[str, Any]
    k_pages: dict[str, Array]
    v_pages: dict[str, Array]


class Mtp:
    """An MTP assistant on the CPU. One thread may use it."""

    def __init__(self, config: MtpConfig, weights: Mapping[str, StoredWeight],
                 target: DraftTarget, dtype: npt.DTypeLike = np.float32,
                 rounding: Rounding = 'none', *, num_threads: int = 1,
                 weight_budget_bytes: int = _DEFAULT_BUDGET_BYTES) -> None:
        """Take the weights in: canonical name -> stored weight. dtype and rounding as Gemma4's."""
        self.config = config
        self.dtype = np.dtype(dtype)
        self.ops = DraftOps(dtype, rounding, num_threads)
        self._target = target
        loader = WeightLoader(dtype, weight_budget_bytes)
        self._table: TableWeight = loader.table(get_weight(weights, 'embed_tokens'))
        self._norm = loader.vector(get_weight(weights, 'norm'))
        self._pre_projection = loader.linear(get_weight(weights, 'pre_projection'))
        self._post_projection = loader.linear(get_weight(weights, 'post_projection'))
        self._layers = [_load_layer(kind, weights, index, loader)
                        for index, kind in enumerate(config.layer_types)]

    def new_cache(self, num_sliding_pages: int, num_full_pages: int, page_size: int) -> None:
        """Nothing: it reads the target's pages."""

    def absorb(self, batch: Batch, hidden: Array, cache: None) -> None:
        """Nothing: what it needs of a row comes with the next draft's span."""

    def draft(self, spans: Sequence[DraftSpan], cache: None, target_cache: KVCache) -> Drafts:
        """Guess token after token of B sequences, all of them together."""
        ops, target = self.ops, self._target
        longest = max(span.num_drafts for span in spans)
        drafted = np.zeros((len(spans), longest), np.int32)
        confidence = np.zeros((len(spans), longest), np.float32)
        newest = np.array([span.token_id for span in spans], np.int64)
        with ops.scope():
            hidden = ops.rms_norm(self._states(spans), target.norm, target.config.rms_norm_eps)
            same = self._round(spans, target_cache)
            for step in range(longest):
                rows, hidden = self._step(newest, hidden, same)
                logits = ops.head(rows, self._table, None)
                for index, span in enumerate(spans):
                    if step >= span.num_drafts:
                        continue
                    ids, shares = pick_drafts(logits[index:index + 1], span, step)
                    drafted[index, step], confidence[index, step] = ids[0], shares[0]
                newest = drafted[:, step].astype(np.int64)
        # a draft's probability holds given those before it
        return Drafts(drafted, confidence)

    def _states(self, spans: Sequence[DraftSpan]) -> Array:
        """The target's last rows (B, H); zeros where one is not known."""
        states = np.zeros((len(spans), self.config.backbone_hidden_size), self.dtype)
        for row, span in enumerate(spans):
            if span.hidden is not None:
                states[row] = span.hidden[-1]
        return states

    def _round(self, spans: Sequence[DraftSpan], target_cache: KVCache) -> _Round:
        """Keys 0 .. position - 1 of each sequence: the newest token has none yet."""
        config = self.config
        last_keys = np.array([span.position - 1 for span in spans])
        assert last_keys.min() >= 0, 'a sequence has no committed key'
        at = last_keys + (config.position == 'newest')
        found = _Round({}, {}, {}, {})
        for kind, layer in config.shared_layers:
            shape = config.geometry(kind)
            tables = [span.sliding_pages if kind == SLIDING else span.full_pages for span in spans]
            seen = [AttentionSpan(row, 1, int(last), table)
                    for row, (last, table) in enumerate(zip(last_keys, tables, strict=True))]
            found.rope[kind] = self.ops.rope(at, shape.rope_theta, shape.head_dim,
                                             shape.num_rotary_pairs)
            window = self._target.config.sliding.window if kind == SLIDING else None
            found.plans[kind] = self.ops.plan_attention(seen, window, target_cache.page_size,
                                                        shape.group)
            found.k_pages[kind] = target_cache.k_pages[layer]
            found.v_pages[kind] = target_cache.v_pages[layer]
        return found

    def _step(self, newest: npt.NDArray[np.int64], hidden: Array,
              same: _Round) -> tuple[Array, Array]:
        """One step: rows (B, h) under the final norm, and the next step's hidden (B, H)."""
        ops, target, eps = self.ops, self._target, self.config.rms_norm_eps
        embedded = ops.embed(newest, target.table, target.embed_scale)
        residual = ops.linear(ops.concatenate((embedded, hidden)), self._pre_projection)
        for layer in self._layers:
            shape = self.config.geometry(layer.kind)
            normed = ops.rms_norm(residual, layer.input_layernorm, eps)
            q = ops.linear(normed, layer.q_proj).reshape(-1, shape.num_q_heads, shape.head_dim)
            q = ops.norm_rope(q, layer.q_norm, same.rope[layer.kind], eps)
            attended = ops.attention(q, same.k_pages[layer.kind], same.v_pages[layer.kind],
                                     same.plans[layer.kind])
            ops.add_norm(residual, ops.linear(attended, layer.o_proj),
                         layer.post_attention_layernorm, eps, 1.0)
            normed = ops.rms_norm(residual, layer.pre_feedforward_layernorm, eps)
            inner = ops.geglu(ops.linear(normed, layer.gate_up_proj))
            ops.add_norm(residual, ops.linear(inner, layer.down_proj),
                         layer.post_feedforward_layernorm, eps, layer.layer_scalar)
        rows = ops.rms_norm(residual, self._norm, eps)
        return rows, ops.linear(rows, self._post_projection)


def _load_layer(kind: str, weights: Mapping[str, StoredWeight], index: int,
                loader: WeightLoader) -> _Layer:
    def get(name: str) -> StoredWeight:
        return get_weight(weights, f'layers.{index}.{name}')

    return _Layer(
        kind=kind,
        q_proj=loader.linear(get('self_attn.q_proj')),
        q_norm=loader.vector(get('self_attn.q_norm')),
        o_proj=loader.linear(get('self_attn.o_proj')),
        gate_up_proj=loader.linear(get('mlp.gate_proj'), get('mlp.up_proj')),
        down_proj=loader.linear(get('mlp.down_proj')),
        layer_scalar=float(values(get('layer_scalar'), np.float64).reshape(-1)[0]),
        **{name: loader.vector(get(name)) for name in (
            'input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm',
            'post_feedforward_layernorm')})
