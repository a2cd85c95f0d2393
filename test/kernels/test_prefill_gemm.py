# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The products of prompt rows against float64 on the same operands, and equal bits in any company.

Sums of small integers are exact in float32, so there every bit of the result is known.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.ops import fragment_order, prefill_gemm, prefill_moe

from . import cases

COARSE = (0x38, 0x39)                    # scales of 1: exact sums
NORMAL = (0x20, 0x50)
BF16_ERROR = 2.5e-3
TINY = (88, 144)                         # neither a multiple of 16 nor of 64
EXPERTS = (6, 48, 80)                   # E, I, H


def on(stream: Any, cp: Any, launch: Callable[[], None]) -> None:
    cp.cuda.runtime.deviceSynchronize()
    launch()
    stream.synchronize()


@pytest.mark.parametrize(('tile', 'num_tokens'), [
    (None, 1), (64, 65), (128, 130), (256, 257)])
def test_small_projection(small: tuple[Any, Any], tile: int | None, num_tokens: int) -> None:
    check_projection(*small, TINY, num_tokens, tile)


def test_small_projection_of_many_columns(small: tuple[Any, Any]) -> None:
    """More column tiles than are read ahead, and no multiple of them."""
    check_projection(*small, (24, 336), 5, None)


@pytest.mark.parametrize('num_tokens', [1, 63, 129, 1000])
@pytest.mark.parametrize('shape', cases.PROJECTIONS)
@pytest.mark.parametrize('tile', sorted(prefill_gemm.TILES))
def test_projection(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int,
                    tile: int) -> None:
    check_projection(cp, stream, shape, num_tokens, tile)


def check_projection(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int,
                     tile: int | None) -> None:
    weight = cases.random_weight(cp, shape, 2, COARSE, 1.0)
    made = fragment_order.to_fragments([weight], stream=stream)
    matrix = cases.dequantized(cp, weight)
    x = cases.integer_rows(cp, (num_tokens, shape[1]), 3)
    out = cases.poisoned(cp, (num_tokens, shape[0]), 'bf16')
    on(stream, cp, lambda: prefill_gemm.prefill_gemm(out, x, made, stream, tile))
    exact = cases.from_bf16(cp, x) @ matrix.T
    assert bool((out == cases.to_bf16(cp, exact)).all())
    x = cases.random_rows(cp, x.shape, 4)
    on(stream, cp, lambda: prefill_gemm.prefill_gemm(out, x, made, stream, tile))
    expected = cases.from_bf16(cp, x) @ matrix.T
    assert cases.error(cp, cases.from_bf16(cp, out), expected) < BF16_ERROR


def test_small_gate_up(small: tuple[Any, Any]) -> None:
    check_gate_up(*small, (56, 96), 67, 64)


@pytest.mark.parametrize('tile', sorted(prefill_gemm.TILES))
def test_gate_up(cp: Any, stream: Any, tile: int) -> None:
    check_gate_up(cp, stream, cases.GATE_UP, 300, tile)


def check_gate_up(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int,
                  tile: int) -> None:
    parts = [cases.random_weight(cp, shape, seed, NORMAL, 0.01 * seed) for seed in (1, 2)]
    made = fragment_order.to_fragments(parts, interleaved=True, stream=stream)
    x = cases.random_rows(cp, (num_tokens, shape[1]), 5)
    out = cases.poisoned(cp, (num_tokens, shape[0]), 'bf16')
    on(stream, cp, lambda: prefill_gemm.prefill_gemm(out, x, made, stream, tile))
    gate, up = (cases.from_bf16(cp, x) @ cases.dequantized(cp, part).T for part in parts)
    assert cases.error(cp, cases.from_bf16(cp, out), cases.geglu(cp, gate, up)) < 2 * BF16_ERROR


@pytest.mark.parametrize(('tile', 'num_tokens'), [(64, 66), (128, 31)])
def test_small_bf16(small: tuple[Any, Any], tile: int, num_tokens: int) -> None:
    check_bf16(*small, (40, 72), num_tokens, tile)


@pytest.mark.parametrize('tile', prefill_gemm.BF16_TILES)
@pytest.mark.parametrize('shape', cases.BF16)
def test_bf16(cp: Any, stream: Any, shape: tuple[int, int], tile: int) -> None:
    check_bf16(cp, stream, shape, 333, tile)


def check_bf16(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int, tile: int) -> None:
    weight = cases.integer_rows(cp, shape, 9)
    x = cases.integer_rows(cp, (num_tokens, shape[1]), 10)
    out = cases.poisoned(cp, (num_tokens, shape[0]), 'bf16')
    on(stream, cp, lambda: prefill_gemm.prefill_gemm_bf16(out, x, weight, stream, tile))
    exact = cases.from_bf16(cp, x) @ cases.from_bf16(cp, weight).T
    assert bool((out == cases.to_bf16(cp, exact)).all())


def test_a_small_row_has_the_same_bits_in_any_company(small: tuple[Any, Any]) -> None:
    check_company(*small, TINY, 70)


@pytest.mark.parametrize('shape', [(8192, 2816), (2816, 8192)])
def test_a_row_has_the_same_bits_in_any_company(cp: Any, stream: Any,
                                                shape: tuple[int, int]) -> None:
    check_company(cp, stream, shape, 600)


def check_company(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int) -> None:
    """All tiles, rows alone, and rows at other places; a changed row changes itself alone."""
    made = fragment_order.to_fragments([cases.random_weight(cp, shape, 7, NORMAL, 0.01)],
                                       stream=stream)
    x = cases.random_rows(cp, (num_tokens, shape[1]), 8)

    def run(rows: Any, tile: int | None) -> Any:
        out = cases.poisoned(cp, (rows.shape[0], shape[0]), 'bf16')
        on(stream, cp, lambda: prefill_gemm.prefill_gemm(out, rows, made, stream, tile))
        return out

    together = run(x, 64)
    for tile in prefill_gemm.TILES:
        assert bool((run(x, tile) == together).all()), tile
    for row in (0, 5, num_tokens - 1):
        assert bool((run(x[row:row + 1], None)[0] == together[row]).all()), row
    moved = cp.concatenate([x[9:], x[:9]])
    assert bool((run(moved, 128)[:-9] == together[9:]).all())
    other = x.copy()
    other[3] = x[4]                      # the comparison sees a wrong row
    changed = (run(other, 64) != together).any(axis=1)
    assert np.flatnonzero(cp.asnumpy(changed)).tolist() == [3]


@pytest.mark.parametrize('tile', [16, 64, 128])
@pytest.mark.parametrize(('num_tokens', 'distinct'), [(1, 8), (40, 12), (150, 9)])
def test_the_order_of_the_pairs(small: tuple[Any, Any], num_tokens: int, distinct: int,
                                tile: int) -> None:
    cp, stream = small
    ids, _ = cases.routing(cp, num_tokens, 24, 4, distinct, num_tokens)
    ids[num_tokens // 2] = -1
    scratch = prefill_moe.ExpertOrder.empty(cp, num_tokens, 4, 24)
    for array in (scratch.order, scratch.offsets, scratch.tiles):
        array[...] = -7
    on(stream, cp, lambda: prefill_moe.prefill_sort(scratch, ids, 24, stream, tile))
    order, offsets, tiles = prefill_moe.prefill_sort_ref(cp.asnumpy(ids), 24, tile)
    got = cp.asnumpy(scratch.tiles)[:prefill_moe.max_tiles(ids.size, 24, tile)]
    assert np.array_equal(cp.asnumpy(scratch.order)[:order.size], order)
    assert np.array_equal(cp.asnumpy(scratch.offsets), offsets)
    assert np.array_equal(got[:len(tiles)], tiles) and not got[len(tiles):].any()


class Layer:
    """One layer's experts on the device."""

    def __init__(self, cp: Any, stream: Any, sizes: tuple[int, int, int]) -> None:
        num_experts, inner, hidden = sizes
        self.sizes = sizes
        self.gate, self.up = (cases.random_weight(cp, (num_experts, inner, hidden), seed, NORMAL,
                                                  0.01 * seed) for seed in (1, 2))
        self.down = cases.random_weight(cp, (num_experts, hidden, inner), 3, NORMAL, 0.01)
        self.gate_up_fragments = fragment_order.to_fragments(
            [self.gate, self.up], interleaved=True, stream=stream)
        self.down_fragments = fragment_order.to_fragments([self.down], stream=stream)

    def run(self, cp: Any, stream: Any, x: Any, ids: Any, tile: int | None) -> tuple[Any, Any]:
        """(inner, results) from poisoned arrays."""
        num_experts, inner_size, hidden = self.sizes
        inner = cases.poisoned(cp, (*ids.shape, inner_size), 'bf16')
        results = cases.poisoned(cp, (*ids.shape, hidden), 'bf16')
        scratch = prefill_moe.ExpertOrder.empty(cp, *ids.shape, num_experts)

        def launch() -> None:
            prefill_moe.prefill_sort(scratch, ids, num_experts, stream, tile)
            prefill_moe.prefill_gate_up(inner, x, ids, scratch, self.gate_up_fragments, stream,
                                        tile)
            prefill_moe.prefill_down(results, inner, ids, scratch, self.down_fragments, stream,
                                     tile)

        on(stream, cp, launch)
        return inner, results


@pytest.mark.parametrize(('num_tokens', 'tile'), [(1, None), (50, 32), (50, 16), (70, 32)])
def test_small_experts(small: tuple[Any, Any], num_tokens: int, tile: int | None) -> None:
    check_experts(*small, Layer(*small, EXPERTS), num_tokens, 3, tile)


@pytest.mark.parametrize(('num_tokens', 'tile'), [(1, 32), (1000, 32), (2049, None), (64, 16),
                                                    (77, 32), (300, 16)])
def test_experts(cp: Any, stream: Any, num_tokens: int, tile: int | None) -> None:
    check_experts(cp, stream, Layer(cp, stream, cases.EXPERTS), num_tokens, cases.CHOSEN, tile)


def check_experts(cp: Any, stream: Any, layer: Layer, num_tokens: int, chosen: int,
                  tile: int | None) -> None:
    num_experts, _, hidden = layer.sizes
    ids, _ = cases.routing(cp, num_tokens, num_experts, chosen, num_experts, num_tokens)
    if num_tokens > 1:
        ids[num_tokens // 2] = -1        # a row of padding
    x = cases.random_rows(cp, (num_tokens, hidden), 4)
    inner, results = layer.run(cp, stream, x, ids, tile)
    rows, host = cases.from_bf16(cp, x), cp.asnumpy(ids)
    for expert in np.unique(host[host >= 0]).tolist():
        token, k = (cp.asarray(index) for index in np.nonzero(host == expert))
        gate, up = (rows[token] @ cases.dequantized(cp, part, expert).T
                    for part in (layer.gate, layer.up))
        got = cases.from_bf16(cp, inner[token, k])
        assert cases.error(cp, got, cases.geglu(cp, gate, up)) < 5e-3, expert
        expected = got @ cases.dequantized(cp, layer.down, expert).T
        assert cases.error(cp, cases.from_bf16(cp, results[token, k]), expected) < 2.5e-3, expert
    padding = cp.asarray(host < 0)
    assert bool((results[padding] == 0x7FC0).all()), 'a row of padding was written'
    if num_tokens > 1:
        row = slice(2, 3)
        alone = layer.run(cp, stream, x[row], ids[row], None)
        for one, all_rows in zip(alone, (inner, results), strict=True):
            assert bool((one[0] == all_rows[2]).all())
