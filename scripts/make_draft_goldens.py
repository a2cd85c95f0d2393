# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# (torch and transformers are not in the development environment)
"""Runs reference drafters on tiny random models and stores the logits of their drafts.

    python scripts/make_draft_goldens.py      (needs torch and transformers >= 5.17; a CPU will do)

Writes test/data/goldens/drafts.json and one .npz for each case, all in float64: for every variant
`NAME` the logits (2, N, V) of two rounds. The second round comes after a partial rejection: what
the first one wrote of rejected rows must not be seen, and is not, because the reference starts
anew from the committed tokens. The target and the MTP assistant are those of transformers, with
float64 in place of float32 as in make_goldens.py; DFlash is written out here from its description
(docs/speculation.md), without pages or caches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional
from transformers import DynamicCache
from transformers.models.gemma4 import Gemma4TextConfig
from transformers.models.gemma4_assistant import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
)

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / 'test' / 'model'), str(ROOT / 'scripts')]

import counter_weights  # noqa: E402
from make_goldens import COMMON, _build, _float64_everywhere  # noqa: E402

from gemma_thor_ros.models.config import ModelConfig  # noqa: E402
from gemma_thor_ros.weights.drafter_shapes import drafter_disk_name, drafter_shapes  # noqa: E402

S, F = 'sliding_attention', 'full_attention'
ROPE = {S: {'rope_type': 'default', 'rope_theta': 10_000.0},
        F: {'rope_type': 'proportional', 'rope_theta': 1_000_000.0,
            'partial_rotary_factor': 0.25}}
# windows shorter than the context; the rejected rows' slots are read by the second block
CASES: dict[str, dict[str, Any]] = {
    'draft_moe': {
        'target': {
            **COMMON, 'vocab_size': 160, 'hidden_size': 72, 'num_hidden_layers': 6,
            'num_attention_heads': 4, 'num_key_value_heads': 2, 'num_global_key_value_heads': 1,
            'head_dim': 16, 'global_head_dim': 32, 'intermediate_size': 40,
            'attention_k_eq_v': True, 'sliding_window': 8, 'enable_moe_block': True,
            'num_experts': 6, 'top_k_experts': 2, 'moe_intermediate_size': 24,
            'rope_parameters': ROPE},
        'dflash': {
            'architectures': ['DFlashDraftModel'], 'model_type': 'qwen3', 'hidden_size': 72,
            'intermediate_size': 56, 'num_hidden_layers': 3, 'num_attention_heads': 6,
            'num_key_value_heads': 2, 'head_dim': 20, 'layer_types': [S, S, F],
            'sliding_window': 11, 'block_size': 8, 'num_target_layers': 6, 'rms_norm_eps': 1e-6,
            'rope_theta': 1_000_000.0, 'hidden_act': 'silu', 'final_logit_softcapping': 30.0,
            'vocab_size': 160,
            'dflash_config': {'mask_token_id': 4, 'target_layer_ids': [0, 2, 5]}},
        'mtp': {
            'model_type': 'gemma4_assistant', 'backbone_hidden_size': 72,
            'use_ordered_embeddings': False,
            'text_config': {
                **COMMON, 'vocab_size': 160, 'hidden_size': 40, 'num_hidden_layers': 3,
                'layer_types': [S, S, F], 'num_attention_heads': 4, 'num_key_value_heads': 2,
                'num_global_key_value_heads': 1, 'head_dim': 16, 'global_head_dim': 32,
                'intermediate_size': 56, 'attention_k_eq_v': True, 'sliding_window': 8,
                'num_kv_shared_layers': 3, 'enable_moe_block': False,
                'vocab_size_per_layer_input': 0, 'rope_parameters': ROPE}},
        'prompt': 29, 'verified': 6, 'kept': 3, 'drafts': [7, 4]},
    'draft_dense': {
        'target': {
            **COMMON, 'vocab_size': 128, 'hidden_size': 40, 'num_hidden_layers': 4,
            'layer_types': [S, F, S, F], 'num_attention_heads': 6, 'num_key_value_heads': 3,
            'num_global_key_value_heads': 2, 'head_dim': 16, 'global_head_dim': 32,
            'intermediate_size': 64, 'attention_k_eq_v': True, 'sliding_window': 70,
            'rope_parameters': ROPE},
        'dflash': {
            'architectures': ['DFlashDraftModel'], 'model_type': 'qwen3', 'hidden_size': 40,
            'intermediate_size': 72, 'num_hidden_layers': 2, 'num_attention_heads': 4,
            'num_key_value_heads': 4, 'head_dim': 16, 'layer_types': [S, F],
            'sliding_window': 90, 'block_size': 16, 'rms_norm_eps': 1e-5,
            'rope_theta': 10_000.0, 'vocab_size': 128,
            'dflash_config': {'mask_token_id': 5, 'target_layer_ids': [1, 3]}},
        'mtp': {
            'model_type': 'gemma4_assistant', 'backbone_hidden_size': 40,
            'use_ordered_embeddings': False,
            'text_config': {
                **COMMON, 'vocab_size': 128, 'hidden_size': 24, 'num_hidden_layers': 2,
                'layer_types': [S, F], 'num_attention_heads': 6, 'num_key_value_heads': 3,
                'num_global_key_value_heads': 2, 'head_dim': 16, 'global_head_dim': 32,
                'intermediate_size': 48, 'attention_k_eq_v': True, 'sliding_window': 70,
                'num_kv_shared_layers': 2, 'enable_moe_block': False,
                'vocab_size_per_layer_input': 0, 'rope_parameters': ROPE}},
        'prompt': 147, 'verified': 5, 'kept': 2, 'drafts': [15, 4]},
}
MASKS = ('auto', 'causal', 'bidirectional')
POSITIONS = ('newest', 'last_key')


def weights_of(kind: str, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """float64 counter weights of a drafter by canonical name."""
    return {name: torch.from_numpy(
        counter_weights.tensor(f'{kind}.{name}', shape).astype(np.float64))
            for name, shape in drafter_shapes(config).items()}


@torch.no_grad()
def target_state(model: Any, tokens: list[int]) -> tuple[list[torch.Tensor], Any, torch.Tensor]:
    """Each layer's output (L, H), the K and V of all layers, and the normed last rows (L, H)."""
    outputs: list[torch.Tensor] = []
    hooks = [layer.register_forward_hook(lambda _m, _a, out: outputs.append(out[0].clone()))
             for layer in model.model.layers]
    cache = DynamicCache()
    last = model.model(input_ids=torch.tensor([tokens]), past_key_values=cache,
                       use_cache=True).last_hidden_state[0]
    for hook in hooks:
        hook.remove()
    return outputs, cache, last


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def turn(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rope over all pairs (i, i + D / 2) of x (T, heads, D)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = (positions.double()[:, None] * frequency)[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


@torch.no_grad()
def dflash_logits(config: dict[str, Any], w: dict[str, torch.Tensor], layers: list[torch.Tensor],
                  table: torch.Tensor, token: int, count: int, mask: str) -> torch.Tensor:
    """Logits (count, V) of the block after `token`, whose position is the number of rows."""
    own, eps = config['dflash_config'], config['rms_norm_eps']
    position, size = layers[0].shape[0], config['block_size']
    dim, theta = config['head_dim'], config['rope_theta']
    group = config['num_attention_heads'] // config['num_key_value_heads']
    context = rms(torch.cat([layers[i] for i in own['target_layer_ids']], -1) @ w['fc'].T,
                  w['hidden_norm'], eps)
    scale = torch.tensor(config['hidden_size'] ** 0.5, dtype=torch.bfloat16).double()
    ids = torch.tensor([token] + [own['mask_token_id']] * (size - 1))
    x = table[ids] * scale
    rows = torch.arange(position, position + size)
    keys_at = torch.arange(position + size)
    for index, kind in enumerate(config['layer_types']):
        at = f'layers.{index}.'
        y = rms(x, w[at + 'input_layernorm'], eps)
        keys = torch.cat([context, y])
        q = (y @ w[at + 'self_attn.q_proj'].T).unflatten(-1, (-1, dim))
        k = (keys @ w[at + 'self_attn.k_proj'].T).unflatten(-1, (-1, dim))
        v = (keys @ w[at + 'self_attn.v_proj'].T).unflatten(-1, (-1, dim))
        q = turn(rms(q, w[at + 'self_attn.q_norm'], eps), rows, theta)
        k = turn(rms(k, w[at + 'self_attn.k_norm'], eps), keys_at, theta)
        causal = kind == S if mask == 'auto' else mask == 'causal'
        seen = keys_at <= rows[:, None] if causal else torch.ones(size, len(keys_at)) > 0
        if kind == S:
            seen = seen & (rows[:, None] - keys_at < config['sliding_window'])
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum('ihd,jhd->hij', q, k) / dim ** 0.5
        shares = scores.masked_fill(~seen, float('-inf')).softmax(-1)
        x = x + torch.einsum('hij,jhd->ihd', shares, v).flatten(1) @ w[at + 'self_attn.o_proj'].T
        y = rms(x, w[at + 'post_attention_layernorm'], eps)
        inner = functional.silu(y @ w[at + 'mlp.gate_proj'].T) * (y @ w[at + 'mlp.up_proj'].T)
        x = x + inner @ w[at + 'mlp.down_proj'].T
    cap = config.get('final_logit_softcapping', 30.0)
    return cap * torch.tanh(rms(x[1:count + 1], w['norm'], eps) @ table.T / cap)


def assistant(config: dict[str, Any], w: dict[str, torch.Tensor]) -> Any:
    """transformers' own assistant with the counter weights."""
    text = {key: value for key, value in config['text_config'].items() if key != 'model_type'}
    # its two-sided mask shows one key more than the window; served assistants see the window
    text['sliding_window'] -= 1
    model = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**text), backbone_hidden_size=config['backbone_hidden_size'],
        use_ordered_embeddings=False)).double().eval()
    model.set_attn_implementation('eager')
    state = {}
    for name, value in w.items():
        disk = drafter_disk_name('mtp', name)
        state[disk if name.endswith('layer_scalar') else f'{disk}.weight'] = value
    state['lm_head.weight'] = w['embed_tokens']
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise SystemExit(f'weights do not fit: missing {missing}, unexpected {unexpected}')
    return model


@torch.no_grad()
def mtp_logits(model: Any, target: Any, cache: Any, last: torch.Tensor, token: int, count: int,
               position: str) -> torch.Tensor:
    """Logits (count, V) of a chain of greedy drafts, all at one rope position."""
    kinds = target.config.layer_types
    shared = {}
    for kind in sorted(set(model.config.get_text_config().layer_types)):
        layer = max(i for i, other in enumerate(kinds) if other == kind)
        shared[kind] = (cache.layers[layer].keys, cache.layers[layer].values)
    num_keys = last.shape[0]
    at = num_keys - (position == 'last_key')
    scale = target.model.embed_tokens.embed_scale
    table = target.model.embed_tokens.weight
    hidden, found = last[-1], []
    for _ in range(count):
        row = torch.cat([table[token] * scale, hidden])[None, None]
        out = model(inputs_embeds=row, position_ids=torch.tensor([[at]]), shared_kv_states=shared)
        found.append(out.logits[0, 0])
        hidden, token = out.last_hidden_state[0, 0], int(out.logits[0, 0].argmax())
    return torch.stack(found)


def main() -> None:
    """Make all goldens."""
    torch.set_num_threads(1)
    folder = ROOT / 'test' / 'data' / 'goldens'
    record: dict[str, Any] = {
        'made_by': 'scripts/make_draft_goldens.py', 'torch': torch.__version__,
        'transformers': transformers.__version__, 'numpy': np.__version__, 'cases': {}}
    for name, case in CASES.items():
        config = ModelConfig.from_dict(case['target'])
        length = case['prompt'] + case['verified']
        numbers = counter_weights.counter_bytes(f'{name}.tokens', length + 1)
        tokens = (numbers % config.vocab_size).tolist()
        # round 2: `kept` of the verified rows are committed, then comes another newest token
        committed = case['prompt'] + case['kept']
        rounds = [(tokens[:case['prompt']], tokens[case['prompt']]),
                  (tokens[:committed], tokens[-1])]
        results: dict[str, list[np.ndarray]] = {}
        with _float64_everywhere():
            target = _build(config, case['target'], torch.float64)
            table = target.model.embed_tokens.weight.detach()
            w = weights_of('dflash', case['dflash'])
            helper = assistant(case['mtp'], weights_of('mtp', case['mtp']))
            for known, newest in rounds:
                layers, cache, last = target_state(target, known)
                for mask in MASKS:
                    results.setdefault(f'dflash_{mask}', []).append(dflash_logits(
                        case['dflash'], w, layers, table, newest, case['drafts'][0],
                        mask).numpy())
                for position in POSITIONS:
                    results.setdefault(f'mtp_{position}', []).append(mtp_logits(
                        helper, target, cache, last, newest, case['drafts'][1],
                        position).detach().numpy())
        arrays = {key: np.stack(parts) for key, parts in results.items()}
        assert all(array.dtype == np.float64 for array in arrays.values())
        np.savez_compressed(folder / f'{name}.npz', **arrays)
        record['cases'][name] = {**case, 'tokens': tokens}
        print(name, {key: array.shape for key, array in arrays.items()})
    (folder / 'drafts.json').write_text(json.dumps(record, indent=1) + '\n')


if __name__ == '__main__':
    main()
