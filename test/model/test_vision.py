# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The vision part and what the text model makes of it, against the reference in float64.

The goldens are made by scripts/make_vision_goldens.py. Every wrong variant that is easy to write
is planted once and must be caught here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import vision_cases as cases
from forward import error

from gemma_thor_ros.image import prepare
from gemma_thor_ros.image.prepare import PreparedImage, prepare_image
from gemma_thor_ros.models import vision_config
from gemma_thor_ros.models.vision import Vision
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.ops import vision_attention, vision_patches, vision_table
from gemma_thor_ros.ops.table import WeightLoader, cpu_op_table
from gemma_thor_ros.ops.vision_table import CpuVisionOps
from gemma_thor_ros.weights.canonical import DenseWeight
from gemma_thor_ros.weights.vision import canonical_name

Array = npt.NDArray[Any]
FOLDER = Path(__file__).parents[1] / 'data' / 'goldens'
RECORD: dict[str, Any] = json.loads((FOLDER / 'vision.json').read_text())['models']
EXACT, SINGLE = 1e-9, 1e-5


@cache
def golden() -> dict[str, Array]:
    with np.load(FOLDER / 'vision.npz') as arrays:
        return {name: arrays[name] for name in arrays.files if name.split('.')[0] in RECORD}


def images(name: str) -> list[PreparedImage]:
    side = 48 if name == 'embedder' else 16
    return [prepare_image(cases.picture(each, *cases.PICTURES[each]), cases.BUDGET, side)
            for each in cases.PROMPTS[name]]


def vision_of(name: str, dtype: Any, rounding: Any = 'none') -> Vision:
    raw = cases.CONFIGS[name]
    config = VisionConfig.from_dict(raw)
    assert config is not None
    weights = {canonical_name(key): DenseWeight(value, 'f32')
               for key, value in cases.vision_tensors(raw).items()}
    return Vision(config, weights, WeightLoader(dtype, 1 << 30),
                  CpuVisionOps(cpu_op_table(dtype, rounding)))


def soft_tokens(name: str, dtype: Any, rounding: Any = 'none') -> Array:
    vision = vision_of(name, dtype, rounding)
    return np.concatenate([vision.encode(image.patches, image.columns) for image in images(name)])


@pytest.mark.parametrize('name', RECORD)
@pytest.mark.parametrize(('dtype', 'limit'), [(np.float64, EXACT), (np.float32, SINGLE)])
def test_soft_tokens(name: str, dtype: Any, limit: float) -> None:
    soft = soft_tokens(name, dtype)
    assert soft.dtype == dtype and soft.shape[0] == sum(RECORD[name]['tokens'])
    assert error(soft, golden()[f'{name}.soft']) <= limit


@pytest.mark.parametrize('name', RECORD)
def test_device_rounding_costs_what_bf16_costs(name: str) -> None:
    soft = soft_tokens(name, np.float32, 'device')
    theirs = golden()[f'{name}.soft']
    relative = np.linalg.norm(soft - theirs) / np.linalg.norm(theirs)
    assert 2e-4 < relative < 2e-2
    assert (soft.view(np.uint32) & 0xFFFF == 0).all()    # what a bf16 row can hold


@pytest.mark.parametrize('name', ['tower', 'embedder'])
def test_an_image_alone_has_the_bits_it_has_in_company(name: str) -> None:
    vision, (first, second) = vision_of(name, np.float32), images(name)
    alone = vision.encode(first.patches, first.columns).copy()
    vision.encode(second.patches, second.columns)
    assert (vision.encode(first.patches, first.columns) == alone).all()


def test_both_sides_mean_the_same_sizes() -> None:
    """image/ and models/ know nothing of each other."""
    assert vision_config.BUDGETS == prepare.BUDGETS
    assert vision_config.TOKEN_SIDE == prepare.TOKEN_SIDE


def wrong_patches(vision: Vision, shape: tuple[int, int], columns: int) -> None:
    with pytest.raises(ValueError, match='this model takes patches of'):
        vision.encode(np.zeros(shape, np.uint8), columns)


def test_patches_of_another_size_are_refused() -> None:
    wrong_patches(vision_of('tower', np.float32), (9, 6912), 3)
    wrong_patches(vision_of('embedder', np.float32), (9, 768), 3)
    wrong_patches(vision_of('tower', np.float32), (9, 768), 2)


# Planted errors: each changes one thing of a right vision part.

Patch = Callable[[pytest.MonkeyPatch], None]


def rope(change: Callable[[Array, Array], tuple[Array, Array]]) -> Patch:
    """Write change(cos, sin) as the rope table."""
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = vision_attention.axial_rope_table
        monkeypatch.setattr(vision_table, 'axial_rope_table', lambda *args: change(*right(*args)))
    return plant


def argument(name: str, index: int, change: Callable[[Any], Any]) -> Patch:
    """Change one argument of an op's twin."""
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = getattr(vision_table, name)

        def wrong(*args: Any) -> Any:
            return right(*args[:index], change(args[index]), *args[index + 1:])
        monkeypatch.setattr(vision_table, name, wrong)
    return plant


def causal(monkeypatch: pytest.MonkeyPatch) -> None:
    def attention(out: Array, qkv: Array, num_heads: int, rounding: Any) -> None:
        q, k, v = qkv.reshape(qkv.shape[0], 3, num_heads, -1).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1)
        scores[:, np.triu_indices(qkv.shape[0], 1)[0], np.triu_indices(qkv.shape[0], 1)[1]] = -1e9
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        out[...] = (scores @ v).transpose(1, 0, 2).reshape(out.shape)
    monkeypatch.setattr(vision_table, 'vision_attention_ref', attention)


def v_without_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    right = vision_attention.vision_heads_ref

    def heads(qkv: Array, *rest: Any) -> None:
        width = qkv.shape[1] // 3
        raw = qkv[:, 2 * width:].copy()
        right(qkv, *rest)
        qkv[:, 2 * width:] = raw
    monkeypatch.setattr(vision_table, 'vision_heads_ref', heads)


def pooled_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def pool(out: Array, x: Array, columns: int, size: int, scale: float) -> None:
        out[...] = x.reshape(-1, size * size, x.shape[1]).mean(axis=1) * scale
    monkeypatch.setattr(vision_table, 'pool_ref', pool)


def standard_in_the_other_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def standardize(x: Array, bias: Array, scale: Array, rounding: Any) -> None:
        x *= scale
        x -= bias
    monkeypatch.setattr(vision_table, 'standardize_ref', standardize)


def projection_of_rows_without_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    right = vision_table.CpuVisionOps.norm

    def norm(self: Any, out: Array, x: Array, weight: Any, eps: float) -> None:
        if weight is None:
            out[...] = x
        else:
            right(self, out, x, weight, eps)
    monkeypatch.setattr(vision_table.CpuVisionOps, 'norm', norm)


TOWER: list[Patch] = [
    rope(lambda cos, sin: (cos[:, :, ::-1], sin[:, :, ::-1])),      # y and x exchanged
    rope(lambda cos, sin: (cos, -sin)),
    rope(lambda cos, sin: (np.ones_like(cos), np.zeros_like(sin))),
    argument('patch_numbers_ref', 2, lambda centred: not centred),
    argument('add_positions_ref', 3, lambda columns: columns + 1),
    argument('pool_ref', 4, lambda scale: 1.0),          # only the standardisation feels it
    argument('vision_heads_ref', 1, np.ones_like), argument('vision_heads_ref', 2, np.ones_like),
    causal, v_without_norm, pooled_in_rows, standard_in_the_other_order,
    projection_of_rows_without_a_norm,
]
EMBEDDER: list[Patch] = [
    argument('patch_numbers_ref', 2, lambda centred: not centred),  # a layer norm hides it
    argument('add_positions_ref', 3, lambda columns: columns + 1),
    argument('layer_norm_ref', 3, np.zeros_like),
    argument('layer_norm_ref', 4, lambda eps: 1e-2),
    projection_of_rows_without_a_norm,
]


def unclipped(which: slice) -> Patch:
    """Leave the bounds of inputs or of outputs away."""
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = vision_table.CpuVisionOps.clipped_linear

        def clipped_linear(self: Any, out: Array, x: Array, weight: Any, bounds: Any) -> None:
            wide = list(bounds)
            wide[which] = -np.inf, np.inf
            right(self, out, x, weight, tuple(wide))
        monkeypatch.setattr(vision_table.CpuVisionOps, 'clipped_linear', clipped_linear)
    return plant


CLIPPED = [unclipped(slice(0, 2)), unclipped(slice(2, 4))]
HIDDEN = [(EMBEDDER[0], 'embedder')]                     # by a norm, all but its eps
PLANTS = [(plant, name) for name, plants in (
    ('tower', TOWER), ('embedder', EMBEDDER), ('clipped', CLIPPED)) for plant in plants]


@pytest.mark.parametrize(('plant', 'name'), PLANTS)
def test_planted_error_is_caught(plant: Patch, name: str,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    limit = 10 * EXACT if (plant, name) in HIDDEN else SINGLE
    assert error(soft_tokens(name, np.float64), golden()[f'{name}.soft']) > limit


def test_the_goldens_tell_positions_apart() -> None:
    """A picture turned over gives other soft tokens than the turned soft tokens."""
    vision, image = vision_of('tower', np.float64), images('tower')[0]
    rows = image.patches.reshape(-1, image.columns, 768)
    over = vision.encode(np.ascontiguousarray(rows[::-1]).reshape(-1, 768), image.columns)
    assert error(over, vision.encode(image.patches, image.columns)) > 1e-3
    assert vision_patches.bytes_moved(9, 8, 4) == 2 * 9 * 8 * 4
