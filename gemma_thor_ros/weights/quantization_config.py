# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What config.json says about quantisation, in the words of either format.

Our own reader decides by the tensors; this is for the other programs that read a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from gemma_thor_ros.weights.canonical import GROUP_SIZE
from gemma_thor_ros.weights.quantize import Convention

# Modules that stay bf16, as globs over on-disk module names: what the published packs keep.
DEFAULT_IGNORE = ('lm_head', '*embed*', '*router*', '*vision_tower*')
# The second published recipe: attention stays bf16 too.
ATTENTION = '*self_attn*'

_PRODUCER = {'name': 'modelopt', 'version': '0.47.0'}    # the version whose files we follow


def is_ignored(module: str, ignore: Sequence[str]) -> bool:
    """True when a glob of the list matches the on-disk module name."""
    return any(fnmatchcase(module, pattern) for pattern in ignore)


def quantization_config(convention: Convention, ignore: Sequence[str],
                        quantized_inputs: bool) -> dict[str, Any]:
    """The value of config.json's quantization_config.

    `quantized_inputs` tells of W4A4 packs, which store input scales; without it the scheme is
    weight-only (NVFP4A16 in one format, W4A16_NVFP4 in the other).
    """
    if convention is Convention.MODELOPT:
        return _modelopt(ignore, quantized_inputs)
    inputs = {**_arguments('static_minmax'), 'dynamic': 'local'} if quantized_inputs else None
    return {
        'config_groups': {'group_0': {
            'format': 'nvfp4-pack-quantized',
            'input_activations': inputs,
            'output_activations': None,
            'targets': ['Linear'],
            'weights': {**_arguments('memoryless_minmax'), 'dynamic': False},
        }},
        'format': 'nvfp4-pack-quantized',
        'global_compression_ratio': None,
        'ignore': [_as_regex(pattern) for pattern in ignore],
        'kv_cache_scheme': None,
        'quant_method': 'compressed-tensors',
        'quantization_status': 'compressed',
        'sparsity_config': {},
        'transform_config': {},
    }


def hf_quant_config(ignore: Sequence[str], quantized_inputs: bool) -> dict[str, Any]:
    """The separate hf_quant_config.json of ModelOpt checkpoints."""
    return {
        'producer': _PRODUCER,
        'quantization': {
            'quant_algo': 'NVFP4' if quantized_inputs else 'W4A16_NVFP4',
            'kv_cache_quant_algo': 'FP8' if quantized_inputs else None,
            'group_size': GROUP_SIZE,
            'exclude_modules': list(ignore),
        },
    }


def _modelopt(ignore: Sequence[str], quantized_inputs: bool) -> dict[str, Any]:
    arguments = {'dynamic': False, 'num_bits': 4, 'type': 'float', 'group_size': GROUP_SIZE}
    group: dict[str, Any] = {'weights': arguments, 'targets': ['Linear']}
    config: dict[str, Any] = {
        'config_groups': {'group_0': group},
        'ignore': list(ignore),
        'quant_algo': 'NVFP4' if quantized_inputs else 'W4A16_NVFP4',
        'producer': _PRODUCER,
        'quant_method': 'modelopt',
    }
    if quantized_inputs:
        group['input_activations'] = arguments
        config['kv_cache_scheme'] = {'dynamic': False, 'num_bits': 8, 'type': 'float'}
    return config


def _arguments(observer: str) -> dict[str, Any]:
    return {
        'actorder': None, 'block_structure': None, 'group_size': GROUP_SIZE, 'num_bits': 4,
        'observer': observer, 'observer_kwargs': {}, 'scale_dtype': 'torch.float8_e4m3fn',
        'strategy': 'tensor_group', 'symmetric': True, 'type': 'float',
        'zp_dtype': 'torch.float8_e4m3fn',
    }


def _as_regex(glob: str) -> str:
    """The same pattern for compressed-tensors: a plain name, or 're:' and a regular expression."""
    if '*' not in glob:
        return glob
    return 're:' + '.*'.join(re.escape(part) for part in glob.split('*'))
