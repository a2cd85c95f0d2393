# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The vision part of a checkpoint as canonical weights: bf16, NVFP4, MLX affine.

Names are those on disk without what stands in front ('model.vision_tower.') and without '.linear'
and '.weight'; a bias keeps its ending. Checked from the headers before a byte is read. Knows no
model classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import Weight
from gemma_thor_ros.weights.mlx_modules import MlxRecipe, check_mlx, read_mlx
from gemma_thor_ros.weights.modules import (
    Form,
    check_dense,
    check_nvfp4,
    form_of,
    read_dense,
    read_nvfp4,
)
from gemma_thor_ros.weights.shapes import Shape
from gemma_thor_ros.weights.tower_shapes import tower_shapes

if TYPE_CHECKING:
    from gemma_thor_ros.weights.checkpoint import Checkpoint

_PARTS = ('model.vision_tower.', 'model.vision_embedder.', 'model.embed_vision.')


class VisionWeights(Mapping[str, Weight]):
    """Canonical name -> weight of the vision part, made at each access."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Check every tensor that config.json asks for.

        Raises ConfigError with the on-disk name when one is missing, has a wrong shape, or is
        stored in a form that is not read.
        """
        self._checkpoint = checkpoint
        self._recipe = MlxRecipe(checkpoint.config)
        self._places: dict[str, tuple[str, Form, Shape]] = {}
        try:
            shapes = _disk_shapes(checkpoint.config)
        except KeyError as error:
            raise ConfigError(f'{checkpoint.folder / "config.json"}: vision_config has no '
                              f'{error}') from error
        for disk_name, shape in shapes.items():
            self._places[canonical_name(disk_name)] = self._find(disk_name, shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Weight:
        module, form, shape = self._places[name]
        tensors = self._checkpoint.tensors
        if form is Form.DENSE:
            return read_dense(tensors, module)
        if form is Form.MLX:
            return read_mlx(tensors, module, shape[-1])
        return read_nvfp4(tensors, module, form)

    def form(self, name: str) -> Form:
        """How a weight is stored."""
        return self._places[name][1]

    def unlike_device(self) -> str:
        """A matrix that is neither bf16 nor packed, with its type; '' where there is none."""
        for module, form, shape in self._places.values():
            if len(shape) == 2 and form is Form.DENSE:
                dtype = self._checkpoint.tensors[module].dtype
                if dtype != 'BF16':
                    return f'{module!r} is {dtype}'
        return ''

    @property
    def device_bytes(self) -> int:
        """Bytes where matrices stay as they are, bf16 or packed, and all else becomes float32."""
        total = 0
        for module, form, shape in self._places.values():
            if len(shape) != 2:
                total += 4 * math.prod(shape)
            elif form is Form.DENSE:
                total += 2 * math.prod(shape)
            else:
                total += sum(info.nbytes for name, info in self._checkpoint.tensors.items()
                             if name.startswith(f'{module}.') and not name.endswith('.bias'))
        return total

    def _find(self, disk_name: str, shape: Shape) -> tuple[str, Form, Shape]:
        """(on-disk tensor, or module where it is quantised; its form; its shape)."""
        tensors = self._checkpoint.tensors
        module = disk_name.removesuffix('.weight')
        for candidate in _spellings(module):
            form = form_of(tensors, candidate)
            if form is None:
                continue
            if form is Form.DENSE:
                name = candidate if candidate in tensors else f'{candidate}.weight'
                if shape == () and tensors[name].shape == (1,):
                    shape = (1,)
                return check_dense(tensors, name, shape), form, shape
            if len(shape) != 2:
                raise ConfigError(f'{tensors.folder}: {candidate!r} is {form.value}; only the '
                                  'matrices of the vision part may be quantised')
            if form is Form.MLX:
                check_mlx(tensors, candidate, shape, self._recipe)
            else:
                check_nvfp4(tensors, candidate, shape, form)
            return candidate, form, shape
        raise ConfigError(f'{tensors.folder}: tensor {disk_name!r} is missing')


def vision_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    """Canonical name -> shape of the vision part of a config.json."""
    return {canonical_name(name): shape for name, shape in _disk_shapes(config).items()}


def _disk_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    return {name: shape for name, shape in tower_shapes(config).items()
            if name.startswith(_PARTS)}


def _spellings(module: str) -> tuple[str, ...]:
    """How files spell a module: with and without 'model.', with and without '.linear'."""
    bare = module.removeprefix('model.')
    names = (module, bare)
    return (*names, *(name.removesuffix('.linear') for name in names if name.endswith('.linear')))


def canonical_name(disk_name: str) -> str:
    """The name of a tensor here: model.vision_tower.std_bias is std_bias."""
    name = disk_name
    for start in _PARTS:
        name = name.removeprefix(start)
    return name.removesuffix('.weight').removesuffix('.linear')
