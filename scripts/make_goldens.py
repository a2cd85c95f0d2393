# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# (torch and transformers are not in the development environment)
"""Runs the reference implementation on tiny random models and stores what it computes.

    python scripts/make_goldens.py            (needs torch and transformers >= 5.17; a CPU will do)

Writes test/data/goldens/goldens.json (configs, tokens, rows, versions) and one .npz for each
model: `layers` (L, R, H) and `logits` (R, V) in float64, `float32_logits` (R, V). Weights and
tokens come from test/model/counter_weights.py, so that they need no storage.

The reference casts to float32 in its norms, rope, router and softmax. For the float64 numbers
those casts are turned into casts to float64, and every op that still gives a float32 tensor is an
error. Constants set by hand: the embedding scale is sqrt(hidden_size) rounded to bf16, as in every
bf16 checkpoint, and so is sqrt(hidden_size_per_layer_input). `float32_logits` come from the same
model untouched, in float32.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    DynamicCache,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Gemma4UnifiedForCausalLM,
    Gemma4UnifiedTextConfig,
)
from transformers.models.gemma4 import modeling_gemma4

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / 'test' / 'model')]

import counter_weights  # noqa: E402

from gemma_thor_ros.models.config import ModelConfig  # noqa: E402

S, F = 'sliding_attention', 'full_attention'
COMMON: dict[str, Any] = {
    'model_type': 'gemma4_text', 'hidden_size_per_layer_input': 0, 'num_kv_shared_layers': 0,
    'final_logit_softcapping': 30.0, 'rms_norm_eps': 1e-6, 'max_position_embeddings': 4096,
}
# hidden sizes whose root bf16 can't hold; groups of 1, 2, 3 and 4 query heads
CASES: dict[str, dict[str, Any]] = {
    'moe_k_eq_v_256': {
        'config': {
            **COMMON, 'vocab_size': 160, 'hidden_size': 72, 'num_hidden_layers': 6,
            'num_attention_heads': 4, 'num_key_value_heads': 2, 'num_global_key_value_heads': 1,
            'head_dim': 256, 'global_head_dim': 512, 'intermediate_size': 40,
            'attention_k_eq_v': True, 'sliding_window': 8, 'enable_moe_block': True,
            'num_experts': 6, 'top_k_experts': 2, 'moe_intermediate_size': 24},
        'prompt': 23, 'decode': 5, 'rows': [0, 1, 7, 8, 15, 22]},
    'dense_k_eq_v_long': {
        'config': {
            **COMMON, 'vocab_size': 128, 'hidden_size': 40, 'num_hidden_layers': 4,
            'layer_types': [S, F, S, F], 'num_attention_heads': 6, 'num_key_value_heads': 3,
            'num_global_key_value_heads': 2, 'head_dim': 16, 'global_head_dim': 32,
            'intermediate_size': 64, 'attention_k_eq_v': True, 'sliding_window': 70},
        'prompt': 150, 'decode': 5, 'rows': [0, 63, 64, 69, 70, 71, 127, 128, 149]},
    # the 31B's: 2 query heads a kv head in sliding layers and 8 in full ones, its head dims
    'dense_k_eq_v_31b': {
        'config': {
            **COMMON, 'vocab_size': 96, 'hidden_size': 48, 'num_hidden_layers': 6,
            'num_attention_heads': 16, 'num_key_value_heads': 8, 'num_global_key_value_heads': 2,
            'head_dim': 256, 'global_head_dim': 512, 'intermediate_size': 192,
            'attention_k_eq_v': True, 'sliding_window': 8},
        'prompt': 21, 'decode': 4, 'rows': [0, 1, 7, 8, 9, 20]},
    'dense_own_v': {
        'config': {
            **COMMON, 'vocab_size': 96, 'hidden_size': 56, 'num_hidden_layers': 3,
            'layer_types': [S, S, F], 'num_attention_heads': 4, 'num_key_value_heads': 1,
            'head_dim': 24, 'global_head_dim': 64, 'intermediate_size': 48,
            'attention_k_eq_v': False, 'sliding_window': 6, 'rms_norm_eps': 1e-5},
        'prompt': 17, 'decode': 4, 'rows': [0, 5, 6, 7, 16]},
    'moe_own_v': {
        'config': {
            **COMMON, 'vocab_size': 112, 'hidden_size': 24, 'num_hidden_layers': 3,
            'layer_types': [F, S, F], 'num_attention_heads': 3, 'num_key_value_heads': 3,
            'head_dim': 32, 'global_head_dim': 48, 'intermediate_size': 32,
            'attention_k_eq_v': False, 'sliding_window': 3, 'enable_moe_block': True,
            'num_experts': 8, 'top_k_experts': 3, 'moe_intermediate_size': 20,
            'final_logit_softcapping': 2.0,
            'rope_parameters': {
                S: {'rope_type': 'default', 'rope_theta': 500.0},
                F: {'rope_type': 'proportional', 'rope_theta': 20_000.0,
                    'partial_rotary_factor': 0.5}}},
        'prompt': 14, 'decode': 4, 'rows': [0, 2, 3, 4, 13]},
    # the 12B's class, with its 16 query heads a kv head in full layers
    'unified_k_eq_v': {
        'config': {
            **COMMON, 'model_type': 'gemma4_unified_text', 'vocab_size': 88, 'hidden_size': 40,
            'num_hidden_layers': 4, 'layer_types': [S, S, F, F], 'num_attention_heads': 16,
            'num_key_value_heads': 8, 'num_global_key_value_heads': 1, 'head_dim': 16,
            'global_head_dim': 32, 'intermediate_size': 56, 'attention_k_eq_v': True,
            'sliding_window': 5},
        'prompt': 17, 'decode': 4, 'rows': [0, 4, 5, 6, 16]},
    # E2B's form: four sliding layers to a full one, more than half of them without K and V
    'inputs_one_kv_wide': {
        'config': {
            **COMMON, 'vocab_size': 80, 'vocab_size_per_layer_input': 80, 'hidden_size': 40,
            'num_hidden_layers': 10, 'layer_types': [S, S, S, S, F] * 2,
            'num_attention_heads': 8, 'num_key_value_heads': 1, 'head_dim': 16,
            'global_head_dim': 32, 'intermediate_size': 48, 'attention_k_eq_v': False,
            'sliding_window': 6, 'hidden_size_per_layer_input': 20, 'num_kv_shared_layers': 5,
            'use_double_wide_mlp': True},
        'prompt': 19, 'decode': 5, 'rows': [0, 5, 6, 7, 18]},
    # E4B's: five to one, two kv heads, MLPs of one width
    'inputs_two_kv': {
        'config': {
            **COMMON, 'vocab_size': 96, 'vocab_size_per_layer_input': 100, 'hidden_size': 56,
            'num_hidden_layers': 8, 'layer_types': [S, F, S, F, S, S, S, F],
            'num_attention_heads': 8, 'num_key_value_heads': 2, 'head_dim': 24,
            'global_head_dim': 48, 'intermediate_size': 64, 'attention_k_eq_v': False,
            'sliding_window': 7, 'hidden_size_per_layer_input': 12, 'num_kv_shared_layers': 4},
        'prompt': 16, 'decode': 4, 'rows': [0, 6, 7, 8, 15]},
}


class _NoFloat32(TorchDispatchMode):
    """Raises at the first op that gives a float32 tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(item, torch.Tensor) and item.dtype == _FLOAT32:
                raise TypeError(f'{func} gives float32')
        return result


_FLOAT32 = torch.float32


@contextlib.contextmanager
def _float64_everywhere() -> Iterator[None]:
    """Make torch's names for float32 mean float64, so that the reference's casts cast to it."""
    saved = torch.float, torch.float32, torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        with _NoFloat32():
            yield
    finally:
        torch.set_default_dtype(saved[3])
        torch.float, torch.float32 = saved[:2]
        torch.Tensor.float = saved[2]


def reference_state(config: ModelConfig, prefix: str, number: Any) -> dict[str, torch.Tensor]:
    """The counter weights of a text model under the reference's names, experts in one piece."""
    state = {name: torch.from_numpy(counter_weights.tensor(name, shape).astype(number))
             for name, shape in counter_weights.shapes(config).items()}
    renamed = {}
    for name, value in state.items():
        module = name.rsplit('.', 1)[-1]
        if module in ('layer_scalar', 'scale', 'per_expert_scale'):
            renamed[prefix + name] = value
        elif '.experts.' in name:
            if module == 'gate_proj':
                up = state[name.replace('gate_proj', 'up_proj')]
                renamed[prefix + name.replace('gate_proj', 'gate_up_proj')] = torch.cat(
                    [value, up], dim=1)
            elif module == 'down_proj':
                renamed[prefix + name] = value
        else:
            renamed[f'{prefix}{name}.weight'] = value
    return renamed


def _build(config: ModelConfig, raw: dict[str, Any], dtype: torch.dtype) -> Gemma4ForCausalLM:
    fields = {key: value for key, value in raw.items() if key != 'model_type'}
    unified = config.model_type == 'gemma4_unified'
    if unified:
        del fields['hidden_size_per_layer_input']
        plain = Gemma4UnifiedForCausalLM(Gemma4UnifiedTextConfig(**fields))
    else:
        plain = Gemma4ForCausalLM(Gemma4TextConfig(**fields))
    model = plain.to(dtype).eval()
    model.set_attn_implementation('eager')
    if config.enable_moe_block:
        model.set_experts_implementation('eager')
    number = np.float64 if dtype == torch.float64 else np.float32
    renamed = reference_state(config, 'model.', number)
    renamed['lm_head.weight'] = renamed['model.embed_tokens.weight']
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    if missing or unexpected:
        raise SystemExit(f'weights do not fit: missing {missing}, unexpected {unexpected}')
    scale = torch.tensor(config.hidden_size ** 0.5, dtype=torch.bfloat16).to(dtype)
    model.model.embed_tokens.embed_scale = scale
    if config.hidden_size_per_layer_input:
        scale = torch.tensor(config.hidden_size_per_layer_input ** 0.5, dtype=torch.bfloat16)
        model.model.embed_tokens_per_layer.embed_scale = scale.to(dtype)
    return model


@torch.no_grad()
def _run(model: Gemma4ForCausalLM, tokens: list[int], num_prompt: int,
         rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Layers (L, R, H) and logits (R, V) of the wanted prompt rows and of every decode row."""
    outputs: list[list[torch.Tensor]] = [[] for _ in model.model.layers]
    hooks = [layer.register_forward_hook(
        lambda _module, _args, out, sink=sink: sink.append(out.clone()))
        for layer, sink in zip(model.model.layers, outputs, strict=True)]
    cache = DynamicCache(config=model.config)
    logits = []
    cuts = [(0, num_prompt), *((i, i + 1) for i in range(num_prompt, len(tokens)))]
    for start, stop in cuts:
        result = model(input_ids=torch.tensor([tokens[start:stop]]), past_key_values=cache,
                       use_cache=True)
        logits.append(result.logits)
    for hook in hooks:
        hook.remove()
    wanted = [*rows, *range(num_prompt, len(tokens))]
    layers = torch.stack([torch.cat(parts, dim=1)[0, wanted] for parts in outputs])
    return layers.numpy(), torch.cat(logits, dim=1)[0, wanted].numpy()


def main() -> None:
    """Make all goldens, or those named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='*', help=f'cases (default: all of {", ".join(CASES)})')
    parser.add_argument('--output', type=Path, default=ROOT / 'test' / 'data' / 'goldens')
    options = parser.parse_args()
    torch.set_num_threads(1)
    goldens = options.output / 'goldens.json'
    kept = json.loads(goldens.read_text())['cases'] if options.names and goldens.exists() else {}
    record: dict[str, Any] = {
        'made_by': 'scripts/make_goldens.py', 'torch': torch.__version__,
        'transformers': transformers.__version__, 'numpy': np.__version__,
        'modeling_file': Path(modeling_gemma4.__file__).name, 'cases': kept}
    for name in options.names or CASES:
        case = CASES[name]
        config = ModelConfig.from_dict(case['config'])
        length = case['prompt'] + case['decode']
        tokens = (counter_weights.counter_bytes(f'{name}.tokens', length)
                  % config.vocab_size).tolist()
        with _float64_everywhere():
            model = _build(config, case['config'], torch.float64)
            layers, logits = _run(model, tokens, case['prompt'], case['rows'])
        plain = _build(config, case['config'], torch.float32)
        _, float32_logits = _run(plain, tokens, case['prompt'], case['rows'])
        assert layers.dtype == logits.dtype == np.float64
        assert float32_logits.dtype == np.float32
        error = np.linalg.norm(float32_logits - logits) / np.linalg.norm(logits)
        np.savez_compressed(options.output / f'{name}.npz', layers=layers, logits=logits,
                            float32_logits=float32_logits)
        record['cases'][name] = {**case, 'tokens': tokens}
        print(f'{name}: layers {layers.shape}, logits {logits.shape}, '
              f'untouched float32 differs by {error:.1e}')
    goldens.write_text(json.dumps(record, indent=1) + '\n')


if __name__ == '__main__':
    main()
