# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Patches in, soft tokens out: the towers of the 26B, 31B, E2B and E4B, the embedder of the 12B.

Knows the order of the ops and the weights' names, nothing of devices, files or prompts. Each image
runs alone, so its soft tokens have the same bits wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.ops.linear import StoredWeight, values
from gemma_thor_ros.ops.vision_table import Bounds, VisionOps
from gemma_thor_ros.schema import ConfigError

LAYER_NORM_EPS = 1e-5                    # of the embedder's layer norms, in no config


def workspace_bytes(config: VisionConfig) -> int:
    """Device memory that an image of the most soft tokens needs while it is encoded."""
    pixels, hidden = 3 * config.patch_side ** 2, config.hidden_size
    rows = config.soft_tokens * config.pooling_kernel_size ** 2
    width = config.num_attention_heads * config.head_dim
    # levels and numbers; residual, products before it, two bf16 rows; qkv and result; the MLP
    each = 3 * pixels + 10 * hidden + 8 * width + 6 * config.intermediate_size
    return rows * each + config.soft_tokens * (6 * hidden + 2 * config.text_hidden_size)


class Loader(Protocol):
    """The part of a device's loader that vision needs."""

    def vector(self, weight: StoredWeight) -> Any: ...
    def linear(self, *parts: StoredWeight) -> Any: ...


@dataclass(frozen=True)
class _Clipped:
    """A linear layer of E2B and E4B, whose input and output are held to bounds."""

    weight: Any                          # (N, M)
    num_rows: int                        # N
    bounds: Bounds


# One weight, or clipped ones whose outputs stand side by side.
_Projection = Any | tuple[_Clipped, ...]


@dataclass(frozen=True)
class _TowerLayer:
    """The weights of one layer in the device's form."""

    input_layernorm: Any                 # (H,)
    qkv_proj: _Projection                # (3 N D, H)
    q_norm: Any                          # (D,)
    k_norm: Any                          # (D,)
    o_proj: _Projection                  # (H, N D)
    post_attention_layernorm: Any        # (H,)
    pre_feedforward_layernorm: Any       # (H,)
    gate_up_proj: _Projection            # (2I, H)
    down_proj: _Projection               # (H, I)
    post_feedforward_layernorm: Any      # (H,)


class Vision:
    """The vision part of one model. `encode` is the engine thread's."""

    def __init__(self, config: VisionConfig, weights: Mapping[str, StoredWeight], loader: Loader,
                 ops: VisionOps) -> None:
        """Take the weights in; canonical names as in weights/vision.py."""
        self.config = config
        self._ops = ops
        self._projection = loader.linear(_get(weights, 'embedding_projection'))
        self._part: _Tower | _Embedder
        self._part = (_Tower if config.kind == 'tower' else _Embedder)(
            config, weights, loader, ops)

    def encode(self, patches: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[Any]:
        """The soft tokens (N, text hidden size) of one image's patches (P, side * side * 3).

        `columns`: patches in a row. What image/prepare.py makes for `config.patch_side`. An array
        of the device, which nothing else uses.
        """
        config = self.config
        if patches.shape[1] != 3 * config.patch_side ** 2 or patches.shape[0] % columns:
            raise ValueError(f'patches of shape {patches.shape} in rows of {columns}: this model '
                             f'takes patches of {config.patch_side} x {config.patch_side} pixels')
        with self._ops.scope():
            soft: npt.NDArray[Any] = self._ops.image(patches, columns, self._soft_tokens)
            return soft

    def _soft_tokens(self, patches: Any, columns: int) -> Any:
        config, ops = self.config, self._ops
        hidden = self._part.run(patches, columns)
        num_tokens = patches.shape[0] // config.pooling_kernel_size ** 2
        normed = ops.empty(*hidden.shape)
        ops.norm(normed, hidden, None, config.rms_norm_eps)
        soft = ops.empty(hidden.shape[0], config.text_hidden_size)
        ops.linear(soft, normed, self._projection)
        return soft[:num_tokens]


class _Tower:
    """The transformer over patches, its pooling and standardisation."""

    def __init__(self, config: VisionConfig, weights: Mapping[str, StoredWeight], loader: Loader,
                 ops: VisionOps) -> None:
        self._config = config
        self._ops = ops
        self._input_proj = loader.linear(_get(weights, 'patch_embedder.input_proj'))
        table = _get(weights, 'patch_embedder.position_embedding_table')
        self._x_table, self._y_table = (loader.vector(table[axis]) for axis in range(2))
        self._standard = None
        if config.standardize:
            self._standard = (loader.vector(_get(weights, 'std_bias')),
                              loader.vector(_get(weights, 'std_scale')))
        self._layers = [_tower_layer(weights, index, loader, config.use_clipped_linears)
                        for index in range(config.num_hidden_layers)]

    def run(self, patches: Any, columns: int) -> Any:
        """(N', H): one row a soft token, padded to whole tiles."""
        config, ops, eps = self._config, self._ops, self._config.rms_norm_eps
        num, hidden = patches.shape[0], config.hidden_size
        rows = _padded(num, ops.row_tile)
        width = config.num_attention_heads * config.head_dim
        residual = ops.wide(rows, hidden)
        normed, branch = ops.empty(rows, hidden), ops.empty(rows, hidden)
        qkv, attended = ops.empty(rows, 3 * width), ops.empty(rows, width)
        products = ops.empty(rows, 2 * config.intermediate_size)
        inner = ops.empty(rows, config.intermediate_size)
        ops.linear(residual, ops.numbers(patches, rows, True), self._input_proj)
        ops.add_positions(residual[:num], self._x_table, self._y_table, columns)
        rope = ops.rope(num, columns, config.rope_theta, config.head_dim)
        for layer in self._layers:
            ops.norm(normed, residual, layer.input_layernorm, eps)
            self._project(qkv, normed, layer.qkv_proj)
            ops.turn_heads(qkv[:num], layer.q_norm, layer.k_norm, rope,
                           config.num_attention_heads, eps)
            ops.attend_all(attended[:num], qkv[:num], config.num_attention_heads)
            self._project(branch, attended, layer.o_proj)
            ops.add_norms(residual, (normed,), branch, layer.post_attention_layernorm,
                          (layer.pre_feedforward_layernorm,), eps)
            self._project(products, normed, layer.gate_up_proj)
            ops.geglu(inner, products)
            self._project(branch, inner, layer.down_proj)
            ops.add_norms(residual, (), branch, layer.post_feedforward_layernorm, (), eps)
        num_tokens = num // config.pooling_kernel_size ** 2
        pooled = ops.wide(_padded(num_tokens, ops.row_tile), hidden)
        ops.pool(pooled[:num_tokens], residual[:num], columns, config.pooling_kernel_size,
                 hidden ** 0.5)
        if self._standard is not None:
            ops.standardize(pooled[:num_tokens], *self._standard)
        return pooled

    def _project(self, out: Any, x: Any, projection: _Projection) -> None:
        if not isinstance(projection, tuple):
            self._ops.linear(out, x, projection)
            return
        column = 0
        for part in projection:
            self._ops.clipped_linear(out[:, column:column + part.num_rows], x, part.weight,
                                     part.bounds)
            column += part.num_rows


class _Embedder:
    """Layer norms, one matrix and position embeddings."""

    def __init__(self, config: VisionConfig, weights: Mapping[str, StoredWeight], loader: Loader,
                 ops: VisionOps) -> None:
        self._config = config
        self._ops = ops
        self._dense = loader.linear(_get(weights, 'patch_dense'))
        self._bias = loader.vector(_get(weights, 'patch_dense.bias'))
        self._norms = {name: (loader.vector(_get(weights, name)),
                              loader.vector(_get(weights, f'{name}.bias')))
                       for name in ('patch_ln1', 'patch_ln2', 'pos_norm')}
        table = loader.vector(_get(weights, 'pos_embedding'))    # (positions, 2, H)
        self._x_table, self._y_table = table[:, 0], table[:, 1]

    def run(self, patches: Any, columns: int) -> Any:
        """(N', H): one row a soft token, padded to whole tiles."""
        ops, num = self._ops, patches.shape[0]
        rows = _padded(num, ops.row_tile)
        x = ops.numbers(patches, rows, False)
        ops.layer_norm(x, *self._norms['patch_ln1'], LAYER_NORM_EPS)
        hidden = ops.wide(rows, self._config.hidden_size)
        ops.linear(hidden, x, self._dense)
        ops.add_bias(hidden, self._bias)
        ops.layer_norm(hidden, *self._norms['patch_ln2'], LAYER_NORM_EPS)
        ops.add_positions(hidden[:num], self._x_table, self._y_table, columns)
        ops.layer_norm(hidden, *self._norms['pos_norm'], LAYER_NORM_EPS)
        return hidden


def _tower_layer(weights: Mapping[str, StoredWeight], index: int, loader: Loader,
                 clipped: bool) -> _TowerLayer:
    def get(name: str) -> StoredWeight:
        return _get(weights, f'encoder.layers.{index}.{name}')

    def projection(*names: str) -> _Projection:
        if not clipped:
            return loader.linear(*map(get, names))
        return tuple(_clipped(get, name, loader) for name in names)

    return _TowerLayer(
        qkv_proj=projection(*(f'self_attn.{name}_proj' for name in 'qkv')),
        q_norm=loader.vector(get('self_attn.q_norm')),
        k_norm=loader.vector(get('self_attn.k_norm')),
        o_proj=projection('self_attn.o_proj'),
        gate_up_proj=projection('mlp.gate_proj', 'mlp.up_proj'),
        down_proj=projection('mlp.down_proj'),
        **{name: loader.vector(get(name)) for name in (
            'input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm',
            'post_feedforward_layernorm')})


def _clipped(get: Callable[[str], StoredWeight], name: str, loader: Loader) -> _Clipped:
    weight = get(name)
    low, high, out_low, out_high = (
        float(values(get(f'{name}.{bound}'), np.float64).reshape(-1)[0])
        for bound in ('input_min', 'input_max', 'output_min', 'output_max'))
    return _Clipped(loader.linear(weight), weight.shape[0], (low, high, out_low, out_high))


def _padded(num_rows: int, tile: int) -> int:
    return -(-num_rows // tile) * tile


def _get(weights: Mapping[str, StoredWeight], name: str) -> StoredWeight:
    try:
        return weights[name]
    except KeyError:
        raise ConfigError(f'the checkpoint has no vision tensor {name}') from None
