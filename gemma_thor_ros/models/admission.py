# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads config.json and generation_config.json and refuses what the engine can't run exactly.

Gives the keyword arguments of `ModelConfig`. Every refusal is one ConfigError sentence with the
field, its value and the value that would be right. Knows no arrays and no files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gemma_thor_ros.schema import ConfigError

SUPPORTED = ('supported are gemma4 (26B-A4B, 31B, E4B, E2B and smaller ones of that design) '
             'and gemma4_unified (the text of the 12B)')
FAMILIES = {
    'gemma4': 'gemma4', 'gemma4_text': 'gemma4',
    'gemma4_unified': 'gemma4_unified', 'gemma4_unified_text': 'gemma4_unified',
}
DRAFTERS = ('gemma4_assistant', 'gemma4_unified_assistant')
# <eos>, <turn|> and <|tool_response>: the model ends its turn with any of them.
STOP_IDS = (1, 50, 106)
MEDIA_KEYS = ('image_token_id', 'video_token_id', 'audio_token_id', 'boi_token_id',
              'eoi_token_id', 'boa_token_id', 'eoa_token_index')
LAYER_TYPES = ('sliding_attention', 'full_attention')


def admitted_fields(config: Mapping[str, Any],
                    generation_config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Keyword arguments of `ModelConfig`; raises ConfigError when the model can't be run."""
    if not isinstance(config, Mapping):
        raise ConfigError(f'config.json holds a {type(config).__name__}, expected an object')
    family, text = _family_and_text(config)
    fields = {'model_type': family, **_sizes(text), **_attention(text), **_experts(text)}
    fields.update(_rope(text, fields['global_head_dim']))
    fields.update(_per_layer_inputs(text, family, fields['vocab_size']))
    fields.update(_shared_layers(text, fields['layer_types']))
    _refuse_unsupported(text, family)
    outer = config if config is not text else text
    fields.update(_token_ids(outer, text, generation_config or {}, family, fields['vocab_size']))
    return fields


def _family_and_text(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    model_type = config.get('model_type')
    if model_type in DRAFTERS:
        raise ConfigError(f'model_type {model_type} is a drafter, not a model; {SUPPORTED}')
    if model_type not in FAMILIES:
        raise ConfigError(f'model_type {model_type!r} is not supported; {SUPPORTED}')
    family = FAMILIES[str(model_type)]
    if 'text_config' in config:
        text = config['text_config']
        if not isinstance(text, Mapping):
            raise ConfigError(f'text_config is {text!r}: this checkpoint has no text decoder')
        inner = text.get('model_type', model_type)
        if FAMILIES.get(inner) != family:
            raise ConfigError(f'text_config.model_type is {inner!r}, expected {family}_text '
                              f'beside model_type {model_type}')
        return family, text
    if 'hidden_size' not in config:
        raise ConfigError(f'model_type {model_type} has neither text_config nor hidden_size: '
                          'this checkpoint has no text decoder')
    return family, config


def integer(text: Mapping[str, Any], key: str, default: int | None = None,
            minimum: int = 1) -> int:
    """An integer of a config, checked; ConfigError names the field."""
    value = text.get(key)
    if value is None:
        value = default
    if value is None:
        raise ConfigError(f'{key} is missing from config.json')
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f'{key} is {value!r}, expected an integer')
    if value < minimum:
        raise ConfigError(f'{key} is {value}, expected at least {minimum}')
    return value


def number(text: Mapping[str, Any], key: str, default: float | None, where: str = '') -> float:
    """A positive finite number of a config, checked; ConfigError names the field."""
    value = text.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f'{where}{key} is {value!r}, expected a number')
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(f'{where}{key} is {value}, expected a positive number')
    return float(value)


def _boolean(text: Mapping[str, Any], key: str, default: bool) -> bool:
    value = text.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f'{key} is {value!r}, expected true or false')
    return value


def _sizes(text: Mapping[str, Any]) -> dict[str, Any]:
    num_layers = integer(text, 'num_hidden_layers')
    softcap = text.get('final_logit_softcapping')
    if softcap is None:
        raise ConfigError('final_logit_softcapping is missing or null; the models of this '
                          'family cap at 30.0 and the engine always caps')
    return {
        'vocab_size': integer(text, 'vocab_size'),
        'hidden_size': integer(text, 'hidden_size'),
        'intermediate_size': integer(text, 'intermediate_size'),
        'num_hidden_layers': num_layers,
        'layer_types': _layer_types(text, num_layers),
        'max_position_embeddings': integer(text, 'max_position_embeddings', 131_072),
        'rms_norm_eps': number(text, 'rms_norm_eps', 1e-6),
        'final_logit_softcapping': number(text, 'final_logit_softcapping', None),
    }


def _layer_types(text: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    kinds = text.get('layer_types')
    if kinds is None:
        # five sliding layers, then a full one; the last is full whatever the count
        kinds = [LAYER_TYPES[(i + 1) % 6 == 0 or i == num_layers - 1] for i in range(num_layers)]
    if not isinstance(kinds, Sequence) or isinstance(kinds, str):
        raise ConfigError(f'layer_types is {kinds!r}, expected a list')
    if len(kinds) != num_layers:
        raise ConfigError(f'layer_types has {len(kinds)} entries, '
                          f'num_hidden_layers is {num_layers}')
    for index, kind in enumerate(kinds):
        if kind not in LAYER_TYPES:
            raise ConfigError(f'layer_types[{index}] is {kind!r}, expected sliding_attention '
                              'or full_attention')
    if kinds[-1] != 'full_attention':
        raise ConfigError(f'layer_types[{num_layers - 1}] is {kinds[-1]}: the last layer of '
                          'this family is always full_attention')
    return tuple(kinds)


def _attention(text: Mapping[str, Any]) -> dict[str, Any]:
    num_q_heads = integer(text, 'num_attention_heads')
    num_kv_heads = integer(text, 'num_key_value_heads')
    k_eq_v = _boolean(text, 'attention_k_eq_v', False)
    head_dim = integer(text, 'head_dim')
    override = _full_layer_override(text)
    global_head_dim = integer(override, 'head_dim', integer(text, 'global_head_dim', 512))
    # without k_eq_v the family ignores num_global_key_value_heads
    num_global = num_kv_heads
    if 'num_key_value_heads' in override:
        num_global = integer(override, 'num_key_value_heads')
    elif k_eq_v:
        num_global = integer(text, 'num_global_key_value_heads', num_kv_heads)
    for key, heads in (('num_key_value_heads', num_kv_heads),
                       ('num_global_key_value_heads', num_global)):
        if num_q_heads % heads:
            raise ConfigError(f'num_attention_heads {num_q_heads} is not a multiple of '
                              f'{key} {heads}')
    for key, size in (('head_dim', head_dim), ('global_head_dim', global_head_dim)):
        if size % 2:
            raise ConfigError(f'{key} is {size}: rope pairs two halves, so it must be even')
    window = integer(text, 'sliding_window', 512)
    return {
        'num_attention_heads': num_q_heads, 'num_key_value_heads': num_kv_heads,
        'num_global_key_value_heads': num_global, 'head_dim': head_dim,
        'global_head_dim': global_head_dim, 'attention_k_eq_v': k_eq_v,
        'sliding_window': window,
    }


def _full_layer_override(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """The full layers' sizes where newer writers fold them into `per_layer_config`."""
    per_layer = text.get('per_layer_config')
    if not per_layer:
        return {}
    num_layers = integer(text, 'num_hidden_layers')
    kinds = _layer_types(text, num_layers)
    full = {str(i) for i, kind in enumerate(kinds) if kind == 'full_attention'}
    if set(map(str, per_layer)) != full:
        raise ConfigError(f'per_layer_config names layers {sorted(map(str, per_layer))}, '
                          f'the full_attention layers are {sorted(full)}')
    overrides = list(per_layer.values())
    if any(other != overrides[0] for other in overrides):
        raise ConfigError(f'per_layer_config differs between full layers: {overrides}')
    unknown = set(overrides[0]) - {'head_dim', 'num_key_value_heads'}
    if unknown:
        raise ConfigError(f'per_layer_config sets {sorted(unknown)}; '
                          'only head_dim and num_key_value_heads may differ by layer')
    first: Mapping[str, Any] = overrides[0]
    return first


def _experts(text: Mapping[str, Any]) -> dict[str, Any]:
    if not _boolean(text, 'enable_moe_block', False):
        return {'enable_moe_block': False, 'num_experts': 0, 'top_k_experts': 0,
                'moe_intermediate_size': 0}
    num_experts = integer(text, 'num_experts')
    top_k = integer(text, 'top_k_experts')
    if top_k > num_experts:
        raise ConfigError(f'top_k_experts is {top_k}, num_experts only {num_experts}')
    return {'enable_moe_block': True, 'num_experts': num_experts, 'top_k_experts': top_k,
            'moe_intermediate_size': integer(text, 'moe_intermediate_size')}


def _rope(text: Mapping[str, Any], global_head_dim: int) -> dict[str, Any]:
    parameters = text.get('rope_parameters')
    if parameters is None:
        parameters = {}
    expected = (('sliding_attention', 'default', 10_000.0),
                ('full_attention', 'proportional', 1_000_000.0))
    thetas = []
    factor = 0.25
    for kind, rope_type, theta in expected:
        rope = parameters.get(kind, {'rope_type': rope_type})
        where = f'rope_parameters.{kind}.'
        if rope.get('rope_type') != rope_type:
            raise ConfigError(f'{where}rope_type is {rope.get("rope_type")!r}, '
                              f'expected {rope_type!r}')
        scaling = rope.get('factor', 1.0)
        if scaling != 1.0:
            raise ConfigError(f'{where}factor is {scaling}, only 1.0 is supported')
        thetas.append(number(rope, 'rope_theta', theta, where))
        share = number(rope, 'partial_rotary_factor', 1.0 if kind != 'full_attention' else 0.25,
                        where)
        if kind == 'full_attention':
            factor = share
        elif share != 1.0:
            raise ConfigError(f'{where}partial_rotary_factor is {share}, expected 1.0')
    pairs = int(factor * global_head_dim // 2)
    if factor > 1.0 or pairs < 1:
        raise ConfigError(f'rope_parameters.full_attention.partial_rotary_factor is {factor}: '
                          f'it rotates {pairs} of the {global_head_dim // 2} pairs')
    return {'sliding_rope_theta': thetas[0], 'full_rope_theta': thetas[1],
            'full_rotary_factor': factor}


def _per_layer_inputs(text: Mapping[str, Any], family: str, vocab_size: int) -> dict[str, Any]:
    """The per-layer embeddings of E2B and E4B; both sizes are 0 without them."""
    # gemma4 means per-layer inputs where the field is absent, gemma4_unified has none
    size = integer(text, 'hidden_size_per_layer_input', 256 if family == 'gemma4' else 0, 0)
    if not size:
        return {'hidden_size_per_layer_input': 0, 'vocab_size_per_layer_input': 0}
    if family == 'gemma4_unified':
        raise ConfigError(f'hidden_size_per_layer_input is {size}, but gemma4_unified has no '
                          'per-layer embeddings')
    if text.get('enable_moe_block'):
        raise ConfigError(f'hidden_size_per_layer_input is {size} (256 where absent) beside '
                          'enable_moe_block true: a model has experts (26B-A4B) or per-layer '
                          'embeddings (E2B, E4B), not both')
    rows = integer(text, 'vocab_size_per_layer_input', 262_144)
    if rows < vocab_size:
        raise ConfigError(f'vocab_size_per_layer_input is {rows}, vocab_size is {vocab_size}: '
                          'every token needs its per-layer embedding')
    return {'hidden_size_per_layer_input': size, 'vocab_size_per_layer_input': rows}


def _shared_layers(text: Mapping[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    shared = integer(text, 'num_kv_shared_layers', 0, minimum=0)
    own = len(kinds) - shared
    if shared and own < 1:
        raise ConfigError(f'num_kv_shared_layers is {shared} of {len(kinds)} layers: none is left '
                          'that has K and V')
    for index in range(own, len(kinds)):
        if kinds[index] not in kinds[:own]:
            raise ConfigError(f'num_kv_shared_layers is {shared}: layer {index} is '
                              f'{kinds[index]}, but no layer before {own} is, whose K and V it '
                              'could read')
    return {'num_kv_shared_layers': shared,
            'use_double_wide_mlp': _boolean(text, 'use_double_wide_mlp', False)}


def _refuse_unsupported(text: Mapping[str, Any], family: str) -> None:
    if family == 'gemma4_unified' and text.get('enable_moe_block'):
        raise ConfigError('enable_moe_block is true, but gemma4_unified has no experts')
    activation = text.get('hidden_activation', 'gelu_pytorch_tanh')
    if activation != 'gelu_pytorch_tanh':
        raise ConfigError(f'hidden_activation is {activation!r}, expected gelu_pytorch_tanh')
    if text.get('attention_bias'):
        raise ConfigError('attention_bias is true, expected false')
    if text.get('attn_logit_softcapping') is not None:
        raise ConfigError(f'attn_logit_softcapping is {text["attn_logit_softcapping"]}, '
                          'expected null: this family caps final logits only')
    if not text.get('tie_word_embeddings', True):
        raise ConfigError('tie_word_embeddings is false, expected true: '
                          'the head is the embedding table')
    bidirectional = text.get('use_bidirectional_attention')
    if bidirectional not in (None, 'vision'):
        raise ConfigError(f'use_bidirectional_attention is {bidirectional!r}, expected null or '
                          '"vision": encoders that look ahead are not supported')


def _id_list(value: Any, where: str, vocab_size: int) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise ConfigError(f'{where} holds {token!r}, expected token ids')
        if not 0 <= token < vocab_size:
            raise ConfigError(f'{where} holds {token}, vocab_size is {vocab_size}')
    return tuple(sorted(set(ids)))


def _token_ids(outer: Mapping[str, Any], text: Mapping[str, Any],
               generation: Mapping[str, Any], family: str, vocab_size: int) -> dict[str, Any]:
    eos = _id_list(generation.get('eos_token_id'), 'generation_config eos_token_id', vocab_size)
    if not eos:
        configured = outer.get('eos_token_id', text.get('eos_token_id'))
        eos = _id_list(configured, 'eos_token_id', vocab_size)
    if not eos:
        eos = tuple(token for token in STOP_IDS if token < vocab_size)
    stop = sorted({*eos, *(token for token in STOP_IDS if token < vocab_size)})
    media = tuple((key, integer(outer, key, minimum=0)) for key in MEDIA_KEYS
                  if outer.get(key) is not None)
    suppress = generation.get('suppress_tokens')
    if suppress is None and family == 'gemma4_unified':
        # the 12B writes these two in greedy text unless they are held back
        ends = dict(media)
        suppress = [ends[key] for key in ('eoa_token_index', 'eoi_token_id') if key in ends]
    suppressed = _id_list(suppress, 'generation_config suppress_tokens', vocab_size)
    return {
        'bos_token_id': integer(text, 'bos_token_id', 2, minimum=0),
        'pad_token_id': integer(text, 'pad_token_id', 0, minimum=0),
        'eos_token_ids': eos, 'stop_ids': tuple(stop), 'suppress_tokens': suppressed,
        'media_token_ids': media,
        'use_bidirectional_attention': text.get('use_bidirectional_attention'),
    }
