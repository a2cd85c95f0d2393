# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints are admitted, with which sizes, and what the refusals say."""

from __future__ import annotations

from typing import Any

import pytest
from forward import TINY_INPUTS, TINY_MOE

from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.kv_cache import KVCache, bytes_per_page
from gemma_thor_ros.schema import ConfigError

MEDIA = {'boi_token_id': 255999, 'eoi_token_id': 258882, 'image_token_id': 258880,
         'video_token_id': 258884, 'boa_token_id': 256000, 'eoa_token_index': 258883,
         'audio_token_id': 258881}
ROPE = {'sliding_attention': {'rope_type': 'default', 'rope_theta': 10000.0},
        'full_attention': {'rope_type': 'proportional', 'rope_theta': 1000000.0,
                           'partial_rotary_factor': 0.25}}
LARGE: dict[str, Any] = {
    'vocab_size': 262144, 'head_dim': 256, 'global_head_dim': 512, 'sliding_window': 1024,
    'attention_k_eq_v': True, 'num_kv_shared_layers': 0, 'hidden_activation': 'gelu_pytorch_tanh',
    'rms_norm_eps': 1e-6, 'final_logit_softcapping': 30.0, 'tie_word_embeddings': True,
    'max_position_embeddings': 262144, 'use_bidirectional_attention': 'vision',
    'attention_bias': False, 'rope_parameters': ROPE, 'eos_token_id': 1, 'bos_token_id': 2,
    'pad_token_id': 0,
}


def outer(text: dict[str, Any], family: str = 'gemma4') -> dict[str, Any]:
    return {'model_type': family, **MEDIA, 'eos_token_id': [1, 106],
            'text_config': {'model_type': f'{family}_text', **LARGE, **text},
            'vision_config': {'model_type': 'gemma4_vision'}}


A26B = outer({
    'hidden_size': 2816, 'num_hidden_layers': 30, 'intermediate_size': 2112,
    'num_attention_heads': 16, 'num_key_value_heads': 8, 'num_global_key_value_heads': 2,
    'hidden_size_per_layer_input': 0, 'vocab_size_per_layer_input': 262144,
    'enable_moe_block': True, 'num_experts': 128, 'top_k_experts': 8,
    'moe_intermediate_size': 704})
D31B = outer({
    'hidden_size': 5376, 'num_hidden_layers': 60, 'intermediate_size': 21504,
    'num_attention_heads': 32, 'num_key_value_heads': 16, 'num_global_key_value_heads': 4,
    'hidden_size_per_layer_input': 0, 'enable_moe_block': False})
D12B = outer({
    'hidden_size': 3840, 'num_hidden_layers': 48, 'intermediate_size': 15360,
    'num_attention_heads': 16, 'num_key_value_heads': 8, 'num_global_key_value_heads': 1},
    'gemma4_unified')
SMALL = {'num_attention_heads': 8, 'attention_k_eq_v': False, 'sliding_window': 512,
         'max_position_embeddings': 131072, 'hidden_size_per_layer_input': 256,
         'vocab_size_per_layer_input': 262144, 'use_bidirectional_attention': None}
E4B = outer({**SMALL, 'hidden_size': 2560, 'num_hidden_layers': 42, 'intermediate_size': 10240,
             'num_key_value_heads': 2, 'num_kv_shared_layers': 18})
E2B = outer({**SMALL, 'hidden_size': 1536, 'num_hidden_layers': 35, 'intermediate_size': 6144,
             'num_key_value_heads': 1, 'num_kv_shared_layers': 20, 'use_double_wide_mlp': True,
             'layer_types': [('sliding_attention', 'full_attention')[i % 5 == 4]
                             for i in range(35)]})
GENERATION = {'eos_token_id': [1, 106, 50], 'temperature': 1.0}


@pytest.mark.parametrize(('raw', 'full_layers', 'qkv', 'parameters'), [
    (A26B, (5, 11, 17, 23, 29), (8192, 9216), 25.2e9),
    (D31B, tuple(range(5, 60, 6)), (16384, 18432), 30.7e9),
    (D12B, tuple(range(5, 48, 6)), (8192, 8704), 11.9e9),
])
def test_real_models(raw: dict[str, Any], full_layers: tuple[int, ...], qkv: tuple[int, int],
                     parameters: float) -> None:
    config = ModelConfig.from_dict(raw, GENERATION)
    assert config.layers_of('full_attention') == full_layers
    assert (config.sliding.qkv_rows, config.full.qkv_rows) == qkv
    assert (config.sliding.num_rotary_pairs, config.full.num_rotary_pairs) == (128, 64)
    assert (config.sliding.window, config.full.window) == (1024, None)
    assert config.stop_ids == config.eos_token_ids == (1, 50, 106)
    assert dict(config.media_token_ids)['image_token_id'] == 258880
    assert config.num_parameters == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize(('raw', 'first', 'sources', 'qkv', 'mlp', 'parameters'), [
    (E4B, 24, (22, 23), (3072, 6144), 10240, 7.5e9),
    (E2B, 15, (13, 14), (2560, 5120), 12288, 4.65e9),
])
def test_small_models(raw: dict[str, Any], first: int, sources: tuple[int, int],
                      qkv: tuple[int, int], mlp: int, parameters: float) -> None:
    config = ModelConfig.from_dict(raw, GENERATION)
    assert config.prompt_variant == 'small'
    assert (config.sliding.qkv_rows, config.full.qkv_rows) == qkv
    assert config.first_shared_layer == first
    for layer in range(config.num_hidden_layers):
        shared = sources[config.layer_types[layer] == 'full_attention']
        assert config.kv_layer(layer) == (layer if layer < first else shared)
    assert (config.mlp_size(first - 1), config.mlp_size(first)) == (
        config.intermediate_size, mlp)
    assert config.num_parameters == pytest.approx(parameters, rel=0.01)


def test_shared_layers_have_no_pages_of_their_own() -> None:
    config = ModelConfig.from_dict(TINY_INPUTS)
    assert (config.first_shared_layer, config.kv_layer(4)) == (2, 1)
    cache = KVCache(config, 5, 3, 16, 'float32')
    assert cache.k_pages[2] is cache.k_pages[3] is cache.k_pages[0]
    assert cache.v_pages[4] is cache.v_pages[1]
    sliding, full = bytes_per_page(config, 16, 4)
    assert (sliding, full) == (2 * 16 * 16 * 4, 2 * 16 * 32 * 4)
    assert cache.num_bytes == 5 * sliding + 3 * full


def test_12b_holds_back_media_ends() -> None:
    with_file = {**GENERATION, 'suppress_tokens': [258883, 258882]}
    for generation in (with_file, GENERATION, None):
        config = ModelConfig.from_dict(D12B, generation)
        assert config.suppress_tokens == (258882, 258883)
    assert ModelConfig.from_dict(A26B, GENERATION).suppress_tokens == ()


def test_stop_ids_always_hold_the_three() -> None:
    assert ModelConfig.from_dict(A26B).eos_token_ids == (1, 106)
    assert ModelConfig.from_dict(A26B).stop_ids == (1, 50, 106)
    assert ModelConfig.from_dict(A26B, {'eos_token_id': 7}).stop_ids == (1, 7, 50, 106)
    tiny = ModelConfig.from_dict(TINY_MOE)      # 96 ids: <turn|> does not exist
    assert tiny.eos_token_ids == tiny.stop_ids == (1, 50)


def test_text_only_config_is_the_same_model() -> None:
    text = ModelConfig.from_dict(A26B['text_config'], GENERATION)
    whole = ModelConfig.from_dict({k: v for k, v in A26B.items() if k not in MEDIA}, GENERATION)
    assert text == whole


def test_per_layer_config_of_newer_writers() -> None:
    flat = dict(A26B['text_config'])
    for key in ('global_head_dim', 'num_global_key_value_heads'):
        del flat[key]
    flat['layer_types'] = list(ModelConfig.from_dict(A26B).layer_types)
    flat['per_layer_config'] = {str(i): {'head_dim': 512, 'num_key_value_heads': 2}
                                for i in (5, 11, 17, 23, 29)}
    assert ModelConfig.from_dict(flat) == ModelConfig.from_dict(A26B['text_config'])
    flat['per_layer_config']['29'] = {'head_dim': 256, 'num_key_value_heads': 2}
    with pytest.raises(ConfigError, match='differs between full layers'):
        ModelConfig.from_dict(flat)
    del flat['per_layer_config']['29']
    with pytest.raises(ConfigError, match=r"\['11', '17', '23', '5'\].*\['11', '17', '23', '29'"):
        ModelConfig.from_dict(flat)


def test_without_k_eq_v_full_layers_have_v_and_all_kv_heads() -> None:
    config = ModelConfig.from_dict({**TINY_MOE, 'attention_k_eq_v': False})
    assert (config.num_global_key_value_heads, config.full.has_v_proj) == (2, True)


@pytest.mark.parametrize(('change', 'words'), [
    ({'model_type': 'llama'}, ("'llama'", 'gemma4', '26B-A4B')),
    ({'model_type': 'gemma3_text'}, ("'gemma3_text'",)),
    ({'model_type': None}, ('None',)),
    ({'model_type': 'gemma4_assistant'}, ('drafter',)),
    ({'hidden_size': None}, ('hidden_size is missing',)),
    ({'num_attention_heads': 6, 'num_key_value_heads': 4}, ('6', 'num_key_value_heads 4')),
    ({'num_global_key_value_heads': 3}, ('4', 'num_global_key_value_heads 3')),
    ({'num_hidden_layers': 5}, ('4 entries', '5')),
    ({'layer_types': ['full_attention'] * 3 + ['sliding_attention']}, ('[3]', 'full_attention')),
    ({'layer_types': ['linear'] * 4}, ('[0]', "'linear'")),
    ({'layer_types': 'full_attention'}, ('expected a list',)),
    ({'head_dim': 15}, ('head_dim is 15', 'even')),
    ({'global_head_dim': 33}, ('global_head_dim is 33', 'even')),
    ({'hidden_activation': 'silu'}, ("'silu'", 'gelu_pytorch_tanh')),
    ({'final_logit_softcapping': None}, ('final_logit_softcapping', '30.0')),
    ({'final_logit_softcapping': -1.0}, ('-1.0', 'positive')),
    ({'attn_logit_softcapping': 50.0}, ('attn_logit_softcapping is 50.0',)),
    ({'top_k_experts': 7}, ('top_k_experts is 7', 'num_experts only 6')),
    ({'num_experts': None}, ('num_experts is missing',)),
    ({'num_experts': True}, ('num_experts is True', 'integer')),
    ({'vocab_size': 0}, ('vocab_size is 0', 'at least 1')),
    ({'vocab_size': '96'}, ("'96'", 'integer')),
    ({'sliding_window': 2.5}, ('2.5', 'integer')),
    ({'enable_moe_block': 1}, ('enable_moe_block is 1',)),
    ({'rms_norm_eps': float('nan')}, ('rms_norm_eps is nan',)),
    ({'attention_bias': True}, ('attention_bias',)),
    ({'tie_word_embeddings': False}, ('tie_word_embeddings',)),
    ({'use_bidirectional_attention': 'all'}, ("'all'",)),
    ({'num_kv_shared_layers': 4}, ('num_kv_shared_layers is 4 of 4', 'none is left')),
    ({'num_kv_shared_layers': 3}, ('layer 1 is full_attention', 'no layer before 1')),
    ({'num_kv_shared_layers': -1}, ('num_kv_shared_layers is -1', 'at least 0')),
    ({'use_double_wide_mlp': 2}, ('use_double_wide_mlp is 2',)),
    ({'enable_moe_block': False, 'hidden_size_per_layer_input': 8,
      'vocab_size_per_layer_input': 95}, ('vocab_size_per_layer_input is 95', '96')),
    ({'hidden_size_per_layer_input': 256}, ('256', 'E2B')),
    ({'hidden_size_per_layer_input': ...}, ('256', 'E2B')),
    ({'eos_token_id': [1, 96]}, ('eos_token_id holds 96', 'vocab_size is 96')),
    ({'eos_token_id': 'end'}, ("'end'",)),
    ({'rope_parameters': {'full_attention': {'rope_type': 'yarn'}}}, ("'yarn'", 'proportional')),
    ({'rope_parameters': {'sliding_attention': {'rope_type': 'linear'}}}, ("'linear'", 'default')),
    ({'rope_parameters': {'full_attention': {'rope_type': 'proportional', 'factor': 8.0}}},
     ('factor is 8.0',)),
    ({'rope_parameters': {'full_attention': {'rope_type': 'proportional', 'rope_theta': 0}}},
     ('rope_theta is 0',)),
    ({'rope_parameters': {'full_attention': {'rope_type': 'proportional',
                                             'partial_rotary_factor': 0.01}}}, ('0 of the 16',)),
])
def test_refusals_name_the_field_and_both_values(change: dict[str, Any],
                                                 words: tuple[str, ...]) -> None:
    raw = {key: value for key, value in {**TINY_MOE, **change}.items() if value is not ...}
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(raw)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(('raw', 'words'), [
    ({**D12B, 'text_config': {**D12B['text_config'], 'hidden_size_per_layer_input': 256}},
     'gemma4_unified has no per-layer embeddings'),
    ({'model_type': 'gemma4', 'audio_config': {}}, 'no text decoder'),
    ({'model_type': 'gemma4', 'text_config': None}, 'no text decoder'),
    ({**A26B, 'text_config': {**A26B['text_config'], 'model_type': 'gemma3_text'}}, 'gemma3_text'),
    ({**D12B, 'text_config': {**D12B['text_config'], 'enable_moe_block': True,
                              'num_experts': 4, 'top_k_experts': 2, 'moe_intermediate_size': 8}},
     'no experts'),
    ([], 'a list'),
])
def test_refused_checkpoints(raw: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ModelConfig.from_dict(raw)


def test_kv_cache_sizes() -> None:
    config = ModelConfig.from_dict(TINY_MOE)
    sliding, full = bytes_per_page(config, 16, 4)
    assert (sliding, full) == (2 * 2 * 16 * 2 * 16 * 4, 2 * 2 * 16 * 1 * 32 * 4)
    cache = KVCache(config, 5, 3, 16, 'float32')
    assert [pages.shape for pages in cache.k_pages] == [(5, 16, 2, 16), (3, 16, 1, 32)] * 2
    assert cache.num_bytes == 5 * sliding + 3 * full
