# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Names and shapes of the vision and audio tensors beside the text model.

The towers of the 26B and 31B and of E2B and E4B, and the encoder-free embedders of the 12B. They
are always bf16. The audio encoder of E2B and E4B is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma_thor_ros.weights.shapes import Shape

_NORMS = ('input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm',
          'post_feedforward_layernorm')
_LINEARS = (*(f'self_attn.{name}_proj' for name in 'qkvo'),
            *(f'mlp.{name}_proj' for name in ('gate', 'up', 'down')))
# What E2B and E4B hold each linear layer's input and output to; scalars.
BOUNDS = ('input_min', 'input_max', 'output_min', 'output_max')


def tower_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    """On-disk name -> shape for the vision_config and audio_config of a config.json."""
    shapes: dict[str, Shape] = {}
    hidden = config['text_config']['hidden_size']
    vision, audio = config.get('vision_config'), config.get('audio_config')
    if vision and vision['model_type'] == 'gemma4_vision':
        shapes.update(_vision_tower(vision))
        shapes['model.embed_vision.embedding_projection.weight'] = (hidden, vision['hidden_size'])
    elif vision:
        shapes.update(_patch_embedder(vision))
        shapes['model.embed_vision.embedding_projection.weight'] = (
            hidden, vision['mm_embed_dim'])
    if audio and 'audio_embed_dim' in audio:
        shapes['model.embed_audio.embedding_projection.weight'] = (
            hidden, audio['audio_embed_dim'])
    return shapes


def _vision_tower(vision: Mapping[str, Any]) -> dict[str, Shape]:
    hidden, inner = vision['hidden_size'], vision['intermediate_size']
    head_dim = vision['head_dim']
    queries = vision['num_attention_heads'] * head_dim
    keys = vision['num_key_value_heads'] * head_dim
    pixels = 3 * vision['patch_size'] ** 2
    start = 'model.vision_tower.'
    shapes: dict[str, Shape] = {
        f'{start}patch_embedder.input_proj.weight': (hidden, pixels),
        f'{start}patch_embedder.position_embedding_table': (
            2, vision['position_embedding_size'], hidden),
    }
    for index in range(vision['num_hidden_layers']):
        layer = f'{start}encoder.layers.{index}.'
        shapes.update({
            f'{layer}self_attn.q_proj.linear.weight': (queries, hidden),
            f'{layer}self_attn.k_proj.linear.weight': (keys, hidden),
            f'{layer}self_attn.v_proj.linear.weight': (keys, hidden),
            f'{layer}self_attn.o_proj.linear.weight': (hidden, queries),
            f'{layer}self_attn.q_norm.weight': (head_dim,),
            f'{layer}self_attn.k_norm.weight': (head_dim,),
            f'{layer}mlp.gate_proj.linear.weight': (inner, hidden),
            f'{layer}mlp.up_proj.linear.weight': (inner, hidden),
            f'{layer}mlp.down_proj.linear.weight': (hidden, inner),
        })
        shapes.update({f'{layer}{norm}.weight': (hidden,) for norm in _NORMS})
        if vision.get('use_clipped_linears'):
            shapes.update({f'{layer}{linear}.{bound}': () for linear in _LINEARS
                           for bound in BOUNDS})
    if vision['standardize']:
        shapes[f'{start}std_bias'] = (hidden,)
        shapes[f'{start}std_scale'] = (hidden,)
    return shapes


def _patch_embedder(vision: Mapping[str, Any]) -> dict[str, Shape]:
    width = vision['mm_embed_dim']
    pixels = 3 * (vision['patch_size'] * vision['pooling_kernel_size']) ** 2
    start = 'model.vision_embedder.'
    shapes: dict[str, Shape] = {
        f'{start}patch_dense.weight': (width, pixels),
        f'{start}pos_embedding': (vision['mm_posemb_size'], 2, width),
    }
    for name, size in (('patch_ln1', pixels), ('patch_ln2', width), ('pos_norm', width)):
        shapes[f'{start}{name}.weight'] = (size,)
        shapes[f'{start}{name}.bias'] = (size,)
    shapes[f'{start}patch_dense.bias'] = (width,)
    return shapes
