# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Write a trained model as a Gemma 4 checkpoint: config.json, generation_config.json, safetensors.

Names, prefix and fused bf16 experts are those of the released 26B-A4B; nothing but the sizes and the
ids of the media tokens differs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from demo_model.encode import TOKENIZER_FILE
from demo_model.network import DemoConfig, DemoModel
from demo_model.train_tokenizer import MEDIA, MEDIA_FIELDS
from gemma_thor_ros.weights.canonical import to_float
from gemma_thor_ros.weights.checkpoint import open_checkpoint

PREFIX = 'model.language_model.'
_BARE = (
    'layer_scalar',
    'router.scale',
    'router.per_expert_scale',
    'experts.gate_up_proj',
    'experts.down_proj',
)


def config_json(config: DemoConfig) -> dict[str, Any]:
    """config.json, with the fields that the released files have."""
    first = config.vocab_size - len(MEDIA)
    media = {field: first + index for index, field in enumerate(MEDIA_FIELDS)}
    layers = [
        'full_attention' if config.is_full(layer) else 'sliding_attention'
        for layer in range(config.num_hidden_layers)
    ]
    return {
        'architectures': ['Gemma4ForConditionalGeneration'],
        'model_type': 'gemma4',
        'dtype': 'bfloat16',
        'tie_word_embeddings': True,
        'bos_token_id': 2,
        'eos_token_id': [1, 106],
        'pad_token_id': 0,
        **media,
        'vision_config': None,
        'audio_config': None,
        'text_config': {
            'model_type': 'gemma4_text',
            'dtype': 'bfloat16',
            'vocab_size': config.vocab_size,
            'hidden_size': config.hidden_size,
            'intermediate_size': config.intermediate_size,
            'num_hidden_layers': config.num_hidden_layers,
            'num_attention_heads': config.num_attention_heads,
            'num_key_value_heads': config.num_key_value_heads,
            'num_global_key_value_heads': config.num_global_key_value_heads,
            'head_dim': config.head_dim,
            'global_head_dim': config.global_head_dim,
            'sliding_window': config.sliding_window,
            'layer_types': layers,
            'attention_k_eq_v': True,
            'attention_bias': False,
            'attention_dropout': 0.0,
            'num_kv_shared_layers': 0,
            'use_double_wide_mlp': False,
            'hidden_activation': 'gelu_pytorch_tanh',
            'rms_norm_eps': config.rms_norm_eps,
            'final_logit_softcapping': config.final_logit_softcapping,
            'max_position_embeddings': 4096,
            'initializer_range': 0.02,
            'tie_word_embeddings': True,
            'use_cache': True,
            'use_bidirectional_attention': None,
            'hidden_size_per_layer_input': 0,
            'vocab_size_per_layer_input': config.vocab_size,
            'enable_moe_block': True,
            'num_experts': config.num_experts,
            'top_k_experts': config.top_k_experts,
            'moe_intermediate_size': config.moe_intermediate_size,
            'bos_token_id': 2,
            'eos_token_id': 1,
            'pad_token_id': 0,
            'rope_parameters': {
                'sliding_attention': {'rope_type': 'default', 'rope_theta': 10000.0},
                'full_attention': {
                    'rope_type': 'proportional',
                    'rope_theta': 1000000.0,
                    'partial_rotary_factor': 0.25,
                },
            },
        },
    }


def generation_config_json() -> dict[str, Any]:
    """generation_config.json: greedy, because a small model's second choices are seldom right."""
    return {
        'bos_token_id': 2,
        'eos_token_id': [1, 106, 50],
        'pad_token_id': 0,
        'do_sample': False,
        'temperature': 0.0,
        'top_k': 64,
        'top_p': 0.95,
    }


def tensors(model: DemoModel) -> dict[str, torch.Tensor]:
    """bf16 tensors by their names on disk; experts fused as in the released bf16 files."""
    weights = {
        name: parameter.detach().cpu() for name, parameter in model.parameters_by_name.items()
    }
    out: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        if name.endswith('experts.up_proj'):
            continue
        if name.endswith('experts.gate_proj'):
            name = name.replace('gate_proj', 'gate_up_proj')
            value = torch.cat((value, weights[name.replace('gate_up_proj', 'up_proj')]), 1)
        suffix = '' if name.endswith(_BARE) else '.weight'
        out[PREFIX + name + suffix] = value.to(torch.bfloat16).contiguous()
    return out


def export(model: DemoModel, folder: Path) -> None:
    """Write the checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    split: list[dict[str, torch.Tensor]] = [{}, {}]
    sizes = [0, 0]
    named = sorted(tensors(model).items())
    total = sum(value.nbytes for _, value in named)
    for name, value in named:
        part = 0 if sizes[0] < total / 2 else 1
        split[part][name] = value
        sizes[part] += value.nbytes
    files = [f'model-0000{part + 1}-of-00002.safetensors' for part in range(2)]
    for file, held in zip(files, split, strict=True):
        save_file(held, str(folder / file), metadata={'format': 'pt'})
    index = {
        'metadata': {'total_size': total},
        'weight_map': {name: files[part] for part in range(2) for name in split[part]},
    }
    (folder / 'model.safetensors.index.json').write_text(
        json.dumps(index, indent=1), encoding='utf-8'
    )
    (folder / 'config.json').write_text(
        json.dumps(config_json(model.config), indent=2), encoding='utf-8'
    )
    (folder / 'generation_config.json').write_text(
        json.dumps(generation_config_json(), indent=2), encoding='utf-8'
    )
    shutil.copyfile(TOKENIZER_FILE, folder / 'tokenizer.json')


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def load_weights(model: DemoModel, folder: Path) -> None:
    """Copy a checkpoint's weights, bf16 or NVFP4, into a model of the same sizes."""
    weights = open_checkpoint(folder).text_weights()
    for name, parameter in model.parameters_by_name.items():
        value = torch.from_numpy(np.array(to_float(weights[name], np.float32)))
        parameter.copy_(value.reshape(parameter.shape))
