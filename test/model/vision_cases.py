# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Tiny models with sight, pictures and prompts, made again from names alone.

Shared by the tests and by scripts/make_vision_goldens.py. Needs NumPy and the package.
"""

from __future__ import annotations

from typing import Any

import counter_weights
import numpy as np
import numpy.typing as npt

from gemma_thor_ros.weights.tower_shapes import BOUNDS, tower_shapes
from gemma_thor_ros.weights.vision import canonical_name

S, F = 'sliding_attention', 'full_attention'
TEXT: dict[str, Any] = {
    'model_type': 'gemma4_text', 'vocab_size': 96, 'hidden_size': 40, 'num_hidden_layers': 4,
    'layer_types': [S, F, S, F], 'num_attention_heads': 4, 'num_key_value_heads': 2,
    'num_global_key_value_heads': 1, 'head_dim': 16, 'global_head_dim': 32,
    'intermediate_size': 48, 'attention_k_eq_v': True, 'sliding_window': 24,
    'final_logit_softcapping': 30.0, 'hidden_size_per_layer_input': 0, 'rms_norm_eps': 1e-6,
    'max_position_embeddings': 4096, 'use_bidirectional_attention': 'vision',
    'num_kv_shared_layers': 0,
}
TOWER: dict[str, Any] = {
    'model_type': 'gemma4_vision', 'hidden_size': 24, 'num_hidden_layers': 3,
    'num_attention_heads': 2, 'num_key_value_heads': 2, 'head_dim': 12, 'intermediate_size': 40,
    'position_embedding_size': 256, 'patch_size': 16, 'pooling_kernel_size': 3,
    'rms_norm_eps': 1e-6, 'standardize': True, 'default_output_length': 70,
    'rope_parameters': {'rope_type': 'axial', 'rope_theta': 100.0},
}
EMBEDDER: dict[str, Any] = {
    'model_type': 'gemma4_unified_vision', 'mm_embed_dim': 32, 'output_proj_dims': 32,
    'mm_posemb_size': 70, 'num_soft_tokens': 70, 'patch_size': 16, 'pooling_kernel_size': 3,
    'rms_norm_eps': 1e-6,
}
IDS = {'image_token_id': 90, 'boi_token_id': 91, 'eoi_token_id': 92, 'video_token_id': 93,
       'audio_token_id': 94}
# E2B's form: per-layer embeddings, rows of an image look back only, clipped linear layers
SMALL_TEXT: dict[str, Any] = {
    **TEXT, 'attention_k_eq_v': False, 'num_key_value_heads': 1, 'num_kv_shared_layers': 2,
    'use_double_wide_mlp': True, 'hidden_size_per_layer_input': 12,
    'vocab_size_per_layer_input': 96, 'use_bidirectional_attention': None,
}
# the 26B's form: experts beside the dense MLP
EXPERTS_TEXT: dict[str, Any] = {**TEXT, 'enable_moe_block': True, 'num_experts': 6,
                                'top_k_experts': 2, 'moe_intermediate_size': 24}
# 'causal': a tower under a text model whose blocks look back only
CONFIGS: dict[str, dict[str, Any]] = {
    'tower': {'model_type': 'gemma4', 'text_config': TEXT, 'vision_config': TOWER, **IDS},
    'experts': {'model_type': 'gemma4', 'text_config': EXPERTS_TEXT, 'vision_config': TOWER,
                **IDS},
    'embedder': {'model_type': 'gemma4_unified', 'vision_config': EMBEDDER, **IDS, 'text_config': {
        **{key: value for key, value in TEXT.items() if key != 'hidden_size_per_layer_input'},
        'model_type': 'gemma4_unified_text'}},
    'causal': {'model_type': 'gemma4', **IDS, 'text_config': {
        **TEXT, 'use_bidirectional_attention': None},
        'vision_config': {**TOWER, 'standardize': False, 'num_hidden_layers': 1}},
    'clipped': {'model_type': 'gemma4', **IDS, 'text_config': SMALL_TEXT, 'vision_config': {
        **TOWER, 'standardize': False, 'use_clipped_linears': True}},
}
BUDGET = 70
# (height, width): scaled down, up from almost nothing, and a thin one
PICTURES = {'wide': (120, 300), 'small': (9, 7), 'thin': (5, 300)}
PROMPTS = {'tower': ('wide', 'small'), 'experts': ('wide', 'small'),
           'embedder': ('wide', 'small'), 'causal': ('thin',), 'clipped': ('thin', 'small')}


def picture(name: str, height: int, width: int) -> npt.NDArray[np.uint8]:
    """(height, width, 3): a gradient and noise."""
    noise = counter_weights.counter_bytes(f'picture.{name}', height * width * 3)
    slope = np.add.outer(np.arange(height) * 90 // height, np.arange(width) * 100 // width)
    return (noise.reshape(height, width, 3) // 4 + slope[..., None]).astype(np.uint8)


def vision_tensors(config: dict[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """On-disk name -> numbers of a config's vision part."""
    return {name: _bound(name) if name.endswith(BOUNDS)
            else counter_weights.tensor(f'vision.{canonical_name(name)}', shape)
            for name, shape in tower_shapes(config).items()}


def _bound(name: str) -> npt.NDArray[np.float32]:
    """A bound that some numbers pass: 1 to 2 in magnitude, of inputs and of outputs."""
    size = 1 + int(counter_weights.counter_bytes(name, 1)[0]) / 256
    return np.array(-size if name.endswith('min') else size, np.float32)


def prompt(name: str, num_tokens: list[int]) -> tuple[list[int], list[int]]:
    """Token ids of a prompt with images of so many soft tokens, and where each one's begin."""
    text = (counter_weights.counter_bytes(f'{name}.prompt', 64) % 90).tolist()
    ids, starts = text[:5], []
    for index, count in enumerate(num_tokens):
        ids += [IDS['boi_token_id']]
        starts.append(len(ids))
        ids += [IDS['image_token_id']] * count + [IDS['eoi_token_id']]
        ids += text[5 + 7 * index:12 + 7 * index]
    return ids, starts


def generated(name: str) -> list[int]:
    """Token ids that are run one by one behind the prompt, as if the model had said them."""
    return (counter_weights.counter_bytes(f'{name}.generated', 4) % 90).tolist()
