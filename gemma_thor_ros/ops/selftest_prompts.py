# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The self test's runs of the ops of prompt rows: products, experts, attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemma_thor_ros.ops import (
    device,
    gemm_nvfp4,
    moe_nvfp4,
    prefill_attention,
    prefill_attention_wgmma,
    prefill_gemm,
    prefill_moe,
)
from gemma_thor_ros.ops.attention import AttentionSpan, attention_ref, plan_attention
from gemma_thor_ros.ops.fragment_order import to_fragments
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.ops.selftest_data import Array, Matrix, bits, fetch, normal, out, wide

_ROWS = 19                               # fill no tile


def products(stream: Any) -> tuple[Array, Array]:
    """Rows by an NVFP4 matrix, and by two with geglu."""
    x, found, expected = bits(normal(40, _ROWS, 128)), [], []
    rows = device.put(x)
    for pair in (False, True):
        parts = [Matrix.random(41 + seed, 48, 128) for seed in range(1 + pair)]
        weight, result = to_fragments(parts, interleaved=pair, stream=stream), out(_ROWS, 48)
        prefill_gemm.prefill_gemm(result, rows, weight, stream)
        found.append(fetch(result, stream))
        expected.append(np.empty((_ROWS, 48)))
        gemm_nvfp4.gemm_nvfp4_ref(expected[-1], wide(x), parts, interleaved=pair)
        scale = np.linalg.norm(expected[-1])     # each counts alike in the error of both
        found[-1], expected[-1] = found[-1] / scale, expected[-1] / scale
    return np.concatenate(found), np.concatenate(expected)


def experts(stream: Any) -> tuple[Array, Array]:
    """Sort, gate-up and down; the last row is padding, one expert has more than a tile."""
    gate, up, down = (Matrix.random(seed, 8, *shape) for seed, shape in (
        (43, (64, 128)), (44, (64, 128)), (45, (128, 64))))
    chosen = np.array([[3, row % 3] for row in range(_ROWS)], np.int32)
    chosen[-1] = -1
    x = bits(normal(46, _ROWS, 128))
    ids, inner, result = device.put(chosen), out(_ROWS, 2, 64), out(_ROWS, 2, 128)
    tiles = prefill_moe.max_tiles(chosen.size, 8, min(prefill_moe.TILES))
    order = prefill_moe.ExpertOrder(*(out(*shape, dtype=np.int32) for shape in (
        (chosen.size,), (9,), (tiles, 4))))
    first = to_fragments([gate, up], interleaved=True, stream=stream)
    second, rows = to_fragments([down], stream=stream), device.put(x)
    prefill_moe.prefill_sort(order, ids, 8, stream)
    prefill_moe.prefill_gate_up(inner, rows, ids, order, first, stream)
    prefill_moe.prefill_down(result, inner, ids, order, second, stream)
    middle, expected = np.zeros((_ROWS, 2, 64)), np.zeros((_ROWS, 2, 128))
    moe_nvfp4.moe_nvfp4_gate_up_ref(middle, wide(x), chosen, gate, up)
    moe_nvfp4.moe_nvfp4_down_ref(expected, middle, chosen, down)
    return fetch(result, stream)[:-1], expected[:-1]


def attention(stream: Any) -> tuple[Array, Array]:
    """Heads of 256 with a window over 16 bit pages, and of 512 over FP8 pages."""
    runs = [_attention(stream, 256, 40, False), _attention(stream, 512, None, True)]
    return (np.concatenate([found.ravel() for found, _ in runs]),
            np.concatenate([expected.ravel() for _, expected in runs]))


def _attention(stream: Any, dim: int, window: int | None, fp8: bool) -> tuple[Array, Array]:
    """The last rows of a sequence of 5 pages that lie in no order."""
    heads, count, start, page = 3, 7, 66, 16
    pages, shape = np.array([[3, 0, 4, 1, 2]], np.int32), (5, page, 1, dim)
    q = bits(normal(47, count, heads, dim) / 8)
    stored = [_e4m3(seed, shape) if fp8 else bits(normal(seed, *shape)) for seed in (48, 49)]
    factors = (0.5, 0.25) if fp8 else (1.0, 1.0)
    k, v = ((_numbers(each) if fp8 else wide(each)) * factor
            for each, factor in zip(stored, factors, strict=True))
    scales = [device.put(np.full(1, factor, np.float32)) for factor in factors]
    result = out(count, heads, dim)
    run = (prefill_attention_wgmma.prefill_attention_wgmma
           if prefill_attention_wgmma.serves(dim, device.info().arch)
           else prefill_attention.prefill_attention)
    run(result, device.put(q), device.put(stored[0]), device.put(stored[1]),
        device.put(np.array([[0, count, start, 0]], np.int32)), device.put(pages),
        (scales[0], scales[1]), window, count, stream)
    plan = plan_attention([(AttentionSpan(0, count, start, pages[0]), False)], window, page, heads,
                          np.float64)
    expected = np.empty((count, heads, dim))
    attention_ref(expected, wide(q), k, v, plan, scratch=Scratch(np.float64))
    scale = np.linalg.norm(expected)     # the two runs count alike in the error of both
    return fetch(result, stream) / scale, expected / scale


def _e4m3(seed: int, shape: tuple[int, ...]) -> Array:
    """Codes of normal numbers of both signs, at most 2 in size."""
    random = np.random.default_rng(seed)
    codes = random.integers(0x20, 0x40, shape) | random.integers(0, 2, shape) << 7
    return codes.astype(np.uint8)


def _numbers(codes: Array) -> Array:
    """Float64 of normal e4m3 codes."""
    low = codes.astype(np.int64)
    sizes: Array = (1 + (low & 7) / 8) * 2.0 ** ((low >> 3 & 15) - 7)
    return np.where(codes & 128, -sizes, sizes)
