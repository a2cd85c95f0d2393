# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints: real names, counts and sizes; reproducible; numbers that behave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import to_float
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.modules import Form
from gemma_thor_ros.weights.names import Part, part_of
from gemma_thor_ros.weights.presets import PRESETS, preset_config, preset_generation_config
from gemma_thor_ros.weights.shapes import TextShapes
from gemma_thor_ros.weights.synth import PREFIX, make_plan, write_synthetic

TINY = ('tiny-moe', 'tiny-dense', 'tiny-e2b')
NAMED = ('bf16', 'compressed-tensors', 'modelopt')       # with the originals' names
MLX = ('mlx-3bit-g32', 'mlx-4bit-g64')


# Counts of the published checkpoints where they are known (26b-a4b bf16 and compressed-tensors,
# 31b bf16); sizes of the two NVFP4 packs are published as 16.4 and about 18 GB.
@pytest.mark.parametrize(('preset', 'form', 'count', 'text_count', 'size_gb'), [
    ('26b-a4b', 'bf16', 1013, 657, 51.6), ('26b-a4b', 'compressed-tensors', 47648, 47292, 16.4),
    ('26b-a4b', 'modelopt', 47303, 46947, 18.0), ('31b', 'bf16', 1188, 832, 62.5),
    ('31b', 'compressed-tensors', 2418, 2062, 20.4), ('31b', 'modelopt', 1728, 1372, 32.6),
    ('12b', 'bf16', 677, 666, 23.9), ('12b', 'compressed-tensors', 1661, 1650, 8.25),
])
def test_counts_and_sizes(preset: str, form: str, count: int, text_count: int,
                          size_gb: float) -> None:
    specs = make_plan(preset, form).specs()
    names = {spec.name for spec in specs}
    assert len(names) == len(specs) == count
    assert sum(part_of(name, PREFIX) is Part.TEXT for name in names) == text_count
    assert Part.UNKNOWN not in {part_of(name, PREFIX) for name in names}
    assert len(make_plan(preset, form, text_only=True).specs()) == text_count
    assert sum(spec.nbytes for spec in specs) / 1e9 == pytest.approx(size_gb, rel=5e-3)


@pytest.mark.parametrize(('preset', 'size_gb'), [('12b', 6.7), ('26b-a4b', 14.2), ('31b', 17.3),
                                                 ('e4b', 4.2), ('e2b', 2.6)])
def test_mlx_packs_of_four_bits(preset: str, size_gb: float) -> None:
    plan = make_plan(preset, 'mlx-4bit-g64', text_only=True)
    specs = {spec.name: spec for spec in plan.specs()}
    assert sum(spec.nbytes for spec in specs.values()) / 1e9 == pytest.approx(size_gb, rel=0.01)
    assert specs['language_model.model.embed_tokens.weight'].dtype == 'U32'
    if preset == '26b-a4b':
        start = 'language_model.model.layers.0.'
        assert specs[f'{start}experts.switch_glu.down_proj.biases'].shape == (128, 2816, 11)
        assert specs[f'{start}router.proj.weight'].shape == (128, 2816 // 4)
        stated = plan.config['quantization']
        assert sum(value['bits'] == 8 for key, value in stated.items() if '.' in key) == 30


def test_the_first_layers_alone() -> None:
    plan = make_plan('26b-a4b', 'compressed-tensors', True, 6)
    config = ModelConfig.from_dict(plan.config)
    assert config.num_hidden_layers == 6 and config.layers_of('full_attention')
    assert not any('.layers.6.' in spec.name for spec in plan.specs())
    assert any('.layers.5.' in spec.name for spec in plan.specs())
    with pytest.raises(ConfigError, match='31 layers are wanted, 26b-a4b has 30'):
        make_plan('26b-a4b', 'bf16', num_layers=31)


def test_shapes_of_the_published_packs() -> None:
    shapes = {spec.name.removeprefix(PREFIX): (spec.dtype, spec.shape)
              for spec in make_plan('26b-a4b', 'compressed-tensors').specs()}
    assert shapes['layers.0.experts.127.gate_proj.weight_packed'] == ('U8', (704, 1408))
    assert shapes['layers.0.experts.127.gate_proj.weight_scale'] == ('F8_E4M3', (704, 176))
    assert shapes['layers.0.experts.0.down_proj.weight_packed'] == ('U8', (2816, 352))
    assert shapes['layers.0.experts.0.down_proj.weight_scale'] == ('F8_E4M3', (2816, 44))
    assert shapes['layers.3.mlp.gate_proj.weight_packed'] == ('U8', (2112, 1408))
    assert shapes['layers.3.mlp.down_proj.weight_packed'] == ('U8', (2816, 1056))
    assert shapes['layers.5.self_attn.q_proj.weight_packed'] == ('U8', (8192, 1408))
    assert shapes['layers.5.self_attn.q_proj.input_global_scale'] == ('F32', (1,))
    assert 'layers.5.self_attn.v_proj.weight_packed' not in shapes
    plain = {spec.name.removeprefix(PREFIX): spec.shape
             for spec in make_plan('31b', 'bf16').specs()}
    assert plain['layers.0.self_attn.k_proj.weight'] == (4096, 5376)
    assert plain['layers.5.self_attn.q_proj.weight'] == (16384, 5376)
    assert plain['layers.5.self_attn.k_proj.weight'] == (2048, 5376)
    twelve = {spec.name.removeprefix(PREFIX): spec.shape
              for spec in make_plan('12b', 'bf16').specs()}
    assert twelve['layers.5.self_attn.k_proj.weight'] == (512, 3840)
    assert twelve['model.vision_embedder.patch_dense.weight'] == (3840, 6912)
    modelopt = {spec.name.removeprefix(PREFIX): spec
                for spec in make_plan('26b-a4b', 'modelopt').specs()}
    assert modelopt['layers.0.self_attn.q_proj.weight'].dtype == 'BF16'
    assert modelopt['layers.0.mlp.up_proj.weight_scale_2'].shape == ()


def test_text_weights_of_26b_are_those_of_its_config() -> None:
    shapes = TextShapes.from_config(preset_config('26b-a4b'))
    assert sum(shapes.full_layers) == 5 and shapes.full_layers[29]
    total = sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.all().values())
    assert total == pytest.approx(25.2e9, rel=0.01)


@pytest.mark.parametrize('preset', PRESETS)
def test_shapes_agree_with_the_model(preset: str) -> None:
    config = preset_config(preset)
    model = ModelConfig.from_dict(config, preset_generation_config(preset))
    total = sum(int(np.prod(shape, dtype=np.int64))
                for shape in TextShapes.from_config(config).all().values())
    assert total == model.num_parameters


@pytest.mark.parametrize('preset', TINY)
@pytest.mark.parametrize('form', (*NAMED, *MLX))
def test_a_tiny_checkpoint_can_be_read(tmp_path: Path, preset: str, form: str) -> None:
    plan = write_synthetic(tmp_path / 'x', preset, form, 7)
    checkpoint = open_checkpoint(tmp_path / 'x')
    assert len(checkpoint.names()) == len(plan.specs())
    assert checkpoint.generation_config['eos_token_id'] == [1, 106, 50]
    weights = checkpoint.text_weights()
    for name in weights:
        weight = to_float(weights[name])
        assert np.isfinite(weight).all()
        last = name.rpartition('.')[2]
        if weight.ndim > 1 and last != 'proj':
            spread = float(weight.std()) * weight.shape[-1] ** 0.5
            assert 0.85 < spread < 1.15, (name, spread)
        elif last in ('q_norm', 'k_norm'):
            assert float(weight.mean()) == pytest.approx(weight.shape[0] ** -0.25, rel=0.05)
        elif last != 'proj':
            assert float(np.abs(weight - 1).max()) < 0.2, name
    quantised = weights.form('layers.0.mlp.up_proj')
    attention = weights.form('layers.0.self_attn.q_proj')
    # groups of MLX do not divide the 80 columns of tiny-dense
    expected = (Form.DENSE, Form.DENSE) if preset == 'tiny-dense' else (Form.MLX, Form.MLX)
    assert {'bf16': (Form.DENSE, Form.DENSE),
            'compressed-tensors': (Form.COMPRESSED_TENSORS, Form.COMPRESSED_TENSORS),
            'modelopt': (Form.MODELOPT, Form.DENSE)}.get(form, expected) == (quantised, attention)


@pytest.mark.parametrize('form', (*NAMED, *MLX))
def test_one_seed_gives_one_checkpoint(tmp_path: Path, form: str) -> None:
    for name, seed, threads in (('a', 1, 1), ('b', 1, 3), ('c', 2, 1)):
        write_synthetic(tmp_path / name, 'tiny-moe', form, seed, num_threads=threads)
    contents = [(tmp_path / name / 'model.safetensors').read_bytes() for name in 'abc']
    assert contents[0] == contents[1] != contents[2]


def test_formats_share_what_they_both_keep_in_bf16(tmp_path: Path) -> None:
    views: list[Any] = []
    for form in NAMED:
        write_synthetic(tmp_path / form, 'tiny-moe', form, 5)
        views.append(open_checkpoint(tmp_path / form).text_weights())
    for name in ('embed_tokens', 'layers.3.input_layernorm', 'layers.3.router.proj'):
        assert all(np.array_equal(views[0][name].data, view[name].data) for view in views[1:])


def test_shards_hold_the_same(tmp_path: Path) -> None:
    write_synthetic(tmp_path / 'a', 'tiny-moe', 'modelopt', 5)
    write_synthetic(tmp_path / 'b', 'tiny-moe', 'modelopt', 5, max_shard_bytes=50_000)
    one, many = open_checkpoint(tmp_path / 'a'), open_checkpoint(tmp_path / 'b')
    assert len(many.tensors.files) > 5
    for name in one.names():
        assert np.array_equal(one.view(name), many.view(name))


def test_a_filled_folder_needs_force(tmp_path: Path) -> None:
    write_synthetic(tmp_path, 'tiny-dense', 'bf16', 5)
    with pytest.raises(ConfigError, match=r'is not empty; --force'):
        write_synthetic(tmp_path, 'tiny-dense', 'bf16', 5)
    write_synthetic(tmp_path, 'tiny-moe', 'modelopt', 5, force=True)
    assert open_checkpoint(tmp_path).config['text_config']['num_experts'] == 4


@pytest.mark.parametrize('preset', PRESETS)
def test_configs_are_json_and_name_every_stop_id(preset: str) -> None:
    config = json.loads(json.dumps(preset_config(preset)))
    assert config['text_config']['layer_types'][-1] == 'full_attention'
    generation = preset_generation_config(preset)
    assert generation['eos_token_id'] == [1, 106, 50]
    suppressed = {'12b': [258883, 258882], 'tiny-unified': [4094, 4093]}
    assert generation.get('suppress_tokens') == suppressed.get(preset)
