# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Whole checkpoints: hand-made folders in every form, read and compared with a naive decoder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import DenseWeight, Nvfp4Weight, to_float
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.modules import Form
from gemma_thor_ros.weights.names import Part
from gemma_thor_ros.weights.shapes import TextShapes

from .reference_formats import (
    CONFIG,
    MLP,
    Tensors,
    bf16,
    expected,
    experts,
    linears,
    nvfp4,
    unquantised,
    write_folder,
)

PREFIX = 'model.language_model.'
FORMS = ('compressed-tensors', 'modelopt')


def bf16_tensors(prefix: str = PREFIX) -> Tensors:
    """The originals' form: experts fused, no scales."""
    rng = np.random.default_rng(1)
    tensors = unquantised(prefix, rng)
    for module, shape in linears().items():
        tensors[f'{prefix}{module}.weight'] = ('BF16', bf16(rng.standard_normal(shape)))
    for layer in (0, 1):
        for name, shape in (('gate_up_proj', (3, 32, 32)), ('down_proj', (3, 32, 16))):
            tensors[f'{prefix}layers.{layer}.experts.{name}'] = (
                'BF16', bf16(rng.standard_normal(shape)))
    return tensors


def packed_tensors(form: str, prefix: str = PREFIX, folder: str = 'experts',
                   attention: bool = True) -> Tensors:
    """Quantised linears and unfused experts; attention may stay bf16, as in MLP-only packs."""
    rng = np.random.default_rng(2)
    tensors = unquantised(prefix, rng)
    for module, shape in linears().items():
        if attention or '.mlp.' in module:
            tensors.update(nvfp4(prefix + module, shape, form, rng))
        else:
            tensors[f'{prefix}{module}.weight'] = ('BF16', bf16(rng.standard_normal(shape)))
    for module, shape in experts(folder).items():
        tensors.update(nvfp4(prefix + module, shape, form, rng))
    return tensors


def values(tensors: Tensors, name: str) -> Any:
    """float32 values of a bf16 tensor."""
    return (tensors[name][1].astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize('prefix', [PREFIX, 'model.', 'language_model.model.', ''])
@pytest.mark.parametrize('num_shards', [1, 3])
def test_bf16_originals(tmp_path: Path, prefix: str, num_shards: int) -> None:
    tensors = bf16_tensors(prefix)
    checkpoint = open_checkpoint(write_folder(tmp_path / 'x', CONFIG, tensors, num_shards))
    assert checkpoint.text_prefix == prefix
    assert checkpoint.config == CONFIG and checkpoint.generation_config == {}
    weights = checkpoint.text_weights()
    for name in ('embed_tokens', 'norm', 'layers.0.self_attn.v_proj', 'layers.1.mlp.down_proj',
                 'layers.1.router.proj'):
        assert np.array_equal(to_float(weights[name]), values(tensors, f'{prefix}{name}.weight'))
    for name in ('layers.0.layer_scalar', 'layers.1.router.scale',
                 'layers.1.router.per_expert_scale'):
        assert np.array_equal(to_float(weights[name]), values(tensors, prefix + name))
    fused = values(tensors, f'{prefix}layers.1.experts.gate_up_proj')
    assert np.array_equal(to_float(weights['layers.1.experts.gate_proj']), fused[:, :16])
    assert np.array_equal(to_float(weights['layers.1.experts.up_proj']), fused[:, 16:])
    assert np.array_equal(to_float(weights['layers.1.experts.down_proj']),
                          values(tensors, f'{prefix}layers.1.experts.down_proj'))
    gate = weights['layers.1.experts.gate_proj']
    assert isinstance(gate, DenseWeight) and not gate.data.flags.owndata
    assert weights.form('layers.1.experts.gate_proj') is Form.FUSED
    assert 'layers.1.self_attn.v_proj' not in weights    # k_eq_v: a full layer has none


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('folder', ['experts', 'moe.experts'])
@pytest.mark.parametrize('attention', [True, False])
def test_nvfp4_packs(tmp_path: Path, form: str, folder: str, attention: bool) -> None:
    tensors = packed_tensors(form, folder=folder, attention=attention)
    weights = open_checkpoint(write_folder(tmp_path / 'x', CONFIG, tensors)).text_weights()
    assert len(weights) == 2 + 23 + 22
    for module in linears():
        weight = weights[module]
        if not attention and '.self_attn.' in module:
            assert isinstance(weight, DenseWeight)
            continue
        assert isinstance(weight, Nvfp4Weight) and not weight.packed.flags.owndata
        want = expected(tensors, PREFIX + module, form)
        assert weight.dequantize(np.float64).tobytes() == want.tobytes()
    for layer in (0, 1):
        for projection in ('gate_proj', 'up_proj', 'down_proj'):
            weight = weights[f'layers.{layer}.experts.{projection}']
            assert isinstance(weight, Nvfp4Weight)
            for expert in range(3):
                module = f'{PREFIX}layers.{layer}.{folder}.{expert}.{projection}'
                want = expected(tensors, module, form)
                assert weight.dequantize(np.float64)[expert].tobytes() == want.tobytes()
                assert np.array_equal(weight[expert].dequantize(), want.astype(np.float32))


@pytest.mark.parametrize('form', FORMS)
def test_one_layer_at_a_time(tmp_path: Path, form: str) -> None:
    folder = write_folder(tmp_path / 'x', CONFIG, packed_tensors(form))
    weights = open_checkpoint(folder).text_weights()
    layer = weights.layer(1)
    assert len(layer) == 22 and 'self_attn.v_proj' not in layer
    assert layer['experts.down_proj'].shape == (3, 32, 16)
    assert set(weights) == {'embed_tokens', 'norm'} | {f'layers.{index}.{name}' for index in (0, 1)
                                                       for name in weights.layer(index)}


def test_unfused_bf16_experts(tmp_path: Path) -> None:
    tensors = bf16_tensors()
    fused = {name: tensors.pop(name) for name in list(tensors) if '.experts.' in name}
    for name, (_, array) in fused.items():
        start, _, projection = name.rpartition('.')
        for expert in range(3):
            halves = ({'gate_proj': array[expert, :16], 'up_proj': array[expert, 16:]}
                      if projection == 'gate_up_proj' else {'down_proj': array[expert]})
            tensors.update({f'{start}.{expert}.{half}.weight': ('BF16', part)
                            for half, part in halves.items()})
    weights = open_checkpoint(write_folder(tmp_path / 'x', CONFIG, tensors)).text_weights()
    gate = to_float(weights['layers.0.experts.gate_proj'])
    assert np.array_equal(gate, values(fused, f'{PREFIX}layers.0.experts.gate_up_proj')[:, :16])


def test_vision_audio_head_and_unknown_are_told_apart(tmp_path: Path) -> None:
    tensors = bf16_tensors()
    one = ('BF16', np.zeros(1, np.uint16))
    extra = {'model.vision_tower.std_bias': Part.VISION,
             'model.embed_vision.embedding_projection.weight': Part.VISION,
             'model.vision_embedder.pos_embedding': Part.VISION, 'vision_tower.x': Part.VISION,
             'model.audio_tower.layers.0.norm_out.weight': Part.AUDIO,
             'model.embed_audio.embedding_projection.weight': Part.AUDIO,
             'lm_head.weight': Part.HEAD, 'model.language_model.lm_head.weight': Part.HEAD,
             'model.something.new': Part.UNKNOWN, 'mtp.fc.weight': Part.UNKNOWN}
    tensors.update(dict.fromkeys(extra, one))
    checkpoint = open_checkpoint(write_folder(tmp_path / 'x', CONFIG, tensors))
    parts = checkpoint.parts()
    for name, part in extra.items():
        assert name in parts[part], name
    assert len(parts[Part.TEXT]) == len(tensors) - len(extra)
    assert len(checkpoint.text_weights()) == 47


def test_every_missing_tensor_is_named(tmp_path: Path) -> None:
    for number, form in enumerate(('bf16', *FORMS)):
        whole = bf16_tensors() if form == 'bf16' else packed_tensors(form)
        surplus = ('input_global_scale', 'input_scale')
        needed = [name for name in whole if not name.endswith(surplus)]
        for index, name in enumerate(needed):
            rest = {key: value for key, value in whole.items() if key != name}
            folder = write_folder(tmp_path / f'{number}-{index}', CONFIG, rest)
            with pytest.raises(ConfigError) as caught:
                open_checkpoint(folder).text_weights()
            message = str(caught.value)
            module = name.rpartition('.')[0]
            assert repr(name) in message or (
                # Without its only mark of being quantised, a module reads as another form.
                name.endswith(('weight_packed', 'weight_scale_2')) and module in message), message


@pytest.mark.parametrize(('name', 'replacement', 'message'), [
    ('norm.weight', ('BF16', np.zeros(31, np.uint16)),
     r"norm.weight' has shape \[31\], expected \[32\]"),
    ('norm.weight', ('F16', np.zeros(32, np.uint16)), "norm.weight' is F16, expected BF16 or F32"),
    ('layers.0.mlp.up_proj.weight_packed', ('U8', np.zeros((16, 48), np.uint8)),
     r"up_proj.weight_packed' has shape \[16, 48\], expected \[48, 16\]"),
    ('layers.0.mlp.up_proj.weight_scale', ('F8_E4M3', np.zeros((2, 48), np.uint8)),
     r"up_proj.weight_scale' has shape \[2, 48\], expected \[48, 2\]"),
    ('layers.0.mlp.up_proj.weight_scale', ('U8', np.zeros((48, 2), np.uint8)),
     "up_proj.weight_scale' is U8, expected F8_E4M3"),
    ('layers.1.experts.2.up_proj.weight_global_scale', ('F32', np.ones(2, np.float32)),
     r"weight_global_scale' has shape \[2\], expected \[1\]"),
    ('layers.0.mlp.up_proj.weight_shape', ('I32', np.zeros(2, np.int32)),
     'int4 .*supported are bf16'),
    ('layers.2.norm.weight', ('BF16', np.zeros(32, np.uint16)),
     'no place for: .*layers.2.norm.weight'),
    ('layers.0.mlp.up_proj.pre_quant_scale', ('F32', np.ones(32, np.float32)),
     'no place for: .*pre_quant_scale'),
    ('layers.1.self_attn.v_proj.weight', ('BF16', np.zeros((32, 32), np.uint16)), 'no place for'),
    ('norm.weight_packed', ('U8', np.zeros((1, 16), np.uint8)),
     'only linear layers may be quantised'),
])
def test_wrong_tensors_are_named_with_both_sides(tmp_path: Path, name: str, replacement: Any,
                                                 message: str) -> None:
    tensors = packed_tensors('compressed-tensors')
    tensors[PREFIX + name] = replacement
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(write_folder(tmp_path / 'x', CONFIG, tensors)).text_weights()


def test_forms_that_are_not_supported_are_refused_by_name(tmp_path: Path) -> None:
    module = f'{PREFIX}layers.0.mlp.up_proj'
    for name, tensor, form in (
            ('weight_scale_inv', ('F32', np.ones((1, 1), np.float32)), 'fp8'),
            ('weight_scale', ('F32', np.ones(1, np.float32)), 'fp8')):
        tensors = bf16_tensors()
        tensors[f'{module}.{name}'] = tensor
        with pytest.raises(ConfigError, match=rf"up_proj' is {form}; supported are"):
            open_checkpoint(write_folder(tmp_path / name, CONFIG, tensors)).text_weights()


def test_experts_must_be_stored_alike(tmp_path: Path) -> None:
    tensors = packed_tensors('modelopt')
    module = f'{PREFIX}layers.1.experts.2.up_proj'
    for suffix in ('weight', 'weight_scale', 'weight_scale_2'):
        del tensors[f'{module}.{suffix}']
    tensors[f'{module}.weight'] = ('BF16', np.zeros((16, 32), np.uint16))
    with pytest.raises(ConfigError, match=r'experts of a layer must be stored alike'):
        open_checkpoint(write_folder(tmp_path / 'x', CONFIG, tensors)).text_weights()


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('bad', [0.0, -1.0, np.nan, np.inf])
def test_global_scales_must_be_positive_numbers(tmp_path: Path, form: str, bad: float) -> None:
    tensors = packed_tensors(form)
    suffix = 'weight_global_scale' if form == 'compressed-tensors' else 'weight_scale_2'
    name = f'{PREFIX}layers.0.mlp.up_proj.{suffix}'
    tensors[name] = ('F32', np.full_like(tensors[name][1], bad))
    weights = open_checkpoint(write_folder(tmp_path / 'x', CONFIG, tensors)).text_weights()
    with pytest.raises(ConfigError, match=rf'{suffix}.* expected a positive finite number'):
        weights['layers.0.mlp.up_proj']


def test_global_scale_may_be_a_scalar_or_one_value(tmp_path: Path) -> None:
    for number, form in enumerate(FORMS):
        tensors = packed_tensors(form)
        folder = write_folder(tmp_path / f'a{number}', CONFIG, tensors)
        before = open_checkpoint(folder).text_weights()
        for name, (dtype, array) in tensors.items():
            if name.endswith(('weight_global_scale', 'weight_scale_2')):
                tensors[name] = (dtype, array.reshape(() if array.ndim else (1,)))
        folder = write_folder(tmp_path / f'b{number}', CONFIG, tensors)
        after = open_checkpoint(folder).text_weights()
        for module in linears():
            assert np.array_equal(to_float(before[module]), to_float(after[module]))


@pytest.mark.parametrize(('change', 'message'), [
    ({'hidden_size': '32'}, "hidden_size must be a positive integer, found '32'"),
    ({'hidden_size': True}, 'hidden_size'),
    ({'num_hidden_layers': 2 ** 30}, 'num_hidden_layers is 1073741824'),
    ({'num_experts': None}, 'num_experts'),
    ({'layer_types': ['full_attention']}, 'a list of 2 entries'),
    ({'layer_types': ['chunked', 'full_attention']}, "layer_types has 'chunked'"),
    ({'vocab_size': 0}, 'vocab_size'),
    ({'head_dim': 2 ** 40}, 'head_dim'),
])
def test_config_fields_that_shapes_need(tmp_path: Path, change: dict[str, Any],
                                        message: str) -> None:
    config = copy.deepcopy(CONFIG)
    config['text_config'].update(change)
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(write_folder(tmp_path / 'x', config, bf16_tensors())).text_weights()


def test_full_layers_sizes_may_stand_in_per_layer_config() -> None:
    text = dict(CONFIG['text_config'])
    del text['global_head_dim'], text['num_global_key_value_heads']
    override = {'head_dim': 48, 'num_key_value_heads': 4}
    for k_eq_v in (True, False):
        text.update(attention_k_eq_v=k_eq_v, per_layer_config={'1': override})
        shapes = TextShapes.from_config({'text_config': text})
        assert shapes.layer(1)['self_attn.k_proj'] == (4 * 48, 32)
        assert shapes.layer(1)['self_attn.q_norm'] == (48,)
        assert ('self_attn.v_proj' in shapes.layer(1)) is not k_eq_v
        assert shapes.layer(0)['self_attn.k_proj'] == (2 * 16, 32)
    # Without k_eq_v the family ignores num_global_key_value_heads; 512 is its default head size.
    text.update(attention_k_eq_v=False, num_global_key_value_heads=1)
    del text['per_layer_config']
    assert TextShapes.from_config(text).layer(1)['self_attn.k_proj'] == (2 * 512, 32)
    for bad in ([1], {'1': 3}, {'1': override, '2': {}}):
        with pytest.raises(ConfigError, match=r'per_layer_config must map layers'):
            TextShapes.from_config({**text, 'per_layer_config': bad})


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no such folder'):
        open_checkpoint(tmp_path / 'none')
    with pytest.raises(ConfigError, match=r'config.json: No such file'):
        open_checkpoint(tmp_path)
    write_folder(tmp_path / 'x', CONFIG, {'fc.weight': ('BF16', np.zeros(3, np.uint16))})
    with pytest.raises(ConfigError, match=r'none of its 1 tensors is a text weight'):
        open_checkpoint(tmp_path / 'x').text_weights()


def test_dense_mlp_shapes_are_those_of_the_model_card(tmp_path: Path) -> None:
    assert MLP['mlp.down_proj'] == (32, 48)
    config = copy.deepcopy(CONFIG)
    config['text_config']['enable_moe_block'] = False
    tensors = {name: tensor for name, tensor in bf16_tensors().items()
               if 'experts' not in name and 'router' not in name and not name.endswith(
                   ('layernorm_1.weight', 'layernorm_2.weight'))}
    weights = open_checkpoint(write_folder(tmp_path / 'x', config, tensors)).text_weights()
    assert len(weights) == 2 + 14 + 13
