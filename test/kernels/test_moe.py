# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The experts against float64 on the same operands, in any company of rows."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machine import Machine

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import fragment_order, moe_chain, moe_nvfp4

from . import cases

SERVED = cases.EXPERTS
SMALL = (72, 80, 96)                     # E, I, H: none of them a multiple of a warp or a tile
JOINED = (24, 64, 128)                   # I as the dense MLP's parts need it, H in halves
LONG = (8, 320, 640)                     # several stages of a ring, the last ones short
MANY = (300, 64, 64)                     # more than 32 experts for each warp of a block
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


    def run_chain(self, cp: Any, stream: Any, x: Any, ids: Any,
                  arrivals: Any) -> tuple[Any, Any]:
        """(inner, results) of both products in one launch."""
        _, inner_size, hidden = self.sizes
        inner = cases.poisoned(cp, (*ids.shape, inner_size), 'bf16')
        results = cases.poisoned(cp, (*ids.shape, hidden), 'bf16')
        cp.cuda.runtime.deviceSynchronize()
        moe_chain.moe_chain(results, inner, x, ids, self.gate_up_fragments, self.down_fragments,
                            arrivals, stream)
        stream.synchronize()
        return inner, results


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
    check_rows_alone(cp, stream, layer, (8, 24))     # more than 8 rows an expert, and few


@pytest.mark.parametrize(('sizes', 'distinct'), [(SMALL, 24), (JOINED, 11)])
def test_a_small_row_has_the_same_bits_alone(small: tuple[Any, Any],
                                             sizes: tuple[int, int, int], distinct: int) -> None:
    check_rows_alone(*small, Layer(*small, sizes), (distinct,))


def check_rows_alone(cp: Any, stream: Any, layer: Layer, experts: tuple[int, ...]) -> None:
    num_experts, _, hidden = layer.sizes
    for distinct in experts:
        ids, weights = cases.routing(cp, 16, num_experts, cases.CHOSEN, distinct, distinct)
        x = cases.random_rows(cp, (16, hidden), 5)
        together = layer.run(cp, stream, x, ids, weights)
        for row in range(16):
            one = slice(row, row + 1)
            alone = layer.run(cp, stream, x[one], ids[one], weights[one])
            for a, b in zip(together, alone, strict=True):
                assert bool((a[one] == b).all()), (distinct, row)


@pytest.mark.parametrize(('right', 'wrong'), [
    ('wait_for_copies<STAGES - 2>', 'wait_for_copies<STAGES - 1>'),
    ('    pair_barrier(warp / 2);', '')], ids=['one stage short', 'no barrier of pairs'])
def test_a_missing_wait_shows(small: tuple[Any, Any], machine: Machine, right: str, wrong: str,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    if not machine.small:
        pytest.skip('a device may be fast enough to get away with it')
    cp, stream = small
    layer = Layer(cp, stream, JOINED)
    ids, weights = cases.routing(cp, 2, JOINED[0], cases.CHOSEN, 9, 3)
    x = cases.random_rows(cp, (2, JOINED[2]), 4)
    expected, _, _ = layer.run(cp, stream, x, ids, weights)
    original = compiler.kernel_source
    assert original('moe_nvfp4').count(right) == 1
    monkeypatch.setattr(compiler, 'kernel_source',
                        lambda name: original(name).replace(right, wrong))
    got, _, _ = layer.run(cp, stream, x, ids, weights)
    assert bool((expected != got).any())


def test_down_before_its_rows_are_there_shows(small: tuple[Any, Any], machine: Machine,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    if not machine.small:
        pytest.skip('a device may be fast enough to get away with it')
    cp, stream = small
    layer, arrivals = Layer(cp, stream, JOINED), arrivals_of(cp, JOINED[0])
    wait = 'if (at.unit != ready) wait_for_arrivals(counter, all);'
    original = compiler.kernel_source
    assert original('moe_chain').count(wait) == 1
    monkeypatch.setattr(compiler, 'kernel_source', lambda name: original(name).replace(wait, ''))
    with pytest.raises(AssertionError, match=r'\(9, 9\)'):
        check_chain(cp, stream, layer, None, arrivals, 9, 9)


class DenseMlp:
    """A dense MLP of three experts' size, for the launches that do both."""

    def __init__(self, cp: Any, stream: Any, hidden: int, inner: int) -> None:
        self.gate, self.up = (cases.random_weight(cp, (3 * inner, hidden), seed, NORMAL,
                                                  0.01 * seed) for seed in (4, 5))
        self.down = cases.random_weight(cp, (hidden, 3 * inner), 6, NORMAL, 0.01)
        self.gate_up_fragments = fragment_order.to_fragments([self.gate, self.up],
                                                             interleaved=True, stream=stream)
        self.down_fragments = fragment_order.to_fragments([self.down], stream=stream)

    def run(self, cp: Any, stream: Any, layer: Layer, x: Any, dense_x: Any,
            ids: Any) -> tuple[Any, ...]:
        """(inner, results, dense inner, dense parts) from poisoned arrays."""
        tokens, (_, inner_size, hidden) = ids.shape[0], layer.sizes
        inner = cases.poisoned(cp, (*ids.shape, inner_size), 'bf16')
        results = cases.poisoned(cp, (*ids.shape, hidden), 'bf16')
        dense_inner = cases.poisoned(cp, (tokens, 3 * inner_size), 'bf16')
        parts = cases.poisoned(cp, (tokens, 3, hidden), 'f32')
        cp.cuda.runtime.deviceSynchronize()
        moe_nvfp4.moe_nvfp4_gate_up(
            inner, x, ids, layer.gate_up_fragments, stream,
            moe_nvfp4.DenseGateUp(dense_inner, dense_x, self.gate_up_fragments))
        moe_nvfp4.moe_nvfp4_down(results, inner, ids, layer.down_fragments, stream,
                                 moe_nvfp4.DenseDown(parts, dense_inner, self.down_fragments))
        stream.synchronize()
        return inner, results, dense_inner, parts


    def run_chain(self, cp: Any, stream: Any, layer: Layer, x: Any, dense_x: Any, ids: Any,
                  arrivals: Any) -> tuple[Any, ...]:
        """The same in one launch."""
        tokens, (_, inner_size, hidden) = ids.shape[0], layer.sizes
        inner = cases.poisoned(cp, (*ids.shape, inner_size), 'bf16')
        results = cases.poisoned(cp, (*ids.shape, hidden), 'bf16')
        dense_inner = cases.poisoned(cp, (tokens, 3 * inner_size), 'bf16')
        parts = cases.poisoned(cp, (tokens, 3, hidden), 'f32')
        cp.cuda.runtime.deviceSynchronize()
        moe_chain.moe_chain(
            results, inner, x, ids, layer.gate_up_fragments, layer.down_fragments, arrivals,
            stream, (moe_nvfp4.DenseGateUp(dense_inner, dense_x, self.gate_up_fragments),
                     moe_nvfp4.DenseDown(parts, dense_inner, self.down_fragments)))
        stream.synchronize()
        return inner, results, dense_inner, parts


def arrivals_of(cp: Any, num_experts: int) -> Any:
    return cp.zeros(moe_chain.arrivals_size(num_experts), cp.uint32)


def check_chain(cp: Any, stream: Any, layer: Layer, dense: DenseMlp | None, arrivals: Any,
                num_tokens: int, distinct: int) -> None:
    """The bits of the two launches; the counters are zero again."""
    num_experts, _, hidden = layer.sizes
    ids, weights = cases.routing(cp, num_tokens, num_experts, cases.CHOSEN,
                                 min(distinct, num_experts), num_tokens)
    if num_tokens == 7:
        ids[-1] = -1                     # a row of padding
    x, dense_x = (cases.random_rows(cp, (num_tokens, hidden), seed) for seed in (4, 7))
    if dense:
        expected = dense.run(cp, stream, layer, x, dense_x, ids)
        got = dense.run_chain(cp, stream, layer, x, dense_x, ids, arrivals)
    else:
        expected = layer.run(cp, stream, x, ids, weights)[:2]
        got = layer.run_chain(cp, stream, x, ids, arrivals)
    for a, b in zip(got, expected, strict=True):
        assert a.tobytes() == b.tobytes(), (num_tokens, distinct)        # poison included
    assert not arrivals.any()


def test_a_chain_has_the_bits_of_two_launches(cp: Any, stream: Any, layer: Layer) -> None:
    num_experts, inner, hidden = layer.sizes
    arrivals, dense = arrivals_of(cp, num_experts), DenseMlp(cp, stream, hidden, inner)
    for num_tokens, distinct in ((1, 8), (2, 16), (8, 24), (9, 8), (16, 24), (16, 64), (16, 128)):
        for mlp in (dense, None):
            for _ in range(4):
                check_chain(cp, stream, layer, mlp, arrivals, num_tokens, distinct)


def test_a_small_chain(small: tuple[Any, Any]) -> None:
    check_small_chain(small, JOINED, 9, 8)


@pytest.mark.parametrize(('sizes', 'num_tokens', 'distinct'), [
    (JOINED, 1, 8), (JOINED, 8, 24), (SMALL, 7, 20), (SMALL, 16, 24), (LONG, 3, 8),
    (LONG, 16, 8), (MANY, 16, 100)])
def test_more_small_chains(full: None, small: tuple[Any, Any], sizes: tuple[int, int, int],
                           num_tokens: int, distinct: int) -> None:
    check_small_chain(small, sizes, num_tokens, distinct)


def check_small_chain(small: tuple[Any, Any], sizes: tuple[int, int, int], num_tokens: int,
                      distinct: int) -> None:
    layer = Layer(*small, sizes)
    arrivals = arrivals_of(small[0], sizes[0])
    dense = DenseMlp(*small, sizes[2], sizes[1]) if sizes != SMALL else None
    for _ in range(2):                   # the counters serve again
        check_chain(*small, layer, dense, arrivals, num_tokens, distinct)


@pytest.mark.parametrize(('num_tokens', 'distinct'), [(1, 8), (8, 24), (9, 8), (16, 64)])
def test_experts_with_the_dense_mlp(cp: Any, stream: Any, layer: Layer, num_tokens: int,
                                    distinct: int) -> None:
    check_joined(cp, stream, layer, num_tokens, distinct)


@pytest.mark.parametrize(('num_tokens', 'distinct'), [(1, 8), (7, 20), (9, 8)])
def test_small_experts_with_the_dense_mlp(small: tuple[Any, Any], num_tokens: int,
                                          distinct: int) -> None:
    check_joined(*small, Layer(*small, JOINED), num_tokens, distinct)


@pytest.mark.parametrize('num_tokens', [1, 9])
def test_padding_alone_hits_no_expert(small: tuple[Any, Any], num_tokens: int) -> None:
    cp, stream = small
    layer = Layer(cp, stream, JOINED)
    num_experts, inner, hidden = JOINED
    dense = DenseMlp(cp, stream, hidden, inner)
    ids, _ = cases.routing(cp, num_tokens, num_experts, cases.CHOSEN, 24, 1)
    x, dense_x = (cases.random_rows(cp, (num_tokens, hidden), seed) for seed in (4, 7))
    _, _, expected, expected_parts = dense.run(cp, stream, layer, x, dense_x, ids)
    ids[...] = -1
    got_inner, results, got, parts = dense.run(cp, stream, layer, x, dense_x, ids)
    assert bool((got == expected).all() and (parts == expected_parts).all())
    assert bool((got_inner == 0x7FC0).all() and (results == 0x7FC0).all())


def test_few_rows_run_each_instruction_often() -> None:
    """Stages of down by the same instructions up to 8 rows; more have items enough."""
    bodies = [dict(moe_nvfp4.down_spec(704, count, 8, 128, False, 3).defines)['ONE_BODY']
              for count in (1, 2, 8, 9, 16)]
    assert bodies == [1, 1, 1, 0, 0]


def test_long_rows_go_round_the_ring(small: tuple[Any, Any]) -> None:
    check_joined(*small, Layer(*small, LONG), 3, 8)


def check_joined(cp: Any, stream: Any, layer: Layer, num_tokens: int, distinct: int) -> None:
    num_experts, inner_size, hidden = layer.sizes
    dense = DenseMlp(cp, stream, hidden, inner_size)
    ids, weights = cases.routing(cp, num_tokens, num_experts, cases.CHOSEN,
                                 min(distinct, num_experts), num_tokens)
    if num_tokens == 7:
        ids[-1] = -1                     # a row of padding has a dense MLP nevertheless
    x, dense_x = (cases.random_rows(cp, (num_tokens, hidden), seed) for seed in (4, 7))
    inner, results, dense_inner, parts = dense.run(cp, stream, layer, x, dense_x, ids)
    apart = layer.run(cp, stream, x, ids, weights)
    real = ids >= 0
    assert bool((inner[real] == apart[0][real]).all())
    assert bool((results[real] == apart[1][real]).all())
    wide = cases.from_bf16(cp, dense_x)
    gate, up = (wide @ cases.dequantized(cp, part).T for part in (dense.gate, dense.up))
    rows = cases.from_bf16(cp, dense_inner)
    assert cases.error(cp, rows, cases.geglu(cp, gate, up)) < 5e-3
    matrix = cases.dequantized(cp, dense.down)
    for j in range(3):
        columns = slice(j * inner_size, (j + 1) * inner_size)
        expected = rows[:, columns] @ matrix[:, columns].T
        assert cases.error(cp, parts[:, j].astype(cp.float64), expected) < 1e-5, j
    # and the same bits alone
    one = slice(num_tokens - 1, num_tokens)
    single = dense.run(cp, stream, layer, x[one], dense_x[one], ids[one])
    assert bool((single[2] == dense_inner[one]).all() and (single[3] == parts[one]).all())
