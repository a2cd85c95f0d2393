# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The Gemma 4 text decoder: one forward pass, written once, over a device's ops.

Knows the order of the ops and the weights' names, nothing of devices: everything that touches an
array's numbers is an op. Row-invariant: a row's bits depend on its token, its position, its role
and its own sequence's K and V, and on nothing else in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.kv_cache import KVCache
from gemma_thor_ros.models.rows import RowPlan, plan_rows
from gemma_thor_ros.models.vision import Vision
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.models.workspace import Activations, Workspace
from gemma_thor_ros.ops.linear import StoredWeight, values
from gemma_thor_ros.ops.rounding import KvDtype, Rounding, round_to_bf16
from gemma_thor_ros.ops.table import (
    DenseMlp,
    ExpertRows,
    LayerOps,
    OpTable,
    Router,
    SmallModelOps,
    SoftRowOps,
    StepRows,
    WeightLoader,
    cpu_op_table,
)
from gemma_thor_ros.ops.vision_table import CpuVisionOps
from gemma_thor_ros.schema import ConfigError

Array = npt.NDArray[Any]
LayerTap = Callable[[int, Array], None]
DEFAULT_WEIGHT_BUDGET_BYTES = 4 << 30


class Loader(Protocol):
    """Turns stored weights into a device's form: ops/table.WeightLoader and ops/cuda_weights."""

    def vector(self, weight: StoredWeight) -> Any: ...
    def linear(self, *parts: StoredWeight) -> Any: ...
    def gate_up(self, gate: StoredWeight, up: StoredWeight) -> Any: ...
    def head_norms(self, q_norm: StoredWeight, k_norm: StoredWeight, num_q_heads: int,
                   num_kv_heads: int) -> Any: ...
    def kv_scales(self, k_norm: StoredWeight, num_kv_heads: int) -> Any: ...
    def router(self, scale: StoredWeight, proj: StoredWeight, per_expert_scale: StoredWeight,
               hidden_size: int) -> Router: ...
    def experts(self, gate: StoredWeight, up: StoredWeight, down: StoredWeight) -> Any: ...
    def table(self, weight: StoredWeight) -> Any: ...


@runtime_checkable
class SmallModelLoader(Loader, Protocol):
    """A loader that takes E2B and E4B too."""

    def rows_table(self, weight: StoredWeight) -> Any: ...


@dataclass(frozen=True)
class _Experts:
    """What a layer has beside its dense MLP."""

    router: Router
    weights: Any
    post_feedforward_layernorm_1: Any        # (H,)
    post_feedforward_layernorm_2: Any        # (H,)
    pre_feedforward_layernorm_2: Any         # (H,)


@dataclass(frozen=True)
class _LayerInput:
    """How a layer of E2B or E4B uses its per-layer embedding."""

    per_layer_input_gate: Any                # (P, H)
    per_layer_projection: Any                # (H, P)
    post_per_layer_input_norm: Any           # (H,)


@dataclass(frozen=True)
class _Layer:
    """The weights of one layer in the device's form."""

    kind: str
    kv_layer: int                            # whose K and V it reads: its own, or an earlier one's
    input_layernorm: Any                     # (H,)
    qkv_proj: Any                            # ((Q + KV [+ KV]) D, H), or q alone
    qk_norm: Any                             # q_norm and k_norm, or q_norm alone
    kv_scales: Any                           # of k and of v, for an FP8 cache
    o_proj: Any                              # (H, Q D)
    post_attention_layernorm: Any            # (H,)
    pre_feedforward_layernorm: Any           # (H,)
    gate_up_proj: Any                        # (2I, H)
    down_proj: Any                           # (H, I)
    post_feedforward_layernorm: Any          # (H,)
    layer_scalar: float
    experts: _Experts | None
    layer_input: _LayerInput | None


class Decoder:
    """The weights of a model in one device's form, and the order of its ops."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, StoredWeight],
                 loader: Loader) -> None:
        """Take the weights in, each asked for once, layer by layer."""
        self.config = config
        self.table = loader.table(_get(weights, 'embed_tokens'))
        self.final_norm = loader.vector(_get(weights, 'norm'))
        self._layer_inputs = None
        if config.num_kv_shared_layers or config.hidden_size_per_layer_input:
            if not isinstance(loader, SmallModelLoader):
                raise ConfigError('models with shared K and V or per-layer embeddings (E2B, E4B) '
                                  'run on the CPU alone: set engine.device to cpu')
            if config.hidden_size_per_layer_input:
                self._layer_inputs = (
                    loader.rows_table(_get(weights, 'embed_tokens_per_layer')),
                    loader.linear(_get(weights, 'per_layer_model_projection')),
                    loader.vector(_get(weights, 'per_layer_projection_norm')))
        self._layers: list[_Layer] = []
        for index in range(config.num_hidden_layers):
            self._layers.append(_load_layer(config, weights, index, loader, self._layers))
        root = np.array([config.hidden_size ** 0.5], np.float64)
        self._embed_scale = float(round_to_bf16(root)[0])

    def run_layers(self, ops: LayerOps, act: Activations, step: StepRows, kv_cache: KVCache,
                   after_layer: Callable[[int], None] | None = None) -> None:
        """Run all rows of a step up to the last norm, which act.normed holds in the end."""
        config, eps = self.config, self.config.rms_norm_eps
        ops.embed(act.residual, step.token_ids, self.table, self._embed_scale)
        for rows, values_of_rows in step.soft_rows:
            cast(SoftRowOps, ops).place_rows(act.residual, rows, values_of_rows)
        if self._layer_inputs is not None:
            table, projection, norm = self._layer_inputs
            ops.linear(act.layer_inputs, act.residual, projection, step.num_decode_rows)
            cast(SmallModelOps, ops).per_layer_inputs(
                act.layer_inputs, step.token_ids, table, norm, config.hidden_size, eps)
        ops.norms((act.normed,), act.residual, (self._layers[0].input_layernorm,), eps)
        # every layer ends with the norm that the next one begins with
        ends = [layer.input_layernorm for layer in self._layers[1:]] + [self.final_norm]
        for index, (layer, end) in enumerate(zip(self._layers, ends, strict=True)):
            run = _LayerRun(ops, act, step, layer, index, config, eps)
            run.attention(kv_cache.k_pages[index], kv_cache.v_pages[index])
            run.feedforward(end)
            if after_layer is not None:
                after_layer(index)


class Gemma4(Decoder):
    """A model on the CPU: weights, workspace and the forward pass. One thread may use it."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, StoredWeight],
                 dtype: npt.DTypeLike = np.float32, rounding: Rounding = 'none', *,
                 kv_dtype: KvDtype | None = None,
                 decode_threads: int = 1, prefill_threads: int = 1,
                 weight_budget_bytes: int = DEFAULT_WEIGHT_BUDGET_BYTES,
                 vision: tuple[VisionConfig, Mapping[str, StoredWeight]] | None = None) -> None:
        """Take the weights in.

        weights: canonical name -> stored weight, experts stacked. dtype float32, or float64 for
        the oracle; rounding 'device' rounds where a CUDA device stores bf16. kv_dtype: what K and
        V are rounded to, None for bf16 with 'device' and else nothing. Threads are the BLAS's, for
        steps without and with prompt rows. Weights over the budget are dequantised at
        every use. vision: config and weights of the part that reads images.
        """
        loader = WeightLoader(dtype, weight_budget_bytes)
        super().__init__(config, weights, loader)
        self.dtype = np.dtype(dtype)
        self.rounding = rounding
        self._workspace = Workspace(config, dtype)
        self.ops: OpTable = cpu_op_table(dtype, rounding, decode_threads=decode_threads,
                                         prefill_threads=prefill_threads, kv_dtype=kv_dtype)
        self.vision = None if vision is None else Vision(*vision, loader, CpuVisionOps(self.ops))
        self.resident_bytes = loader.resident_bytes   # matrices kept dequantised

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
            report = None
            if tap is not None:
                def report(index: int) -> None:
                    tap(index, act.residual[plan.row_of_token])

            self.run_layers(ops, act, self._step(plan, kv_cache.page_size), kv_cache, report)
            return self._logits(act.normed[plan.row_of_token[batch.logit_rows]])

    def _step(self, plan: RowPlan, page_size: int) -> StepRows:
        places = {}
        for shape in (self.config.sliding, self.config.full):
            kind = shape.layer_type
            if self.config.layers_of(kind):
                places[kind] = self.ops.place(plan.positions, plan.page_rows(kind, page_size),
                                              plan.attention_spans(
                                                  kind, self.config.image_blocks(kind)),
                                              shape, page_size)
        token_ids = plan.token_ids
        for rows, _ in plan.soft_rows:
            token_ids[rows] = self.config.pad_token_id   # whose per-layer embedding they have
        return StepRows(token_ids, plan.num_decode_rows, plan.row_of_token, places,
                        plan.soft_rows)

    def _logits(self, normed: Array) -> Array:
        tile = self.ops.tiles.decode
        num_rows = normed.shape[0]
        padded = np.zeros((-(-num_rows // tile) * tile, normed.shape[1]), self.dtype)
        logits = np.empty((padded.shape[0], self.vocab_size), self.dtype)
        if num_rows:
            padded[:num_rows] = normed
            self.ops.head(logits, padded, self.table, self.config.final_logit_softcapping)
        return logits[:num_rows]


@dataclass(frozen=True)
class _LayerRun:
    """One layer of one forward pass."""

    ops: LayerOps
    act: Activations
    step: StepRows
    layer: _Layer
    index: int
    config: ModelConfig
    eps: float

    def attention(self, k_pages: Any, v_pages: Any) -> None:
        """residual += rms(Attn(normed)), and the norms that the second half reads."""
        ops, act, layer = self.ops, self.act, self.layer
        kind, split = layer.kind, self.step.num_decode_rows
        place = self.step.places[kind]
        if layer.kv_layer == self.index:
            ops.linear(act.qkv[kind], act.normed, layer.qkv_proj, split)
            ops.append(act.q[kind], k_pages, v_pages, act.qkv[kind], layer.qk_norm, place,
                       self.eps, layer.kv_scales)
        else:
            queries = act.q[kind].reshape(act.normed.shape[0], -1)
            ops.linear(queries, act.normed, layer.qkv_proj, split)
            cast(SmallModelOps, ops).turn_queries(act.q[kind], layer.qk_norm, place, self.eps)
        ops.attend(act.attended[kind], act.q[kind], k_pages, v_pages, place, layer.kv_scales)
        attended = act.attended[kind].reshape(act.normed.shape[0], -1)
        ops.linear(act.branch, attended, layer.o_proj, split)
        outs: list[Any] = [act.normed]
        weights = [layer.pre_feedforward_layernorm]
        if layer.experts is not None:
            outs += [act.routed, act.expert_in]
            weights += [layer.experts.router.scale, layer.experts.pre_feedforward_layernorm_2]
        ops.add_norms(act.residual, outs, act.branch, layer.post_attention_layernorm, weights,
                      self.eps, 1.0)

    def feedforward(self, next_norm: Any) -> None:
        """residual = (residual + rms(MLP [+ experts])) * layer_scalar, and its norm."""
        ops, act, layer, split = self.ops, self.act, self.layer, self.step.num_decode_rows
        inner: Any = act.inner
        products = act.gate_up
        if self.config.mlp_size(self.index) != self.config.intermediate_size:
            inner, products = act.wide_inner, act.wide_gate_up
        ends = (act.normed,), layer.post_feedforward_layernorm, (next_norm,)
        if layer.experts is not None:
            experts = layer.experts
            dense = DenseMlp(layer.gate_up_proj, layer.down_proj, act.normed, inner, products,
                             act.branch, act.dense_parts)
            branch = ops.mixture(
                dense, ExpertRows(act.expert_in, act.expert_ids, act.expert_weights,
                                  act.expert_inner, act.expert_out),
                experts.weights, act.residual, act.routed, experts.router, self.eps,
                self.step.rows, split)
            ops.sum_add_norms(
                act.residual, ends[0], act.branch_sum, branch,
                experts.post_feedforward_layernorm_1,
                (act.expert_out, act.expert_ids, act.expert_weights),
                experts.post_feedforward_layernorm_2, ends[1], ends[2], self.eps,
                layer.layer_scalar)
            return
        ops.gate_up(inner, products, act.normed, layer.gate_up_proj, split)
        ops.linear(act.branch, inner, layer.down_proj, split)
        if layer.layer_input is not None:
            ops.add_norms(act.residual, (), act.branch, ends[1], (), self.eps, 1.0)
            self._add_layer_input(layer.layer_input, next_norm)
            return
        ops.add_norms(act.residual, ends[0], act.branch, ends[1], ends[2], self.eps,
                      layer.layer_scalar)

    def _add_layer_input(self, weights: _LayerInput, next_norm: Any) -> None:
        """residual = (residual + rms(gated layer input)) * layer_scalar, and its norm."""
        ops, act, split = cast(SmallModelOps, self.ops), self.act, self.step.num_decode_rows
        assert act.layer_inputs is not None
        size = self.config.hidden_size_per_layer_input
        columns = slice(self.index * size, (self.index + 1) * size)
        # the gate reads the residual itself, not a norm of it
        ops.narrow(act.normed, act.residual)
        ops.linear(act.layer_gate, act.normed, weights.per_layer_input_gate, split)
        ops.per_layer_gate(act.layer_gate, act.layer_inputs[:, columns])
        ops.linear(act.branch, act.layer_gate, weights.per_layer_projection, split)
        ops.add_norms(act.residual, (act.normed,), act.branch, weights.post_per_layer_input_norm,
                      (next_norm,), self.eps, self.layer.layer_scalar)


def _get(weights: Mapping[str, StoredWeight], name: str) -> StoredWeight:
    # asked for once only: a checkpoint makes stacked experts at every access
    try:
        return weights[name]
    except KeyError:
        raise ConfigError(f'the checkpoint has no tensor {name}') from None


def _load_layer(config: ModelConfig, weights: Mapping[str, StoredWeight], index: int,
                loader: Loader, earlier: list[_Layer]) -> _Layer:
    prefix = f'layers.{index}.'

    def get(name: str) -> StoredWeight:
        return _get(weights, prefix + name)

    shape = config.geometry(index)
    kv_layer = config.kv_layer(index)
    q_norm = get('self_attn.q_norm')
    if kv_layer == index:
        projections = ['q_proj', 'k_proj'] + (['v_proj'] if shape.has_v_proj else [])
        k_norm = get('self_attn.k_norm')
        qk_norm = loader.head_norms(q_norm, k_norm, shape.num_q_heads, shape.num_kv_heads)
        kv_scales = loader.kv_scales(k_norm, shape.num_kv_heads)
    else:
        projections = ['q_proj']
        qk_norm, kv_scales = loader.vector(q_norm), earlier[kv_layer].kv_scales
    layer_input = None
    if config.hidden_size_per_layer_input:
        layer_input = _LayerInput(
            loader.linear(get('per_layer_input_gate')), loader.linear(get('per_layer_projection')),
            loader.vector(get('post_per_layer_input_norm')))
    experts = None
    if config.enable_moe_block:
        experts = _Experts(
            router=loader.router(get('router.scale'), get('router.proj'),
                                 get('router.per_expert_scale'), config.hidden_size),
            weights=loader.experts(get('experts.gate_proj'), get('experts.up_proj'),
                                   get('experts.down_proj')),
            **{name: loader.vector(get(name)) for name in (
                'post_feedforward_layernorm_1', 'post_feedforward_layernorm_2',
                'pre_feedforward_layernorm_2')})
    scalar = values(get('layer_scalar'), np.float64).reshape(-1)[0]
    return _Layer(
        kind=shape.layer_type,
        kv_layer=kv_layer,
        qkv_proj=loader.linear(*(get(f'self_attn.{name}') for name in projections)),
        qk_norm=qk_norm,
        kv_scales=kv_scales,
        o_proj=loader.linear(get('self_attn.o_proj')),
        gate_up_proj=loader.gate_up(get('mlp.gate_proj'), get('mlp.up_proj')),
        down_proj=loader.linear(get('mlp.down_proj')),
        layer_scalar=float(scalar),
        experts=experts,
        layer_input=layer_input,
        **{name: loader.vector(get(name)) for name in (
            'input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm',
            'post_feedforward_layernorm')})
