# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of random weights in the real formats, names and shapes, written as a stream.

Each tensor has its own generator, keyed by seed and name: the same seed gives the same bytes,
whatever the number of threads, and tensors that two formats share are equal. Scales are chosen so
that activations neither vanish nor explode. Knows no command line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.convert import Progress, prepare_destination, write_json
from gemma_thor_ros.weights.drafter_presets import DRAFTER_PRESETS, drafter_preset_config
from gemma_thor_ros.weights.drafter_shapes import (
    drafter_disk_name,
    drafter_kind,
    drafter_shapes,
)
from gemma_thor_ros.weights.mlx_modules import MLX_FORMATS, mlx_specs, setting_of
from gemma_thor_ros.weights.modules import nvfp4_specs
from gemma_thor_ros.weights.names import parameter
from gemma_thor_ros.weights.number_formats import (
    E2M1_VALUES,
    E4M3_VALUES,
    Bf16,
    float32_to_bf16,
)
from gemma_thor_ros.weights.parallel import bounded_map
from gemma_thor_ros.weights.presets import PRESETS, preset_config, preset_generation_config
from gemma_thor_ros.weights.quantization_config import (
    ATTENTION,
    DEFAULT_IGNORE,
    hf_quant_config,
    is_ignored,
    quantization_config,
)
from gemma_thor_ros.weights.quantize import Convention
from gemma_thor_ros.weights.safetensors_file import Array
from gemma_thor_ros.weights.shapes import Shape, TextShapes
from gemma_thor_ros.weights.synth_mlx import Affine, mlx_tensors, random_affine
from gemma_thor_ros.weights.tower_shapes import tower_shapes
from gemma_thor_ros.weights.writer import DEFAULT_SHARD_BYTES, CheckpointWriter, TensorSpec

PREFIX = 'model.language_model.'
FORMATS = ('bf16', *(convention.value for convention in Convention), *MLX_FORMATS)
ALL_PRESETS = (*PRESETS, *DRAFTER_PRESETS)

_CHUNK_BYTES = 1 << 24                   # pieces of large tensors that exist at a time
_TASK_BYTES = 1 << 22                    # experts' modules are small: several in one task

# How often each e2m1 code stands in a quantised matrix of normal values, in 256ths.
_CODE_COUNTS = (9, 17, 16, 15, 19, 20, 18, 14) * 2
# Most group scales of such a matrix lie between 112 and 288: e4m3 codes 0x6E to 0x79.
_SCALE_CODES = np.arange(0x6E, 0x7A, dtype=np.uint8)


@dataclass(frozen=True)
class Plan:
    """What a checkpoint of random weights consists of."""

    config: dict[str, Any]
    plain: dict[str, Shape]              # on-disk name -> shape of the bf16 tensors
    quantised: dict[str, tuple[int, int]]        # on-disk module -> (out, in)
    convention: Convention | None
    quantized_inputs: bool
    affine: Affine = field(default_factory=dict)

    def specs(self) -> list[TensorSpec]:
        """All tensors in the model's order."""
        specs = [TensorSpec(name, 'BF16', shape) for name, shape in self.plain.items()]
        if self.convention is not None:
            for module, shape in self.quantised.items():
                specs += nvfp4_specs(module, shape, self.convention, self.quantized_inputs)
        for module, (sizes, setting) in self.affine.items():
            specs += mlx_specs(module, sizes, setting)
        return specs


def make_plan(preset: str, checkpoint_format: str, text_only: bool = False,
              num_layers: int | None = None) -> Plan:
    """The tensors of one of ALL_PRESETS in one of FORMATS; ConfigError for a quantised drafter.

    compressed-tensors quantises attention too, ModelOpt leaves it bf16, as the published packs do.
    num_layers: the first ones of a model alone.
    """
    if preset in DRAFTER_PRESETS:
        return _drafter_plan(preset, checkpoint_format)
    config = preset_config(preset)
    if num_layers is not None:
        text = config.get('text_config', config)
        if not 0 < num_layers <= len(text['layer_types']):
            raise ConfigError(f'{num_layers} layers are wanted, {preset} has '
                              f'{len(text["layer_types"])}')
        text['layer_types'] = text['layer_types'][:num_layers]
        text['num_hidden_layers'] = num_layers
    if text_only:
        config['vision_config'] = config['audio_config'] = None
    wanted = setting_of(checkpoint_format)
    if wanted is not None:
        plain, affine, config = mlx_tensors(config, wanted)
        plain.update({name.removeprefix('model.'): shape
                      for name, shape in tower_shapes(config).items()})
        return Plan(config, plain, {}, None, False, affine)
    convention = None if checkpoint_format == 'bf16' else Convention(checkpoint_format)
    ignore: tuple[str, ...] = DEFAULT_IGNORE
    if convention is Convention.MODELOPT:
        ignore = (*ignore, ATTENTION)
    plain, quantised = _text_tensors(config, convention, ignore)
    plain.update(tower_shapes(config))
    if convention is not None:
        config['quantization_config'] = quantization_config(convention, ignore, True)
    return Plan(config, plain, quantised, convention, convention is not None)


def default_format(preset: str) -> str:
    """The form in which a preset is mostly used: drafters are published in bf16 alone."""
    return 'bf16' if preset in DRAFTER_PRESETS else Convention.COMPRESSED_TENSORS.value


def _drafter_plan(preset: str, checkpoint_format: str) -> Plan:
    if checkpoint_format != 'bf16':
        raise ConfigError(f'preset {preset} has no {checkpoint_format} form: drafters are read in '
                          'bf16')
    config = drafter_preset_config(preset)
    kind = drafter_kind(config)
    assert kind is not None, preset
    plain = {parameter(drafter_disk_name(kind, name)): shape
             for name, shape in drafter_shapes(config).items()}
    return Plan(config, plain, {}, None, False)


def write_synthetic(destination: Path, preset: str, checkpoint_format: str, seed: int, *,
                    text_only: bool = False, max_shard_bytes: int = DEFAULT_SHARD_BYTES,
                    force: bool = False, num_threads: int = 1,
                    progress: Progress = lambda done, total: None,
                    num_layers: int | None = None) -> Plan:
    """Write config.json, a model's generation_config.json and random weights; no tokenizer.

    Raises ConfigError when the destination holds files and `force` is not given.
    """
    plan = make_plan(preset, checkpoint_format, text_only, num_layers)
    prepare_destination(destination, force)
    with CheckpointWriter(destination, plan.specs(), max_shard_bytes) as writer:
        done = 0
        for size in _write_plain(writer, plan, seed, num_threads):
            done += size
            progress(done, writer.total_bytes)
        for size in _write_quantised(writer, plan, seed, num_threads):
            done += size
            progress(done, writer.total_bytes)
        for size in _write_affine(writer, plan, seed, num_threads):
            done += size
            progress(done, writer.total_bytes)
    write_json(destination / 'config.json', plan.config)
    if preset in PRESETS:
        write_json(destination / 'generation_config.json', preset_generation_config(preset))
    if plan.convention is Convention.MODELOPT:
        write_json(destination / 'hf_quant_config.json',
                   hf_quant_config(plan.config['quantization_config']['ignore'], True))
    return plan


def _text_tensors(config: Mapping[str, Any], convention: Convention | None,
                  ignore: tuple[str, ...]) -> tuple[dict[str, Shape], dict[str, tuple[int, int]]]:
    """Text tensors by their on-disk names: plain ones, and modules to be quantised."""
    plain: dict[str, Shape] = {}
    quantised: dict[str, tuple[int, int]] = {}
    for name, shape in TextShapes.from_config(config).all().items():
        module = PREFIX + name
        expert = '.experts.' in name
        if convention is None or not name.endswith('_proj') or is_ignored(module, ignore):
            if not expert:
                plain[parameter(module)] = shape
            elif name.endswith('.down_proj'):
                plain[module] = shape
            elif name.endswith('.gate_proj'):        # gate and up lie in one tensor
                fused = module.removesuffix('gate_proj') + 'gate_up_proj'
                plain[fused] = (shape[0], 2 * shape[1], shape[2])
        elif expert:
            start, _, projection = module.rpartition('.')
            for index in range(shape[0]):
                quantised[f'{start}.{index}.{projection}'] = (shape[1], shape[2])
        else:
            quantised[module] = (shape[0], shape[1])
    return plain, quantised


def _spread(name: str, shape: Shape, config: Mapping[str, Any]) -> tuple[float, float]:
    """Mean and standard deviation of a bf16 tensor."""
    last = name.removesuffix('.weight').rpartition('.')[2]
    if last in ('q_norm', 'k_norm'):     # the softmax scale is 1: d^-1/2 must lie in the two norms
        return float(shape[0]) ** -0.25, 0.02 * float(shape[0]) ** -0.25
    if last.startswith(('std_bias', 'bias')):
        return 0.0, 0.02
    if last.endswith(('put_min', 'put_max')):    # of numbers with spread 1: few are clipped
        return (-4.0 if last.endswith('min') else 4.0), 0.1
    if len(shape) == 1:                  # norms, scalars, per-expert and standardising scales
        return 1.0, 0.03
    if last in ('position_embedding_table', 'pos_embedding'):
        return 0.0, 0.02
    if '.router.' in name:               # its input has rms hidden^-1/2: logits of spread 1
        return 0.0, 1.0
    # Linear layers keep the rms; the embedding's rows have rms 1 after the scale sqrt(hidden).
    return 0.0, float(shape[-1]) ** -0.5


def _generator(seed: int, name: str) -> np.random.Generator:
    digest = hashlib.sha256(f'{seed}:{name}'.encode()).digest()
    return np.random.Generator(np.random.SFC64(list(digest)))


def _write_plain(writer: CheckpointWriter, plan: Plan, seed: int,
                 num_threads: int) -> Iterator[int]:
    """Write the bf16 tensors; gives the bytes of each piece written."""
    def piece(task: tuple[str, int, int]) -> Bf16:
        name, index, count = task
        mean, deviation = _spread(name, plan.plain[name], plan.config)
        noise = _generator(seed, f'{name}:{index}').integers(0, 1 << 16, count, np.uint16)
        return np.take(_bf16_table(mean, deviation), noise)

    for name, shape in plan.plain.items():
        count = int(np.prod(shape, dtype=np.int64))
        step = _CHUNK_BYTES // 2
        tasks = [(name, index, min(step, count - start))
                 for index, start in enumerate(range(0, count, step))]
        writer.write_chunks(name, bounded_map(piece, tasks, num_threads))
        yield 2 * count


def _write_quantised(writer: CheckpointWriter, plan: Plan, seed: int,
                     num_threads: int) -> Iterator[int]:
    """Write the NVFP4 modules; gives the bytes of each module written."""
    if plan.convention is None:
        return
    convention = plan.convention
    tasks: list[list[tuple[str, tuple[int, int]]]] = []
    size = _TASK_BYTES
    for module, (rows, columns) in plan.quantised.items():
        if size >= _TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append((module, (rows, columns)))
        size += rows * columns // 2

    def batch(task: list[tuple[str, tuple[int, int]]]) -> list[tuple[TensorSpec, Array]]:
        return [pair for module, shape in task
                for pair in _random_nvfp4(module, shape, convention, plan.quantized_inputs, seed)]

    for pairs in bounded_map(batch, tasks, num_threads):
        for spec, array in pairs:
            writer.write(spec.name, array)
        yield sum(spec.nbytes for spec, _ in pairs)


def _write_affine(writer: CheckpointWriter, plan: Plan, seed: int,
                  num_threads: int) -> Iterator[int]:
    """Write the MLX modules; gives the bytes of each."""
    def make(module: str) -> list[tuple[TensorSpec, Array]]:
        shape, setting = plan.affine[module]
        deviation = _spread(f'{module}.weight', shape, plan.config)[1]
        return random_affine(module, shape, setting, deviation, _generator(seed, module))

    for pairs in bounded_map(make, list(plan.affine), num_threads):
        for spec, array in pairs:
            writer.write(spec.name, array)
        yield sum(spec.nbytes for spec, _ in pairs)


def _random_nvfp4(module: str, shape: tuple[int, int], convention: Convention,
                  quantized_inputs: bool, seed: int) -> list[tuple[TensorSpec, Array]]:
    """The stored tensors of one module: normal-like codes, and a global scale of its own."""
    specs = nvfp4_specs(module, shape, convention, quantized_inputs)
    generator = _generator(seed, module)
    packed = _packed_table()[generator.integers(0, 1 << 16, specs[0].shape, np.uint16)]
    choice = generator.integers(0, len(_SCALE_CODES), specs[1].shape, np.uint8)
    scales = _SCALE_CODES[choice]
    rms = _rms(E2M1_VALUES, _code_table()) * _rms(E4M3_VALUES, _SCALE_CODES)
    multiplier = generator.uniform(0.95, 1.05) * shape[1] ** -0.5 / rms
    input_multiplier = 8.0 / 2688        # activations of rms 1 rarely pass 8
    arrays: list[Array] = [packed, scales]
    for spec, value in zip(specs[2:], (multiplier, input_multiplier), strict=False):
        stored = value if convention is Convention.MODELOPT else 1 / value
        arrays.append(np.full(spec.shape, stored, np.float32))
    return list(zip(specs, arrays, strict=True))


def _rms(values: npt.NDArray[np.float64], codes: npt.NDArray[Any]) -> float:
    return float(np.sqrt((values[codes] ** 2).mean()))


@cache
def _code_table() -> npt.NDArray[np.uint8]:
    """(256,) e2m1 codes: a random byte becomes a code of normal values' frequency."""
    return np.repeat(np.arange(16, dtype=np.uint8), _CODE_COUNTS)


@cache
def _packed_table() -> npt.NDArray[np.uint8]:
    """(65536,) bytes: a random uint16 becomes two independent codes."""
    codes = _code_table()
    return (codes[None, :] | (codes[:, None] << np.uint8(4))).reshape(-1)


@cache
def _normal_table() -> npt.NDArray[np.float32]:
    """(65536,) quantiles of the normal distribution: a random uint16 becomes a normal value."""
    quantile: Callable[[float], float] = NormalDist().inv_cdf
    return np.array([quantile((index + 0.5) / 65536) for index in range(65536)], np.float32)


@cache
def _bf16_table(mean: float, deviation: float) -> Bf16:
    return float32_to_bf16(_normal_table() * np.float32(deviation) + np.float32(mean))
