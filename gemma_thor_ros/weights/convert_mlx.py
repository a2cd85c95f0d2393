# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A bf16 checkpoint to an MLX affine one, with the names and the recipe of the published packs.

Linear layers, stacked experts and tables get the wanted width, the router 8 bits in groups of 64;
norms, scales, vision and audio stay as they are. Knows no command line.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.checkpoint import Checkpoint, TextWeights
from gemma_thor_ros.weights.convert import (
    ErrorStatistics,
    Progress,
    QuantizationReport,
    copy_small_files,
    prepare_destination,
    write_json,
)
from gemma_thor_ros.weights.mlx_bits import AffineCodes, quantize_affine
from gemma_thor_ros.weights.mlx_modules import MLX_PREFIX, ROUTER, MlxSetting, mlx_specs
from gemma_thor_ros.weights.modules import Form
from gemma_thor_ros.weights.names import kind_of, parameter
from gemma_thor_ros.weights.parallel import bounded_map
from gemma_thor_ros.weights.quantization_config import is_ignored
from gemma_thor_ros.weights.safetensors_file import Array
from gemma_thor_ros.weights.shapes import Shape
from gemma_thor_ros.weights.writer import DEFAULT_SHARD_BYTES, CheckpointWriter, TensorSpec

# What MLX would quantise: the rest are norms and scales.
_MATRICES = ('_proj', 'router.proj', 'embed_tokens', 'embed_tokens_per_layer',
             'per_layer_input_gate', 'per_layer_projection', 'per_layer_model_projection')
_PIECE_VALUES = 1 << 22                  # quantised at a time, by one thread


def mlx_module(name: str) -> str:
    """On-disk module of a canonical weight in MLX packs."""
    return MLX_PREFIX + name.replace('.experts.', '.experts.switch_glu.')


def mlx_setting_for(name: str, shape: Shape, wanted: MlxSetting) -> MlxSetting | None:
    """How a weight is stored; None: as it is, for norms and for rows that groups do not divide."""
    if len(shape) < 2:
        return None
    setting = ROUTER if name.endswith('router.proj') else wanted
    return None if shape[-1] % setting.group_size else setting


@dataclass(frozen=True)
class _Task:
    """Some rows of one weight: the canonical name and how they are quantised."""

    name: str
    setting: MlxSetting
    values: Any                          # DenseWeight (n, M)


def quantize_checkpoint_mlx(source: Checkpoint, destination: Path, wanted: MlxSetting, *,
                            ignore: Sequence[str] = (),
                            max_shard_bytes: int = DEFAULT_SHARD_BYTES, force: bool = False,
                            num_threads: int = 1,
                            progress: Progress = lambda done, total: None) -> QuantizationReport:
    """Write `source` as MLX affine into `destination`.

    `ignore` are globs over on-disk module names of the source that stay bf16. Raises ConfigError
    when the source is unsound or quantised already, a value is not finite, or the destination
    holds files and `force` is not given.
    """
    weights = source.text_weights()
    settings = {name: _setting(source, weights, name, wanted, ignore) for name in weights}
    if not any(settings.values()):
        raise ConfigError(f'{source.folder}: nothing to quantise: every linear layer is ignored')
    prepare_destination(destination, force, source.folder)
    others = _others(source, weights)
    specs = [TensorSpec(_outer(name), source.info(name).dtype, source.info(name).shape)
             for name in others]
    for name, setting in settings.items():
        specs += _specs(source, weights, name, setting)
    total = sum(source.info(name).nbytes for name in source.names())
    kept = len(others) + sum(setting is None for setting in settings.values())
    report = QuantizationReport(total, sum(spec.nbytes for spec in specs), kept)
    done = 0
    with CheckpointWriter(destination, specs, max_shard_bytes) as writer:
        for name in others:
            writer.write(_outer(name), source.view(name))
            done += source.info(name).nbytes
        for name, setting in settings.items():
            done += _write(writer, weights, name, setting, report, num_threads, source.folder)
            progress(min(done, total), total)
    report.files = copy_small_files(source.folder, destination)
    write_json(destination / 'config.json', mlx_config(source.config, settings, wanted))
    return report


def mlx_config(config: dict[str, Any], settings: dict[str, MlxSetting | None],
               wanted: MlxSetting) -> dict[str, Any]:
    """config.json with `quantization`: the default and every matrix that differs from it."""
    stated: dict[str, Any] = wanted.as_config()
    for name, setting in settings.items():
        module = mlx_module(name)
        if setting is None and name.endswith(_MATRICES):
            stated[module] = False
        elif setting is not None and setting != wanted:
            stated[module] = setting.as_config()
    changed = copy.deepcopy(config)
    changed['quantization'] = stated
    changed['quantization_config'] = copy.deepcopy(stated)
    return changed


def _setting(source: Checkpoint, weights: TextWeights, name: str, wanted: MlxSetting,
             ignore: Sequence[str]) -> MlxSetting | None:
    setting = mlx_setting_for(name, weights.shape(name), wanted)
    if setting is None:
        return None
    if weights.form(name) not in (Form.DENSE, Form.FUSED, Form.STACKED):
        raise ConfigError(f'{source.folder}: {weights.disk_modules(name)[0]!r} is already '
                          f'quantised, as {weights.form(name).value}; the source must be bf16')
    return None if is_ignored(weights.disk_modules(name)[0], ignore) else setting


def _others(source: Checkpoint, weights: TextWeights) -> list[str]:
    """On-disk names of what is no text weight; K and V that nothing reads stay behind too."""
    prefix = source.text_prefix
    return [name for part, names in source.parts().items() if part.value in ('vision', 'audio')
            for name in names if not name.startswith(f'{prefix}layers.')]


def _outer(name: str) -> str:
    return name.removeprefix('model.')


def _specs(source: Checkpoint, weights: TextWeights, name: str,
           setting: MlxSetting | None) -> list[TensorSpec]:
    module, shape = mlx_module(name), weights.shape(name)
    if setting is not None:
        return mlx_specs(module, shape, setting)
    dtype = source.info(weights.disk_names(name)[0]).dtype
    return [TensorSpec(parameter(module), dtype, shape)]


def _pieces(weights: TextWeights, name: str, setting: MlxSetting) -> Iterator[_Task]:
    shape = weights.shape(name)
    step = max(1, _PIECE_VALUES // shape[-1])
    for expert in range(shape[0] if len(shape) == 3 else 1):
        matrix = weights.dense(name, expert)
        for start in range(0, shape[-2], step):
            yield _Task(name, setting, matrix[start:start + step])


def _write(writer: CheckpointWriter, weights: TextWeights, name: str, setting: MlxSetting | None,
           report: QuantizationReport, num_threads: int, folder: Path) -> int:
    """Write one weight; gives the bytes read."""
    module, shape = mlx_module(name), weights.shape(name)
    if setting is None:
        data: Array = weights[name].data                 # type: ignore[union-attr]
        writer.write(parameter(module), np.ascontiguousarray(data))
        return data.nbytes
    num_read = 0
    parts: list[AffineCodes] = []
    statistics = report.errors.setdefault(kind_of(name), ErrorStatistics())

    def work(task: _Task) -> AffineCodes:
        values = task.values.to_float(np.float32)
        if not np.isfinite(values).all():
            raise ConfigError(f'{folder}: {name!r} holds NaN or infinite values')
        return quantize_affine(values, setting.bits, setting.group_size)

    tasks = list(_pieces(weights, name, setting))
    for codes, task in zip(bounded_map(work, tasks, num_threads), tasks, strict=True):
        parts.append(codes)
        num_read += task.values.nbytes
    statistics.add(name, int(np.prod(shape)), sum(part.squared_error for part in parts),
                   sum(part.squared_sum for part in parts))
    specs = mlx_specs(module, shape, setting)
    for spec, field in zip(specs, ('words', 'scales', 'biases'), strict=True):
        joined = np.concatenate([getattr(part, field) for part in parts])
        writer.write(spec.name, joined.reshape(spec.shape))
    return num_read
