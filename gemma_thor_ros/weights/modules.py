# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One module of a checkpoint: which form it is stored in, is it sound, and its canonical weight.

The form follows from the tensors that are present, never from a model's name or its config. Knows
no layers and no prefixes.
"""

from __future__ import annotations

from collections.abc import Container
from enum import Enum
from typing import Literal

import numpy as np

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import GROUP_SIZE, DenseWeight, Nvfp4Weight
from gemma_thor_ros.weights.quantize import Convention, to_multiplier
from gemma_thor_ros.weights.safetensors_file import TensorFiles
from gemma_thor_ros.weights.shapes import Shape
from gemma_thor_ros.weights.writer import TensorSpec


class Form(Enum):
    """How a module is stored."""

    DENSE = 'dense'                                      # bf16 or float32
    FUSED = 'dense, experts fused'                       # all experts in one bf16 tensor
    COMPRESSED_TENSORS = 'nvfp4 (compressed-tensors)'
    MODELOPT = 'nvfp4 (modelopt)'
    STACKED = 'dense, experts stacked'                   # one bf16 tensor a projection (MLX)
    MLX = 'mlx affine'
    INT4 = 'int4 (compressed-tensors)'                   # the last two are refused by name
    FP8 = 'fp8'


_SUPPORTED_TEXT = ('supported are bf16, float32, NVFP4 (compressed-tensors or ModelOpt) and MLX '
                   'affine')

# Tensor names beside the module: packed codes, group scales, global scale.
_NVFP4_SUFFIXES = {
    Form.COMPRESSED_TENSORS: ('weight_packed', 'weight_scale', 'weight_global_scale'),
    Form.MODELOPT: ('weight', 'weight_scale', 'weight_scale_2'),
}
_CONVENTIONS = {Form.COMPRESSED_TENSORS: Convention.COMPRESSED_TENSORS,
                Form.MODELOPT: Convention.MODELOPT}
_FORMS = {convention: form for form, convention in _CONVENTIONS.items()}


def form_of(names: Container[str], module: str) -> Form | None:
    """The form that the tensors beside a module tell of; None when it has none."""
    if f'{module}.weight_packed' in names:
        has_shape = f'{module}.weight_shape' in names    # only the integer packs store it
        return Form.INT4 if has_shape else Form.COMPRESSED_TENSORS
    if f'{module}.weight_scale_2' in names:
        return Form.MODELOPT
    if f'{module}.weight_global_scale' in names:         # its codes are missing: say so
        return Form.COMPRESSED_TENSORS
    if f'{module}.scales' in names or f'{module}.biases' in names:
        return Form.MLX
    if f'{module}.weight_scale' in names or f'{module}.weight_scale_inv' in names:
        return Form.FP8
    if f'{module}.weight' in names or module in names:
        return Form.DENSE
    return None


def check_dense(tensors: TensorFiles, name: str, shape: Shape) -> str:
    """The on-disk name again, if the tensor is bf16 or float32 of that shape; else ConfigError."""
    _check(tensors, name, shape, ('BF16', 'F32'))
    return name


def check_nvfp4(tensors: TensorFiles, module: str, shape: Shape, form: Form) -> list[str]:
    """The on-disk names of a quantised (N, M) module, if all fit; else ConfigError."""
    if form is Form.FP8 and _holds_codes(tensors, module):
        form = Form.MODELOPT                             # its global scale is missing: name it
    if form not in _NVFP4_SUFFIXES:
        raise ConfigError(f'{tensors.folder}: {module!r} is {form.value}; {_SUPPORTED_TEXT}')
    rows, columns = shape
    if columns % GROUP_SIZE:
        raise ConfigError(f'{tensors.folder}: {module!r} is quantised, but its {columns} input '
                          f'features are no multiple of {GROUP_SIZE}')
    packed, scales, scale = (f'{module}.{suffix}' for suffix in _NVFP4_SUFFIXES[form])
    _check(tensors, packed, (rows, columns // 2), ('U8',))
    _check(tensors, scales, (rows, columns // GROUP_SIZE), ('F8_E4M3',))
    _check(tensors, scale, (1,), ('F32',), or_scalar=True)
    return [packed, scales, scale]


def _holds_codes(tensors: TensorFiles, module: str) -> bool:
    """Tell whether a module's weight is packed 4-bit codes rather than FP8 numbers."""
    weight = f'{module}.weight'
    return weight in tensors and tensors[weight].dtype == 'U8'


def nvfp4_specs(module: str, shape: Shape, convention: Convention,
                quantized_inputs: bool) -> list[TensorSpec]:
    """What to write for a quantised (N, M) module, in the order codes, scales, global scale.

    With `quantized_inputs` (W4A4) a scale of the activations follows.
    """
    rows, columns = shape
    form = _FORMS[convention]
    suffixes = _NVFP4_SUFFIXES[form]
    # compressed-tensors stores global scales as one value, ModelOpt as scalars.
    scale_shape: Shape = (1,) if form is Form.COMPRESSED_TENSORS else ()
    specs = [TensorSpec(f'{module}.{suffixes[0]}', 'U8', (rows, columns // 2)),
             TensorSpec(f'{module}.{suffixes[1]}', 'F8_E4M3', (rows, columns // GROUP_SIZE)),
             TensorSpec(f'{module}.{suffixes[2]}', 'F32', scale_shape)]
    if quantized_inputs:
        suffix = 'input_global_scale' if form is Form.COMPRESSED_TENSORS else 'input_scale'
        specs.append(TensorSpec(f'{module}.{suffix}', 'F32', scale_shape))
    return specs


def read_dense(tensors: TensorFiles, name: str) -> DenseWeight:
    """A checked dense tensor as a view."""
    kind: Literal['bf16', 'f32'] = 'bf16' if tensors[name].dtype == 'BF16' else 'f32'
    return DenseWeight(tensors.view(name), kind)


def read_nvfp4(tensors: TensorFiles, module: str, form: Form) -> Nvfp4Weight:
    """A checked quantised module: codes and scales as views, the global scale as a multiplier.

    Raises ConfigError when the global scale is not a positive finite number.
    """
    packed, scales, scale = (f'{module}.{suffix}' for suffix in _NVFP4_SUFFIXES[form])
    stored = np.float32(tensors.view(scale).reshape(-1)[0])
    with np.errstate(over='ignore', divide='ignore'):
        multiplier = to_multiplier(stored, _CONVENTIONS[form])
    if not (np.isfinite(multiplier) and multiplier > 0):
        raise ConfigError(f'{tensors.folder}: {scale!r} is {stored}, expected a positive finite '
                          'number')
    return Nvfp4Weight(tensors.view(packed), tensors.view(scales), np.asarray(multiplier))


def _check(tensors: TensorFiles, name: str, shape: Shape, dtypes: tuple[str, ...],
           or_scalar: bool = False) -> None:
    info = tensors.get(name)
    if info is None:
        raise ConfigError(f'{tensors.folder}: tensor {name!r} is missing')
    if info.dtype not in dtypes:
        raise ConfigError(f'{info.file}: tensor {name!r} is {info.dtype}, expected '
                          f'{" or ".join(dtypes)}')
    if info.shape != shape and not (or_scalar and info.shape == ()):
        raise ConfigError(f'{info.file}: tensor {name!r} has shape {list(info.shape)}, expected '
                          f'{list(shape)}')
