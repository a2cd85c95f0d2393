# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The form in which weights are stored, and whether they fit the budget, change no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forward import (
    TINY_DENSE,
    TINY_MOE,
    Array,
    decode,
    page_table,
    prefill,
    random_weights,
)

from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops import linear
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import DenseWeight, Nvfp4Weight

TOKENS = [5, 17, 80, 3, 3, 41, 66, 2, 9, 30]


def logits(model: Gemma4) -> Array:
    pages = page_table(2)
    cache = model.new_kv_cache(2, 2, 16)
    return np.concatenate([prefill(model, cache, TOKENS, pages),
                           decode(model, cache, TOKENS, len(TOKENS), pages)])


def random_nvfp4(shape: tuple[int, ...], seed: int) -> Nvfp4Weight:
    rng = np.random.default_rng(seed)
    *lead, columns = shape
    packed = rng.integers(0, 256, (*lead, columns // 2), np.uint8)
    scales = rng.integers(0x28, 0x48, (*lead, columns // 16), np.uint8)   # 0.125 to 3.75
    spread = rng.uniform(0.01, 0.03, shape[:-2]).astype(np.float32)
    return Nvfp4Weight(packed, scales, np.asarray(spread))


@pytest.mark.parametrize('raw', [TINY_MOE, TINY_DENSE])
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_packed_equals_dense(raw: dict[str, Any], dtype: Any) -> None:
    config = ModelConfig.from_dict(raw)
    packed: dict[str, Any] = random_weights(config)
    for seed, (name, weight) in enumerate(packed.items()):
        if name.endswith('_proj') and 'router' not in name:
            packed[name] = random_nvfp4(weight.shape, seed)
    # float32 holds the product of one rounding only; the float64 run needs the exact values
    dense = {name: DenseWeight(weight.dequantize(np.float32), 'f32')
             if isinstance(weight, Nvfp4Weight) else weight for name, weight in packed.items()}
    expected = logits(Gemma4(config, dense, np.float32))
    if dtype == np.float32:
        assert np.array_equal(logits(Gemma4(config, packed, dtype)), expected)
    else:
        ours = logits(Gemma4(config, packed, dtype))
        assert np.linalg.norm(ours - expected) < 1e-5 * np.linalg.norm(ours)
    for budget in (0, 40_000):
        kept = Gemma4(config, packed, dtype)
        some = Gemma4(config, packed, dtype, weight_budget_bytes=budget)
        assert np.array_equal(logits(some), logits(kept))


def test_weights_over_the_budget_are_not_kept() -> None:
    config = ModelConfig.from_dict(TINY_MOE)
    weights = random_weights(config)
    model = Gemma4(config, weights, weight_budget_bytes=0)
    assert model.resident_bytes == 0
    whole = Gemma4(config, weights)
    assert whole.resident_bytes == 4 * sum(
        np.prod(weight.shape) for weight in weights.values() if len(weight.shape) > 1)
    part = Gemma4(config, weights, weight_budget_bytes=whole.resident_bytes // 2)
    assert 0 < part.resident_bytes <= whole.resident_bytes // 2


def test_a_missing_tensor_is_named() -> None:
    config = ModelConfig.from_dict(TINY_MOE)
    weights = random_weights(config)
    del weights['layers.2.router.scale']
    with pytest.raises(ConfigError, match=r'layers\.2\.router\.scale'):
        Gemma4(config, weights)


def test_bf16_equals_float32() -> None:
    config = ModelConfig.from_dict(TINY_MOE)
    single = random_weights(config)      # has 8 significant bits
    half = {name: DenseWeight((weight.data.view(np.uint32) >> 16).astype(np.uint16), 'bf16')
            for name, weight in single.items()}
    assert np.array_equal(logits(Gemma4(config, half)), logits(Gemma4(config, single)))


def test_wide_weights_run_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig.from_dict({**TINY_MOE, 'vocab_size': 200})
    weights = random_weights(config)
    whole = logits(Gemma4(config, weights))
    monkeypatch.setattr(linear, '_BLOCK_SIZE', 64 * 48)
    blocks = Gemma4(config, weights)
    assert len(blocks.table.linear.blocks) == 4
    assert np.allclose(logits(blocks), whole, rtol=1e-5, atol=1e-5)
    packed = Gemma4(config, weights, weight_budget_bytes=0)
    assert np.array_equal(logits(packed), logits(blocks))
