# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Write trained drafters as checkpoints in bf16, with the names and configs of the released ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from demo_model.drafters import DFlash, Mtp
from demo_model.network import DemoConfig

_KINDS = {False: 'sliding_attention', True: 'full_attention'}


def dflash_config(drafter: DFlash, base: DemoConfig) -> dict[str, Any]:
    """config.json of a DFlash drafter."""
    c = drafter.config
    return {
        'architectures': ['DFlashDraftModel'],
        'attention_bias': False,
        'attention_dropout': 0.0,
        'block_size': c.block_size,
        'dflash_config': {
            'mask_token_id': c.mask_token_id,
            'target_layer_ids': list(c.target_layer_ids),
        },
        'dtype': 'bfloat16',
        'final_logit_softcapping': c.final_logit_softcapping,
        'head_dim': c.head_dim,
        'hidden_act': 'silu',
        'hidden_size': c.hidden_size,
        'intermediate_size': c.intermediate_size,
        'layer_types': [_KINDS[c.is_full(layer)] for layer in range(c.num_hidden_layers)],
        'max_position_embeddings': 4096,
        'model_type': 'qwen3',
        'num_attention_heads': c.num_attention_heads,
        'num_hidden_layers': c.num_hidden_layers,
        'num_key_value_heads': c.num_key_value_heads,
        'num_target_layers': base.num_hidden_layers,
        'rms_norm_eps': 1e-6,
        'rope_theta': c.rope_theta,
        'sliding_window': c.sliding_window,
        'tie_word_embeddings': False,
        'vocab_size': base.vocab_size,
    }


def mtp_config(drafter: Mtp, base: DemoConfig) -> dict[str, Any]:
    """config.json of an MTP assistant."""
    c = drafter.config
    return {
        'architectures': ['Gemma4AssistantForCausalLM'],
        'backbone_hidden_size': c.backbone_hidden_size,
        'dtype': 'bfloat16',
        'model_type': 'gemma4_assistant',
        'tie_word_embeddings': True,
        'use_ordered_embeddings': False,
        'text_config': {
            'attention_bias': False,
            'attention_dropout': 0.0,
            'attention_k_eq_v': True,
            'dtype': 'bfloat16',
            'enable_moe_block': False,
            'final_logit_softcapping': base.final_logit_softcapping,
            'global_head_dim': c.global_head_dim,
            'head_dim': c.head_dim,
            'hidden_activation': 'gelu_pytorch_tanh',
            'hidden_size': c.hidden_size,
            'hidden_size_per_layer_input': 0,
            'intermediate_size': c.intermediate_size,
            'layer_types': [_KINDS[full] for full in c.full],
            'max_position_embeddings': 4096,
            'model_type': 'gemma4_text',
            'num_attention_heads': c.num_attention_heads,
            'num_global_key_value_heads': base.num_global_key_value_heads,
            'num_hidden_layers': len(c.full),
            'num_key_value_heads': base.num_key_value_heads,
            'num_kv_shared_layers': len(c.full),
            'rms_norm_eps': 1e-6,
            'rope_parameters': {
                'full_attention': {
                    'partial_rotary_factor': 0.25,
                    'rope_theta': 1000000.0,
                    'rope_type': 'proportional',
                },
                'sliding_attention': {'rope_theta': 10000.0, 'rope_type': 'default'},
            },
            'sliding_window': c.sliding_window,
            'tie_word_embeddings': True,
            'use_double_wide_mlp': False,
            'vocab_size': c.vocab_size,
            'vocab_size_per_layer_input': 0,
        },
    }


def export_dflash(drafter: DFlash, base: DemoConfig, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    _write(drafter, dflash_config(drafter, base), folder)


def export_mtp(drafter: Mtp, base: DemoConfig, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    _write(drafter, mtp_config(drafter, base), folder)


def _write(drafter: DFlash | Mtp, config: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: parameter.detach().cpu().to(torch.bfloat16).contiguous()
        for name, parameter in drafter.parameters_by_name.items()
    }
    save_file(tensors, str(folder / 'model.safetensors'), metadata={'format': 'pt'})
    text = json.dumps(config, indent=2, sort_keys=True) + '\n'
    (folder / 'config.json').write_text(text, encoding='utf-8')
