# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Random weights that any program can make again from names and shapes alone, without a file.

Number i of tensor `name` is a byte b of an integer hash of (crc32(name), i), turned into a float
that bf16 holds exactly. Shared by the tests, the goldens' script and the benchmark; needs NumPy
only.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt


def counter_bytes(name: str, count: int) -> npt.NDArray[np.int64]:
    """`count` bytes 0 .. 255 that depend on `name` and the index only.

    h = (i * 2654435761 + crc32(name)) mod 2^32, then h ^= h >> 16, h *= 0x7feb352d, h ^= h >> 15,
    h *= 0x846ca68b, h ^= h >> 16, all mod 2^32; the byte is h >> 24.
    """
    mask = np.uint64(0xFFFFFFFF)
    h = np.arange(count, dtype=np.uint64) * np.uint64(2654435761) & mask
    h = (h + np.uint64(zlib.crc32(name.encode()))) & mask
    h ^= h >> np.uint64(16)
    h = h * np.uint64(0x7FEB352D) & mask
    h ^= h >> np.uint64(15)
    h = h * np.uint64(0x846CA68B) & mask
    h ^= h >> np.uint64(16)
    return (h >> np.uint64(24)).astype(np.int64)


def tensor(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The float32 values of one weight; each has 8 significant bits at most.

    Matrices: (b - 120) / 128 * 2^k with 2^k next to sqrt(3 / in features): not symmetric about 0.
    Norms, scales and scalars: (floor(b / 2) + 64) / 128, q_norm and k_norm times 2^k next to
    head_dim^(-1/4) (the attention has no other scale). Embedding: as a matrix of hidden_size in
    features.
    """
    numbers = counter_bytes(name, math.prod(shape)).astype(np.float32).reshape(shape)
    if len(shape) >= 2:
        return (numbers - 120) / 128 * np.float32(_power_of_two((3 / shape[-1]) ** 0.5))
    numbers = (np.floor(numbers / 2) + 64) / 128
    if name.endswith(('q_norm', 'k_norm')):
        numbers *= np.float32(_power_of_two(shape[0] ** -0.25))
    return numbers


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every weight of a ModelConfig."""
    hidden = config.hidden_size
    found: dict[str, tuple[int, ...]] = {
        'embed_tokens': (config.vocab_size, hidden), 'norm': (hidden,)}
    inputs = config.hidden_size_per_layer_input
    if inputs:
        columns = config.num_hidden_layers * inputs
        found['embed_tokens_per_layer'] = (config.vocab_size_per_layer_input, columns)
        found['per_layer_model_projection'] = (columns, hidden)
        found['per_layer_projection_norm'] = (inputs,)
    for index in range(config.num_hidden_layers):
        at = f'layers.{index}.'
        g = config.geometry(index)
        inner = config.mlp_size(index)
        found[at + 'self_attn.q_proj'] = (g.num_q_heads * g.head_dim, hidden)
        found[at + 'self_attn.o_proj'] = (hidden, g.num_q_heads * g.head_dim)
        found[at + 'self_attn.q_norm'] = (g.head_dim,)
        if config.kv_layer(index) == index:
            for name in ('k_proj', 'v_proj') if g.has_v_proj else ('k_proj',):
                found[at + f'self_attn.{name}'] = (g.num_kv_heads * g.head_dim, hidden)
            found[at + 'self_attn.k_norm'] = (g.head_dim,)
        found[at + 'mlp.gate_proj'] = found[at + 'mlp.up_proj'] = (inner, hidden)
        found[at + 'mlp.down_proj'] = (hidden, inner)
        norms = ['input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm',
                 'post_feedforward_layernorm']
        if config.enable_moe_block:
            experts, size = config.num_experts, config.moe_intermediate_size
            found[at + 'experts.gate_proj'] = found[at + 'experts.up_proj'] = (
                experts, size, hidden)
            found[at + 'experts.down_proj'] = (experts, hidden, size)
            found[at + 'router.proj'] = (experts, hidden)
            found[at + 'router.scale'] = (hidden,)
            found[at + 'router.per_expert_scale'] = (experts,)
            norms += ['post_feedforward_layernorm_1', 'post_feedforward_layernorm_2',
                      'pre_feedforward_layernorm_2']
        if inputs:
            found[at + 'per_layer_input_gate'] = (inputs, hidden)
            found[at + 'per_layer_projection'] = (hidden, inputs)
            norms.append('post_per_layer_input_norm')
        for name in norms:
            found[at + name] = (hidden,)
        found[at + 'layer_scalar'] = (1,)
    return found


def _power_of_two(value: float) -> float:
    return 2.0 ** round(math.log2(value))
