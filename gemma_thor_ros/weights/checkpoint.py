# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint folder as canonical text weights: bf16, NVFP4 of two kinds, MLX affine.

Every name, shape and dtype is checked from the headers before a byte of data is read. Knows no
model classes; the vision and audio tensors are recognised and left aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import DenseWeight, Weight
from gemma_thor_ros.weights.mlx_modules import MlxRecipe, check_mlx, read_mlx
from gemma_thor_ros.weights.modules import (
    Form,
    check_dense,
    check_nvfp4,
    form_of,
    read_dense,
    read_nvfp4,
)
from gemma_thor_ros.weights.names import (
    SURPLUS_SUFFIXES,
    Part,
    find_text_prefix,
    module_of,
    parameter,
    part_of,
)
from gemma_thor_ros.weights.quantize import stack_experts
from gemma_thor_ros.weights.safetensors_file import (
    Array,
    TensorFiles,
    TensorInfo,
    no_collection,
    open_tensors,
    read_json,
)
from gemma_thor_ros.weights.shapes import Shape, TextShapes


class Checkpoint:
    """An open folder: config, tensor headers and, on demand, the text weights."""

    def __init__(self, folder: Path, config: dict[str, Any], generation_config: dict[str, Any],
                 tensors: TensorFiles) -> None:
        self.folder = folder
        self.config = config
        self.generation_config = generation_config
        self.tensors = tensors

    @cached_property
    def text_prefix(self) -> str:
        """What stands before 'layers.0...' on disk; ConfigError when nothing looks like it."""
        prefix = find_text_prefix(self.tensors)
        if prefix is None:
            raise ConfigError(f'{self.folder}: none of its {len(self.tensors)} tensors is a text '
                              'weight of Gemma 4 (expected names like '
                              "'model.language_model.layers.0.input_layernorm.weight')")
        return prefix

    def names(self) -> tuple[str, ...]:
        """All on-disk tensor names."""
        return tuple(self.tensors)

    def info(self, name: str) -> TensorInfo:
        """Header entry of an on-disk name."""
        return self.tensors[name]

    def view(self, name: str) -> Array:
        """Read-only view of a tensor's data by its on-disk name."""
        return self.tensors.view(name)

    def parts(self) -> dict[Part, list[str]]:
        """On-disk names by the part of the model they belong to."""
        prefix = self.text_prefix
        parts: dict[Part, list[str]] = {part: [] for part in Part}
        for name in self.tensors:
            parts[part_of(name, prefix)].append(name)
        return parts

    def text_weights(self) -> TextWeights:
        """All text weights that config.json asks for, checked, nothing read yet.

        Raises ConfigError with the on-disk name when a tensor is missing, has a wrong shape or
        dtype, is in a format that is not supported, or is a text tensor that nothing here uses.
        """
        with no_collection():
            return TextWeights(self, TextShapes.from_config(self.config))


class TextWeights(Mapping[str, Weight]):
    """Canonical name -> weight, made at each access.

    Plain tensors and the two halves of a fused gate_up_proj are views of the mapped files. Experts
    that lie unfused on disk are stacked into a new array at every access, so that no more than one
    such array need exist at a time: keep the result, don't ask twice.
    """

    def __init__(self, checkpoint: Checkpoint, shapes: TextShapes) -> None:
        self._checkpoint = checkpoint
        self._shapes = shapes.all()
        self._surplus = {f'{checkpoint.text_prefix}{name}' for name in shapes.surplus()}
        self.num_layers = shapes.num_layers
        self._expert_folder = self._find_expert_folder()
        self._recipe = MlxRecipe(checkpoint.config)
        self._used: set[str] = set()
        self._forms = {name: self._check(name, shape) for name, shape in self._shapes.items()}
        self._refuse_left_over()

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __getitem__(self, name: str) -> Weight:
        form, tensors = self._forms[name], self._checkpoint.tensors
        if form is Form.FUSED:
            return self._read_fused(name)
        if form is Form.STACKED:
            return read_dense(tensors, parameter(self._switch_module(name)))
        if form is Form.MLX:
            module = self._switch_module(name) if _is_expert(name) else self._module(name)
            return read_mlx(tensors, module, self._shapes[name][-1])
        if form is Form.DENSE:
            dense = [read_dense(tensors, part) for part in self.disk_names(name)]
            if not _is_expert(name):
                return dense[0]
            return DenseWeight(np.stack([part.data for part in dense]), dense[0].kind)
        quantised = [read_nvfp4(tensors, module, form) for module in self.disk_modules(name)]
        return stack_experts(quantised) if _is_expert(name) else quantised[0]

    def dense(self, name: str, expert: int = 0) -> DenseWeight:
        """One matrix of a dense weight as a view: the weight itself, or one of its experts."""
        if not _is_expert(name):
            return read_dense(self._checkpoint.tensors, self.disk_names(name)[0])
        if self._forms[name] is Form.FUSED:
            return self._read_fused(name)[expert]
        if self._forms[name] is Form.STACKED:
            return read_dense(self._checkpoint.tensors, self.disk_names(name)[0])[expert]
        return read_dense(self._checkpoint.tensors, self.disk_names(name)[expert])

    def layer(self, index: int) -> dict[str, Weight]:
        """The weights of one layer, names without 'layers.N.'."""
        prefix = f'layers.{index}.'
        return {name.removeprefix(prefix): self[name]
                for name in self._shapes if name.startswith(prefix)}

    def form(self, name: str) -> Form:
        """How a weight is stored."""
        return self._forms[name]

    def shape(self, name: str) -> Shape:
        """Logical shape of a weight."""
        return self._shapes[name]

    def disk_modules(self, name: str) -> list[str]:
        """On-disk modules of a weight as unfused checkpoints spell it: one, or one per expert."""
        if _is_expert(name):
            return self._expert_modules(name, self._shapes[name][0])
        return [self._module(name)]

    def disk_names(self, name: str) -> list[str]:
        """The on-disk tensors that a dense weight is read from: one, or one per expert."""
        if self._forms[name] is Form.FUSED:
            return [self._fused_name(name)]
        if self._forms[name] is Form.STACKED:
            return [parameter(self._switch_module(name))]
        return [parameter(module) for module in self.disk_modules(name)]

    def half_scales(self) -> str:
        """On-disk name of MLX affine scales or biases in float16, the router's aside, or ''."""
        tensors = self._checkpoint.tensors
        for name, form in self._forms.items():
            if form is not Form.MLX or name.endswith('router.proj'):
                continue
            module = self._switch_module(name) if _is_expert(name) else self._module(name)
            for stored in (f'{module}.scales', f'{module}.biases'):
                if tensors[stored].dtype == 'F16':
                    return stored
        return ''

    def _module(self, name: str) -> str:
        return self._checkpoint.text_prefix + name

    def _find_expert_folder(self) -> str:
        """'experts' or, in one community export, 'moe.experts'."""
        start = self._checkpoint.text_prefix + 'layers.0.moe.experts.'
        other = any(name.startswith(start) for name in self._checkpoint.tensors)
        return 'moe.experts' if other else 'experts'

    def _expert_modules(self, name: str, num_experts: int) -> list[str]:
        """On-disk modules of 'layers.L.experts.gate_proj', one per expert."""
        layer, _, projection = name.partition('.experts.')
        start = f'{self._module(layer)}.{self._expert_folder}'
        return [f'{start}.{expert}.{projection}' for expert in range(num_experts)]

    def _switch_module(self, name: str) -> str:
        """On-disk module of 'layers.L.experts.gate_proj' in MLX packs: all experts in one."""
        return self._module(name.replace('.experts.', '.experts.switch_glu.'))

    def _fused_name(self, name: str) -> str:
        layer, _, projection = name.partition('.experts.')
        fused = 'down_proj' if projection == 'down_proj' else 'gate_up_proj'
        return f'{self._module(layer)}.{self._expert_folder}.{fused}'

    def _read_fused(self, name: str) -> DenseWeight:
        """gate, up or down of all experts, a view of the fused tensor: rows are gate, then up."""
        whole = read_dense(self._checkpoint.tensors, self._fused_name(name))
        rows = self._shapes[name][1]
        if name.endswith('.gate_proj'):
            return DenseWeight(whole.data[:, :rows], whole.kind)
        if name.endswith('.up_proj'):
            return DenseWeight(whole.data[:, rows:], whole.kind)
        return whole

    def _check(self, name: str, shape: Shape) -> Form:
        tensors = self._checkpoint.tensors
        if not _is_expert(name):
            return self._check_module(self._module(name), shape, name)
        stacked = self._switch_module(name)
        if f'{stacked}.scales' in tensors:
            self._used.update(check_mlx(tensors, stacked, shape, self._recipe))
            return Form.MLX
        if parameter(stacked) in tensors:
            self._used.add(check_dense(tensors, parameter(stacked), shape))
            return Form.STACKED
        fused = self._fused_name(name)
        if fused in tensors:
            experts, rows, columns = shape
            rows = rows if name.endswith('.down_proj') else 2 * rows
            self._used.add(check_dense(tensors, fused, (experts, rows, columns)))
            return Form.FUSED
        modules = self._expert_modules(name, shape[0])
        if not any(form_of(tensors, module) for module in modules):
            raise ConfigError(f'{self._checkpoint.folder}: tensor {fused!r} is missing, and so '
                              f'are the unfused ones such as {parameter(modules[0])!r}')
        forms = [self._check_module(module, shape[1:], name) for module in modules]
        for module, form in zip(modules, forms, strict=True):
            if form is not forms[0]:
                raise ConfigError(f'{self._checkpoint.folder}: {module!r} is {form.value}, but '
                                  f'{modules[0]!r} is {forms[0].value}; the experts of a layer '
                                  'must be stored alike')
        return forms[0]

    def _check_module(self, module: str, shape: Shape, name: str) -> Form:
        tensors = self._checkpoint.tensors
        form = form_of(tensors, module) or Form.DENSE
        if form is Form.DENSE:
            self._used.add(check_dense(tensors, parameter(module), shape))
            return form
        if form is Form.MLX and len(shape) == 2:         # tables and router too
            self._used.update(check_mlx(tensors, module, shape, self._recipe))
            return form
        if not name.endswith(_LINEAR):
            raise ConfigError(f'{self._checkpoint.folder}: {module!r} is {form.value}; only '
                              'linear layers may be quantised')
        self._used.update(check_nvfp4(tensors, module, shape, form))
        return form

    def _refuse_left_over(self) -> None:
        """A text tensor that nothing uses changes the model's function: refuse, don't ignore."""
        prefix = self._checkpoint.text_prefix
        left = [name for name in self._checkpoint.tensors if name not in self._used
                and name.rpartition('.')[2] not in SURPLUS_SUFFIXES
                and module_of(name) not in self._surplus and part_of(name, prefix) is Part.TEXT]
        if left:
            raise ConfigError(f'{self._checkpoint.folder}: {len(left)} text tensors that '
                              f'config.json has no place for: {", ".join(left[:3])}'
                              f'{", ..." if len(left) > 3 else ""}')


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Open a checkpoint folder: config.json, generation_config.json if present, tensor headers.

    Raises ConfigError naming the file at fault.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f'{folder}: no such folder')
    config = read_json(folder / 'config.json')
    generation = folder / 'generation_config.json'
    generation_config = read_json(generation) if generation.is_file() else {}
    return Checkpoint(folder, config, generation_config, open_tensors(folder))


# Names of linear layers end so; the last ones are those of per-layer embeddings.
_LINEAR = ('_proj', 'per_layer_input_gate', 'per_layer_projection', 'per_layer_model_projection')


def _is_expert(name: str) -> bool:
    return '.experts.' in name
