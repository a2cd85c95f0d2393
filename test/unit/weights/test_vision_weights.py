# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The vision part of checkpoints: names, forms that are read, and refusals by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.load_vision import find_vision
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight, Nvfp4Weight
from gemma_thor_ros.weights.checkpoint import Checkpoint, open_checkpoint
from gemma_thor_ros.weights.mlx_modules import mlx_specs, setting_of
from gemma_thor_ros.weights.modules import nvfp4_specs
from gemma_thor_ros.weights.quantize import Convention, quantize_matrix
from gemma_thor_ros.weights.synth import make_plan, write_synthetic
from gemma_thor_ros.weights.vision import VisionWeights, canonical_name
from gemma_thor_ros.weights.writer import CheckpointWriter, TensorSpec

DENSE = 'model.vision_embedder.patch_dense'


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp('vision')
    for preset, form in (('tiny-vision', 'bf16'), ('tiny-unified', 'mlx-4bit-g32'),
                         ('tiny-vision', 'compressed-tensors'), ('tiny-unified', 'bf16'),
                         ('tiny-e2b-vision', 'bf16')):
        write_synthetic(top / f'{preset}.{form}', preset, form, 3)
    return {path.name: path for path in top.iterdir()}


def found(folder: Path, device: str = 'cpu', soft_tokens: str = 'auto') -> Any:
    checkpoint = open_checkpoint(folder)
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    return find_vision(checkpoint, config, device, soft_tokens)


def test_every_form_of_checkpoint_has_its_vision_part(folders: dict[str, Path]) -> None:
    for name, folder in folders.items():
        vision = found(folder)
        assert vision.info.refusal is None and vision.info.soft_tokens == 70, name
        assert vision.info.patch_side == (48 if 'unified' in name else 16)
        config, weights = vision.part
        assert config.kind == ('embedder' if 'unified' in name else 'tower')
        assert all(isinstance(weights[each], DenseWeight) for each in weights), name
    tower = VisionWeights(open_checkpoint(folders['tiny-vision.bf16']))
    assert len(tower) == 2 * 13 + 2 + 2 + 1
    assert tower['encoder.layers.1.self_attn.q_proj'].shape == (48, 48)
    small = VisionWeights(open_checkpoint(folders['tiny-e2b-vision.bf16']))
    assert len(small) == 2 * (13 + 7 * 4) + 2 + 1
    assert small['encoder.layers.1.mlp.up_proj.output_max'].shape == ()
    assert tower['std_bias'].shape == (48,) and tower['embedding_projection'].shape == (64, 48)


def test_the_true_presets_have_the_published_count_of_tensors() -> None:
    for preset, count in (('26b-a4b', 356), ('31b', 356)):
        names = [name for name in make_plan(preset, 'bf16').plain
                 if name.startswith(('model.vision_tower.', 'model.embed_vision.'))]
        assert len(names) == count
        config = VisionConfig.from_dict(make_plan(preset, 'bf16').config)
        assert config is not None and config.soft_tokens == 280 and config.standardize
    unified = VisionConfig.from_dict(make_plan('12b', 'bf16').config)
    assert unified is not None and (unified.patch_side, unified.hidden_size) == (48, 3840)


def rewritten(source: Path, target: Path, module: str, specs: list[TensorSpec],
              arrays: list[np.ndarray], config: dict[str, Any] | None = None) -> Path:
    """A copy of a checkpoint with one module stored in another way."""
    checkpoint = open_checkpoint(source)
    kept = [TensorSpec(name, checkpoint.info(name).dtype, checkpoint.info(name).shape)
            for name in checkpoint.names() if name != f'{module}.weight']
    shutil.copytree(source, target, ignore=shutil.ignore_patterns('*.safetensors*'))
    with CheckpointWriter(target, [*kept, *specs]) as writer:
        for spec in kept:
            writer.write(spec.name, np.array(checkpoint.view(spec.name)))
        for spec, array in zip(specs, arrays, strict=True):
            writer.write(spec.name, array)
    if config:
        stored = json.loads((target / 'config.json').read_text())
        (target / 'config.json').write_text(json.dumps({**stored, **config}))
    return target


def test_quantised_matrices_are_read(folders: dict[str, Path], tmp_path: Path) -> None:
    source = folders['tiny-unified.bf16']
    shape = open_checkpoint(source).info(f'{DENSE}.weight').shape
    numbers = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for convention in Convention:
        packed = quantize_matrix(numbers, convention)
        specs = nvfp4_specs(DENSE, shape, convention, False)
        scale = np.full(specs[2].shape, packed.stored_scale, np.float32)
        folder = rewritten(source, tmp_path / convention.value, DENSE, specs,
                           [packed.packed, packed.group_scales, scale])
        weight = found(folder).part[1]['patch_dense']
        assert isinstance(weight, Nvfp4Weight)
        error = np.linalg.norm(weight.dequantize(np.float64) - numbers) / np.linalg.norm(numbers)
        assert error < 0.12              # NVFP4's own rounding of normal numbers is 0.095
    setting = setting_of('mlx-8bit-g64')
    assert setting is not None
    specs = mlx_specs(DENSE, shape, setting)
    arrays = [np.zeros(spec.shape, np.uint32 if spec.dtype == 'U32' else np.uint16)
              for spec in specs]
    folder = rewritten(source, tmp_path / 'mlx', DENSE, specs, arrays,
                       {'quantization': setting.as_config()})
    assert isinstance(found(folder).part[1]['patch_dense'], AffineWeight)


@pytest.mark.parametrize(('suffixes', 'words'), [
    ((('weight', 'F8_E4M3'), ('weight_scale', 'F32')), 'is fp8'),
    ((('weight_packed', 'I32'), ('weight_scale', 'BF16'), ('weight_shape', 'I64')),
     'is int4 (compressed-tensors)'),
    ((('weight', 'I8'),), 'is I8, expected BF16 or F32'),
])
def test_images_are_refused_by_name_where_patch_dense_is_in_another_form(
        suffixes: tuple[tuple[str, str], ...], words: str, folders: dict[str, Path],
        tmp_path: Path) -> None:
    """The text of such a checkpoint is served as ever."""
    source = folders['tiny-unified.bf16']
    shape = open_checkpoint(source).info(f'{DENSE}.weight').shape
    kinds = {'F8_E4M3': np.uint8, 'F32': np.float32, 'I32': np.int32, 'BF16': np.uint16,
             'I64': np.int64, 'I8': np.int8}
    specs = [TensorSpec(f'{DENSE}.{suffix}', kind, shape) for suffix, kind in suffixes]
    arrays = [np.zeros(shape, kinds[kind]) for _, kind in suffixes]
    vision = found(rewritten(source, tmp_path / 'it', DENSE, specs, arrays))
    assert vision.part is None and vision.info.patch_side == 0
    assert 'model.vision_embedder.patch_dense' in vision.info.reason
    assert words in vision.info.reason
    assert len(open_checkpoint(tmp_path / 'it').text_weights()) > 50


def test_mlx_modes_other_than_affine_are_refused_by_name(folders: dict[str, Path],
                                                         tmp_path: Path) -> None:
    source = folders['tiny-unified.bf16']
    shape = open_checkpoint(source).info(f'{DENSE}.weight').shape
    setting = setting_of('mlx-4bit-g32')
    assert setting is not None
    specs = mlx_specs(DENSE, shape, setting)
    arrays = [np.zeros(spec.shape, np.uint32 if spec.dtype == 'U32' else np.uint16)
              for spec in specs]
    folder = rewritten(source, tmp_path / 'it', DENSE, specs, arrays, {
        'quantization': {'group_size': 32, 'bits': 4, 'mode': 'mxfp4'}})
    reason = found(folder).info.reason
    assert DENSE in reason and 'MLX mode mxfp4' in reason


def test_reasons_for_refusing_images(folders: dict[str, Path], tmp_path: Path) -> None:
    source = folders['tiny-vision.bf16']
    assert 'may be 1680 patches long, the position table has 840 rows' in found(
        source, soft_tokens='560').info.reason
    assert found(source, soft_tokens='280').info.soft_tokens == 280
    shutil.copytree(source, tmp_path / 'it')
    path = tmp_path / 'it' / 'config.json'
    config = json.loads(path.read_text())
    vision = config['vision_config']
    for change, words in (
            ({'image_token_id': None}, 'config.json has no image_token_id'),
            ({'vision_config': None}, ''),
            ({'vision_config': {**vision, 'use_clipped_linears': True}},
             "layers.0.self_attn.q_proj.input_min' is missing"),
            ({'vision_config': {**vision, 'patch_size': 14}}, 'patch_size is 14'),
            ({'vision_config': {**vision, 'model_type': 'siglip'}}, "model_type is 'siglip'"),
            ({'vision_config': {**vision, 'hidden_activation': 'silu'}}, 'hidden_activation'),
            ({'vision_config': {**vision, 'num_key_value_heads': 2}}, 'num_key_value_heads is 2'),
            ({'vision_config': {**vision, 'head_dim': 10}}, 'head_dim is 10'),
            ({'vision_config': {**vision, 'default_output_length': 100}}, 'expected one of 70'),
            ({'vision_config': {**vision, 'num_hidden_layers': 3}},
             "'model.vision_tower.encoder.layers.2.self_attn.q_proj.linear.weight' is missing"),
            ({'vision_config': {**vision, 'intermediate_size': 65}}, 'expected [65, 48]')):
        path.write_text(json.dumps({**config, **change}))
        info = found(tmp_path / 'it').info
        assert info.patch_side == 0 and words in info.reason, (change, info)
    short = {key: value for key, value in vision.items() if key != 'standardize'}
    path.write_text(json.dumps({**config, 'vision_config': short}))
    assert "vision_config has no 'standardize'" in found(tmp_path / 'it').info.reason


def test_what_a_device_cannot_is_an_error_of_images(folders: dict[str, Path],
                                                    tmp_path: Path) -> None:
    fits = found(folders['tiny-unified.bf16'], device='cuda')
    assert fits.part is not None and fits.device_bytes > 64 << 20
    assert found(folders['tiny-vision.compressed-tensors'], 'cuda').info.reason == (
        'vision_config: head_dim is 12; the kernels take multiples of 8; engine.device cpu takes '
        'others')
    source = folders['tiny-unified.bf16']
    shape = open_checkpoint(source).info(f'{DENSE}.weight').shape
    folder = rewritten(source, tmp_path / 'wide', DENSE, [
        TensorSpec(f'{DENSE}.weight', 'F32', shape)], [np.zeros(shape, np.float32)])
    assert found(folder).part is not None
    assert found(folder, device='cuda').info.reason == (
        f"'{DENSE}.weight' is F32; on CUDA the matrices of the vision part are bf16, NVFP4 or MLX "
        'affine')


def test_a_vision_part_missing_from_the_file_is_an_error_of_images(tmp_path: Path) -> None:
    write_synthetic(tmp_path / 'it', 'tiny-vision', 'bf16', 3, text_only=True)
    path = tmp_path / 'it' / 'config.json'
    config = {**json.loads(path.read_text()),
              'vision_config': make_plan('tiny-vision', 'bf16').config['vision_config']}
    path.write_text(json.dumps(config))
    assert 'is missing' in found(tmp_path / 'it').info.reason
    with pytest.raises(ConfigError, match='is missing'):
        VisionWeights(Checkpoint(tmp_path / 'it', config, {}, open_checkpoint(
            tmp_path / 'it').tensors))


def test_inspect_tells_of_images(folders: dict[str, Path], tmp_path: Path,
                                capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['inspect', str(folders['tiny-vision.bf16'])]) == 0
    assert 'images: 70 soft tokens each at most' in capsys.readouterr().out
    shutil.copytree(folders['tiny-vision.bf16'], tmp_path / 'it')
    config = json.loads((tmp_path / 'it' / 'config.json').read_text())
    config['vision_config']['patch_size'] = 14
    (tmp_path / 'it' / 'config.json').write_text(json.dumps(config))
    assert main(['inspect', str(tmp_path / 'it')]) == 0
    assert 'images are refused: vision_config: patch_size is 14' in capsys.readouterr().out


def test_names() -> None:
    for disk, name in (
            ('model.vision_tower.encoder.layers.3.mlp.up_proj.linear.weight',
             'encoder.layers.3.mlp.up_proj'),
            ('model.vision_tower.std_scale', 'std_scale'),
            ('model.vision_embedder.patch_ln1.bias', 'patch_ln1.bias'),
            ('model.embed_vision.embedding_projection.weight', 'embedding_projection')):
        assert canonical_name(disk) == name
