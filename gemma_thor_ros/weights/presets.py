# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""config.json and generation_config.json of the models that `gemma-thor synth` can imitate.

Values of 26b-a4b, 31b, 12b, e4b and e2b are those of google/gemma-4-26B-A4B-it and its siblings.
"""

from __future__ import annotations

from typing import Any

_IMAGE_IDS = {'boi_token_id': 255999, 'eoi_token_id': 258882, 'image_token_id': 258880,
              'video_token_id': 258884, 'boa_token_id': 256000, 'eoa_token_index': 258883,
              'audio_token_id': 258881}

# Those of the demo model's vocabulary of 4,096, whose tokenizer.json fits the tiny models with
# sight.
_TINY_IMAGE_IDS = {'boi_token_id': 4089, 'eoi_token_id': 4093, 'image_token_id': 4091,
                   'video_token_id': 4095, 'boa_token_id': 4090, 'eoa_token_index': 4094,
                   'audio_token_id': 4092}

# What E2B and E4B have in common; their audio encoders are not imitated.
_SMALL: dict[str, Any] = {
    'num_attention_heads': 8, 'attention_k_eq_v': False, 'sliding_window': 512,
    'max_position_embeddings': 131072, 'hidden_size_per_layer_input': 256,
    'use_bidirectional_attention': None,
}
_FULL_EVERY = {'e2b': 5, 'tiny-e2b': 5, 'tiny-e2b-vision': 5}  # else 6

# Small enough for tests on any machine; every axis differs from its neighbours, the prompt of any
# test is longer than the window, and stop ids 1, 50 and 106 lie inside the vocabulary.
_TINY_MOE: dict[str, Any] = {
    'hidden_size': 64, 'num_hidden_layers': 6, 'intermediate_size': 96,
    'num_attention_heads': 4, 'num_key_value_heads': 2, 'num_global_key_value_heads': 1,
    'head_dim': 16, 'global_head_dim': 32, 'sliding_window': 8, 'vocab_size': 512,
    'max_position_embeddings': 4096, 'enable_moe_block': True, 'num_experts': 4,
    'top_k_experts': 2, 'moe_intermediate_size': 48,
}
_TINY_E2B: dict[str, Any] = {
    **_SMALL, 'hidden_size': 64, 'num_hidden_layers': 10, 'intermediate_size': 96,
    'num_attention_heads': 4, 'num_key_value_heads': 1, 'head_dim': 16,
    'global_head_dim': 32, 'sliding_window': 8, 'vocab_size': 512,
    'vocab_size_per_layer_input': 512, 'max_position_embeddings': 4096,
    'hidden_size_per_layer_input': 32, 'num_kv_shared_layers': 5, 'use_double_wide_mlp': True,
}
_SIGHTED = {'sliding_window': 32, 'vocab_size': 4096}

_SIZES: dict[str, dict[str, Any]] = {
    '26b-a4b': {
        'hidden_size': 2816, 'num_hidden_layers': 30, 'intermediate_size': 2112,
        'num_attention_heads': 16, 'num_key_value_heads': 8, 'num_global_key_value_heads': 2,
        'enable_moe_block': True, 'num_experts': 128, 'top_k_experts': 8,
        'moe_intermediate_size': 704,
    },
    '31b': {
        'hidden_size': 5376, 'num_hidden_layers': 60, 'intermediate_size': 21504,
        'num_attention_heads': 32, 'num_key_value_heads': 16, 'num_global_key_value_heads': 4,
    },
    '12b': {
        'hidden_size': 3840, 'num_hidden_layers': 48, 'intermediate_size': 15360,
        'num_attention_heads': 16, 'num_key_value_heads': 8, 'num_global_key_value_heads': 1,
    },
    'e4b': {
        **_SMALL, 'hidden_size': 2560, 'num_hidden_layers': 42, 'intermediate_size': 10240,
        'num_key_value_heads': 2, 'num_kv_shared_layers': 18,
    },
    'e2b': {
        **_SMALL, 'hidden_size': 1536, 'num_hidden_layers': 35, 'intermediate_size': 6144,
        'num_key_value_heads': 1, 'num_kv_shared_layers': 20, 'use_double_wide_mlp': True,
    },
    'tiny-moe': _TINY_MOE,
    'tiny-dense': {
        'hidden_size': 80, 'num_hidden_layers': 6, 'intermediate_size': 176,
        'num_attention_heads': 4, 'num_key_value_heads': 2, 'num_global_key_value_heads': 1,
        'sliding_window': 16, 'vocab_size': 512, 'max_position_embeddings': 4096,
    },
    'tiny-e2b': _TINY_E2B,
    # a tower and experts, the 12B's embedder, E2B's tower: for a vocabulary of 4,096
    'tiny-vision': {**_TINY_MOE, **_SIGHTED},
    'tiny-unified': {
        'hidden_size': 80, 'num_hidden_layers': 6, 'intermediate_size': 176,
        'num_attention_heads': 4, 'num_key_value_heads': 2, 'num_global_key_value_heads': 1,
        'head_dim': 16, 'global_head_dim': 32, 'max_position_embeddings': 4096, **_SIGHTED,
    },
    'tiny-e2b-vision': {**_TINY_E2B, **_SIGHTED, 'vocab_size_per_layer_input': 4096},
}

PRESETS = tuple(_SIZES)
_UNIFIED = ('12b', 'tiny-unified')
_TINY_SIGHTED = ('tiny-vision', 'tiny-unified', 'tiny-e2b-vision')
_SMALL_TOWERS = ('e2b', 'e4b', 'tiny-e2b-vision')


def preset_config(preset: str) -> dict[str, Any]:
    """config.json of an unquantised checkpoint."""
    unified = preset in _UNIFIED
    family = 'gemma4_unified' if unified else 'gemma4'
    tiny = preset.startswith('tiny')
    architecture = 'Gemma4Unified' if unified else 'Gemma4'
    config: dict[str, Any] = {
        'architectures': [f'{architecture}ForConditionalGeneration'],
        'audio_config': None,
        'dtype': 'bfloat16',
        'eos_token_id': [1, 106],
        'initializer_range': 0.02,
        'model_type': family,
        'text_config': _text_config(preset, f'{family}_text'),
        'tie_word_embeddings': True,
        'vision_config': None,
    }
    sighted = preset in _TINY_SIGHTED
    if tiny and not sighted:             # text only: no media tokens in a vocabulary of 512
        return config
    config.update(_TINY_IMAGE_IDS if tiny else _IMAGE_IDS)
    config['vision_config'] = _unified_vision() if unified else _tower()
    if preset in _SMALL_TOWERS:
        config['vision_config'].update(_SMALL_TOWER)
    if tiny:
        config['vision_config'].update(_TINY_EMBEDDER if unified else _TINY_TOWER)
    elif unified:
        config['audio_config'] = {'audio_embed_dim': 640, 'dtype': 'bfloat16',
                                  'initializer_range': 0.02, 'rms_norm_eps': 1e-6,
                                  'model_type': 'gemma4_unified_audio'}
    return config


def preset_generation_config(preset: str) -> dict[str, Any]:
    """generation_config.json: stop ids and the recommended sampling."""
    generation: dict[str, Any] = {
        'bos_token_id': 2, 'do_sample': True, 'eos_token_id': [1, 106, 50], 'pad_token_id': 0,
        'temperature': 1.0, 'top_k': 64, 'top_p': 0.95,
    }
    if preset in _UNIFIED:               # <audio|> and <image|> turn up in greedy text without it
        ids = _IMAGE_IDS if preset == '12b' else _TINY_IMAGE_IDS
        generation['suppress_tokens'] = [ids['eoa_token_index'], ids['eoi_token_id']]
    return generation


def _text_config(preset: str, model_type: str) -> dict[str, Any]:
    text: dict[str, Any] = {
        'attention_bias': False, 'attention_dropout': 0.0, 'attention_k_eq_v': True,
        'bos_token_id': 2, 'dtype': 'bfloat16', 'enable_moe_block': False, 'eos_token_id': 1,
        'final_logit_softcapping': 30.0, 'global_head_dim': 512, 'head_dim': 256,
        'hidden_activation': 'gelu_pytorch_tanh', 'hidden_size_per_layer_input': 0,
        'initializer_range': 0.02, 'max_position_embeddings': 262144, 'model_type': model_type,
        'moe_intermediate_size': None, 'num_experts': None, 'num_kv_shared_layers': 0,
        'pad_token_id': 0, 'rms_norm_eps': 1e-6,
        'rope_parameters': {
            'full_attention': {'partial_rotary_factor': 0.25, 'rope_theta': 1000000.0,
                               'rope_type': 'proportional'},
            'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'},
        },
        'sliding_window': 1024, 'tie_word_embeddings': True, 'top_k_experts': None,
        'use_bidirectional_attention': 'vision', 'use_cache': True, 'use_double_wide_mlp': False,
        'vocab_size': 262144, 'vocab_size_per_layer_input': 262144,
    }
    text.update(_SIZES[preset])
    every = _FULL_EVERY.get(preset, 6)
    text['layer_types'] = ['full_attention' if index % every == every - 1 else 'sliding_attention'
                           for index in range(text['num_hidden_layers'])]
    if model_type == 'gemma4_unified_text':
        for name in ('enable_moe_block', 'hidden_size_per_layer_input', 'moe_intermediate_size',
                     'num_experts', 'top_k_experts', 'vocab_size_per_layer_input'):
            del text[name]
    return text


def _tower() -> dict[str, Any]:
    return {
        'attention_bias': False, 'attention_dropout': 0.0, 'default_output_length': 280,
        'dtype': 'bfloat16', 'head_dim': 72, 'hidden_activation': 'gelu_pytorch_tanh',
        'hidden_size': 1152, 'initializer_range': 0.02, 'intermediate_size': 4304,
        'max_position_embeddings': 131072, 'model_type': 'gemma4_vision',
        'num_attention_heads': 16, 'num_hidden_layers': 27, 'num_key_value_heads': 16,
        'patch_size': 16, 'pooling_kernel_size': 3, 'position_embedding_size': 10240,
        'rms_norm_eps': 1e-6, 'rope_parameters': {'rope_theta': 100.0, 'rope_type': 'default'},
        'standardize': True, 'use_clipped_linears': False,
    }


_SMALL_TOWER: dict[str, Any] = {
    'head_dim': 64, 'hidden_size': 768, 'intermediate_size': 3072, 'num_attention_heads': 12,
    'num_hidden_layers': 16, 'num_key_value_heads': 12, 'standardize': False,
    'use_clipped_linears': True,
}
_TINY_TOWER: dict[str, Any] = {
    'default_output_length': 70, 'head_dim': 12, 'hidden_size': 48, 'intermediate_size': 64,
    'num_attention_heads': 4, 'num_hidden_layers': 2, 'num_key_value_heads': 4,
    'position_embedding_size': 840,
}
_TINY_EMBEDDER: dict[str, Any] = {
    'mm_embed_dim': 64, 'mm_posemb_size': 280, 'num_soft_tokens': 70, 'output_proj_dims': 64,
}


def _unified_vision() -> dict[str, Any]:
    return {
        'dtype': 'bfloat16', 'initializer_range': 0.02, 'mm_embed_dim': 3840,
        'mm_posemb_size': 1120, 'model_type': 'gemma4_unified_vision', 'num_soft_tokens': 280,
        'output_proj_dims': 3840, 'patch_size': 16, 'pooling_kernel_size': 3,
        'rms_norm_eps': 1e-6,
    }
