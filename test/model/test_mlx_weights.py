# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A model of MLX affine weights computes what one of the same numbers does, kept or unpacked."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import counter_weights
import numpy as np
import pytest
from forward import Array, Role, Rows, Worst, page_table, step, worst

from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops import per_layer
from gemma_thor_ros.ops.linear import LinearWeight, linear_ref
from gemma_thor_ros.ops.rounding import round_to_bf16
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight, to_float
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.mlx_bits import quantize_affine
from gemma_thor_ros.weights.synth import write_synthetic

GOLDENS = Path(__file__).parents[1] / 'data' / 'goldens'
MLX: dict[str, Any] = json.loads((GOLDENS / 'mlx.json').read_text())
TOKENS = (counter_weights.counter_bytes('mlx', 44) % 512).tolist()


def logits(model: Gemma4) -> Array:
    """A prompt of 40 tokens in two chunks, then 4 generated ones."""
    pages = page_table(4, seed=1)
    cache = model.new_kv_cache(4, 4, 16)
    cuts = [(0, 23, Role.PREFILL), (23, 40, Role.PREFILL),
            *((i, i + 1, Role.DECODE) for i in range(40, 44))]
    return np.concatenate([step(model, cache, Rows(TOKENS[a:b], a, role, pages))[0]
                           for a, b, role in cuts])


def is_bf16(x: Array) -> bool:
    return bool(np.array_equal(round_to_bf16(np.ascontiguousarray(x).copy()), x))


def stored_model(folder: Path, preset: str, form: str, **options: Any) -> Gemma4:
    write_synthetic(folder, preset, form, 3, force=True)
    checkpoint = open_checkpoint(folder)
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    return Gemma4(config, checkpoint.text_weights(), **options)


@pytest.mark.parametrize('preset', ['tiny-moe', 'tiny-e2b'])
def test_rounding_of_mlx(tmp_path: Path, preset: str) -> None:
    """'mlx' keeps residual and logits in bf16, which 'device' does not, and stays near float64."""
    exact = logits(stored_model(tmp_path, preset, 'mlx-6bit-g32', dtype=np.float64))
    single: Any = {'dtype': np.float32}
    for rounding in ('mlx', 'device'):
        model = stored_model(tmp_path, preset, 'mlx-6bit-g32', rounding=rounding, **single)
        residuals: list[Array] = []
        pages = page_table(4, seed=1)
        cache = model.new_kv_cache(4, 4, 16)
        rows = step(model, cache, Rows(TOKENS[:40], 0, Role.PREFILL, pages),
                    tap=lambda layer, x, sink=residuals: sink.append(x))[0]
        narrow = [is_bf16(x) for x in (*residuals, rows)]
        assert all(narrow) if rounding == 'mlx' else not any(narrow)
        assert is_bf16(cache.k_pages[0]) and is_bf16(cache.v_pages[0])
        found = logits(model)
        difference = np.linalg.norm(found - exact, axis=-1) / np.linalg.norm(exact, axis=-1)
        assert 1e-4 < np.median(difference) < 0.1
        whole = np.concatenate([
            rows, *(step(model, cache, Rows(TOKENS[i:i + 1], i, Role.DECODE, pages))[0]
                    for i in range(40, 44))])
        assert np.array_equal(whole, found)          # one prefill equals two chunks


@pytest.mark.parametrize('preset', MLX['models'])
def test_what_mlx_lm_computes_of_the_same_packs(tmp_path: Path, preset: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Another implementation, in float32, where it does not round the scales of embeddings."""
    with np.load(GOLDENS / 'mlx.npz') as arrays:
        theirs = arrays[f'{preset}.logits']

    model = stored_model(tmp_path, preset, MLX['models'][preset], dtype=np.float64)
    rounded, root = model._embed_scale, model.config.hidden_size ** 0.5

    def found(scale: float) -> Worst:
        model._embed_scale = scale
        return worst(theirs, logits(model)[MLX['rows'], ::model.config.vocab_size // 512])

    with monkeypatch.context() as patch:
        patch.setattr(per_layer, 'round_to_bf16', lambda x: x)
        assert found(root).error < 2e-5, found(root)
    if rounded != root or preset == 'tiny-e2b':          # the gate sees one constant
        assert found(rounded).error > 1e-4


@pytest.mark.parametrize('group', [32, 64, 128])
@pytest.mark.parametrize('bits', [2, 3, 4, 5, 6, 8])
def test_product_against_float64(bits: int, group: int) -> None:
    """|err| <= 4e-6 times the sum of |terms|, for generated and prompt rows, kept or unpacked."""
    rng = np.random.default_rng(bits * group)
    codes = quantize_affine(rng.standard_normal((70, 384)).astype(np.float32), bits, group)
    weight = AffineWeight(codes.words, DenseWeight(codes.scales, 'bf16'),
                          DenseWeight(codes.biases, 'bf16'), bits, group)
    x = rng.standard_normal((3 + 32, 384)).astype(np.float32)
    exact = x.astype(np.float64) @ weight.dequantize(np.float64).T
    terms = np.abs(x.astype(np.float64)) @ np.abs(weight.dequantize(np.float64)).T
    results = []
    for resident in (True, False):
        out = np.empty((35, 70), np.float32)
        linear_ref(out, x, LinearWeight([weight], np.float32, resident), 3)
        assert (np.abs(out - exact) <= 4e-6 * terms).all()
        results.append(out)
    assert np.array_equal(*results)
    planted = AffineWeight(weight.words, weight.scales,
                           DenseWeight(weight.biases.data ^ np.uint16(1), 'bf16'), bits, group)
    linear_ref(results[0], x, LinearWeight([planted], np.float32), 3)
    assert not (np.abs(results[0] - exact) <= 4e-6 * terms).all()


@pytest.mark.parametrize(('preset', 'form'), [
    ('tiny-moe', 'mlx-4bit-g32'), ('tiny-moe', 'mlx-3bit-g64'), ('tiny-e2b', 'mlx-6bit-g32'),
    ('tiny-e2b', 'mlx-8bit-g32')])
def test_packed_equals_dense_bit_for_bit(tmp_path: Path, preset: str, form: str) -> None:
    write_synthetic(tmp_path, preset, form, 3)
    checkpoint = open_checkpoint(tmp_path)
    config = ModelConfig.from_dict(checkpoint.config, checkpoint.generation_config)
    weights = checkpoint.text_weights()
    stored = {name: weights[name] for name in weights}
    assert any(isinstance(weight, AffineWeight) for weight in stored.values())
    dense: dict[str, Any] = {name: DenseWeight(to_float(weight), 'f32')
                             for name, weight in stored.items()}
    expected = logits(Gemma4(config, dense))
    assert np.isfinite(expected).all() and np.unique(expected.argmax(-1)).size > 10
    for budget in (0, 1 << 30):
        model = Gemma4(config, stored, weight_budget_bytes=budget)
        assert (model.resident_bytes == 0) == (budget == 0)      # nothing is widened at load
        assert np.array_equal(logits(model), expected)
    wrong = copy.copy(stored['layers.1.mlp.up_proj'])
    assert isinstance(wrong, AffineWeight)
    stored['layers.1.mlp.up_proj'] = AffineWeight(
        wrong.words, DenseWeight(wrong.scales.data & np.uint16(0x7FFF), 'bf16'), wrong.biases,
        wrong.bits, wrong.group_size)    # planted: the scales' signs lost
    assert not np.array_equal(logits(Gemma4(config, stored)), expected)
