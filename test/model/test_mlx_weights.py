# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A model of MLX affine weights computes what one of the same numbers does, kept or unpacked."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import counter_weights
import numpy as np
import pytest
from forward import Array, Role, Rows, page_table, step

from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight, to_float
from gemma_thor_ros.weights.checkpoint import open_checkpoint
from gemma_thor_ros.weights.synth import write_synthetic

TOKENS = (counter_weights.counter_bytes('mlx', 44) % 512).tolist()


def logits(model: Gemma4) -> Array:
    """A prompt of 40 tokens in two chunks, then 4 generated ones."""
    pages = page_table(4, seed=1)
    cache = model.new_kv_cache(4, 4, 16)
    cuts = [(0, 23, Role.PREFILL), (23, 40, Role.PREFILL),
            *((i, i + 1, Role.DECODE) for i in range(40, 44))]
    return np.concatenate([step(model, cache, Rows(TOKENS[a:b], a, role, pages))[0]
                           for a, b, role in cuts])


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
