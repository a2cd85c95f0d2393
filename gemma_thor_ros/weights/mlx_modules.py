# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""MLX packs: what config.json says of each module, is a module sound, and its canonical weight.

Bits and group size of a module follow from its tensors, so that mixed recipes need nothing of
their own; the config has to agree, and it alone tells the modes apart. Knows no layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight
from gemma_thor_ros.weights.mlx_bits import BITS, GROUP_SIZES, row_words, sizes_of
from gemma_thor_ros.weights.names import TEXT_PREFIXES
from gemma_thor_ros.weights.safetensors_file import TensorFiles, TensorInfo
from gemma_thor_ros.weights.shapes import Shape
from gemma_thor_ros.weights.writer import TensorSpec

MLX_PREFIX = 'language_model.model.'
OTHER_MODES = ('mxfp4', 'nvfp4', 'mxfp8')                # of MLX, refused by name
_NAME = re.compile(r'mlx-(\d)bit-g(\d+)')


@dataclass(frozen=True)
class MlxSetting:
    """How a module is quantised."""

    bits: int
    group_size: int
    mode: str = 'affine'

    @property
    def name(self) -> str:
        """What --format calls it: mlx-4bit-g64."""
        return f'mlx-{self.bits}bit-g{self.group_size}'

    def as_config(self) -> dict[str, Any]:
        """As config.json writes it."""
        return {'group_size': self.group_size, 'bits': self.bits, 'mode': self.mode}


ROUTER = MlxSetting(8, 64)               # what every published pack gives the router
MLX_FORMATS = tuple(MlxSetting(bits, size).name for bits in BITS for size in GROUP_SIZES)


def setting_of(name: str) -> MlxSetting | None:
    """The setting of a --format such as mlx-4bit-g64; None for the name of another format."""
    found = _NAME.fullmatch(name)
    return MlxSetting(int(found[1]), int(found[2])) if found and name in MLX_FORMATS else None


class MlxRecipe:
    """`quantization` of a config.json: a default, and other settings or none for some modules."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Read it; a config without one gives a recipe that knows nothing of any module."""
        found = config.get('quantization', config.get('quantization_config'))
        stated = found if isinstance(found, Mapping) and 'group_size' in found else {}
        self._default = _setting('quantization', stated) if stated else None
        self._modules: dict[str, MlxSetting | Literal[False]] = {}
        for path, value in stated.items():
            if isinstance(value, Mapping) and path != 'mode':
                self._modules[_bare(path)] = _setting(path, {**stated, **value})
            elif value is False:
                self._modules[_bare(path)] = False

    def of(self, module: str) -> MlxSetting | Literal[False] | None:
        """What the config says of an on-disk module; False: not quantised, None: nothing."""
        return self._modules.get(_bare(module), self._default)


def check_mlx(tensors: TensorFiles, module: str, shape: Shape, recipe: MlxRecipe) -> list[str]:
    """The on-disk names of a module (N, M) or (E, N, M), if all fit; else ConfigError."""
    stated = recipe.of(module)
    if stated and stated.mode != 'affine':
        raise ConfigError(f'{tensors.folder}: {module!r} is in MLX mode {stated.mode}; supported '
                          'is affine')
    if stated is False:
        raise ConfigError(f'{tensors.folder}: {module!r} has scales, but config.json says that it '
                          'is not quantised')
    words, scales = (_info(tensors, f'{module}.{suffix}') for suffix in ('weight', 'scales'))
    _check_floats(scales)                # other modes have no biases: say first what it is
    biases = _info(tensors, f'{module}.biases')
    _check_floats(biases)
    *lead, columns = shape
    bits, size = sizes_of(words.shape[-1] if words.shape else 0,
                          scales.shape[-1] if scales.shape else 0, columns)
    if words.dtype != 'U32' or list(words.shape[:-1]) != lead or bits is None:
        widths = ', '.join(f'{row_words(columns, b)} ({b} bits)' for b in BITS)
        raise ConfigError(f'{words.file}: tensor {words.name!r} is {words.dtype} of shape '
                          f'{list(words.shape)}, expected U32 of {lead} rows of one of these '
                          f'widths: {widths}')
    if list(scales.shape[:-1]) != lead or size is None:
        sizes = ', '.join(str(columns // g) for g in GROUP_SIZES if columns % g == 0)
        raise ConfigError(f'{scales.file}: tensor {scales.name!r} has shape '
                          f'{list(scales.shape)}, expected {lead} rows of '
                          f'{sizes or "no possible number of"} groups')
    if biases.shape != scales.shape:
        raise ConfigError(f'{biases.file}: tensor {biases.name!r} has shape {list(biases.shape)}, '
                          f'its scales {list(scales.shape)}; they must be equal')
    if stated and (stated.bits, stated.group_size) != (bits, size):
        raise ConfigError(f'{tensors.folder}: {module!r} has {bits} bits in groups of {size}, '
                          f'config.json says {stated.bits} in groups of {stated.group_size}')
    return [words.name, scales.name, biases.name]


def read_mlx(tensors: TensorFiles, module: str, columns: int) -> AffineWeight:
    """A checked module: codes as a view; scales of 16-bit floats are widened, which is exact."""
    words = tensors.view(f'{module}.weight')
    scales, biases = (_floats(tensors, f'{module}.{suffix}') for suffix in ('scales', 'biases'))
    bits, size = sizes_of(words.shape[-1], scales.shape[-1], columns)
    return AffineWeight(words, scales, biases, bits, size)


def mlx_specs(module: str, shape: Shape, setting: MlxSetting) -> list[TensorSpec]:
    """What to write for a module (N, M) or (E, N, M): codes, scales, biases."""
    *lead, columns = shape
    groups = (*lead, columns // setting.group_size)
    return [TensorSpec(f'{module}.weight', 'U32', (*lead, row_words(columns, setting.bits))),
            TensorSpec(f'{module}.scales', 'BF16', groups),
            TensorSpec(f'{module}.biases', 'BF16', groups)]


def _setting(path: str, value: Mapping[str, Any]) -> MlxSetting:
    bits, size, mode = value.get('bits', 4), value.get('group_size'), value.get('mode', 'affine')
    if mode in OTHER_MODES:              # its sizes don't matter: it is refused
        return MlxSetting(0, 0, mode)
    if mode != 'affine' or bits not in BITS or size not in GROUP_SIZES:
        raise ConfigError(f'config.json: {path} says mode {mode!r}, bits {bits!r}, group_size '
                          f'{size!r}; supported are affine, {", ".join(map(str, BITS))} bits, '
                          f'groups of {", ".join(map(str, GROUP_SIZES))}')
    return MlxSetting(bits, size)


def _bare(module: str) -> str:
    """A module without the text prefix: packs differ in it between config and tensors."""
    found = next(prefix for prefix in TEXT_PREFIXES if module.startswith(prefix))
    return module.removeprefix(found)


def _check_floats(info: TensorInfo) -> None:
    if info.dtype not in ('BF16', 'F16', 'F32'):
        raise ConfigError(f'{info.file}: tensor {info.name!r} is {info.dtype}, expected BF16, F16 '
                          f'or F32: another mode of MLX ({", ".join(OTHER_MODES)}) than affine')


def _info(tensors: TensorFiles, name: str) -> TensorInfo:
    info = tensors.get(name)
    if info is None:
        raise ConfigError(f'{tensors.folder}: tensor {name!r} is missing')
    return info


def _floats(tensors: TensorFiles, name: str) -> DenseWeight:
    view = tensors.view(name)
    if tensors[name].dtype == 'BF16':
        return DenseWeight(view, 'bf16')
    return DenseWeight(np.asarray(view, np.float32), 'f32')
