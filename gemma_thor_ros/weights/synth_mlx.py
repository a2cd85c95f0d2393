# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Random MLX affine packs: which tensors, and their numbers.

Codes are uniform, so that a matrix keeps the size of its rows as a normal one does; scales have
either sign, as in packs of trained weights. Knows no command line and writes no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gemma_thor_ros.weights.convert_mlx import mlx_config, mlx_module, mlx_setting_for
from gemma_thor_ros.weights.mlx_modules import MlxSetting, mlx_specs
from gemma_thor_ros.weights.names import parameter
from gemma_thor_ros.weights.number_formats import bf16_to_float32, float32_to_bf16
from gemma_thor_ros.weights.safetensors_file import Array
from gemma_thor_ros.weights.shapes import Shape, TextShapes
from gemma_thor_ros.weights.writer import TensorSpec

Affine = dict[str, tuple[Shape, MlxSetting]]             # on-disk module -> shape, setting


def mlx_tensors(config: Mapping[str, Any],
                wanted: MlxSetting) -> tuple[dict[str, Shape], Affine, dict[str, Any]]:
    """Text tensors by their on-disk names, bf16 and quantised, and the config that says so."""
    plain: dict[str, Shape] = {}
    affine: Affine = {}
    settings: dict[str, MlxSetting | None] = {}
    for name, shape in TextShapes.from_config(config).all().items():
        setting = settings[name] = mlx_setting_for(name, shape, wanted)
        if setting is None:
            plain[parameter(mlx_module(name))] = shape
        else:
            affine[mlx_module(name)] = shape, setting
    return plain, affine, mlx_config(dict(config), settings, wanted)


def random_affine(module: str, shape: Shape, setting: MlxSetting, deviation: float,
                  generator: np.random.Generator) -> list[tuple[TensorSpec, Array]]:
    """The stored tensors of one module whose values have about the given deviation."""
    words, groups, _ = mlx_specs(module, shape, setting)
    steps = (1 << setting.bits) - 1
    step = deviation / np.sqrt(((steps + 1) ** 2 - 1) / 12)
    sizes = generator.uniform(0.9, 1.1, groups.shape).astype(np.float32) * np.float32(step)
    signs = generator.integers(0, 2, groups.shape, np.int8) * 2 - 1
    scales = float32_to_bf16(sizes * signs)
    biases = float32_to_bf16(bf16_to_float32(scales) * np.float32(-steps / 2))
    codes = generator.integers(0, 1 << 32, words.shape, np.uint32)
    return list(zip(mlx_specs(module, shape, setting), (codes, scales, biases), strict=True))
