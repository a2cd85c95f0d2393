# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A whole vision part on the CUDA path against the same one on the CPU, in its rounding."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_device import HostStream, any_stream
from machine import normal, to_bf16

from gemma_thor_ros.load_vision import find_vision
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.vision import Vision
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.ops import device, library_gemm, vision_cuda
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.ops.table import WeightLoader, cpu_op_table
from gemma_thor_ros.ops.vision_cuda import CudaVisionOps
from gemma_thor_ros.ops.vision_table import CpuVisionOps
from gemma_thor_ros.weights.canonical import DenseWeight, Weight, dense_bf16
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.mlx_bits import quantize_affine
from gemma_thor_ros.weights.mlx_modules import MlxSetting, mlx_specs
from gemma_thor_ros.weights.modules import nvfp4_specs
from gemma_thor_ros.weights.quantize import Convention, quantize_matrix
from gemma_thor_ros.weights.synth import write_synthetic
from gemma_thor_ros.weights.tower_shapes import BOUNDS, tower_shapes
from gemma_thor_ros.weights.vision import canonical_name
from gemma_thor_ros.weights.writer import CheckpointWriter, TensorSpec

Array = np.ndarray
_TOWER: dict[str, Any] = {
    'model_type': 'gemma4_vision', 'hidden_size': 48, 'num_hidden_layers': 2,
    'num_attention_heads': 2, 'num_key_value_heads': 2, 'head_dim': 24, 'intermediate_size': 72,
    'position_embedding_size': 24, 'patch_size': 16, 'pooling_kernel_size': 3,
    'standardize': True}
VISIONS: dict[str, dict[str, Any]] = {
    'tower': _TOWER,
    'clipped': {**_TOWER, 'standardize': False, 'use_clipped_linears': True},
    'embedder': {'model_type': 'gemma4_unified_vision', 'mm_embed_dim': 48,
                 'output_proj_dims': 48, 'mm_posemb_size': 16, 'patch_size': 16,
                 'pooling_kernel_size': 3}}


def config_of(name: str, hidden_size: int = 64) -> dict[str, Any]:
    return {'text_config': {'hidden_size': hidden_size}, 'vision_config': VISIONS[name]}


@cache
def vision_weights(name: str, hidden_size: int = 64) -> dict[str, Weight]:
    """Random bf16 numbers under canonical names; bounds that some numbers pass."""
    found: dict[str, Weight] = {}
    for seed, (key, shape) in enumerate(tower_shapes(config_of(name, hidden_size)).items()):
        if key.endswith(BOUNDS):
            numbers = np.full(shape, -1.5 if key.endswith('min') else 1.5, np.float32)
        elif len(shape) == 2:
            numbers = normal(seed, *shape) * shape[-1] ** -0.5
        else:
            numbers = normal(seed, *shape) * 0.2 + (len(shape) == 1)
        found[canonical_name(key)] = DenseWeight(to_bf16(numbers), 'bf16')
    return found


def read(name: str, hidden_size: int = 64) -> VisionConfig:
    config = VisionConfig.from_dict(config_of(name, hidden_size))
    assert config is not None
    return config


def twin(name: str, dtype: Any, hidden_size: int = 64) -> Vision:
    return Vision(read(name, hidden_size), vision_weights(name, hidden_size),
                  WeightLoader(dtype, 1 << 30), CpuVisionOps(cpu_op_table(dtype, 'device')))


def on_device(name: str, stream: Any, hidden_size: int = 64, **options: Any) -> Vision:
    loader = DeviceLoader(stream)
    vision = Vision(read(name, hidden_size), vision_weights(name, hidden_size), loader,
                    CudaVisionOps(stream, **options))
    loader.finish()
    return vision


def patches_of(name: str, columns: int, rows: int, seed: int = 1) -> tuple[Array, int]:
    """Random levels of an image of so many soft tokens each way, and its patches in a row."""
    each = 1 if name == 'embedder' else 3
    side = 48 // each
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (columns * rows * each * each, 3 * side * side),
                        np.uint8), columns * each


def fetched(soft: Any, stream: Any) -> Array:
    """Soft tokens of the device in float64."""
    stream.synchronize()
    bits = soft if isinstance(soft, np.ndarray) else soft.get()
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def error(ours: Array, theirs: Array) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return any_stream(request, monkeypatch)


@pytest.mark.parametrize('name', VISIONS)
def test_the_device_sees_what_the_cpu_does(name: str, request: pytest.FixtureRequest,
                                           stream: Any) -> None:
    if name == 'clipped':
        request.getfixturevalue('full')
    vision = on_device(name, stream)
    for columns, rows in ((3, 2),) if name == 'embedder' else ((3, 2), (1, 4), (2, 3)):
        patches, across = patches_of(name, columns, rows)
        soft = fetched(vision.encode(patches, across), stream)
        exact, rounded = (twin(name, dtype).encode(patches, across)
                          for dtype in (np.float64, np.float32))
        assert soft.shape == exact.shape == (columns * rows, 64)
        # orders of sums differ, so that roundings fall differently now and then
        assert error(soft, exact) < max(0.01, 4 * error(rounded, exact)), (columns, rows)
        again = fetched(vision.encode(patches, across), stream)
        assert np.array_equal(again, soft)           # whatever image ran between


@pytest.mark.parametrize('name', ['tower', 'embedder'])
def test_a_graph_sees_the_image_of_the_moment(name: str, request: pytest.FixtureRequest,
                                              stream: Any) -> None:
    if name == 'embedder':
        request.getfixturevalue('full')
    vision, plain = (on_device(name, stream, library=False, graphs=graphs)
                     for graphs in (True, False))
    images = [patches_of(name, 2, 1, seed) for seed in (1, 1, 2, 3)] + [
        patches_of(name, 1, 1), patches_of(name, 2, 1, 4)]
    kept = [vision.encode(*image) for image in images]   # that no later image may change
    for soft, image in zip(kept, images, strict=True):
        assert np.array_equal(fetched(soft, stream), fetched(plain.encode(*image), stream))
    assert not np.array_equal(fetched(kept[2], stream), fetched(kept[3], stream))
    # the second one on, with the small one launched between
    assert vision._ops.num_replays == 4 and plain._ops.num_replays == 0


def test_without_graphs_where_none_can_be_made(stream: Any,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError('planted')

    vision = on_device('tower', stream, library=False)
    image = patches_of('tower', 1, 1)
    first = fetched(vision.encode(*image), stream)
    monkeypatch.setattr(device, 'capture', fail)
    assert all(np.array_equal(fetched(vision.encode(*image), stream), first) for _ in range(2))
    assert not vision._ops.graphs and vision._ops.num_replays == 0


def wrong_places(vision: Vision) -> None:
    """Positions of an image of another width."""
    right = vision._ops.add_positions
    vision._ops.add_positions = lambda x, a, b, columns: right(x, a, b, columns + 1)


def wrong_turn(vision: Vision) -> None:
    """Rope of an image of another width."""
    right = vision._ops.rope
    vision._ops.rope = lambda num, columns, *rest: (columns + 1, *right(num, columns, *rest)[1:])


def wrong_pixels(vision: Vision) -> None:
    """Numbers of 0 .. 1 where -1 .. 1 are meant, and the other way round."""
    right = vision._ops.numbers
    vision._ops.numbers = lambda patches, rows, centred: right(patches, rows, not centred)


def no_bias(vision: Vision) -> None:
    """The matrix alone."""
    vision._ops.add_bias = lambda x, bias: None


def no_bounds(vision: Vision) -> None:
    """Linear layers that clip nothing."""
    ops = vision._ops
    wide = (-1e30, 1e30, -1e30, 1e30)
    right = ops.clipped_linear
    ops.clipped_linear = lambda out, x, weight, bounds: right(out, x, weight, wide)


@pytest.mark.parametrize(('name', 'plant'), [
    ('tower', wrong_places), ('tower', wrong_turn), ('tower', wrong_pixels),
    ('embedder', wrong_places), ('embedder', no_bias), ('clipped', no_bounds)])
def test_a_planted_error_shows(name: str, plant: Any, request: pytest.FixtureRequest,
                               stream: Any) -> None:
    if plant is not wrong_turn:
        request.getfixturevalue('full')
    vision = on_device(name, stream)
    plant(vision)
    patches, across = patches_of(name, 3, 2)
    exact = twin(name, np.float64).encode(patches, across)
    assert error(fetched(vision.encode(patches, across), stream), exact) > 0.02


def test_the_librarys_products_are_ours(stream: Any) -> None:
    if isinstance(stream, HostStream):
        pytest.skip('cuBLAS needs a CUDA device')
    assert not library_gemm.missing()
    ours, theirs = (on_device('tower', stream, library=choice) for choice in (False, True))
    assert theirs._ops.library and not ours._ops.library
    patches, across = patches_of('tower', 5, 4)
    exact = twin('tower', np.float64).encode(patches, across)
    for vision in ours, theirs:
        assert error(fetched(vision.encode(patches, across), stream), exact) < 0.01


def repacked(source: Path, target: Path, form: str) -> Path:
    """A copy of a checkpoint of the 12B's form with its largest vision matrix quantised."""
    checkpoint, name = open_checkpoint(source), 'model.vision_embedder.patch_dense'
    numbers = dense_bf16(np.array(checkpoint.view(f'{name}.weight')))
    change: dict[str, Any] = {}
    if form == 'mlx':
        setting = MlxSetting(8, 64)
        change = {'quantization': setting.as_config()}
        specs = mlx_specs(name, numbers.shape, setting)
        arrays = list(quantize_affine(numbers.to_float(), 8, 64)[:3])
    else:
        specs = nvfp4_specs(name, numbers.shape, Convention.COMPRESSED_TENSORS, False)
        packed = quantize_matrix(numbers, Convention.COMPRESSED_TENSORS)
        arrays = [packed.packed, packed.group_scales,
                  np.full(specs[2].shape, packed.stored_scale, np.float32)]
    kept = [TensorSpec(each, checkpoint.info(each).dtype, checkpoint.info(each).shape)
            for each in checkpoint.names() if each != f'{name}.weight']
    shutil.copytree(source, target, ignore=shutil.ignore_patterns('*.safetensors*'))
    config = json.loads((target / 'config.json').read_text())
    (target / 'config.json').write_text(json.dumps({**config, **change}))
    with CheckpointWriter(target, [*kept, *specs]) as writer:
        for spec in kept:
            writer.write(spec.name, np.array(checkpoint.view(spec.name)))
        for spec, array in zip(specs, arrays, strict=True):
            writer.write(spec.name, array)
    return target


@pytest.mark.parametrize('form', ['bf16', 'nvfp4', 'mlx'])
def test_the_memory_plan_knows_what_the_weights_take(form: str, full: None, stream: Any,
                                                     tmp_path: Path) -> None:
    """Of a checkpoint on the disk; and what is packed is read."""
    folder = tmp_path / 'it'
    write_synthetic(folder, 'tiny-unified', 'bf16', 3)
    if form != 'bf16':
        folder = repacked(folder, tmp_path / form, form)
    checkpoint = open_checkpoint(folder)
    found = find_vision(checkpoint, ModelConfig.from_dict(
        checkpoint.config, checkpoint.generation_config), 'cuda', 'auto')
    assert found.part is not None, found.info.reason
    loader = DeviceLoader(stream)
    vision = Vision(*found.part, loader, CudaVisionOps(stream))
    loader.finish()
    # rows of scales and rows that fill tiles of 16 come besides
    assert 0 <= loader.device_bytes - found.part[1].device_bytes < 0.05 * loader.device_bytes
    patches, across = patches_of('embedder', 1, 1)
    twins = [Vision(*found.part, WeightLoader(dtype, 1 << 30), CpuVisionOps(
        cpu_op_table(dtype, 'device'))).encode(patches, across)
        for dtype in (np.float64, np.float32)]
    soft = fetched(vision.encode(patches, across), stream)
    assert error(soft, twins[0]) < max(0.01, 4 * error(twins[1], twins[0]))


def test_what_the_kernels_cannot() -> None:
    assert vision_cuda.unfit(read('tower')) == vision_cuda.unfit(read('embedder')) == ''
    for change, words in (({'head_dim': 12}, 'head_dim is 12; the kernels take multiples of 8'),
                          ({'head_dim': 136}, 'head_dim is 136 and hidden_size 48'),
                          ({'intermediate_size': 44}, 'intermediate_size is 44')):
        config = VisionConfig.from_dict({
            'text_config': {'hidden_size': 64}, 'vision_config': {**_TOWER, **change}})
        assert config is not None and words in vision_cuda.unfit(config)


@pytest.mark.parametrize('name', VISIONS)
def test_all_kernels_are_known_ahead(name: str, full: None, stream: Any,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loader compiles is what an image launches."""
    vision, used, right = on_device(name, stream), [], device.compiled

    def compiled(spec: Any) -> Any:
        used.append(spec)
        return right(spec)

    monkeypatch.setattr(device, 'compiled', compiled)
    vision.encode(*patches_of(name, 1, 1))
    assert used and set(used) <= set(vision_cuda.vision_specs(read(name)))
