# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The MTP assistant on a CUDA device: models/mtp.py's mathematics in launches of one graph.

What it starts from, the target's last state of each row, stays in pages beside the target's; its
layers read the target's own K and V. Knows no request and no acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.config import SLIDING, LayerGeometry
from gemma_thor_ros.models.cuda_draft import Choose
from gemma_thor_ros.models.cuda_draft_inputs import AT_ONCE, DraftInputs
from gemma_thor_ros.models.cuda_shadow import ShadowRows
from gemma_thor_ros.models.draft_config import MtpConfig
from gemma_thor_ros.models.draft_target import DraftTarget, get_weight
from gemma_thor_ros.models.page_planes import Planes
from gemma_thor_ros.ops import device, draft_heads, draft_rows, gemm_bf16, rms_norm
from gemma_thor_ros.ops.affine_order import AffineFragments
from gemma_thor_ros.ops.attention_decode import AttentionScratch, attention_decode, max_chunks
from gemma_thor_ros.ops.cuda_table import KvScales, embed_rows, head
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.ops.draft_pick import RecordLayout
from gemma_thor_ros.ops.fragment_order import PackedMatrix
from gemma_thor_ros.ops.kv_append import rope_turns
from gemma_thor_ros.ops.linear import StoredWeight, values


@dataclass(frozen=True)
class _Layer:
    """The weights of one assistant layer; h is the assistant's width."""

    kind: str
    input_layernorm: Any                 # (h,)
    q_proj: Any                          # (Q D, h)
    q_norm: Any                          # (D,)
    o_proj: Any                          # (h, Q D)
    post_attention_layernorm: Any        # (h,)
    pre_feedforward_layernorm: Any       # (h,)
    gate_up_proj: Any                    # (2I, h)
    down_proj: Any                       # (h, I)
    post_feedforward_layernorm: Any      # (h,)
    layer_scalar: float


@dataclass(frozen=True)
class _Shared:
    """What the assistant reads of the target in its layers of one type."""

    layer: int                           # whose K and V
    window: int | None
    scales: KvScales
    turns: Any
    scratch: AttentionScratch
    q: Any                               # (B, Q, D)
    attended: Any                        # (B, Q, D)


class _Gathered(NamedTuple):
    """Rows of a table in affine codes, scaled: (B, H) f32 and bf16, and the ids 0 .. B - 1."""

    found: Any
    rows: Any
    each: Any


class CudaMtp:
    """cuda_draft.Network of an MTP assistant, bf16 but for its head where that is to be NVFP4."""

    ids_stride = 1

    def __init__(self, config: MtpConfig, weights: Mapping[str, StoredWeight],
                 target: DraftTarget, *, stream: Any, context_length: int,
                 scales_of: Callable[[int], KvScales],
                 quantize_head: Callable[[StoredWeight], PackedMatrix] | None = None) -> None:
        """Take the weights in. scales_of: of a target layer's K and V."""
        self.config = config
        self.layers: frozenset[int] = frozenset()    # the last norm of the target is what it reads
        self.window = target.config.sliding_window
        self._target = target
        self._stream = stream
        loader = DeviceLoader(stream, quantize_head=quantize_head)
        table = loader.table(get_weight(weights, 'embed_tokens'))
        # embeddings are the target's; its own table is the head alone
        self._table = table if table.head is None else replace(table, rows=None)
        self._norm = loader.vector(get_weight(weights, 'norm'))
        self._pre_projection = loader.linear(get_weight(weights, 'pre_projection'))
        self._post_projection = loader.linear(get_weight(weights, 'post_projection'))
        self._layers = [_load_layer(kind, weights, index, loader)
                        for index, kind in enumerate(config.layer_types)]
        loader.finish()
        self.device_bytes = loader.device_bytes
        self._pages: Any = None
        self._shared = {kind: self._share(kind, layer, context_length, scales_of(layer))
                        for kind, layer in config.shared_layers}

        def bf16(size: int) -> Any:
            return device.zeros((AT_ONCE, size), np.uint16)

        hidden = config.hidden_size
        self._gathered: _Gathered | None = None
        if isinstance(target.table.rows, AffineFragments):
            self._gathered = _Gathered(
                device.zeros((AT_ONCE, config.backbone_hidden_size), np.float32),
                bf16(config.backbone_hidden_size), device.put(np.arange(AT_ONCE, dtype=np.int32)))
        self._x = bf16(2 * config.backbone_hidden_size)
        self._state = bf16(config.backbone_hidden_size)
        self._residual = device.zeros((AT_ONCE, hidden), np.float32)
        self._normed, self._branch = bf16(hidden), bf16(hidden)
        self._inner = bf16(config.intermediate_size)
        self._logits = device.zeros((AT_ONCE, config.vocab_size), np.float32)

    def _share(self, kind: str, layer: int, context_length: int, scales: KvScales) -> _Shared:
        shape: LayerGeometry = self.config.geometry(kind)
        window = self._target.config.sliding.window if kind == SLIDING else None
        chunks = max_chunks(context_length, window)
        heads = (AT_ONCE, shape.num_q_heads)
        return _Shared(
            layer, window, scales,
            device.put(rope_turns(shape.rope_theta, shape.head_dim, shape.num_rotary_pairs)),
            AttentionScratch(device.zeros((*heads, chunks, shape.head_dim), np.float32),
                             device.zeros((*heads, chunks, 2), np.float32),
                             device.zeros(AT_ONCE * 16 * shape.num_q_heads, np.uint32)),
            device.zeros((*heads, shape.head_dim), np.uint16),
            device.zeros((*heads, shape.head_dim), np.uint16))

    def new_cache(self, num_sliding_pages: int, num_full_pages: int, page_size: int) -> None:
        """The target's states (P, S, H), at its sliding pages."""
        self._pages = device.zeros(
            (num_sliding_pages, page_size, self.config.backbone_hidden_size), np.uint16)

    def planes(self) -> Planes:
        """The states."""
        return Planes((self._pages,), (), self._stream)

    def tap(self, layer: int, residual: Any) -> None:
        """Nothing: no layer is tapped."""

    def keep(self, normed: Any, rows: ShadowRows) -> None:
        """Keep the state of every row."""
        draft_rows.draft_keep(self._pages, normed, rows.sequences, rows.positions,
                              rows.tables[SLIDING], self._stream)

    def steps(self, num_drafts: int) -> int:
        """One draft after the other."""
        return num_drafts

    def layout(self, num_sequences: int, num_steps: int) -> RecordLayout:
        """The choices of one step lie together."""
        return RecordLayout(1, num_sequences, num_steps, 1)

    def drafts(self, values: npt.NDArray[Any], num_sequences: int,
               num_steps: int) -> npt.NDArray[Any]:
        """Sequences first."""
        return values[:num_sequences * num_steps].reshape(num_steps, num_sequences).T

    def launch(self, inputs: DraftInputs, choose: Choose, num_sequences: int, num_steps: int,
               kv_cache: Any) -> None:
        """As Network.launch; kv_cache: the target's."""
        count, stream, target, eps = (num_sequences, self._stream, self._target,
                                      self.config.rms_norm_eps)
        normed, branch, state, logits = (array[:count] for array in (
            self._normed, self._branch, self._state, self._logits))
        ids, states = inputs.ids[:count], self._pages
        for step in range(num_steps):
            table, scale, rows = target.table.rows, target.embed_scale, ids
            if self._gathered is not None:           # a packed table: its rows first
                found, table, rows = (array[:count] for array in self._gathered)
                embed_rows(found, ids, target.table, scale, stream)
                draft_rows.draft_tap(table, found, 0, stream)
                scale = 1.0
            draft_rows.draft_join(
                self._x[:count], states, rows, inputs.starts[:count],
                inputs.tables[SLIDING][:count], table, scale, stream,
                overlap=step > 0 or self._gathered is not None)
            gemm_bf16.gemm_bf16(branch, self._x[:count], self._pre_projection, stream)
            draft_rows.draft_add_norm(self._residual[:count], normed, branch,
                                      self._layers[0].input_layernorm, eps, stream, 'set')
            # every layer ends with the norm that the next one begins with
            ends = [layer.input_layernorm for layer in self._layers[1:]] + [self._norm]
            for layer, end in zip(self._layers, ends, strict=True):
                self._run_layer(layer, end, inputs, count, kv_cache)
            head(logits, normed, self._table, None, stream)
            ids = choose(logits, step * count)
            if step < num_steps - 1:
                gemm_bf16.gemm_bf16(state, normed, self._post_projection, stream)
                states = state

    def _run_layer(self, layer: _Layer, end: Any, inputs: DraftInputs, count: int,
                   kv_cache: Any) -> None:
        stream, eps, shared = self._stream, self.config.rms_norm_eps, self._shared[layer.kind]
        residual, normed, branch, inner, q, attended = (array[:count] for array in (
            self._residual, self._normed, self._branch, self._inner, shared.q, shared.attended))
        flat = q.reshape(count, -1)
        gemm_bf16.gemm_bf16(flat, normed, layer.q_proj, stream)
        draft_heads.draft_heads(
            flat, layer.q_norm, layer.q_norm, shared.turns, inputs.starts[:count],
            num_q_heads=q.shape[1], num_k_heads=0,
            offset=0 if self.config.position == 'newest' else -1, eps=eps, q_scale=1.0,
            stream=stream)
        attention_decode(
            attended, q, kv_cache.k_pages[shared.layer], kv_cache.v_pages[shared.layer],
            shared.scratch, inputs.spans[:count], inputs.tables[layer.kind][:count],
            shared.scales.scales, shared.window, 1, stream)
        gemm_bf16.gemm_bf16(branch, attended.reshape(count, -1), layer.o_proj, stream)
        rms_norm.rms_norm_add(residual, (normed,), branch, layer.post_attention_layernorm,
                              (layer.pre_feedforward_layernorm,), eps, 1.0, stream)
        gemm_bf16.gated_bf16(inner, normed, layer.gate_up_proj, 'gelu', stream)
        gemm_bf16.gemm_bf16(branch, inner, layer.down_proj, stream)
        rms_norm.rms_norm_add(residual, (normed,), branch, layer.post_feedforward_layernorm,
                              (end,), eps, layer.layer_scalar, stream)


def _load_layer(kind: str, weights: Mapping[str, StoredWeight], index: int,
                loader: DeviceLoader) -> _Layer:
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
