# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A bf16 checkpoint to a real NVFP4 one, module by module: memory stays at a few modules.

The text model's linear layers and experts are quantised; embeddings, router, norms, vision and
audio stay as they are. Knows no command line.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import DenseWeight
from gemma_thor_ros.weights.checkpoint import Checkpoint, TextWeights
from gemma_thor_ros.weights.modules import Form, nvfp4_specs
from gemma_thor_ros.weights.parallel import bounded_map
from gemma_thor_ros.weights.quantization_config import (
    DEFAULT_IGNORE,
    hf_quant_config,
    is_ignored,
    quantization_config,
)
from gemma_thor_ros.weights.quantize import (
    Convention,
    QuantizedTensor,
    largest_magnitude,
    quantize_matrix,
)
from gemma_thor_ros.weights.shapes import Shape
from gemma_thor_ros.weights.writer import DEFAULT_SHARD_BYTES, CheckpointWriter, TensorSpec

# Projections of one input: sharing a global scale lets kernels that fuse them use it as it is.
_GROUPS = (('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj'), ('self_attn.o_proj',),
           ('mlp.gate_proj', 'mlp.up_proj'), ('mlp.down_proj',),
           ('experts.gate_proj', 'experts.up_proj'), ('experts.down_proj',))
_LINEARS = tuple(kind for group in _GROUPS for kind in group)

_REWRITTEN = {'config.json', 'hf_quant_config.json', 'model.safetensors.index.json'}
_WEIGHT_SUFFIXES = {'.safetensors', '.bin', '.pt', '.pth', '.gguf', '.npz', '.h5', '.partial'}
_MAX_SMALL_FILE = 200_000_000            # tokenizer.json has 32 MB

Progress = Callable[[int, int], None]    # (bytes read, bytes in all)


@dataclass
class ErrorStatistics:
    """What quantising cost the modules of one kind, weighted by the energy of their values."""

    num_modules: int = 0
    num_values: int = 0
    squared_error: float = 0.0
    squared_sum: float = 0.0
    worst_module: str = ''
    worst_relative_rms: float = 0.0

    @property
    def relative_rms(self) -> float:
        """sqrt(sum (w - decoded)^2 / sum w^2); about 0.095 for normal values."""
        return (self.squared_error / self.squared_sum) ** 0.5 if self.squared_sum else 0.0

    def add(self, module: str, num_values: int, squared_error: float, squared_sum: float) -> None:
        """Count one module."""
        self.num_modules += 1
        self.num_values += num_values
        self.squared_error += squared_error
        self.squared_sum += squared_sum
        if not squared_sum:
            return                       # all zeros: exact
        relative = (squared_error / squared_sum) ** 0.5
        if relative >= self.worst_relative_rms:
            self.worst_module, self.worst_relative_rms = module, relative


@dataclass
class QuantizationReport:
    """What `quantize_checkpoint` did."""

    source_bytes: int
    written_bytes: int
    num_kept: int                        # tensors copied as they were
    files: list[str] = field(default_factory=list)       # small files copied
    errors: dict[str, ErrorStatistics] = field(default_factory=dict)     # by kind of module


@dataclass(frozen=True)
class _Unit:
    """Modules that are quantised together: on-disk names, kinds and their values."""

    modules: tuple[str, ...]
    kinds: tuple[str, ...]
    weights: tuple[DenseWeight, ...]


def quantize_checkpoint(source: Checkpoint, destination: Path, convention: Convention, *,
                        ignore: Sequence[str] = DEFAULT_IGNORE,
                        max_shard_bytes: int = DEFAULT_SHARD_BYTES, force: bool = False,
                        num_threads: int = 1,
                        progress: Progress = lambda done, total: None) -> QuantizationReport:
    """Write `source` as NVFP4 into `destination` in the form of `convention`.

    `ignore` are globs over on-disk module names that stay bf16. Weight-only: no input scales,
    since nothing is calibrated. Raises ConfigError when the source is unsound or quantised
    already, a value is not finite, or the destination holds files and `force` is not given.
    """
    weights = source.text_weights()
    chosen = _choose(source.folder, weights, ignore)
    units = list(_units(weights, chosen))
    prepare_destination(destination, force, source.folder)
    replaced = {disk for name in chosen for disk in weights.disk_names(name)}
    kept = [name for name in source.names() if name not in replaced]
    specs = _specs(source, units, kept, convention)
    total = sum(source.info(name).nbytes for name in source.names())
    report = QuantizationReport(total, sum(spec.nbytes for spec in specs), len(kept))
    done = 0
    with CheckpointWriter(destination, specs, max_shard_bytes) as writer:
        for name in kept:
            writer.write(name, source.view(name))
            done += source.info(name).nbytes
            progress(done, total)

        def work(unit: _Unit) -> list[QuantizedTensor]:
            return _quantize_unit(source.folder, unit, convention)

        for unit, tensors in zip(units, bounded_map(work, units, num_threads), strict=True):
            for module, kind, tensor in zip(unit.modules, unit.kinds, tensors, strict=True):
                _write(writer, module, tensor)
                report.errors.setdefault(kind, ErrorStatistics()).add(
                    module, 2 * tensor.packed.size, tensor.squared_error, tensor.squared_sum)
            done += sum(weight.nbytes for weight in unit.weights)
            progress(done, total)
    report.files = copy_small_files(source.folder, destination)
    config = copy.deepcopy(source.config)
    config['quantization_config'] = quantization_config(convention, ignore, False)
    write_json(destination / 'config.json', config)
    if convention is Convention.MODELOPT:
        write_json(destination / 'hf_quant_config.json', hf_quant_config(ignore, False))
    return report


def prepare_destination(folder: Path, force: bool, source: Path | None = None) -> None:
    """Make the folder; ConfigError when it holds files and `force` is False, or is the source."""
    if source is not None and folder.resolve() == source.resolve():
        raise ConfigError(f'{folder}: source and destination are the same folder')
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f'{folder}: is no folder')
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f'{folder}: is not empty; --force overwrites the checkpoint in it')
    folder.mkdir(parents=True, exist_ok=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file as the originals are: two blanks, a final newline."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + '\n')


def _choose(folder: Path, weights: TextWeights, ignore: Sequence[str]) -> set[str]:
    """Canonical names of what is quantised: the linear layers that no glob of `ignore` matches."""
    chosen = set()
    for name in weights:
        if not name.endswith(_LINEARS):
            continue
        matches = {is_ignored(module, ignore) for module in weights.disk_modules(name)}
        if len(matches) > 1:
            raise ConfigError(f'{folder}: the ignore list names some experts of {name!r} but not '
                              'all; the experts of a layer must be stored alike')
        if matches == {True}:
            continue
        if weights.form(name) not in (Form.DENSE, Form.FUSED):
            raise ConfigError(f'{folder}: {weights.disk_modules(name)[0]!r} is already quantised, '
                              f'as {weights.form(name).value}; the source must be bf16')
        chosen.add(name)
    for name in weights:
        other = name.removesuffix('gate_proj') + 'up_proj'
        if weights.form(name) is Form.FUSED and other in weights and (
                (name in chosen) != (other in chosen)):
            raise ConfigError(f'{folder}: the ignore list names one of {name!r} and {other!r}, '
                              'which lie in one tensor')
    if not chosen:
        raise ConfigError(f'{folder}: nothing to quantise: every linear layer is ignored')
    return chosen


def _units(weights: TextWeights, chosen: set[str]) -> Iterator[_Unit]:
    """Groups of modules in the model's order; each group's values are views."""
    for layer in range(weights.num_layers):
        for group in _GROUPS:
            kinds = tuple(kind for kind in group if f'layers.{layer}.{kind}' in chosen)
            names = [f'layers.{layer}.{kind}' for kind in kinds]
            modules = [weights.disk_modules(name) for name in names]
            for index, together in enumerate(zip(*modules, strict=True)):
                yield _Unit(together, kinds, tuple(weights.dense(name, index) for name in names))


def _quantize_unit(folder: Path, unit: _Unit, convention: Convention) -> list[QuantizedTensor]:
    amax = 0.0
    for module, weight in zip(unit.modules, unit.weights, strict=True):
        largest = largest_magnitude(weight)
        if not np.isfinite(largest):
            raise ConfigError(f'{folder}: {module!r} holds NaN or infinite values')
        amax = max(amax, largest)
    return [quantize_matrix(weight, convention, amax) for weight in unit.weights]


def _specs(source: Checkpoint, units: list[_Unit], kept: list[str],
           convention: Convention) -> list[TensorSpec]:
    """All tensors to be written, layer by layer, so that a shard holds whole layers."""
    specs = [TensorSpec(name, source.info(name).dtype, source.info(name).shape) for name in kept]
    for unit in units:
        for module, weight in zip(unit.modules, unit.weights, strict=True):
            shape: Shape = weight.shape
            specs += nvfp4_specs(module, shape, convention, quantized_inputs=False)
    return sorted(specs, key=lambda spec: _layer_of(spec.name))


def _layer_of(name: str) -> int:
    _, found, rest = name.partition('layers.')
    number = rest.partition('.')[0]
    return int(number) if found and number.isdigit() else -1


def _write(writer: CheckpointWriter, module: str, tensor: QuantizedTensor) -> None:
    shape = (2 * tensor.packed.shape[1],)
    specs = nvfp4_specs(module, (tensor.packed.shape[0], *shape), tensor.convention, False)
    writer.write(specs[0].name, tensor.packed)
    writer.write(specs[1].name, tensor.group_scales)
    writer.write(specs[2].name, np.full(specs[2].shape, tensor.stored_scale, np.float32))


def copy_small_files(source: Path, destination: Path) -> list[str]:
    """Tokenizer, template and the like; weights in other formats and large files stay behind."""
    copied = []
    for path in sorted(source.iterdir()):
        if (path.is_file() and path.name not in _REWRITTEN and path.suffix not in _WEIGHT_SUFFIXES
                and not path.name.endswith('.index.json')
                and path.stat().st_size <= _MAX_SMALL_FILE):
            shutil.copyfile(path, destination / path.name)
            copied.append(path.name)
    return copied
