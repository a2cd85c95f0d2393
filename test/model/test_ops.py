# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Each op's twin against its formula written out slowly, and where it rounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from forward import TINY_DENSE, page_table, prefill, random_model
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.ops.attention import KEY_CHUNK, AttentionSpan, attention_ref, plan_attention
from gemma_thor_ros.ops.embed import embed_ref
from gemma_thor_ros.ops.geglu import geglu_ref
from gemma_thor_ros.ops.head import head_ref
from gemma_thor_ros.ops.kv_append import PageRows, kv_append_ref, rope_table
from gemma_thor_ros.ops.linear import CPU_TILES, LinearWeight, TableWeight, linear_ref
from gemma_thor_ros.ops.moe import ExpertWeights, moe_ref
from gemma_thor_ros.ops.moe_route import moe_route_ref
from gemma_thor_ros.ops.rms_norm import rms_norm_add_ref, rms_norm_ref, rms_norm_sum_ref
from gemma_thor_ros.ops.rounding import Rounding, round_to_bf16
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.weights.canonical import DenseWeight

Array = npt.NDArray[Any]
DTYPES = [(np.float64, 1e-13), (np.float32, 2e-6)]
MODES: list[Rounding] = ['none', 'device']


def normal(*shape: int, dtype: Any = np.float64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def weight(*shape: int, seed: int = 0) -> DenseWeight:
    return DenseWeight(normal(*shape, dtype=np.float32, seed=seed), 'f32')


def close(ours: Array, theirs: Array, limit: float) -> bool:
    """Relative error in the 2-norm; poison left in ours makes it NaN and so False."""
    return bool(np.linalg.norm(ours - theirs) <= limit * np.linalg.norm(theirs))


def is_bf16(x: Array) -> bool:
    return np.array_equal(round_to_bf16(x.copy()), x)


def poisoned(*shape: int, dtype: Any = np.float64) -> Array:
    return np.full(shape, np.nan, dtype)


def rms(x: Array, eps: float = 1e-6) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def gelu(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def test_bf16_is_the_nearest_with_ties_to_even() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    bits = np.concatenate([bits, (bits & 0xFFFF0000) | 0x8000])      # ties
    single = bits.view(np.float32)
    single = single[np.isfinite(single) & (np.abs(single) < 3e38)
                    & (np.abs(single) > 1e-37)]
    rounded = round_to_bf16(single.copy()).astype(np.float64)
    below = (single.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    above = ((single.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32).astype(np.float64)
    exact = single.astype(np.float64)
    up, down = np.abs(above - exact), np.abs(exact - below)
    even = (single.view(np.uint32) >> 16 & 1) == 0
    expected = np.where((down < up) | ((down == up) & even), below, above)
    assert np.array_equal(rounded, expected)
    assert np.array_equal(round_to_bf16(exact.copy()), expected)
    # from float64 a number just over a tie goes up, though float32 would have made it a tie
    assert round_to_bf16(np.array([1 + 2 ** -8 + 2 ** -40]))[0] == 1 + 2 ** -7
    assert round_to_bf16(np.array([1 + 2 ** -8]))[0] == 1.0


@pytest.mark.parametrize(('dtype', 'limit'), DTYPES)
@pytest.mark.parametrize('rounding', MODES)
def test_embed(dtype: Any, limit: float, rounding: Rounding) -> None:
    table = TableWeight(weight(50, 24), dtype)
    out = poisoned(4, 24, dtype=dtype)
    embed_ref(out, np.array([7, -1, 49, 7]), table, 4.90625, rounding)
    expected = normal(50, 24, dtype=np.float32).astype(np.float64)[[7, 0, 49, 7]] * 4.90625
    expected[1] = 0
    assert close(out, expected, 4e-3 if rounding == 'device' else limit)
    assert is_bf16(out) == (rounding == 'device')


@pytest.mark.parametrize(('dtype', 'limit'), DTYPES)
@pytest.mark.parametrize('width', [1, 7, 256, 2816])
def test_norms(dtype: Any, limit: float, width: int) -> None:
    x, y, r = (normal(5, width, dtype=dtype, seed=i) for i in range(3))
    w, v = (normal(width, dtype=dtype, seed=i) for i in (4, 5))
    xd, yd, rd, wd, vd = (a.astype(np.float64) for a in (x, y, r, w, v))
    out = poisoned(5, width, dtype=dtype)
    rms_norm_ref(out, x, w, 1e-6)
    assert close(out, rms(xd) * wd, limit)
    rms_norm_ref(out, x, w, 1e-6, 'device')
    assert is_bf16(out) and close(out, rms(xd) * wd, 4e-3)
    scratch = Scratch(dtype)
    rms_norm_sum_ref(out, x, w, y, v, 1e-6, scratch=scratch)
    assert close(out, rms(xd) * wd + rms(yd) * vd, limit)
    rms_norm_add_ref(r, x, w, 1e-6, 0.75, scratch=scratch)
    assert close(r, (rd + rms(xd) * wd) * 0.75, limit)


@pytest.mark.parametrize(('dtype', 'limit'), DTYPES)
@pytest.mark.parametrize('rounding', MODES)
def test_geglu(dtype: Any, limit: float, rounding: Rounding) -> None:
    gate_up = 3 * normal(6, 2 * 33, dtype=dtype)
    gate_up[0, :3] = -60, 60, 0
    out = poisoned(6, 33, dtype=dtype)
    geglu_ref(out, gate_up, rounding)
    exact = gate_up.astype(np.float64)
    assert close(out, gelu(exact[:, :33]) * exact[:, 33:],
                 4e-3 if rounding == 'device' else limit)
    assert is_bf16(out) == (rounding == 'device')


@pytest.mark.parametrize(('dtype', 'limit'), DTYPES)
def test_linear_stacks_its_parts(dtype: Any, limit: float) -> None:
    parts = [weight(40, 24, seed=1), weight(9, 24, seed=2)]
    tile = CPU_TILES.prefill
    x = normal(3 + 2 * tile, 24, dtype=dtype)
    out = poisoned(x.shape[0], 49, dtype=dtype)
    linear_ref(out, x, LinearWeight(parts, dtype), 3)
    matrix = np.concatenate([part.data for part in parts]).astype(np.float64)
    assert close(out, x.astype(np.float64) @ matrix.T, limit)
    linear_ref(out, x, LinearWeight(parts, dtype), 3, rounding='device')
    assert is_bf16(out)


@pytest.mark.parametrize(('dtype', 'limit'), DTYPES)
@pytest.mark.parametrize('has_v', [True, False])
def test_kv_append(dtype: Any, limit: float, has_v: bool) -> None:
    heads, kv, dim, pairs = 4, 2, 32, 5
    qkv = normal(3, (heads + kv * (1 + has_v)) * dim, dtype=dtype)
    norms = normal(2, dim, dtype=dtype, seed=1)
    stacked = norms.repeat([heads, kv], axis=0)
    positions = np.array([3, 900, 4])
    where = PageRows(np.array([0, 2]), np.array([5, 1]), np.array([3, 0]))
    raw = qkv.astype(np.float64).reshape(3, -1, dim)
    expected_q, expected_k = np.empty((3, heads, dim)), np.empty((3, kv, dim))
    for t, position in enumerate(positions):
        for h in range(heads + kv):
            x = rms(raw[t, h]) * norms[int(h >= heads)].astype(np.float64)
            for i in range(pairs):
                angle = position * 10_000.0 ** (-2 * i / dim)
                a, b = x[i], x[i + dim // 2]
                x[i] = a * math.cos(angle) - b * math.sin(angle)
                x[i + dim // 2] = b * math.cos(angle) + a * math.sin(angle)
            (expected_q if h < heads else expected_k)[t, h % heads] = x
    for rounding in MODES:
        q = poisoned(3, heads, dim, dtype=dtype)
        k_pages, v_pages = poisoned(2, 6, 4, kv, dim, dtype=dtype)
        kv_append_ref(q, k_pages, v_pages, qkv, stacked, *rope_table(
            positions, 10_000.0, dim, pairs, dtype), where, 1e-6, scratch=Scratch(dtype),
            rounding=rounding)
        bound = 4e-3 if rounding == 'device' else limit
        written = [k_pages[where.pages, where.slots], v_pages[where.pages, where.slots]]
        assert close(q, expected_q, bound)
        assert close(written[0], expected_k[where.rows], bound)
        assert close(written[1], rms(raw[where.rows, -kv:]), bound)
        assert all(is_bf16(x) == (rounding == 'device') for x in (q, *written))
        assert np.isnan(k_pages).sum() == np.isnan(v_pages).sum() == (24 - 2) * kv * dim


@settings(max_examples=25, deadline=None)
@given(start=st.integers(0, 400), count=st.integers(1, 150), decode=st.booleans(),
       window=st.sampled_from([None, 1, 3, 100, 128, 129, 500]),
       group=st.sampled_from([1, 2, 4]), seed=st.integers(0, 99))
def test_attention(start: int, count: int, decode: bool, window: int | None, group: int,
                   seed: int) -> None:
    count = min(count, 16) if decode else count
    kv, dim, size, end = 2, 8, 16, start + count
    rng = np.random.default_rng(seed)
    pages = rng.permutation(40).astype(np.int32)
    k_pages, v_pages = np.full((2, 40, size, kv, dim), np.nan)
    keys, vals = rng.standard_normal((2, end, kv, dim))
    where = np.arange(end)
    k_pages[pages[where // size], where % size] = keys
    v_pages[pages[where // size], where % size] = vals
    q = rng.standard_normal((count + 2, kv * group, dim))
    out = np.zeros_like(q)
    span = AttentionSpan(1, count, start, pages)
    plan = plan_attention([(span, decode)], window, size, group, np.float64)
    attention_ref(out, q, k_pages, v_pages, plan, scratch=Scratch(np.float64))
    for i in range(count):
        seen = slice(0 if window is None else max(0, start + i - window + 1), start + i + 1)
        for head in range(kv * group):
            scores = keys[seen, head // group] @ q[1 + i, head]
            weights = np.exp(scores - scores.max())
            expected = weights @ vals[seen, head // group] / weights.sum()
            assert close(out[1 + i, head], expected, 1e-12)
    assert not out[[0, -1]].any()


def test_attention_far_from_the_maximum() -> None:
    """A chunk whose scores lie far below another's, and huge scores, give no NaN."""
    size, end = 16, KEY_CHUNK + 40
    pages = np.arange(11)
    k_pages, v_pages = np.zeros((2, 11, size, 1, 4))
    k_pages.reshape(-1, 4)[:KEY_CHUNK, 0] = -1e4
    k_pages.reshape(-1, 4)[KEY_CHUNK:, 0] = 1e4
    v_pages.reshape(-1, 4)[:end] = np.arange(end)[:, None]
    q = np.ones((1, 1, 4))
    out = np.zeros_like(q)
    plan = plan_attention([(AttentionSpan(0, 1, end - 1, pages), True)], None, size, 1, np.float64)
    attention_ref(out, q, k_pages, v_pages, plan, scratch=Scratch(np.float64))
    assert np.allclose(out, np.arange(KEY_CHUNK, end).mean())


@pytest.mark.parametrize(('dtype', 'limit'), DTYPES)
def test_moe(dtype: Any, limit: float) -> None:
    tokens, hidden, inner, experts, chosen = 9, 24, 12, 5, 3
    gate, up = (weight(experts, inner, hidden, seed=i) for i in (1, 2))
    down = weight(experts, hidden, inner, seed=3)
    x = normal(tokens, hidden, dtype=dtype, seed=4)
    rng = np.random.default_rng(5)
    ids = np.stack([rng.permutation(experts)[:chosen] for _ in range(tokens)])
    weights = rng.random((tokens, chosen)).astype(dtype)
    rows = np.array([0, 1, 2, 4, 5, 6, 8])
    out = poisoned(tokens, hidden, dtype=dtype)
    moe_ref(out, x, ids, weights, ExpertWeights(gate, up, down, dtype), rows,
            scratch=Scratch(dtype))
    expected = np.zeros((tokens, hidden))
    for t in rows:
        for expert, share in zip(ids[t], weights[t], strict=True):
            g, u, d = (w.data[expert].astype(np.float64) for w in (gate, up, down))
            row = x[t].astype(np.float64)
            expected[t] += float(share) * (d @ (gelu(g @ row) * (u @ row)))
    assert close(out, expected, limit)
    assert not out[[3, 7]].any()


@pytest.mark.parametrize(('dtype', 'limit'), DTYPES)
def test_moe_route(dtype: Any, limit: float) -> None:
    tokens, hidden, experts, chosen = 40, 24, 7, 3
    x = normal(tokens, hidden, dtype=dtype)
    scale, per_expert = normal(hidden, dtype=dtype, seed=1), normal(experts, dtype=dtype, seed=2)
    proj = weight(experts, hidden, seed=3)
    ids = np.full((tokens, chosen), -1)
    shares = poisoned(tokens, chosen, dtype=dtype)
    moe_route_ref(ids, shares, x, scale, LinearWeight([proj], dtype), per_expert, 1e-6, tokens,
                  scratch=Scratch(dtype))
    scores = (rms(x.astype(np.float64)) * scale) @ proj.data.astype(np.float64).T
    every = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert np.array_equal(ids, np.argsort(-scores, -1)[:, :chosen])
    best = np.take_along_axis(every, ids, -1)
    assert close(shares, best / best.sum(-1, keepdims=True) * per_expert[ids], limit)


def test_ties_of_experts_go_to_the_lowest_id() -> None:
    proj = DenseWeight(np.array([[1, 0], [2, 0], [2, 0], [0, 0], [2, 0]], np.float32), 'f32')
    ids, shares = np.zeros((1, 3), np.int64), np.zeros((1, 3))
    moe_route_ref(ids, shares, np.ones((1, 2)), np.ones(2), LinearWeight([proj], np.float64),
                  np.ones(5), 1e-6, 1, scratch=Scratch(np.float64))
    assert ids.tolist() == [[1, 2, 4]]
    assert np.allclose(shares, 1 / 3)


@pytest.mark.parametrize(('dtype', 'limit'), DTYPES)
def test_head(dtype: Any, limit: float) -> None:
    x = normal(3, 24, dtype=dtype)
    logits = poisoned(3, 50, dtype=dtype)
    head_ref(logits, x, TableWeight(weight(50, 24), dtype), 5.0)
    exact = x.astype(np.float64) @ normal(50, 24, dtype=np.float32).astype(np.float64).T
    assert np.abs(exact).max() > 10
    assert close(logits, 5 * np.tanh(exact / 5), limit)


def test_device_rounding_moves_the_logits_as_far_as_bf16_does() -> None:
    """Dense, because in an MoE a rounding may also swap two experts that nearly tie."""
    tokens = list(range(40))
    pages = page_table(3)
    results = {}
    for dtype in (np.float32, np.float64):
        for rounding in MODES:
            model = random_model(TINY_DENSE, dtype, rounding)
            cache = model.new_kv_cache(3, 3, 16)
            results[dtype, rounding] = prefill(model, cache, tokens, pages)
            held = [array[pages] for array in (*cache.k_pages, *cache.v_pages)]
            assert all(is_bf16(array) for array in held) == (rounding == 'device')
    exact = results[np.float64, 'none']
    distance = {key: np.linalg.norm(value - exact) / np.linalg.norm(exact)
                for key, value in results.items()}
    assert distance[np.float32, 'none'] < 1e-5
    assert 1e-3 < distance[np.float64, 'device'] < 2e-2
    assert 1e-3 < distance[np.float32, 'device'] < 2e-2
