# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""DFlash on a CUDA device: models/dflash.py's mathematics in launches that a graph may hold.

The context's K and V are written behind every step of the target, from taps that never leave the
device; a draft is one pass of the block, whose own K and V stay in its activations. Knows no
request, no choice and no page's owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.config import FULL, SLIDING
from gemma_thor_ros.models.cuda_draft import Choose
from gemma_thor_ros.models.cuda_draft_inputs import AT_ONCE, DraftInputs
from gemma_thor_ros.models.cuda_shadow import ShadowRows
from gemma_thor_ros.models.draft_config import DFlashConfig
from gemma_thor_ros.models.draft_target import DraftTarget, get_weight
from gemma_thor_ros.models.page_planes import Planes
from gemma_thor_ros.ops import (
    device,
    draft_attention,
    draft_context,
    draft_heads,
    draft_rows,
    gemm_bf16,
    prefill_gemm,
    rms_norm,
)
from gemma_thor_ros.ops.cuda_table import MAX_ROWS, embed_rows, head
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.ops.draft_pick import RecordLayout
from gemma_thor_ros.ops.kv_append import rope_turns
from gemma_thor_ros.ops.linear import StoredWeight, values


@dataclass(frozen=True)
class _Layer:
    """The weights of one draft layer: matrices bf16, norms f32."""

    kind: str
    place: int                           # among the layers of its kind
    causal: bool
    input_layernorm: Any                 # (H,)
    qkv_proj: Any                        # ((Q + 2 KV) D, H)
    q_norm: Any                          # (D,)
    k_norm: Any                          # (D,)
    o_proj: Any                          # (H, Q D)
    post_attention_layernorm: Any        # (H,)
    gate_up_proj: Any                    # (2I, H)
    down_proj: Any                       # (H, I)


class CudaDFlash:
    """cuda_draft.Network of a DFlash drafter, bf16 throughout."""

    def __init__(self, config: DFlashConfig, weights: Mapping[str, StoredWeight],
                 target: DraftTarget, *, stream: Any, prompt_rows: int) -> None:
        """Take the weights in. prompt_rows: the most rows of a target's pass."""
        self.config = config
        self.layers = frozenset(config.taps)
        self.ids_stride = config.block_size
        self.window = config.sliding_window
        self._target = target
        self._stream = stream
        loader = DeviceLoader(stream)

        def vector(name: str) -> Any:
            return loader.vector(get_weight(weights, name))

        self._fc = loader.linear(get_weight(weights, 'fc'))
        self._hidden_norm = vector('hidden_norm')
        self._norm = vector('norm')
        order = [layer for kind in (SLIDING, FULL)
                 for layer, found in enumerate(config.layer_types) if found == kind]
        self._kv_proj = loader.linear(*(          # of all layers: the context meets them at once
            get_weight(weights, f'layers.{layer}.self_attn.{name}')
            for layer in order for name in ('k_proj', 'v_proj')))
        self._layers = [_load_layer(config, weights, index, loader)
                        for index in range(len(config.layer_types))]
        self._k_norms = {kind: device.put(np.stack([values(
            get_weight(weights, f'layers.{layer}.self_attn.k_norm'), np.float32)
            for layer in order if config.layer_types[layer] == kind]))
            for kind in set(config.layer_types)}
        loader.finish()
        self.device_bytes = loader.device_bytes
        self._turns = device.put(rope_turns(config.rope_theta, config.head_dim,
                                            config.head_dim // 2))
        self._pages: dict[str, tuple[Any, Any]] = {}
        self._make_arrays(max(MAX_ROWS, prompt_rows))

    def _make_arrays(self, most: int) -> None:
        config, rows = self.config, AT_ONCE * self.config.block_size
        hidden, heads, dim = (config.hidden_size, config.num_attention_heads, config.head_dim)

        def bf16(*shape: int) -> Any:
            return device.zeros(shape, np.uint16)

        self._features = bf16(most, len(config.taps) * hidden)
        self._joined, self._context = bf16(most, hidden), bf16(most, hidden)
        self._kv = bf16(most, self._kv_proj.shape[0])
        self._residual = device.zeros((rows, hidden), np.float32)
        self._normed, self._branch = bf16(rows, hidden), bf16(rows, hidden)
        self._qkv = bf16(rows, (heads + 2 * config.num_key_value_heads) * dim)
        self._attended = bf16(rows, heads, dim)
        self._inner = bf16(rows, config.intermediate_size)
        self._logits = device.zeros((rows, self._target.config.vocab_size), np.float32)
        self._scratch = draft_attention.DraftScratch.make(device.zeros, rows, heads, dim)

    def new_cache(self, num_sliding_pages: int, num_full_pages: int, page_size: int) -> None:
        """K and V pages (L, P, S, KV, D) by layer type."""
        config = self.config
        for kind, count in (SLIDING, num_sliding_pages), (FULL, num_full_pages):
            shape = (config.layer_types.count(kind), count, page_size, config.num_key_value_heads,
                     config.head_dim)
            if shape[0]:
                self._pages[kind] = (device.zeros(shape, np.uint16),
                                     device.zeros(shape, np.uint16))

    def planes(self) -> Planes:
        """K and V of all draft layers."""
        found = {kind: tuple(plane for pages in self._pages.get(kind, ()) for plane in pages)
                 for kind in (SLIDING, FULL)}
        return Planes(found[SLIDING], found[FULL], self._stream)

    def tap(self, layer: int, residual: Any) -> None:
        """Put a tapped layer's rows beside those of the others."""
        if layer in self.layers:
            first = self.config.taps.index(layer) * self.config.hidden_size
            draft_rows.draft_tap(self._features[:residual.shape[0]], residual, first,
                                 self._stream)

    def keep(self, normed: Any, rows: ShadowRows) -> None:
        """Write K and V of every row, in all layers."""
        config, stream, count = self.config, self._stream, normed.shape[0]
        linear = prefill_gemm.prefill_gemm_bf16 if rows.prompt else gemm_bf16.gemm_bf16
        joined, context, kv = self._joined[:count], self._context[:count], self._kv[:count]
        linear(joined, self._features[:count], self._fc, stream)
        draft_rows.draft_add_norm(self._residual, context, joined, self._hidden_norm,
                                  config.rms_norm_eps, stream, 'leave')
        linear(kv, context, self._kv_proj, stream)
        column = 0
        for kind in (SLIDING, FULL):
            if kind not in self._pages:
                continue
            k_pages, v_pages = self._pages[kind]
            draft_context.draft_context(
                k_pages, v_pages, kv, self._k_norms[kind], self._turns, rows.sequences,
                rows.positions, rows.tables[kind], column, config.rms_norm_eps, stream)
            column += 2 * k_pages.shape[0] * config.num_key_value_heads * config.head_dim

    def steps(self, num_drafts: int) -> int:
        """The block is always filled as a whole."""
        return self.config.block_size

    def layout(self, num_sequences: int, num_steps: int) -> RecordLayout:
        """Row i of a block chooses the token at its own place; row 0 knows it already."""
        return RecordLayout(num_steps, 1, num_steps, 0)

    def drafts(self, values: npt.NDArray[Any], num_sequences: int,
               num_steps: int) -> npt.NDArray[Any]:
        """All rows of a block but the first."""
        return values[:num_sequences * num_steps].reshape(num_sequences, num_steps)[:, 1:]

    def launch(self, inputs: DraftInputs, choose: Choose, num_sequences: int, num_steps: int,
               kv_cache: Any) -> None:
        """As Network.launch; the target's own cache is not read."""
        config, stream, target = self.config, self._stream, self._target
        count, eps = num_sequences * config.block_size, config.rms_norm_eps
        residual, normed = self._residual[:count], self._normed[:count]
        embed_rows(residual, inputs.ids[:count], target.table, target.embed_scale, stream)
        rms_norm.rms_norm((normed,), residual, (self._layers[0].input_layernorm,), eps, stream)
        # every layer ends with the norm that the next one begins with
        ends = [layer.input_layernorm for layer in self._layers[1:]] + [self._norm]
        for layer, end in zip(self._layers, ends, strict=True):
            self._run_layer(layer, end, inputs, num_sequences)
        logits = self._logits[:count]
        head(logits, normed, target.table, config.final_logit_softcapping, stream)
        choose(logits, 0)

    def _run_layer(self, layer: _Layer, end: Any, inputs: DraftInputs,
                   num_sequences: int) -> None:
        config, stream, eps = self.config, self._stream, self.config.rms_norm_eps
        count = num_sequences * config.block_size
        residual, normed, branch = (array[:count] for array in (
            self._residual, self._normed, self._branch))
        qkv, attended, inner = (array[:count] for array in (
            self._qkv, self._attended, self._inner))
        starts = inputs.starts[:num_sequences]
        k_pages, v_pages = self._pages[layer.kind]
        gemm_bf16.gemm_bf16(qkv, normed, layer.qkv_proj, stream)
        draft_heads.draft_heads(
            qkv, layer.q_norm, layer.k_norm, self._turns, starts,
            num_q_heads=config.num_attention_heads, num_k_heads=config.num_key_value_heads,
            offset=0, eps=eps, q_scale=config.head_dim ** -0.5, stream=stream)
        draft_attention.draft_attention(
            attended, qkv, k_pages[layer.place], v_pages[layer.place], self._scratch,
            inputs.tables[layer.kind][:num_sequences], starts,
            config.sliding_window if layer.kind == SLIDING else None, layer.causal, stream)
        gemm_bf16.gemm_bf16(branch, attended.reshape(count, -1), layer.o_proj, stream)
        draft_rows.draft_add_norm(residual, normed, branch, layer.post_attention_layernorm, eps,
                                  stream)
        gemm_bf16.gated_bf16(inner, normed, layer.gate_up_proj, 'silu', stream)
        gemm_bf16.gemm_bf16(branch, inner, layer.down_proj, stream)
        draft_rows.draft_add_norm(residual, normed, branch, end, eps, stream)


def _load_layer(config: DFlashConfig, weights: Mapping[str, StoredWeight], index: int,
                loader: DeviceLoader) -> _Layer:
    def get(name: str) -> StoredWeight:
        return get_weight(weights, f'layers.{index}.{name}')

    kind = config.layer_types[index]
    return _Layer(
        kind=kind, place=config.layer_types[:index].count(kind),
        causal=config.causal_layers[index],
        qkv_proj=loader.linear(*(get(f'self_attn.{name}_proj') for name in 'qkv')),
        q_norm=loader.vector(get('self_attn.q_norm')),
        k_norm=loader.vector(get('self_attn.k_norm')),
        o_proj=loader.linear(get('self_attn.o_proj')),
        gate_up_proj=loader.linear(get('mlp.gate_proj'), get('mlp.up_proj')),
        down_proj=loader.linear(get('mlp.down_proj')),
        input_layernorm=loader.vector(get('input_layernorm')),
        post_attention_layernorm=loader.vector(get('post_attention_layernorm')))
