# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention's part of op_errors.py: each kernel against float64 with the roundings it declares.

How a launch is judged: docs/numerics.md. What is right is in test/kernels/attention_bound.py; here
are the shapes, the cuts of each kernel, and the launches.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import attention_bound as bounds
import machine as machines
import numpy as np
import test_attention_decode as decode
import test_prefill_attention as prompts
import test_prefill_attention_wgmma as prompts_wgmma
import threadpoolctl

from gemma_thor_ros.ops import (
    attention_decode,
    device,
    draft_attention,
    prefill_attention,
    prefill_attention_wgmma,
    vision_attention,
)
from gemma_thor_ros.weights.number_formats import E4M3_VALUES

Array = machines.Array
Geometry = decode.Geometry
GEOMETRIES = {                           # sliding layers of the 12B are those of the 26B
    '26b sliding': decode.SLIDING, '26b full': decode.FULL, '12b full': decode.ONE_HEAD,
    '31b sliding': Geometry(256, 16, 2, 1024), '31b full': Geometry(512, 4, 8, None),
    'e4b sliding': Geometry(256, 2, 4, 512), 'e4b full': Geometry(512, 2, 4, None)}
ROWS = (1, 2, 7, 16)
PROMPT_ROWS = (1, 17, 65, 129)
TILE = 64
SCORES_AT_ONCE = 1 << 20                 # of one thread
# Of a score's sum of |terms|, in 2^-24: the matrix unit cuts its sum off after every 16 products.
# Sums of normal numbers that are cut off so differ from the exact ones by 1.2 at most in decode's
# four chains and 4.3 in one of D / 16 steps, near the maximum 0.9 and 3.6, all towards zero, so
# that of a score and of its maximum, which both count, half each will do.
CHAINS, ONE_CHAIN = 1.0, 2.0


@dataclass(frozen=True)
class Draft:
    """A drafter's layer."""

    head_dim: int
    num_kv_heads: int
    group: int
    block: int
    window: int | None
    causal: bool


DRAFTS = (Draft(128, 8, 4, 16, 2048, True), Draft(128, 8, 4, 16, None, False))  # of the 26B


@dataclass(frozen=True)
class Verdict:
    """What is found of one launch.

    beyond: the most that an output is off beyond its own rounding and what is open, in parts of
    sum |p v|. slack, its mean, and open_share: what open roundings allow, and how many there are.
    norm: relative 2-norm to float64 without roundings.
    """

    beyond: float
    slack: float
    open_share: float
    norm: float


Judge = Callable[[], Verdict]
Case = tuple[dict[str, Any], Callable[[], Judge]]


@dataclass(frozen=True)
class Rows:
    """Which keys each row of a launch sees, from the first to the last (T,)."""

    first: Array
    last: Array


@dataclass(frozen=True)
class Keys:
    """k and v (KV, C, D) of one sequence by position, zeros behind its last key."""

    k: Array
    v: Array

    @classmethod
    def of(cls, pages: decode.Pages) -> Keys:
        held = pages.table[0]
        parts = [values[held].reshape(-1, *values.shape[2:]).transpose(1, 0, 2)
                 for values in pages.values]
        return cls(*(np.pad(part, ((0, 0), (0, 2 * TILE), (0, 0))) for part in parts))


def excess(xp: Any, out: Any, exact: Any, terms: Any, bits: int, slack: Any = 0.0) -> float:
    """The most that an error is above the final rounding's, in parts of the terms.

    A number that is none counts as infinity. slack: what is allowed besides; what it may lead to
    can have a longer step than the exact number.
    """
    half = xp.ldexp(xp.full(exact.shape, 0.5), xp.frexp(xp.abs(exact) + slack)[1] - bits)
    found = xp.maximum(xp.abs(out - exact) - half - slack, 0) / xp.maximum(terms, 1e-30)
    return float(xp.where(xp.isnan(found), xp.inf, found).max())


def verdict(out: Array, found: Iterable[tuple[Any, bounds.Bound]]) -> Verdict:
    """Of an output in bf16 bits, and the bounds of its parts, which `out[place]` are."""
    beyond, slacks, counts, squares = 0.0, [], np.zeros(2), np.zeros(2)
    for place, bound in found:
        part = machines.from_bf16(out[place]).reshape(bound.exact.shape)
        beyond = max(beyond, excess(np, part, bound.exact, bound.terms, 8, bound.slack))
        slacks.append((bound.slack / np.maximum(bound.terms, 1e-30)).mean())
        counts += bound.num_open, bound.num_rounded
        squares += np.square(part - bound.plain).sum(), np.square(bound.plain).sum()
    return Verdict(beyond, float(np.mean(slacks)), float(counts[0] / counts[1]),
                   float(np.sqrt(squares[0] / squares[1])))


def judged(out: Array, q: Array, keys: Keys, rows: Rows,
           kernel: Callable[[int, int], bounds.Kernel], tile: int) -> Verdict:
    """out, q (T, Q, D) bf16, of all rows; kernel(first key, keys) of whole tiles."""
    num_kv_heads = keys.k.shape[0]
    group = q.shape[1] // num_kv_heads
    step = max(1, SCORES_AT_ONCE // (group * (int(rows.last.max()) + 1)))

    def one(work: tuple[int, int]) -> tuple[Any, bounds.Bound]:
        kv, row = work
        part = slice(row, row + step)
        first, last = rows.first[part], rows.last[part]
        low, high = first.min() // tile * tile, (last.max() // tile + 1) * tile
        place = part, slice(kv * group, (kv + 1) * group)
        at = np.arange(low, high)
        seen = ((at >= first[:, None]) & (at <= last[:, None])).repeat(group, axis=0)
        wide = machines.from_bf16(q[place]).reshape(-1, q.shape[2])
        return place, bounds.attend(wide, keys.k[kv, low:high], keys.v[kv, low:high], seen,
                                    kernel(low, high - low))

    return verdict(out, side_by_side(one, [(kv, row) for kv in range(num_kv_heads)
                                           for row in range(0, len(q), step)]))


def side_by_side(one: Callable[[Any], Any], works: Sequence[Any]) -> list[Any]:
    """In threads, of which each does its own products: they are small."""
    with threadpoolctl.threadpool_limits(1, user_api='blas'), ThreadPoolExecutor() as pool:
        return list(pool.map(one, works))


def behind(spans: Iterable[tuple[int, int]], window: int | None) -> Rows:
    """Rows of spans (rows, position of the first) that see what is before them."""
    last = np.concatenate([np.arange(start, start + count) for count, start in spans])
    return Rows(np.maximum(0, last - window + 1) if window else np.zeros_like(last), last)


def decode_kernel(shape: Geometry, fp8: bool, first: int, count: int) -> bounds.Kernel:
    """A chunk of keys is a chain of tiles."""
    chunks = [attention_decode.chunk_of(key, shape.window)
              for key in range(first, first + count, TILE)]
    return bounds.Kernel(TILE, tuple(chunks), 11 if fp8 else 8, CHAINS)


def by_wgmma(shape: Geometry) -> bool:
    """Whether the device serves prompt rows of such layers by the kernel for sm_90."""
    return prefill_attention_wgmma.serves(shape.head_dim, device.info().arch)


def prefill_tile(shape: Geometry, fp8: bool) -> int:
    if by_wgmma(shape):
        return prefill_attention_wgmma.TILE
    limit = device.info().shared_bytes_per_block
    return prefill_attention.block_of(shape.head_dim, fp8, limit)[1]


def prefill_kernel(shape: Geometry, fp8: bool, first: int, count: int) -> bounds.Kernel:
    """One chain of tiles."""
    tile = prefill_tile(shape, fp8)
    return bounds.Kernel(tile, (0,) * (count // tile), 11 if fp8 else 8, ONE_CHAIN)


@functools.lru_cache(maxsize=32)         # every case runs twice
def pages_of(shape: Geometry, fp8: bool, length: int) -> tuple[decode.Pages, Keys]:
    """One sequence's keys in shuffled pages, and in order."""
    pages = decode.Pages(shape, [length], 16, fp8)
    keys = Keys.of(pages)
    pages.values = []
    return pages, keys


def whole(length: int) -> int:
    """Few lengths, so that most cases share their keys."""
    return -(-length // 1024) * 1024


def queries(shape: Geometry, num_rows: int, size: float) -> Array:
    wide = machines.from_bf16(decode.queries(shape, num_rows)) * size
    return machines.to_bf16(wide.astype(np.float32))


def generated(on: machines.Machine, shape: Geometry, fp8: bool, num_rows: int,
              ends: Sequence[int], size: float = 1.0) -> Judge:
    """Rows up to each of these positions, as spans of one launch; size: of the scores."""
    pages, keys = pages_of(shape, fp8, whole(max(ends) + 1))
    held = pages.table
    spans = [(i * num_rows, num_rows, end - num_rows + 1) for i, end in enumerate(ends)]
    q = queries(shape, num_rows * len(spans), size)
    pages.table = held.repeat(len(spans), axis=0)
    try:
        out = decode.attend(on, pages, q, spans)
    finally:
        pages.table = held
    rows = behind((span[1:] for span in spans), shape.window)
    return lambda: judged(out, q, keys, rows, partial(decode_kernel, shape, fp8), TILE)


def appended(on: machines.Machine, shape: Geometry, fp8: bool, has_v: bool, end: int) -> Judge:
    """One row whose q, K and V the launch of its attention makes; q as kv_append writes it."""
    rows: list[Any] = []
    append = decode.kv_append

    def kept(q: Any, *arguments: Any) -> None:
        rows.append(q)
        append(q, *arguments)

    with mock.patch.object(decode, 'kv_append', kept):
        decode.appended(on, shape, has_v, fp8, end, False)
    q = on.get(rows[0])
    out, *written = decode.appended(on, shape, has_v, fp8, end, True)

    def judge() -> Verdict:
        pages = decode.Pages(shape, [end + 1], 16, fp8)
        place = pages.table[0, end // 16], end % 16
        for values, bits, scale in zip(pages.values, written, pages.scales, strict=True):
            values[place] = (E4M3_VALUES[bits[place]] * scale[:, None] if fp8
                             else machines.from_bf16(bits[place]))
        return judged(out, q, Keys.of(pages), behind([(1, end)], shape.window),
                      partial(decode_kernel, shape, fp8), TILE)
    return judge


def prompted(on: machines.Machine, shape: Geometry, fp8: bool, num_rows: int,
             starts: Sequence[int], sees_block: bool = False, size: float = 1.0) -> Judge:
    """Rows from each of these positions on, as spans of one launch."""
    pages, keys = pages_of(shape, fp8, whole(max(starts) + num_rows))
    held = pages.table
    spans = [(i * num_rows, num_rows, start, int(sees_block)) for i, start in enumerate(starts)]
    q = queries(shape, num_rows * len(spans), size)
    pages.table = held.repeat(len(spans), axis=0)
    try:
        attend = prompts_wgmma.attend if by_wgmma(shape) else prompts.attend
        out = attend(on, pages, q, spans)
    finally:
        pages.table = held
    rows = behind((span[1:3] for span in spans), shape.window)
    if sees_block:
        rows = Rows(rows.first, rows.last.reshape(len(spans), -1)[:, -1].repeat(num_rows))
    return lambda: judged(out, q, keys, rows, partial(prefill_kernel, shape, fp8),
                          prefill_tile(shape, fp8))


def pictured(on: machines.Machine, shape: Geometry, fp8: bool, from_start: bool,
             case: int) -> Judge:
    """A prompt with images, whose rows see them to their end, and from their start on too."""
    count, start, images = prompts.IMAGES[case]
    pages, keys = pages_of(shape, fp8, whole(start + count))
    q = queries(shape, count, 1.0)
    blocks = prompts.blocks_of(np.arange(start, start + count), images)
    attend = prompts_wgmma.attend if by_wgmma(shape) else prompts.attend
    out = attend(on, pages, q, [(0, count, start, 0)], blocks=blocks, whole=from_start)
    rows = behind([(count, start)], shape.window)
    first = np.minimum(rows.first, blocks[:, 0]) if from_start else rows.first
    rows = Rows(first, np.maximum(rows.last, blocks[:, 1] - 1))
    return lambda: judged(out, q, keys, rows, partial(prefill_kernel, shape, fp8),
                          prefill_tile(shape, fp8))


def looked(on: machines.Machine, num_heads: int, dim: int, num_patches: int,
           judged_heads: Sequence[int]) -> Judge:
    """A tower's image; the bound is looked for in some heads."""
    numbers = machines.normal(1, num_patches, 3, num_heads, dim)
    numbers[:, 0] *= 0.3                 # neither even means nor a single key
    bits = machines.to_bf16(numbers)
    placed = on.put(machines.poisoned((num_patches, num_heads, dim), 'bf16'))
    on.run(lambda: vision_attention.vision_attention(placed, on.put(bits), on.stream))
    out = on.get(placed)

    def one(work: tuple[int, int]) -> tuple[Any, bounds.Bound]:
        head, start = work
        rows = slice(start, start + 256)
        q, k, v = machines.from_bf16(bits[:, :, head]).transpose(1, 0, 2)
        rest = -len(k) % TILE
        seen = np.arange(len(k) + rest) < len(k)
        k, v = (np.pad(part, ((0, rest), (0, 0))) for part in (k, v))
        kernel = bounds.Kernel(TILE, (0,) * (len(k) // TILE), 8, ONE_CHAIN)
        return (rows, head), bounds.attend(q[rows], k, v, seen[None].repeat(len(q[rows]), 0),
                                           kernel)

    return lambda: verdict(out, side_by_side(one, [
        (head, start) for head in judged_heads for start in range(0, num_patches, 256)]))


def drafted(on: machines.Machine, shape: Draft, start: int) -> Judge:
    """A DFlash block: its tiles of context go to chains by turns, its own rows come last."""
    block, group, dim = shape.block, shape.group, shape.head_dim
    heads = (group + 2) * shape.num_kv_heads
    qkv = machines.to_bf16(0.3 * machines.normal(2, block, heads * dim))
    num_pages = -(-start // 16) + 1
    pages = [machines.to_bf16(machines.normal(seed, num_pages, 16, shape.num_kv_heads, dim))
             for seed in (3, 4)]
    table = np.random.default_rng(1).permutation(num_pages).astype(np.int32)[None]
    placed = on.put(machines.poisoned((block, group * shape.num_kv_heads, dim), 'bf16'))
    scratch = draft_attention.DraftScratch.make(
        lambda size, dtype: on.put(np.full(size, np.nan, dtype)), block, placed.shape[1], dim)
    starts = np.array([start], np.int32)
    on.run(lambda: draft_attention.draft_attention(
        placed, *map(on.put, (qkv, *pages)), scratch, on.put(table), on.put(starts),
        shape.window, shape.causal, on.stream))
    out = on.get(placed)

    def judge() -> Verdict:
        rows = np.arange(start, start + block)
        low = max(0, start - shape.window + 1) // TILE * TILE if shape.window else 0
        # the keys that lie in each place of the tiles, -1 where none does
        at = np.concatenate([np.arange(low, start), np.full(-(start - low) % TILE, -1), rows,
                             np.full(-block % TILE, -1)])
        seen = (at >= 0) & (at > rows[:, None] - (shape.window or 1 << 30))
        if shape.causal:
            seen &= at <= rows[:, None]
        chains = tuple(tile % draft_attention.CHUNKS for tile in range(at.size // TILE))
        kernel = bounds.Kernel(TILE, chains, 8, ONE_CHAIN)
        own = machines.from_bf16(qkv).reshape(block, heads, dim)
        split = group * shape.num_kv_heads
        parts = [np.concatenate([
            machines.from_bf16(part[table[0]]).reshape(-1, *part.shape[2:])[:start],
            own[:, split + i * shape.num_kv_heads:split + (i + 1) * shape.num_kv_heads]])
            for i, part in enumerate(pages)]
        found = []
        for kv in range(shape.num_kv_heads):
            k, v = (np.where((at >= 0)[:, None], part[np.maximum(at, 0), kv], 0) for part in parts)
            place = slice(None), slice(kv * group, (kv + 1) * group)
            found.append((place, bounds.attend(own[place].reshape(-1, dim), k, v,
                                               seen.repeat(group, axis=0), kernel)))
        return verdict(out, found)
    return judge


def prepare(layers: tuple[str, ...]) -> None:
    """Make the keys of the cases whose layers' names begin so, all at a time."""
    wanted = [(shape, fp8, length) for name, shape in GEOMETRIES.items()
              for fp8 in (False, True) for length in (2048, 9216)
              if name.startswith(layers) and not (shape.window and length > 2048)]
    side_by_side(lambda of: pages_of(*of), wanted)


def served(on: machines.Machine) -> Iterator[Case]:
    """Every served shape, over bf16 and FP8 pages, at the edges of tiles, chunks and windows."""
    for name, shape in GEOMETRIES.items():
        edge = shape.window or 1024
        near = (0, 62, 63, 64, 65, 126, 127, 128, edge - 2, edge - 1, edge, edge + 63, 1540)
        far = () if shape.window else (8191, 8192, 8256)
        for fp8 in (False, True):
            context = {'layer': name, 'kv': 'fp8' if fp8 else 'bf16'}
            for rows in ROWS:
                for depths in (near, far) if rows in (1, 16) else (near,):
                    ends = [end for end in depths if end >= rows - 1]
                    if ends:
                        yield ({'op': 'attention_decode', **context, 'rows': rows,
                                'depth': ends[-1]},
                               partial(generated, on, shape, fp8, rows, ends))
            for end in (64, edge):
                has_v = shape.window is not None or name.startswith('e4b')
                yield ({'op': 'attention_append', **context, 'rows': 1, 'depth': end},
                       partial(appended, on, shape, fp8, has_v, end))
            for rows in PROMPT_ROWS:
                starts = (0, 47, edge - 24)
                yield ({'op': 'prefill_attention', **context, 'rows': rows,
                        'depth': edge - 24}, partial(prompted, on, shape, fp8, rows, starts))
            if name.startswith('26b'):
                yield from _further(on, shape, fp8, context)
    for patches in (2448, 2520, 1023):   # two budgets of 280 tokens, and an odd number
        yield ({'op': 'vision_attention', 'layer': 'tower', 'rows': patches},
               partial(looked, on, 16, 72, patches, (0, 5, 15)))
    for draft in DRAFTS:
        for start in (63, 64, 1024, 2100):
            yield ({'op': 'draft_attention', 'layer': 'draft', 'window': draft.window,
                    'rows': 16, 'depth': start},
                   partial(drafted, on, draft, start))


def _further(on: machines.Machine, shape: Geometry, fp8: bool,
             context: dict[str, Any]) -> Iterator[Case]:
    """Forms of prompts, and scores of up to 60 instead of 20."""
    yield ({'op': 'prefill_attention', **context, 'rows': 40, 'form': 'sees its block'},
           partial(prompted, on, shape, fp8, 40, (30, 1020), True))
    for from_start in (False, True):
        for case, (rows, _, _) in enumerate(prompts.IMAGES):
            form = 'images whole' if from_start else 'images to their end'
            yield ({'op': 'prefill_attention', **context, 'rows': rows, 'form': form},
                   partial(pictured, on, shape, fp8, from_start, case))
    yield ({'op': 'attention_decode', **context, 'rows': 16, 'depth': 1540, 'scores': 'times 3'},
           partial(generated, on, shape, fp8, 16, (127, 1540), 3.0))
    yield ({'op': 'prefill_attention', **context, 'rows': 65, 'depth': 1000, 'scores': 'times 3'},
           partial(prompted, on, shape, fp8, 65, (0, 1000), size=3.0))
