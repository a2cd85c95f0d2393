# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the CUDA ops once on small inputs and compares them with their twins in float64.

For the first load on a device that nobody has tried, and for `gemma-thor selftest`. `settle` keeps
what it found beside the compiled kernels. The tests of the repository are far stronger; this tells
whether device, driver and compiler do what they did elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros import resources
from gemma_thor_ros.ops import (
    affine_order,
    attention_decode,
    device,
    draft_attention,
    draft_context,
    draft_heads,
    draft_pick,
    draft_rows,
    embed,
    embed_affine,
    geglu,
    gemm_affine,
    gemm_bf16,
    gemm_nvfp4,
    head_nvfp4,
    kv_append,
    layer_norm,
    library_gemm,
    moe_chain,
    moe_nvfp4,
    moe_route,
    prefill_gemm,
    rms_norm,
    selftest_prompts,
    vision_attention,
    vision_patches,
)
from gemma_thor_ros.ops import (
    compile as compiler,
)
from gemma_thor_ros.ops.attention import AttentionSpan, attention_ref, plan_attention
from gemma_thor_ros.ops.fragment_order import to_fragments
from gemma_thor_ros.ops.sample import (
    SampleRow,
    SampleSettings,
    pack_rows,
    sample,
    sample_row,
    scratch_sizes,
)
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.ops.selftest_data import SCALE as _SCALE
from gemma_thor_ros.ops.selftest_data import Matrix as _Matrix
from gemma_thor_ros.ops.selftest_data import bits as _bits
from gemma_thor_ros.ops.selftest_data import fetch as _fetch
from gemma_thor_ros.ops.selftest_data import normal as _normal
from gemma_thor_ros.ops.selftest_data import out as _out
from gemma_thor_ros.ops.selftest_data import wide as _wide
from gemma_thor_ros.ops.swiglu import swiglu_ref

Array = npt.NDArray[Any]
_BF16 = 6e-3                             # outputs that were rounded to bf16, some of them twice
_SINGLE = 1e-5
_ROWS = 3


@dataclass(frozen=True)
class Check:
    """One op: the 2-norm of its error over that of the twin's result; NaN where it has one."""

    op: str
    error: float
    limit: float

    @property
    def good(self) -> bool:
        """Whether the error is small, and a number."""
        return self.error < self.limit


@dataclass(frozen=True)
class Outcome:
    """What a device was found to do. e2m1: 'hardware' or 'bit tricks'."""

    checks: tuple[Check, ...]
    e2m1: str

    @property
    def wrong(self) -> list[Check]:
        """The ops that are not what their twins are."""
        return [check for check in self.checks if not check.good]


def checks(stream: Any) -> Iterator[Check]:
    """Run all ops, one after the other."""
    for op, limit, run in _OPS:
        with stream:                     # else memory freed while a kernel reads it is used again
            found, expected = run(stream)
        difference = np.linalg.norm((found.astype(np.float64) - expected).ravel())
        yield Check(op, float(difference / np.linalg.norm(expected.ravel())), limit)


def settle(stream: Any, folder: Path | None = None) -> Outcome:
    """The outcome on this device: from the cache, else found now; NVFP4 falls back if it must.

    Where an op is wrong with the device's e2m1 conversion, everything is tried again with bit
    tricks, and these are used from now on.
    """
    path = (folder or compiler.cache_folder()) / f'selftest-{_key()}.json'
    known = _read(path)
    if known is None:
        known = _find(stream)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(known)), encoding='utf-8')
    elif known.e2m1 == 'bit tricks' and device.has_e2m1_conversion():
        device.distrust_e2m1_conversion()
    return known


def _find(stream: Any) -> Outcome:
    hardware = device.has_e2m1_conversion()
    found = tuple(checks(stream))
    if hardware and any(not check.good for check in found):
        device.distrust_e2m1_conversion()
        hardware, found = False, tuple(checks(stream))
    return Outcome(found, 'hardware' if hardware else 'bit tricks')


def _key() -> str:
    """Of all that decides the outcome: device, compiler, sources."""
    info = device.info()
    hashed = hashlib.sha256(f'{info} {compiler.nvrtc().version}'.encode())
    for path in sorted(resources.folder('kernels').glob('*.cu*')):
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:24]


def _read(path: Path) -> Outcome | None:
    try:
        raw = json.loads(path.read_text(encoding='utf-8'))
        return Outcome(tuple(Check(**check) for check in raw['checks']), raw['e2m1'])
    except (OSError, ValueError, KeyError, TypeError):
        return None                      # not there, or cut off: found anew


def _gemm(stream: Any, pair: bool = False, run: Any = None) -> tuple[Array, Array]:
    """Rows together, and one alone, which has a kernel of its own."""
    parts = [_Matrix.random(seed, 48, 128) for seed in range(1 + pair)]
    weight = to_fragments(parts, interleaved=pair, stream=stream)
    x, out, alone = _bits(_normal(5, _ROWS, 128)), _out(_ROWS, 48), _out(1, 48)
    rows = device.put(x)
    (run or gemm_nvfp4.gemm_nvfp4)(out, rows, weight, stream)
    gemm_nvfp4.gemm_nvfp4(alone, rows[:1], weight, stream)
    expected = np.empty((_ROWS, 48))
    gemm_nvfp4.gemm_nvfp4_ref(expected, _wide(x), parts, interleaved=pair)
    return (np.concatenate([_fetch(out, stream), _fetch(alone, stream)]),
            np.concatenate([expected, expected[:1]]))


def _affine(stream: Any) -> tuple[Array, Array]:
    """The head and embedding rows of one table in MLX affine codes of 4 bits; a row alone."""
    words = np.random.default_rng(4).integers(0, 1 << 32, (64, 16), np.uint32)
    scales, biases = _bits(_SCALE * _normal(26, 64, 2)), _bits(_normal(27, 64, 2))
    x, ids = _bits(_normal(28, _ROWS, 128)), np.array([63, 0, 9], np.int32)
    out, hidden = _out(_ROWS, 64, dtype=np.float32), _out(_ROWS, 128, dtype=np.float32)
    table = affine_order.to_affine([affine_order.StoredAffine(
        device.put(words), device.put(scales), device.put(biases), 4, 64)], stream=stream)
    rows, alone = device.put(x), _out(1, 64, dtype=np.float32)
    gemm_affine.head_affine(out, rows, table, 30.0, stream)
    gemm_affine.head_affine(alone, rows[:1], table, 30.0, stream)
    embed_affine.embed_affine(hidden, device.put(ids), table, 8.0, stream)
    codes = (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(64, 128)
    numbers = codes * np.repeat(_wide(scales), 64, 1) + np.repeat(_wide(biases), 64, 1)
    expected = 30 * np.tanh(_wide(x) @ numbers.T / 30)
    found = [_fetch(array, stream).ravel() for array in (out, hidden, alone)]
    return (np.concatenate(found),
            np.concatenate([expected.ravel(), numbers[ids].ravel() * 8, expected[0]]))


def _head(stream: Any) -> tuple[Array, Array]:
    table = _Matrix.random(3, 64, 128)
    x, out = _bits(_normal(6, _ROWS, 128)), _out(_ROWS, 64, dtype=np.float32)
    head_nvfp4.head_nvfp4(out, device.put(x), to_fragments([table], stream=stream), 30.0, stream)
    expected = np.empty((_ROWS, 64))
    head_nvfp4.head_nvfp4_ref(expected, _wide(x), table, 30.0)
    return _fetch(out, stream), expected


def _dense(stream: Any) -> tuple[Array, Array]:
    x, weight, out = _bits(_normal(7, _ROWS, 128)), _bits(_normal(8, 48, 128)), _out(_ROWS, 48)
    gemm_bf16.gemm_bf16(out, device.put(x), device.put(weight), stream)
    return _fetch(out, stream), _wide(x) @ _wide(weight).T


def _experts(stream: Any) -> tuple[Array, Array]:
    gate, up, down = (_Matrix.random(seed, 8, *shape) for seed, shape in (
        (11, (64, 128)), (12, (64, 128)), (13, (128, 64))))
    x, ids = _bits(_normal(9, _ROWS, 128)), np.array([[1, 6], [6, 2], [-1, -1]], np.int32)
    placed, inner, out = device.put(ids), _out(_ROWS, 2, 64), _out(_ROWS, 2, 128)
    first = to_fragments([gate, up], interleaved=True, stream=stream)
    second, given = to_fragments([down], stream=stream), device.put(x)
    moe_nvfp4.moe_nvfp4_gate_up(inner, given, placed, first, stream)
    moe_nvfp4.moe_nvfp4_down(out, inner, placed, second, stream)
    apart = _fetch(out, stream)[:2]
    moe_chain.moe_chain(out, inner, given, placed, first, second, device.zeros(
        moe_chain.arrivals_size(8), np.uint32), stream)
    middle, expected = np.zeros((_ROWS, 2, 64)), np.zeros((_ROWS, 2, 128))
    moe_nvfp4.moe_nvfp4_gate_up_ref(middle, _wide(x), ids, gate, up)
    moe_nvfp4.moe_nvfp4_down_ref(expected, middle, ids, down)
    found = np.stack([apart, _fetch(out, stream)[:2]])   # the last row is padding
    return found, np.stack([expected[:2]] * 2)


def _route(stream: Any) -> tuple[Array, Array]:
    x, weight = _bits(_normal(14, _ROWS, 64)), _bits(_normal(15, 16, 64))
    ids, shares = _out(_ROWS, 4, dtype=np.int32), _out(_ROWS, 4, dtype=np.float32)
    sizes = moe_route.scratch_sizes(_ROWS, 64, 16)
    moe_route.moe_route(ids, shares, device.zeros(sizes[0], np.float32),
                        device.zeros(sizes[1], np.uint32), device.put(x), device.put(weight),
                        device.put(np.ones(16, np.float32)),
                        device.put(np.zeros(_ROWS, np.int32)), stream)
    scores = _wide(x) @ _wide(weight).T
    best = np.argsort(-scores, axis=1)[:, :4]
    chosen = np.exp(np.take_along_axis(scores, best, 1) - scores.max(1, keepdims=True))
    expected = np.concatenate([best, chosen / chosen.sum(1, keepdims=True)], axis=1)
    return np.concatenate([_fetch(ids, stream), _fetch(shares, stream)], axis=1), expected


def _norms(stream: Any) -> tuple[Array, Array]:
    x, a, weight = _normal(16, _ROWS, 256), _bits(_normal(17, _ROWS, 256)), _normal(18, 256)
    residual, out, placed = device.put(x), _out(_ROWS, 256), device.put(weight)
    rms_norm.rms_norm_add(residual, [out], device.put(a), placed, [placed], 1e-6, 0.5, stream)
    total = x.astype(np.float64)
    rms_norm.rms_norm_add_ref(total, _wide(a), weight, 1e-6, 0.5, scratch=Scratch(np.float64))
    normed = np.empty_like(total)
    rms_norm.rms_norm_ref(normed, total, weight, 1e-6)
    found = np.concatenate([_fetch(residual, stream), _fetch(out, stream)])
    return found, np.concatenate([total, normed])


def _attention(stream: Any) -> tuple[Array, Array]:
    """Norms, rope and write of 70 keys, then attention of the last 3 rows, twice of one alone."""
    heads, length, dim, page = 2, 70, 256, 16
    pages = np.array([[3, 0, 4, 1, 2]], np.int32)
    k_pages, v_pages = (device.zeros((5, page, 1, dim), np.uint16) for _ in range(2))
    qkv = _bits(_normal(19, length, (heads + 2) * dim))
    ones, positions = device.put(np.ones(dim, np.float32)), np.arange(length, dtype=np.int32)
    q, table = _out(length, heads, dim), device.put(pages)
    scales, placed = device.put(np.ones(1, np.float32)), device.put(qkv)
    weights = ones, device.put(np.full(dim, 0.1, np.float32))
    turns = device.put(kv_append.rope_turns(1e4, dim, 128))
    kv_append.kv_append(
        q, k_pages, v_pages, placed, *weights, turns, device.put(np.zeros(length, np.int32)),
        device.put(positions), table, (scales, scales), 1e-6, stream)
    stream.synchronize()
    rows, out = slice(length - _ROWS, length), _out(_ROWS, heads, dim)
    partial, sums = (device.zeros((_ROWS, heads, 2, size), np.float32) for size in (dim, 2))
    tickets = device.zeros(heads * 16, np.uint32)
    scratch = attention_decode.AttentionScratch(partial, sums, tickets)
    attention_decode.attention_decode(
        out, q[rows], k_pages, v_pages, scratch,
        device.put(np.array([[0, _ROWS, length - _ROWS, 0]], np.int32)), table, (scales, scales),
        None, 4, stream)
    one, seen, alone = [[0, 1, length - 1, 0]], _out(1, heads, dim), _out(1, heads, dim)
    span = device.put(np.array(one, np.int32))
    attention_decode.attention_decode(seen, q[length - 1:], k_pages, v_pages, scratch, span, table,
                                      (scales, scales), 128, 1, stream)      # a window with all
    attention_decode.attention_append(
        alone, placed[length - 1:], k_pages, v_pages, scratch, span, table, weights, turns,
        (scales, scales), (scales, scales), None, 1e-6, stream)
    expected_q = np.empty((length, heads, dim))
    k, v = (np.zeros((5, page, 1, dim)) for _ in range(2))
    cos, sin = kv_append.rope_table(positions, 1e4, dim, 128, np.float64)
    norms = np.repeat([1.0] * heads + [0.1], dim).reshape(heads + 1, dim)
    where = kv_append.PageRows(positions, pages[0][positions // page], positions % page)
    kv_append.kv_append_ref(expected_q, k, v, _wide(qkv), norms, cos, sin, where, 1e-6,
                            scratch=Scratch(np.float64))
    plan = plan_attention([(AttentionSpan(0, _ROWS, length - _ROWS, pages[0]), True)], None, page,
                          heads, np.float64)
    expected = np.empty((_ROWS, heads, dim))
    attention_ref(expected, expected_q[rows].copy(), k, v, plan, scratch=Scratch(np.float64))
    return (np.concatenate([_fetch(array, stream) for array in (out, seen, alone)]),
            np.concatenate([expected, expected[-1:], expected[-1:]]))


def _small(stream: Any) -> tuple[Array, Array]:
    """Embedding rows and geglu."""
    table, ids = _bits(_normal(20, 9, 64)), np.array([8, 0, 5], np.int32)
    hidden = _out(_ROWS, 64, dtype=np.float32)
    embed.embed(hidden, device.put(ids), device.put(table), 8.0, stream)
    pair, out = _bits(_normal(21, _ROWS, 128)), _out(_ROWS, 64)
    geglu.geglu(out, device.put(pair), stream)
    expected = np.empty((_ROWS, 64))
    geglu.geglu_ref(expected, _wide(pair))
    return (np.concatenate([_fetch(hidden, stream), _fetch(out, stream)]),
            np.concatenate([_wide(table)[ids] * 8, expected]))


def _tokens(stream: Any) -> tuple[Array, Array]:
    logits = 3 * _normal(22, _ROWS, 1024)
    rows = [SampleRow(SampleSettings(temperature=t, top_k=k, top_p=p, seed=4), 7)
            for t, k, p in ((0.0, 0, 1.0), (1.0, 20, 0.9), (0.8, 0, 0.7))]
    packed = pack_rows(rows, 1024)
    sizes, tokens = scratch_sizes(_ROWS, 1024), _out(_ROWS, dtype=np.int32)
    placed = tuple(device.put(array) for array in (packed.records, packed.ids, packed.values,
                                                   packed.masks))
    scratch = tuple(device.zeros(size, kind) for size, kind in zip(
        sizes, (np.uint32, np.uint64, np.uint64), strict=True))
    sample(tokens, device.put(logits), (placed[0], placed[1], placed[2], placed[3]),
           (scratch[0], scratch[1], scratch[2]), stream)
    expected = np.array([sample_row(values, row) for values, row in zip(logits, rows,
                                                                         strict=True)])
    return _fetch(tokens, stream), expected.astype(np.float64)


def _draft_block(stream: Any) -> tuple[Array, Array]:
    """Context K and V into pages, a block's q and k, and its attention over both."""
    heads, length, block, dim, page = 2, 70, 4, 64, 16
    pages = np.array([[3, 0, 4, 1, 2]], np.int32)
    k_pages, v_pages = (device.zeros((1, 5, page, 1, dim), np.uint16) for _ in range(2))
    kv, qkv = _bits(_normal(23, length, 2 * dim)), _bits(_normal(24, block, (heads + 2) * dim))
    norm, positions = 1 + _normal(25, dim) / 8, np.arange(length, dtype=np.int32)
    turns, table = device.put(kv_append.rope_turns(1e6, dim, dim // 2)), device.put(pages)
    placed, starts = device.put(norm), device.put(np.array([length], np.int32))
    draft_context.draft_context(
        k_pages, v_pages, device.put(kv), device.put(norm[None]), turns,
        device.put(np.zeros(length, np.int32)), device.put(positions), table, 0, 1e-6, stream)
    rows, out = device.put(qkv), _out(block, heads, dim)
    draft_heads.draft_heads(rows, placed, placed, turns, starts, num_q_heads=heads, num_k_heads=1,
                            offset=0, eps=1e-6, q_scale=dim ** -0.5, stream=stream)
    scratch = draft_attention.DraftScratch.make(device.zeros, block, heads, dim)
    draft_attention.draft_attention(out, rows, k_pages[0], v_pages[0], scratch, table, starts, 40,
                                    True, stream)

    def turned(numbers: Array, first: int) -> Array:
        at = np.arange(first, first + numbers.shape[0])
        cos, sin = kv_append.rope_table(at, 1e6, dim, dim // 2, np.float64)
        return kv_append.norm_rope_ref(numbers, norm, cos, sin, 1e-6, scratch=Scratch(np.float64))

    old, new = (_wide(bits).reshape(bits.shape[0], -1, dim) for bits in (kv, qkv))
    k = np.concatenate([turned(old[:, :1], 0), turned(new[:, 2:3], length)])[:, 0]
    v = np.concatenate([old[:, 1], new[:, 3]])
    scores = np.einsum('thd,kd->thk', turned(new[:, :2], length), k) * dim ** -0.5
    place = length + np.arange(block)[:, None] - np.arange(length + block)
    scores = np.where(((place >= 0) & (place < 40))[:, None], scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return _fetch(out, stream), np.einsum('thk,kd->thd', shares, v) / shares.sum(-1)[..., None]


def _draft_rows(stream: Any) -> tuple[Array, Array]:
    """A gated MLP, a tap, a residual with its norm."""
    x, weight = _bits(_normal(26, _ROWS, 128)), _bits(_normal(27, 128, 128) / 8)
    inner, features = _out(_ROWS, 64), _out(_ROWS, 64)
    gemm_bf16.gated_bf16(inner, device.put(x), device.put(weight), 'silu', stream)
    residual, branch, norm = _normal(28, _ROWS, 64), _bits(_normal(29, _ROWS, 64)), _normal(30, 64)
    total, out = device.put(residual), _out(_ROWS, 64)
    draft_rows.draft_tap(features, total, 0, stream)
    draft_rows.draft_add_norm(total, out, device.put(branch), device.put(norm), 1e-6, stream)
    gated, added = np.empty((_ROWS, 64)), residual.astype(np.float64) + _wide(branch)
    swiglu_ref(gated, _wide(x) @ _wide(weight).T)
    normed = np.empty_like(added)
    rms_norm.rms_norm_ref(normed, added, norm, 1e-6)
    found = [_fetch(array, stream) for array in (inner, features, total, out)]
    return np.concatenate(found), np.concatenate([gated, residual, added, normed])


def _draft_picks(stream: Any) -> tuple[Array, Array]:
    """Where a draft starts behind a verify step, and confidences."""
    ids, tokens = np.array([7, 3, 9, 4, 6], np.int32), np.array([3, 9, 8, 2, 1], np.int32)
    spans = np.array([[0, 4, 20, 0], [4, 1, 11, 0]], np.int32)
    records = pack_rows([SampleRow(SampleSettings(temperature=t), 7) for t in (0.0, 0.5)], 256)
    starts, newest, placed = (device.put(array) for array in (
        np.zeros(2, np.int32), np.zeros((2, 2), np.int32), records.records))
    draft_pick.draft_accept(
        device.put(np.zeros(2, np.int32)), starts, newest, device.put(np.zeros_like(spans)),
        placed, device.put(ids), device.put(tokens), device.put(spans),
        draft_pick.RecordLayout(1, 1, 1, 1), stream)
    logits, chosen = 3 * _normal(31, 2, 256), np.array([5, 250], np.int32)
    confidence, shares = _out(2, dtype=np.float32), _out(2, draft_pick.PARTS, dtype=np.float32)
    draft_pick.draft_confidence(confidence, (shares, device.put(np.zeros(2, np.uint32))),
                                device.put(logits), device.put(chosen), placed, stream)
    found = _fetch(newest, stream).ravel(), _fetch(confidence, stream)
    return np.concatenate(found), np.concatenate([
        draft_pick.draft_accept_ref(ids, tokens, spans).ravel(),
        draft_pick.draft_confidence_ref(logits, chosen, np.array([0.0, 0.5]))])


def _image(stream: Any) -> tuple[Array, Array]:
    """Patches to numbers, a product, head norms, rope and attention, a layer norm, a mean."""
    heads, dim, columns, num = 2, 72, 9, 81
    levels = np.arange(num * 48, dtype=np.uint32).reshape(num, 48).astype(np.uint8)
    weight, norms = _bits(_normal(32, 3 * heads * dim, 48)), 1 + _normal(33, 3, dim) / 8
    numbers, qkv, out = _out(num, 48), _out(num, 3 * heads * dim), _out(num, heads, dim)
    vision_patches.vision_numbers(numbers, device.put(levels), True, stream)
    product = prefill_gemm.prefill_gemm_bf16 if library_gemm.missing() else (
        library_gemm.library_gemm)
    product(qkv, numbers, device.put(weight), stream)
    q_norm, k_norm, bias = (device.put(norm) for norm in norms)
    cos, sin = (device.put(np.ascontiguousarray(table[:, 0, 0])) for table in
                vision_attention.axial_rope_table(columns, columns, 100.0, dim, np.float32))
    placed = qkv.reshape(num, 3, heads, dim)
    vision_attention.vision_heads(placed, q_norm, k_norm, cos, sin, columns, 1e-6, stream)
    vision_attention.vision_attention(out, placed, stream)
    rows, pooled = out.reshape(num * heads, dim), _out(9, heads * dim, dtype=np.float32)
    layer_norm.layer_norm(rows, q_norm, bias, 1e-5, stream)
    wide = _out(num, heads * dim, dtype=np.float32)
    vision_patches.vision_widen(wide, out.reshape(num, heads * dim), stream)
    vision_patches.vision_pool(pooled, wide, columns, 3, 4.0, stream)
    expected, products = np.empty((num, 48)), np.empty((num, heads * dim))
    vision_patches.patch_numbers_ref(expected, levels, True, 'device')
    turned = expected @ _wide(weight).T
    vision_attention.vision_heads_ref(
        turned, norms[0], norms[1], *vision_attention.axial_rope_table(
            num, columns, 100.0, dim, np.float64), heads, 1e-6)
    vision_attention.vision_attention_ref(products, turned, heads)
    layer_norm.layer_norm_ref(products.reshape(-1, dim), products.reshape(-1, dim), norms[0],
                              norms[2], 1e-5)
    means = np.empty((9, heads * dim))
    vision_patches.pool_ref(means, products, columns, 3, 4.0)
    return _fetch(pooled, stream), means


_Run = Callable[[Any], tuple[Array, Array]]
_OPS: tuple[tuple[str, float, _Run], ...] = (
    ('gemm_nvfp4', _BF16, _gemm), ('head_nvfp4', _SINGLE, _head), ('gemm_bf16', _BF16, _dense),
    ('gemm_nvfp4 with geglu', 2 * _BF16, lambda stream: _gemm(stream, True)),
    ('stream_nvfp4', _BF16, lambda stream: _gemm(stream, run=gemm_nvfp4.stream_any)),
    ('rows_nvfp4', _BF16, lambda stream: _gemm(stream, run=gemm_nvfp4.rows_any)),
    ('moe_nvfp4', 2 * _BF16, _experts), ('gemm_affine and embed_affine', _BF16, _affine),
    ('moe_route', _SINGLE, _route), ('rms_norm', _BF16, _norms), ('sample', 1e-12, _tokens),
    ('kv_append and attention_decode', 2 * _BF16, _attention), ('embed and geglu', _BF16, _small),
    ('draft_heads, draft_context and draft_attention', 2 * _BF16, _draft_block),
    ('draft_rows and gated_bf16', _BF16, _draft_rows), ('draft_pick', _SINGLE, _draft_picks),
    ('vision_patches and vision_attention', 2 * _BF16, _image),
    ('prefill_gemm', 2 * _BF16, selftest_prompts.products),
    ('prefill_moe', 2 * _BF16, selftest_prompts.experts),
    ('prefill_attention', 2 * _BF16, selftest_prompts.attention))
