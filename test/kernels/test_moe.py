# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The experts against float64 on the same operands, in any company of rows."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.ops import fragment_order, moe_nvfp4

from . import cases

SERVED = cases.EXPERTS
SMALL = (24, 80, 96)                     # E, I, H: neither I nor H a multiple of 64
NORMAL = (0x20, 0x50)


class Layer:
    """One layer's experts on the device, packed and repacked."""

    def __init__(self, cp: Any, stream: Any, sizes: tuple[int, int, int]) -> None:
        num_experts, inner, hidden = sizes
        self.gate, self.up = (cases.random_weight(cp, (num_experts, inner, hidden), seed, NORMAL,
                                                  0.01 * seed) for seed in (1, 2))
        self.down = cases.random_weight(cp, (num_experts, hidden, inner), 3, NORMAL, 0.01)
        self.sizes = sizes
        self.gate_up_fragments = fragment_order.to_fragments(
            [self.gate, self.up], interleaved=True, stream=stream)
        self.down_fragments = fragment_order.to_fragments([self.down], stream=stream)
        stream.synchronize()

    def run(self, cp: Any, stream: Any, x: Any, ids: Any, weights: Any) -> tuple[Any, Any, Any]:
        """(inner, results, out) from poisoned arrays."""
        _, inner_size, hidden = self.sizes
        inner = cases.poisoned(cp, (*ids.shape, inner_size), 'bf16')
        results = cases.poisoned(cp, (*ids.shape, hidden), 'bf16')
        out = cases.poisoned(cp, (ids.shape[0], hidden), 'f32')
        cp.cuda.runtime.deviceSynchronize()
        moe_nvfp4.moe_nvfp4_gate_up(inner, x, ids, self.gate_up_fragments, stream)
        moe_nvfp4.moe_nvfp4_down(results, inner, ids, self.down_fragments, stream)
        moe_nvfp4.moe_nvfp4_combine(out, results, ids, weights, stream)
        stream.synchronize()
        return inner, results, out


@pytest.fixture(scope='module')
def layer(cp: Any, stream: Any) -> Layer:
    return Layer(cp, stream, SERVED)


@pytest.mark.parametrize(('num_tokens', 'distinct'), [
    (1, 8), (2, 16), (3, 9), (7, 20), (8, 24), (9, 8), (15, 60), (16, 8), (16, 64), (16, 128),
    (21, 24)])
def test_experts(cp: Any, stream: Any, layer: Layer, num_tokens: int, distinct: int) -> None:
    check_experts(cp, stream, layer, num_tokens, distinct)


@pytest.mark.parametrize(('num_tokens', 'distinct'), [(1, 8), (7, 20), (9, 8), (16, 24), (17, 8)])
def test_small_experts(small: tuple[Any, Any], num_tokens: int, distinct: int) -> None:
    check_experts(*small, Layer(*small, SMALL), num_tokens, distinct)


def check_experts(cp: Any, stream: Any, layer: Layer, num_tokens: int, distinct: int) -> None:
    num_experts, _, hidden = layer.sizes
    ids, weights = cases.routing(cp, num_tokens, num_experts, cases.CHOSEN,
                                 min(distinct, num_experts), num_tokens)
    if num_tokens in (7, 16):
        ids[-1] = -1                     # a row of padding
    x = cases.random_rows(cp, (num_tokens, hidden), 4)
    inner, results, out = layer.run(cp, stream, x, ids, weights)
    rows, host = cases.from_bf16(cp, x), cp.asnumpy(ids)
    for expert in np.unique(host[host >= 0]).tolist():
        token, k = (cp.asarray(index) for index in np.nonzero(host == expert))
        gate, up = (rows[token] @ cases.dequantized(cp, part, expert).T
                    for part in (layer.gate, layer.up))
        got = cases.from_bf16(cp, inner[token, k])
        assert cases.error(cp, got, cases.geglu(cp, gate, up)) < 5e-3, expert
        expected = got @ cases.dequantized(cp, layer.down, expert).T     # the same operands
        assert cases.error(cp, cases.from_bf16(cp, results[token, k]), expected) < 2.5e-3, expert
    real = cp.asarray(host >= 0)
    products = cp.where(real[..., None], cases.from_bf16(cp, results), 0.0)
    expected = (products * weights.astype(cp.float64)[..., None]).sum(axis=1)
    assert bool(cp.isfinite(out).all())
    assert cases.error(cp, out, expected) < 1e-6


def test_a_row_has_the_same_bits_alone(cp: Any, stream: Any, layer: Layer) -> None:
    check_rows_alone(cp, stream, layer)


def test_a_small_row_has_the_same_bits_alone(small: tuple[Any, Any]) -> None:
    check_rows_alone(*small, Layer(*small, SMALL))


def check_rows_alone(cp: Any, stream: Any, layer: Layer) -> None:
    num_experts, _, hidden = layer.sizes
    for distinct in (8, 24):             # more than 8 rows an expert, and few
        ids, weights = cases.routing(cp, 16, num_experts, cases.CHOSEN, distinct, distinct)
        x = cases.random_rows(cp, (16, hidden), 5)
        together = layer.run(cp, stream, x, ids, weights)
        for row in range(16):
            one = slice(row, row + 1)
            alone = layer.run(cp, stream, x[one], ids[one], weights[one])
            for a, b in zip(together, alone, strict=True):
                assert bool((a[one] == b).all()), (distinct, row)
