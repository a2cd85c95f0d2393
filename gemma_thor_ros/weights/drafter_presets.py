# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""config.json of the drafters that `gemma-thor synth` can imitate.

Values of the large ones are those of z-lab/gemma-4-26B-A4B-it-DFlash and -31B-it-DFlash and of
google/gemma-4-26B-A4B-it-assistant and -31B-it-assistant; the tiny ones fit the tiny models.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.weights.presets import preset_config

_SLIDING, _FULL = 'sliding_attention', 'full_attention'

_DFLASH: dict[str, dict[str, Any]] = {
    '26b-a4b': {
        'hidden_size': 2816, 'intermediate_size': 5632, 'num_attention_heads': 32,
        'target_layer_ids': [1, 6, 11, 17, 22, 27],
    },
    '31b': {
        'hidden_size': 5376, 'intermediate_size': 10752, 'num_attention_heads': 64,
        'target_layer_ids': [1, 12, 23, 35, 46, 57],
    },
    'tiny-moe': {
        'hidden_size': 64, 'intermediate_size': 80, 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'head_dim': 16, 'num_hidden_layers': 2, 'block_size': 8,
        'sliding_window': 12, 'target_layer_ids': [1, 3, 5],
    },
    'tiny-dense': {
        'hidden_size': 80, 'intermediate_size': 112, 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'head_dim': 32, 'num_hidden_layers': 2, 'block_size': 16,
        'sliding_window': 12, 'target_layer_ids': [0, 2, 4],
    },
}
_ASSISTANTS: dict[str, dict[str, Any]] = {
    '26b-a4b': {}, '31b': {}, '12b': {},
    'tiny-moe': {'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 2},
    'tiny-dense': {'hidden_size': 48, 'intermediate_size': 80, 'num_hidden_layers': 2},
}

DRAFTER_PRESETS = (*(f'{target}-dflash' for target in _DFLASH),
                   *(f'{target}-mtp' for target in _ASSISTANTS))


def drafter_preset_config(preset: str) -> dict[str, Any]:
    """config.json of one of DRAFTER_PRESETS."""
    target, _, kind = preset.rpartition('-')
    return _dflash_config(target) if kind == 'dflash' else _assistant_config(target)


def _dflash_config(target: str) -> dict[str, Any]:
    text = preset_config(target)['text_config']
    config: dict[str, Any] = {
        'architectures': ['DFlashDraftModel'], 'attention_bias': False, 'attention_dropout': 0.0,
        'block_size': 16, 'dtype': 'bfloat16', 'final_logit_softcapping': 30.0, 'head_dim': 128,
        'hidden_act': 'silu', 'initializer_range': 0.02,
        'max_position_embeddings': text['max_position_embeddings'], 'model_type': 'qwen3',
        'num_hidden_layers': 5, 'num_key_value_heads': 8,
        'num_target_layers': text['num_hidden_layers'], 'rms_norm_eps': 1e-6,
        'rope_theta': 1000000, 'sliding_window': 2048, 'tie_word_embeddings': False,
        'vocab_size': text['vocab_size'],
    }
    config.update(_DFLASH[target])
    config['dflash_config'] = {'mask_token_id': 4,
                               'target_layer_ids': config.pop('target_layer_ids')}
    config['layer_types'] = [_SLIDING] * (config['num_hidden_layers'] - 1) + [_FULL]
    return config


def _assistant_config(target: str) -> dict[str, Any]:
    model = preset_config(target)
    text = {key: value for key, value in model['text_config'].items()
            if not key.startswith(('moe_', 'num_experts', 'top_k_experts'))}
    text.update({'enable_moe_block': False, 'hidden_size': 1024, 'intermediate_size': 8192,
                 'num_hidden_layers': 4, 'vocab_size_per_layer_input': 0})
    text.update(_ASSISTANTS[target])
    num_layers = text['num_hidden_layers']
    text['num_kv_shared_layers'] = num_layers
    text['layer_types'] = [_SLIDING] * (num_layers - 1) + [_FULL]
    unified = 'Unified' if model['model_type'] == 'gemma4_unified' else ''
    return {
        'architectures': [f'Gemma4{unified}AssistantForCausalLM'],
        'backbone_hidden_size': model['text_config']['hidden_size'],
        'dtype': 'bfloat16',
        'model_type': f'{model["model_type"]}_assistant',
        'text_config': text,
        'tie_word_embeddings': True,
        'use_ordered_embeddings': False,
    }
