# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The Gemma 4 text decoder: one forward pass, written once, over an op table.

Knows the order of the ops and the weights' names, nothing of devices: everything that touches an
array's numbers is an op. Row-invariant: a row's bits depend on its token, its position, its role
and its own sequence's K and V, and on nothing else in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.kv_cache import KVCache
from gemma_thor_ros.models.rows import RowPlan, plan_rows
from gemma_thor_ros.models.workspace import Activations, Workspace
from gemma_thor_ros.ops.kv_append import fp8_scales
from gemma_thor_ros.ops.linear import LinearWeight, StoredWeight, TableWeight
from gemma_thor_ros.ops.moe import ExpertWeights
from gemma_thor_ros.ops.rounding import KvDtype, Rounding, round_to_bf16
from gemma_thor_ros.ops.table import OpTable, WeightLoader, cpu_op_table
from gemma_thor_ros.schema import ConfigError

Array = npt.NDArray[Any]
LayerTap = Callable[[int, Array], None]
DEFAULT_WEIGHT_BUDGET_BYTES = 4 << 30


@dataclass(frozen=True)
class _Experts:
    """What a layer has beside its dense MLP."""

    router_scale: Array                      # (H,) router.scale * H^(-1/2)
    router_proj: LinearWeight                # (E, H)
    per_expert_scale: Array                  # (E,)
    weights: ExpertWeights
    post_feedforward_layernorm_1: Array      # (H,)
    post_feedforward_layernorm_2: Array      # (H,)
    pre_feedforward_layernorm_2: Array       # (H,)


@dataclass(frozen=True)
class _Layer:
    """The weights of one layer in the device's form."""

    kind: str
    input_layernorm: Array                   # (H,)
    qkv_proj: LinearWeight                   # ((Q + KV [+ KV]) D, H)
    qk_norm: Array                           # (Q + KV, D) q_norm, k_norm repeated per head
    kv_scales: tuple[Array, Array]           # (KV,) of k and of v, for an FP8 cache
    o_proj: LinearWeight                     # (H, Q D)
    post_attention_layernorm: Array          # (H,)
    pre_feedforward_layernorm: Array         # (H,)
    gate_up_proj: LinearWeight               # (2I, H)
    down_proj: LinearWeight                  # (H, I)
    post_feedforward_layernorm: Array        # (H,)
    layer_scalar: float
    experts: _Experts | None


class Gemma4:
    """A model on the CPU: weights, workspace and the forward pass. One thread may use it."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, StoredWeight],
                 dtype: npt.DTypeLike = np.float32, rounding: Rounding = 'none', *,
                 kv_dtype: KvDtype | None = None,
                 decode_threads: int = 1, prefill_threads: int = 1,
                 weight_budget_bytes: int = DEFAULT_WEIGHT_BUDGET_BYTES) -> None:
        """Take the weights in.

        weights: canonical name -> stored weight, experts stacked. dtype float32, or float64 for
        the oracle; rounding 'device' rounds where a CUDA device stores bf16. kv_dtype: what K and
        V are rounded to, None for bf16 with 'device' and else nothing. Threads are the BLAS's, for
        steps without and with prompt rows. Weights over the budget are dequantised at
        every use.
        """
        self.config = config
        self.dtype = np.dtype(dtype)
        self.rounding = rounding
        loader = WeightLoader(dtype, weight_budget_bytes)
        self._table: TableWeight = loader.table(_get(weights, 'embed_tokens'))
        self._norm = loader.vector(_get(weights, 'norm'))
        self._layers = [_load_layer(config, weights, layer, loader)
                        for layer in range(config.num_hidden_layers)]
        self.resident_bytes = loader.resident_bytes   # matrices kept dequantised
        root = np.array([config.hidden_size ** 0.5], np.float64)
        self._embed_scale = float(round_to_bf16(root)[0])
        self._workspace = Workspace(config, dtype)
        self.ops: OpTable = cpu_op_table(dtype, rounding, decode_threads=decode_threads,
                                         prefill_threads=prefill_threads, kv_dtype=kv_dtype)

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        return self.config.vocab_size

    def new_kv_cache(self, num_sliding_pages: int, num_full_pages: int,
                     page_size: int) -> KVCache:
        """Pages for this model, in the type that it computes in."""
        return KVCache(self.config, num_sliding_pages, num_full_pages, page_size, self.dtype)

    def forward(self, batch: Batch, kv_cache: KVCache, tap: LayerTap | None = None) -> Array:
        """Run one step: write the rows' K and V, give logits (R, V) of the batch's logit rows.

        tap(layer, hidden (T, H)) is called with a copy after every layer, rows in the batch's
        order.
        """
        ops = self.ops
        plan = plan_rows(batch, ops.tiles)
        with ops.scope(plan.num_prefill_rows):
            act = self._workspace.rows(plan.num_rows)
            ops.embed(act.residual, plan.token_ids, self._table, self._embed_scale)
            step = _Step(self, plan, act, kv_cache)
            for index, layer in enumerate(self._layers):
                step.attention(index, layer)
                step.feedforward(layer)
                if tap is not None:
                    tap(index, act.residual[plan.row_of_token])
            return self._logits(act.residual[plan.row_of_token[batch.logit_rows]])

    def _logits(self, hidden: Array) -> Array:
        tile = self.ops.tiles.decode
        num_rows = hidden.shape[0]
        normed = np.zeros((-(-num_rows // tile) * tile, hidden.shape[1]), self.dtype)
        logits = np.empty((normed.shape[0], self.vocab_size), self.dtype)
        if num_rows:
            self.ops.rms_norm(normed[:num_rows], hidden, self._norm, self.config.rms_norm_eps)
            self.ops.head(logits, normed, self._table, self.config.final_logit_softcapping)
        return logits[:num_rows]


class _Step:
    """One forward pass under way."""

    def __init__(self, model: Gemma4, plan: RowPlan, act: Activations, kv_cache: KVCache) -> None:
        self.ops = model.ops
        self.eps = model.config.rms_norm_eps
        self.plan = plan
        self.act = act
        self.kv_cache = kv_cache
        size = kv_cache.page_size
        self.rope, self.where, self.attend = {}, {}, {}
        for shape in (model.config.sliding, model.config.full):
            kind = shape.layer_type
            if not model.config.layers_of(kind):
                continue
            self.rope[kind] = self.ops.rope_table(plan.positions, shape.rope_theta,
                                                  shape.head_dim, shape.num_rotary_pairs)
            self.where[kind] = plan.page_rows(kind, size)
            self.attend[kind] = self.ops.plan_attention(plan.attention_spans(kind), shape.window,
                                                        size, shape.group)

    def attention(self, index: int, layer: _Layer) -> None:
        """residual += rms(Attn(rms(residual)))."""
        ops, act, kind, split = self.ops, self.act, layer.kind, self.plan.num_decode_rows
        k_pages, v_pages = self.kv_cache.k_pages[index], self.kv_cache.v_pages[index]
        cos, sin = self.rope[kind]
        ops.rms_norm(act.normed, act.residual, layer.input_layernorm, self.eps)
        ops.linear(act.qkv[kind], act.normed, layer.qkv_proj, split)
        ops.kv_append(act.q[kind], k_pages, v_pages, act.qkv[kind], layer.qk_norm, cos, sin,
                      self.where[kind], self.eps, layer.kv_scales)
        ops.attention(act.attended[kind], act.q[kind], k_pages, v_pages, self.attend[kind])
        ops.linear(act.branch, act.attended[kind].reshape(self.plan.num_rows, -1), layer.o_proj,
                   split)
        ops.rms_norm_add(act.residual, act.branch, layer.post_attention_layernorm, self.eps, 1.0)

    def feedforward(self, layer: _Layer) -> None:
        """residual = (residual + rms(MLP [+ experts])) * layer_scalar."""
        ops, act, split = self.ops, self.act, self.plan.num_decode_rows
        ops.rms_norm(act.normed, act.residual, layer.pre_feedforward_layernorm, self.eps)
        ops.linear(act.gate_up, act.normed, layer.gate_up_proj, split)
        ops.geglu(act.inner, act.gate_up)
        ops.linear(act.branch, act.inner, layer.down_proj, split)
        branch = act.branch
        if layer.experts is not None:
            branch = self._with_experts(layer.experts)
        ops.rms_norm_add(act.residual, branch, layer.post_feedforward_layernorm, self.eps,
                         layer.layer_scalar)

    def _with_experts(self, experts: _Experts) -> Array:
        ops, act = self.ops, self.act
        ops.moe_route(act.expert_ids, act.expert_weights, act.residual, experts.router_scale,
                      experts.router_proj, experts.per_expert_scale, self.eps,
                      self.plan.num_decode_rows)
        ops.rms_norm(act.normed, act.residual, experts.pre_feedforward_layernorm_2, self.eps)
        ops.moe(act.expert_sum, act.normed, act.expert_ids, act.expert_weights, experts.weights,
                self.plan.row_of_token)
        ops.rms_norm_sum(act.branch_sum, act.branch, experts.post_feedforward_layernorm_1,
                         act.expert_sum, experts.post_feedforward_layernorm_2, self.eps)
        return act.branch_sum


def _get(weights: Mapping[str, StoredWeight], name: str) -> StoredWeight:
    # asked for once only: a checkpoint makes stacked experts at every access
    try:
        return weights[name]
    except KeyError:
        raise ConfigError(f'the checkpoint has no tensor {name}') from None


def _load_layer(config: ModelConfig, weights: Mapping[str, StoredWeight], index: int,
                loader: WeightLoader) -> _Layer:
    prefix = f'layers.{index}.'

    def get(name: str) -> StoredWeight:
        return _get(weights, prefix + name)

    shape = config.geometry(index)
    projections = ['q_proj', 'k_proj'] + (['v_proj'] if shape.has_v_proj else [])
    norms = [np.tile(loader.vector(get(f'self_attn.{name}')), (count, 1))
             for name, count in (('q_norm', shape.num_q_heads), ('k_norm', shape.num_kv_heads))]
    experts = None
    if config.enable_moe_block:
        # H^(-1/2) joins the scale in float64, so that it rounds once
        scale = loader.vector(get('router.scale')).astype(np.float64) * config.hidden_size ** -0.5
        experts = _Experts(
            router_scale=scale.astype(loader.dtype),
            router_proj=loader.linear(get('router.proj')),
            per_expert_scale=loader.vector(get('router.per_expert_scale')),
            weights=loader.experts(get('experts.gate_proj'), get('experts.up_proj'),
                                   get('experts.down_proj')),
            **{name: loader.vector(get(name)) for name in (
                'post_feedforward_layernorm_1', 'post_feedforward_layernorm_2',
                'pre_feedforward_layernorm_2')})
    return _Layer(
        kind=shape.layer_type,
        qkv_proj=loader.linear(*(get(f'self_attn.{name}') for name in projections)),
        qk_norm=np.concatenate(norms),
        kv_scales=fp8_scales(norms[1][0], shape.num_kv_heads),
        o_proj=loader.linear(get('self_attn.o_proj')),
        gate_up_proj=loader.linear(get('mlp.gate_proj'), get('mlp.up_proj')),
        down_proj=loader.linear(get('mlp.down_proj')),
        layer_scalar=float(loader.vector(get('layer_scalar')).reshape(-1)[0]),
        experts=experts,
        **{name: loader.vector(get(name)) for name in (
            'input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm',
            'post_feedforward_layernorm')})
