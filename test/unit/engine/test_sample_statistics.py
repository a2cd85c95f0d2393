# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The sampler draws from the exact distribution: chi-square over fixed keys; wrong samplers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gemma_thor_ros.ops import sample
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings, noise_bits, sample_row

NUM_DRAWS = 20_000
LOGITS = np.array([2.0, 1.5, 1.5, 0.3, -0.2, -0.2, -1.0, -4.0, 0.9, 1.1], np.float32)
SETTINGS = {
    'plain': SampleSettings(seed=1),
    'cold': SampleSettings(0.7, seed=2, choice=1),
    'hot': SampleSettings(1.5, seed=2 ** 64 - 1),
    'top_p': SampleSettings(0.9, top_p=0.8, seed=5),
    'all': SampleSettings(1.1, top_k=8, top_p=0.95, min_p=0.05, seed=7, choice=9),
}


def exact(settings: SampleSettings) -> np.ndarray:
    """The distribution that the settings ask for, in float64: (V,)."""
    order = sorted(range(LOGITS.size), key=lambda i: (-LOGITS[i], i))
    order = order[:settings.top_k or None]
    weights = {i: math.exp(float(LOGITS[i]) / settings.temperature) for i in order}
    kept, before, total = {}, 0.0, sum(weights.values())
    for i in order:
        if before < settings.top_p * total:
            kept[i] = weights[i]
        before += weights[i]
    largest = max(kept.values())
    kept = {i: w for i, w in kept.items() if w >= settings.min_p * largest}
    result = np.zeros(LOGITS.size)
    for i, weight in kept.items():
        result[i] = weight / sum(kept.values())
    return result


def is_rare(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Chi-square beyond its 1e-4 quantile (Wilson and Hilferty's normal approximation)."""
    used = expected > 0
    if counts[~used].sum():
        return True
    degrees = int(used.sum()) - 1
    chi_square = float((((counts - expected) ** 2)[used] / expected[used]).sum())
    spread = 2 / (9 * degrees)
    return ((chi_square / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) > 3.72


def draws(settings: SampleSettings) -> np.ndarray:
    tokens = [sample_row(LOGITS, SampleRow(settings, position)) for position in range(NUM_DRAWS)]
    return np.bincount(tokens, minlength=LOGITS.size)


@pytest.mark.parametrize('name', SETTINGS)
def test_draws_follow_the_exact_distribution(name: str) -> None:
    settings = SETTINGS[name]
    assert not is_rare(draws(settings), NUM_DRAWS * exact(settings))


def _noise_of_half_size(bits: np.ndarray) -> np.ndarray:
    return sample.gumbel(bits) * np.float32(0.9)


def _noise_of_8_bits(bits: np.ndarray) -> np.ndarray:
    return sample.gumbel((bits >> np.uint64(56) << np.uint64(56)) | np.uint64(1 << 55))


def _noise_of_the_neighbour(bits: np.ndarray) -> np.ndarray:
    return sample.gumbel(np.repeat(bits[:, ::2], 2, axis=1))


def _exponential_noise(bits: np.ndarray) -> np.ndarray:
    return -np.log((bits >> np.uint64(11)).astype(np.float64) * 2.0 ** -53 + 1e-30)


@pytest.mark.parametrize('wrong', [_noise_of_half_size, _noise_of_8_bits, _noise_of_the_neighbour,
                                   _exponential_noise])
def test_wrong_noise_is_caught(wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    settings = SETTINGS['plain']
    logits = np.zeros(64, np.float32) if wrong is _noise_of_8_bits else LOGITS
    ids = np.arange(logits.size)
    bits = np.stack([noise_bits(settings.seed, 0, position, ids) for position in range(NUM_DRAWS)])
    tokens = (logits + wrong(bits)).argmax(1)
    expected = exact(settings) if logits is LOGITS else np.full(64, 1 / 64)
    assert is_rare(np.bincount(tokens, minlength=logits.size), NUM_DRAWS * expected)


def test_top_p_before_temperature_is_caught() -> None:
    """A wrong order of the settings: top-p of the mass at temperature 1, then temperature 1.5."""
    settings = SampleSettings(1.5, top_p=0.8, seed=8)
    kept = exact(SampleSettings(top_p=0.8)) > 0
    weights = np.where(kept, np.exp(LOGITS.astype(np.float64) / 1.5), 0.0)
    counts = draws(settings)
    assert not is_rare(counts, NUM_DRAWS * exact(settings))
    assert is_rare(counts, NUM_DRAWS * weights / weights.sum())


def test_noise_is_uniform_over_ids_positions_seeds_and_choices() -> None:
    count = 1 << 18
    ids = np.arange(count)
    words = {
        'ids': noise_bits(3, 0, 7, ids),
        'positions': np.concatenate([noise_bits(3, 0, p, ids[:64]) for p in range(4096)]),
        'seeds': np.concatenate([noise_bits(s, 0, 7, ids[:64]) for s in range(4096)]),
        'choices': np.concatenate([noise_bits(3, c, 7, ids[:64]) for c in range(4096)]),
    }
    for bits in words.values():
        for shift in (0, 20, 40, 56):
            cells = ((bits >> np.uint64(shift)) & np.uint64(255)).astype(np.int64)
            counts = np.bincount(cells, minlength=256)
            assert not is_rare(counts, np.full(256, count / 256))
        assert np.unique(bits).size == count


def test_noise_of_neighbouring_keys_is_uncorrelated() -> None:
    ids = np.arange(1 << 16)
    base = noise_bits(11, 2, 1000, ids)
    for other in (noise_bits(12, 2, 1000, ids), noise_bits(11, 3, 1000, ids),
                  noise_bits(11, 2, 1001, ids), noise_bits(11, 2, 1000, ids + 1),
                  noise_bits(2, 11, 1000, ids)):
        flipped = np.unpackbits((base ^ other).view(np.uint8))
        deviation = abs(flipped.mean() - 0.5) * 2 * math.sqrt(flipped.size)
        assert deviation < 4.5
        uniform = [(x >> np.uint64(11)).astype(np.float64) * 2.0 ** -53 for x in (base, other)]
        assert abs(np.corrcoef(uniform)[0, 1]) * math.sqrt(ids.size) < 4.5
