# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Products with MLX affine weights against float64 on the same operands, for each width and group.

Sums of small integers are exact in float32, so there every bit of the result is known.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.ops import affine_order, embed, embed_affine, gemm_affine, moe_affine
from gemma_thor_ros.ops.linear import TableWeight
from gemma_thor_ros.ops.prefill_moe import ExpertOrder, max_tiles
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight

from . import cases
from .affine_cases import Affine, random_affine

WIDTHS = [(bits, group) for bits in affine_order.BITS for group in affine_order.GROUPS]
SAMPLE = [(3, 64), (4, 64), (6, 32), (8, 128)]
# 31B (N, M): stacked q and k of full layers, o of sliding ones, down; 12B: qkv and down
PROJECTIONS = ((18432, 5376), (5376, 8192), (5376, 21504), (8192, 3840), (3840, 15360))
GATE_UP = (21504, 5376)
HEAD = (262144, 3840)
BF16_ERROR = 2.5e-3
# Of the sum of the terms' magnitudes, before the final rounding.
TERMS_ERROR = 4e-6
NO_CAP = 1e6


def on(stream: Any, cp: Any, run: Callable[[], None]) -> None:
    cp.cuda.runtime.deviceSynchronize()
    run()
    stream.synchronize()


def made_of(cp: Any, stream: Any, parts: list[Affine], interleaved: bool = False) -> Any:
    cp.cuda.runtime.deviceSynchronize()
    made = affine_order.to_affine(parts, interleaved=interleaved, stream=stream)
    stream.synchronize()
    return made


def wanted(grid: bool, width: tuple[int, int]) -> None:
    if not grid and width not in SAMPLE:
        pytest.skip('this width is part of make grid')


@pytest.mark.parametrize('interleaved', [False, True])
@pytest.mark.parametrize('width', WIDTHS)
def test_repacking_equals_its_twin(small: tuple[Any, Any], grid: bool, width: tuple[int, int],
                                   interleaved: bool) -> None:
    wanted(grid, width)
    cp, stream = small
    shape = (40, width[1] * 3)           # neither whole row tiles nor, but for 64, column tiles
    parts = [random_affine(cp, seed, shape, *width) for seed in range(1 + interleaved)]
    made = made_of(cp, stream, parts, interleaved)
    host = [Affine(*map(cp.asnumpy, (part.words, part.scales, part.biases)), *width)
            for part in parts]
    words, scales = affine_order.affine_order_ref(*host)
    assert np.array_equal(cp.asnumpy(made.words), words.ravel())
    assert np.array_equal(cp.asnumpy(made.scales), scales.ravel())
    if not interleaved:                  # planted: a code and a scale in each other's place
        host[0].words[3, 1] ^= 1 << 5
        host[0].scales[39, 2] ^= 1
        other = affine_order.affine_order_ref(*host)
        assert int((other[0].ravel() != cp.asnumpy(made.words)).sum()) == 1
        assert int((other[1].ravel() != cp.asnumpy(made.scales)).sum()) == 1


@pytest.mark.parametrize('width', WIDTHS)
def test_small_projection(small: tuple[Any, Any], grid: bool, width: tuple[int, int]) -> None:
    wanted(grid, width)
    rows = (1, 9, 17) if width == (4, 64) or grid else (1,) if width[1] == 32 else (2,)
    check_projection(*small, (40, width[1] * 3), width, rows)


@pytest.mark.parametrize(('shape', 'width'), [
    *((shape, width) for shape in PROJECTIONS for width in ((4, 64), (8, 64))),
    *((PROJECTIONS[0], width) for width in ((2, 64), (3, 32), (5, 128), (6, 64)))])
def test_projection(cp: Any, stream: Any, shape: tuple[int, int], width: tuple[int, int]) -> None:
    check_projection(cp, stream, shape, width, (1, 8, 9, 16))


def check_projection(cp: Any, stream: Any, shape: tuple[int, int], width: tuple[int, int],
                     rows: tuple[int, ...]) -> None:
    for coarse in (True, False):
        weight = random_affine(cp, 1, shape, *width, coarse=coarse)
        made, matrix = made_of(cp, stream, [weight]), weight.values(cp).T
        for count in rows:
            x = (cases.integer_rows if coarse else cases.random_rows)(cp, (count, shape[1]), count)
            out = cases.poisoned(cp, (count, shape[0]), 'bf16')
            on(stream, cp, partial(gemm_affine.gemm_affine, out, x, made, stream))
            expected = cases.from_bf16(cp, x) @ matrix
            if coarse:                   # every sum is exact
                assert bool((out == cases.to_bf16(cp, expected)).all())
            assert cases.error(cp, cases.from_bf16(cp, out), expected) < BF16_ERROR


@pytest.mark.parametrize('width', WIDTHS)
def test_small_head(small: tuple[Any, Any], grid: bool, width: tuple[int, int]) -> None:
    if not grid and width != (6, 32):
        pytest.skip('this width is part of make grid')
    check_head(*small, (80, width[1] * 5), width)


@pytest.mark.parametrize('width', [(4, 64), (8, 64), (6, 64)])
def test_head(cp: Any, stream: Any, width: tuple[int, int]) -> None:
    check_head(cp, stream, HEAD, width)


def check_head(cp: Any, stream: Any, shape: tuple[int, int], width: tuple[int, int]) -> None:
    """Unrounded sums against the bound, rows of one sign as well; then the soft cap."""
    weight = random_affine(cp, 5, shape, *width)
    made = made_of(cp, stream, [weight])
    x = cases.random_rows(cp, (9, shape[1]), 6)
    x[1] &= 0x7FFF                       # all positive: the groups' sums are large
    x[2] = x[3]
    rows = cases.from_bf16(cp, x)
    for cap in (NO_CAP, cases.SOFTCAP):
        logits = cases.poisoned(cp, (9, shape[0]), 'f32')
        on(stream, cp, partial(gemm_affine.head_affine, logits, x, made, cap, stream))
        for start in range(0, shape[0], 16384):
            part = slice(start, min(start + 16384, shape[0]))
            values = weight.values(cp, part)
            exact, terms = rows @ values.T, cp.abs(rows) @ cp.abs(values).T
            if cap != NO_CAP:
                expected = cap * cp.tanh(exact / cap)
                assert cases.error(cp, logits[:, part], expected) < 2e-5
                continue
            off = cp.abs(logits[:, part] - exact)
            # tanhf and two roundings stand behind the sums
            assert float((off / (terms + 0.1 * cp.abs(exact))).max()) < TERMS_ERROR
            if start == 0:               # planted: a code of a row is another one
                wrong = exact[0, 0] + (values[0, 1] - values[0, 0]) * rows[0, 0]
                assert abs(float(wrong - logits[0, 0])) > TERMS_ERROR * float(terms[0, 0])
        assert bool((logits[2] == logits[3]).all())


def test_small_gate_up(small: tuple[Any, Any]) -> None:
    check_gate_up(*small, (56, 192), (4, 64), 9)


@pytest.mark.parametrize('width', [(4, 64), (8, 64)])
def test_gate_up(cp: Any, stream: Any, width: tuple[int, int]) -> None:
    check_gate_up(cp, stream, GATE_UP, width, 16)


def check_gate_up(cp: Any, stream: Any, shape: tuple[int, int], width: tuple[int, int],
                  num_tokens: int) -> None:
    parts = [random_affine(cp, seed, shape, *width) for seed in (7, 8)]
    made = made_of(cp, stream, parts, True)
    x = cases.random_rows(cp, (num_tokens, shape[1]), 9)
    out = cases.poisoned(cp, (num_tokens, shape[0]), 'bf16')
    on(stream, cp, lambda: gemm_affine.gemm_affine(out, x, made, stream))
    gate, up = (cases.from_bf16(cp, x) @ part.values(cp).T for part in parts)
    assert cases.error(cp, cases.from_bf16(cp, out), cases.geglu(cp, gate, up)) < 2 * BF16_ERROR


def test_a_small_row_has_the_same_bits_in_any_company(small: tuple[Any, Any]) -> None:
    check_company(*small, (48, 192), 19)


@pytest.mark.parametrize('width', [(2, 64), (4, 64), (8, 32)])
def test_a_small_row_alone_goes_through_neighbouring_row_tiles(
        small: tuple[Any, Any], grid: bool, width: tuple[int, int]) -> None:
    """A block has several row tiles, and a warp several stages of each."""
    if not grid and width[0] != 2:
        pytest.skip('this width is part of make grid')
    cp, stream = small
    shape = (57, 5120)
    made = made_of(cp, stream, [random_affine(cp, 15, shape, *width)])
    x = cases.random_rows(cp, (2, shape[1]), 16)
    together, alone = (cases.poisoned(cp, (2, shape[0]), 'bf16') for _ in range(2))
    on(stream, cp, lambda: gemm_affine.gemm_affine(together, x, made, stream))
    for row in range(2):
        on(stream, cp, partial(gemm_affine.gemm_affine, alone[row:row + 1], x[row:row + 1], made,
                               stream))
    assert bool((together == alone).all()) and not bool((alone[0] == alone[1]).all())


@pytest.mark.parametrize('shape', [(5376, 21504), (8192, 3840)])
def test_a_row_has_the_same_bits_in_any_company(cp: Any, stream: Any,
                                                shape: tuple[int, int]) -> None:
    check_company(cp, stream, shape, 100)


def check_company(cp: Any, stream: Any, shape: tuple[int, int], num_tokens: int) -> None:
    """Rows alone, among others, and as a prompt's; a changed row changes itself alone."""
    made = made_of(cp, stream, [random_affine(cp, 10, shape, 4, 64)])
    x = cases.random_rows(cp, (num_tokens, shape[1]), 11)

    def run(rows: Any, prompt: bool) -> Any:
        out = cases.poisoned(cp, (rows.shape[0], shape[0]), 'bf16')
        on(stream, cp, lambda: gemm_affine.gemm_affine(out, rows, made, stream, prompt=prompt))
        return out

    together = run(x, True)
    assert bool((run(x, False) == together).all())
    for row in (0, 5, num_tokens - 1):
        for prompt in (False, True):
            assert bool((run(x[row:row + 1], prompt)[0] == together[row]).all()), row
    assert bool((run(x[9:], True) == together[9:]).all())
    x[3] = x[4]                          # the comparison sees a wrong row
    changed = (run(x, True) != together).any(axis=1)
    assert np.flatnonzero(cp.asnumpy(changed)).tolist() == [3]


def test_stacked_parts_of_one_and_of_several_widths(small: tuple[Any, Any]) -> None:
    cp, stream = small
    x = cases.random_rows(cp, (3, 128), 12)

    def check(weights: list[Affine], made: Any) -> None:
        values = cp.concatenate([weight.values(cp) for weight in weights])
        out = cases.poisoned(cp, (3, len(values)), 'bf16')
        on(stream, cp, lambda: gemm_affine.gemm_affine(out, x, made, stream))
        expected = cases.from_bf16(cp, x) @ values.T
        assert cases.error(cp, cases.from_bf16(cp, out), expected) < BF16_ERROR

    alike = [random_affine(cp, rows, (rows, 128), 4, 64) for rows in (64, 32, 40)]
    check(alike, made_of(cp, stream, alike))
    mixed = [random_affine(cp, seed, (rows, 128), *width) for seed, rows, width in (
        (1, 48, (4, 64)), (2, 40, (6, 32)), (3, 16, (8, 128)))]
    check(mixed, affine_order.AffineStack(tuple(made_of(cp, stream, [part]) for part in mixed)))
    with pytest.raises(ConfigError, match='4 bits in groups of 64, 48 x 128, 6 bits in groups'):
        made_of(cp, stream, mixed)
    with pytest.raises(ConfigError, match='multiples of 16 rows'):
        made_of(cp, stream, alike[::-1])
    with pytest.raises(ConfigError, match='two equal matrices'):
        made_of(cp, stream, alike[:2], True)


@pytest.mark.parametrize('width', WIDTHS)
def test_embedding_rows(small: tuple[Any, Any], grid: bool, width: tuple[int, int]) -> None:
    if not grid and width != (3, 64):
        pytest.skip('this width is part of make grid')
    cp, stream = small
    table = random_affine(cp, 15, (50, 384), *width)
    made = made_of(cp, stream, [table])
    ids = np.array([49, -1, 0, 7, 8, 31], np.int32)
    hidden, placed = cases.poisoned(cp, (6, 384), 'f32'), cp.asarray(ids)
    on(stream, cp, lambda: embed_affine.embed_affine(hidden, placed, made, 19.625, stream))
    expected = np.empty((6, 384), np.float32)
    words, scales, biases = map(cp.asnumpy, (table.words, table.scales, table.biases))
    stored = AffineWeight(words, DenseWeight(scales, 'bf16'), DenseWeight(biases, 'bf16'), *width)
    embed.embed_ref(expected, ids, TableWeight(stored, np.float32), 19.625, 'device')
    assert np.array_equal(cp.asnumpy(hidden), expected)
    assert np.array_equal(stored.dequantize(np.float64), cp.asnumpy(table.values(cp)))


@pytest.mark.parametrize(('num_tokens', 'distinct'), [(1, 8), (5, 9), (16, 30), (16, 8)])
def test_the_order_of_the_pairs(small: tuple[Any, Any], num_tokens: int, distinct: int) -> None:
    cp, stream = small
    ids, _ = cases.routing(cp, num_tokens, 40, 8, distinct, num_tokens)
    if num_tokens > 1:
        ids[num_tokens // 2] = -1
    scratch = ExpertOrder.empty(cp, 16, 8, 40)
    for array in (scratch.order, scratch.tiles):
        array[...] = -7
    on(stream, cp, lambda: moe_affine.moe_items(scratch, ids, 40, stream))
    order, items = moe_affine.moe_items_ref(cp.asnumpy(ids))
    found = cp.asnumpy(scratch.tiles)[:max_tiles(ids.size, 40, moe_affine.ROWS)]
    assert cp.asnumpy(scratch.order)[:len(order)].tolist() == order
    assert list(map(tuple, found[:len(items)].tolist())) == items
    assert not found[len(items):].any()


def test_sums_run_in_the_order_that_is_written_down(small: tuple[Any, Any]) -> None:
    """Every bit by NumPy, step for step, where the matrix instruction adds in double precision."""
    cp, stream = small
    weight = random_affine(cp, 13, (16, 320), 4, 64)
    made = made_of(cp, stream, [weight])
    x = cases.random_rows(cp, (1, 320), 14)
    logits = cases.poisoned(cp, (1, 16), 'f32')
    on(stream, cp, lambda: gemm_affine.head_affine(logits, x, made, NO_CAP, stream))
    single, codes = np.float32, cp.asnumpy(weight.codes(cp)).astype(np.float64)
    scales, biases, rows = (cp.asnumpy(cases.from_bf16(cp, part))
                            for part in (weight.scales, weight.biases, x))
    total = np.zeros(16, single)
    for group in range(5):               # five warps, one tile each
        products, plain = np.zeros(16, single), single(0)
        for step in range(4):
            part = slice(group * 64 + step // 2 * 32, group * 64 + step // 2 * 32 + 32)
            chosen = np.arange(32).reshape(4, 2, 4)[:, step % 2].ravel()
            new = codes[:, part][:, chosen] @ rows[0, part][chosen]
            products = (products + new).astype(single)
            plain = single(plain + rows[0, part][chosen].sum())
        one = (biases[:, group] * plain).astype(single)
        one = (one + scales[:, group] * products).astype(single)
        total = one if group == 0 else total + one
    cap, tanh = single(NO_CAP), ctypes.CDLL(ctypes.util.find_library('m')).tanhf
    tanh.argtypes, tanh.restype = [ctypes.c_float], ctypes.c_float
    expected = cap * np.array([tanh(z) for z in total / cap], single)
    assert np.abs(cp.asnumpy(logits)[0] - expected).max() < 1e-5
    if not hasattr(stream, 'ptr'):       # the emulator
        assert np.array_equal(logits[0], expected)


@pytest.mark.parametrize('columns', [64, 96, 256, 704, 2816, 3840, 5376, 8192, 15360, 21504])
@pytest.mark.parametrize('tiles', [4, 88, 336, 2688, 16384])
def test_the_cut_follows_from_the_shape_alone(columns: int, tiles: int) -> None:
    needed = -(-columns // 64)
    cuts = set()
    for rows, bits, group, prompt in ((1, 4, 64, False), (8, 4, 32, False), (9, 8, 64, False),
                                      (16, 3, 64, False), (300, 6, 32, True)):
        constants = dict(gemm_affine.spec(columns, rows, bits, group, 'plain', prompt,
                                          num_row_tiles=tiles).defines)
        cuts.add((constants['K_WARPS'], constants['WARP_TILES']))
        # 99 KB is the least that a supported device lets a block have
        assert gemm_affine.shared_bytes(constants) <= 99 << 10, constants
        assert constants['STAGES'] >= 2 and constants['K_WARPS'] * 32 <= 1024
    (warps, each), = cuts
    assert needed <= warps * each <= 1.035 * needed + 1 and (warps - 1) * each < needed
