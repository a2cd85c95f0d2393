# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Naive decoders and a checkpoint writer that share no code with the package under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

DTYPES = {'BF16': 'bfloat16', 'F8_E4M3': 'float8_e4m3fn', 'U8': 'uint8', 'F32': 'float32',
          'I32': 'int32', 'F16': 'float16'}

Tensors = dict[str, tuple[str, Any]]     # name -> (dtype of the header, array of its bits)


def e4m3(code: int) -> float:
    """Sign, 4 exponent bits with bias 7, 3 mantissa bits; no infinities."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 0:
        return sign * mantissa / 8 * 2.0 ** -6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def e2m1(code: int) -> float:
    """Sign, 2 exponent bits with bias 1, 1 mantissa bit."""
    sign = -1.0 if code & 8 else 1.0
    exponent, mantissa = (code >> 1) & 3, code & 1
    if exponent == 0:
        return sign * mantissa / 2
    return sign * (1 + mantissa / 2) * 2.0 ** (exponent - 1)


def decode(packed: Any, scales: Any, multiplier: float) -> Any:
    """NVFP4 (N, M/2), (N, M/16) to float64 (N, M), one value at a time."""
    rows, half = packed.shape
    values = np.empty((rows, 2 * half))
    for row in range(rows):
        for column in range(2 * half):
            byte = int(packed[row, column // 2])
            code = byte >> 4 if column % 2 else byte & 15
            values[row, column] = e2m1(code) * e4m3(int(scales[row, column // 16])) * multiplier
    return values


def bf16(values: Any) -> Any:
    """bf16 bits by truncation; exact for values that bf16 can hold."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_file(path: Path, tensors: Tensors) -> None:
    """One safetensors file, by the safetensors library."""
    arrays = {name: np.array(array, order='C') for name, (_, array) in tensors.items()}
    specs = {name: safetensors.TensorSpec(dtype=DTYPES[dtype], shape=list(arrays[name].shape),
                                          data_ptr=arrays[name].ctypes.data,
                                          data_len=arrays[name].nbytes)
             for name, (dtype, _) in tensors.items()}
    safetensors.serialize_file(specs, str(path), {'format': 'pt'})


def write_folder(folder: Path, config: dict[str, Any], tensors: Tensors,
                 num_shards: int = 1) -> Path:
    """config.json and one file, or shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(config))
    if num_shards == 1:
        write_file(folder / 'model.safetensors', tensors)
        return folder
    names, weight_map = list(tensors), {}
    for shard in range(num_shards):
        file = f'model-{shard + 1:05d}-of-{num_shards:05d}.safetensors'
        part = {name: tensors[name] for name in names[shard::num_shards]}
        write_file(folder / file, part)
        weight_map.update(dict.fromkeys(part, file))
    index = {'metadata': {'total_size': 0}, 'weight_map': weight_map}
    (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
    return folder


CONFIG: dict[str, Any] = {
    'architectures': ['Gemma4ForConditionalGeneration'],
    'model_type': 'gemma4',
    'text_config': {
        'model_type': 'gemma4_text', 'vocab_size': 64, 'hidden_size': 32,
        'intermediate_size': 48, 'num_hidden_layers': 2, 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'num_global_key_value_heads': 1, 'head_dim': 16,
        'global_head_dim': 32,
        'attention_k_eq_v': True, 'layer_types': ['sliding_attention', 'full_attention'],
        'enable_moe_block': True, 'num_experts': 3, 'top_k_experts': 2,
        'moe_intermediate_size': 16,
        'hidden_size_per_layer_input': 0, 'num_kv_shared_layers': 0,
    },
}

LINEARS = {                              # out, in of every quantisable module of CONFIG
    0: {'self_attn.q_proj': (64, 32), 'self_attn.k_proj': (32, 32), 'self_attn.v_proj': (32, 32),
        'self_attn.o_proj': (32, 64)},
    1: {'self_attn.q_proj': (128, 32), 'self_attn.k_proj': (32, 32),
        'self_attn.o_proj': (32, 128)},
}
MLP = {'mlp.gate_proj': (48, 32), 'mlp.up_proj': (48, 32), 'mlp.down_proj': (32, 48)}
EXPERT = {'gate_proj': (16, 32), 'up_proj': (16, 32), 'down_proj': (32, 16)}


def unquantised(prefix: str, rng: np.random.Generator) -> Tensors:
    """The tensors of CONFIG that every form keeps in bf16."""
    def values(*shape: int) -> tuple[str, Any]:
        return 'BF16', bf16(rng.standard_normal(shape))

    tensors = {f'{prefix}embed_tokens.weight': values(64, 32), f'{prefix}norm.weight': values(32)}
    for layer, head_dim in ((0, 16), (1, 32)):
        start = f'{prefix}layers.{layer}.'
        for name in ('input_layernorm', 'post_attention_layernorm', 'pre_feedforward_layernorm',
                     'post_feedforward_layernorm', 'post_feedforward_layernorm_1',
                     'post_feedforward_layernorm_2', 'pre_feedforward_layernorm_2'):
            tensors[f'{start}{name}.weight'] = values(32)
        tensors[f'{start}self_attn.q_norm.weight'] = values(head_dim)
        tensors[f'{start}self_attn.k_norm.weight'] = values(head_dim)
        tensors[f'{start}layer_scalar'] = values(1)
        tensors[f'{start}router.proj.weight'] = values(3, 32)
        tensors[f'{start}router.scale'] = values(32)
        tensors[f'{start}router.per_expert_scale'] = values(3)
    return tensors


def linears() -> dict[str, tuple[int, int]]:
    """Module -> shape of attention and dense MLP."""
    return {f'layers.{layer}.{name}': shape for layer, attention in LINEARS.items()
            for name, shape in {**attention, **MLP}.items()}


def experts(folder: str = 'experts') -> dict[str, tuple[int, int]]:
    """Module -> shape of the unfused experts."""
    return {f'layers.{layer}.{folder}.{expert}.{name}': shape for layer in (0, 1)
            for expert in range(3) for name, shape in EXPERT.items()}


def nvfp4(module: str, shape: tuple[int, int], form: str, rng: np.random.Generator) -> Tensors:
    """Random codes, finite non-negative scales and a global scale, in either form."""
    rows, columns = shape
    packed = rng.integers(0, 256, (rows, columns // 2), np.uint8)
    scales = rng.integers(0, 127, (rows, columns // 16), np.uint8)
    if form == 'compressed-tensors':
        divisor = rng.uniform(100, 9000, 1).astype(np.float32)
        return {f'{module}.weight_packed': ('U8', packed),
                f'{module}.weight_scale': ('F8_E4M3', scales),
                f'{module}.weight_global_scale': ('F32', divisor),
                f'{module}.input_global_scale': ('F32', np.ones(1, np.float32))}
    multiplier = np.asarray(rng.uniform(1e-4, 1e-2), np.float32)
    return {f'{module}.weight': ('U8', packed), f'{module}.weight_scale': ('F8_E4M3', scales),
            f'{module}.weight_scale_2': ('F32', multiplier),
            f'{module}.input_scale': ('F32', np.asarray(1.0, np.float32))}


def expected(tensors: Tensors, module: str, form: str) -> Any:
    """The float64 values that the stored tensors of a module stand for."""
    if form == 'compressed-tensors':
        divisor = tensors[f'{module}.weight_global_scale'][1][0]
        return decode(tensors[f'{module}.weight_packed'][1], tensors[f'{module}.weight_scale'][1],
                      float(np.float32(1) / divisor))
    return decode(tensors[f'{module}.weight'][1], tensors[f'{module}.weight_scale'][1],
                  float(tensors[f'{module}.weight_scale_2'][1]))
