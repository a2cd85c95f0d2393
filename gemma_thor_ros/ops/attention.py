# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""softmax(q k^T) v over the pages of one sequence, causal, with or without a window.

The scale is 1 (it sits in the norms). Keys are taken in chunks of KEY_CHUNK at absolute
positions; each chunk gives a partial result relative to its own maximum, and the partial results
are added in ascending order. A chunk in which a row sees nothing adds exact zeros, so neither the
cuts of the prompt nor the page layout nor other rows reach a row's bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.scratch import Scratch

KEY_CHUNK = 128                  # keys; a constant of the numerics, not a setting
QUERY_TILE = 64                  # prompt rows of one BLAS call, at absolute positions too
# Query heads of generated rows in one BLAS call: 8 cost 1.2 times as much as the 2 of one row with
# two heads, since BLAS packs the keys for every call (bench/LOG.md, 2026-11-30).
DECODE_HEADS = 8
_LOWEST = -1e30                  # stands for the maximum of a chunk without a visible key


@dataclass(frozen=True)
class AttentionSpan:
    """Rows of one sequence: rows start_row .. + num_rows - 1 at start_position .. in `pages`."""

    start_row: int
    num_rows: int
    start_position: int
    pages: npt.NDArray[Any]      # (max_pages,) page ids of one layer geometry
    sees_block: bool = False     # generated rows see the span's later rows, too (draft blocks)
    blocks: tuple[tuple[int, int], ...] = ()     # prompt rows at [start, stop) see to its end
    whole_blocks: bool = False   # and from its start on, also beyond the window


@dataclass(frozen=True)
class QueryTile:
    """A part of a span that is computed at once: one tile, or some of one size in a row.

    The row of position p stands at place p mod `size` of its tile, so that its bits do not depend
    on the rows before it. Places without a row are padded.
    """

    start_row: int               # first row of the step
    num_rows: int
    size: int                    # rows of a tile
    slot: int                    # first row's place in its tile
    chunks: slice                # chunks of the span's keys that some row sees
    bias: Array                  # (tiles, chunks, 1, size * group, C): 0 visible, -inf hidden

    @property
    def num_tiles(self) -> int:
        """Tiles that the rows touch."""
        return int(self.bias.shape[0])


@dataclass(frozen=True)
class SpanPlan:
    """What every layer of one geometry does with one span."""

    page_ids: npt.NDArray[Any]   # pages that hold the span's key chunks, 0 where there is none
    num_keys: int                # their slots together
    first_key: int               # slots before it were freed or never needed
    end_key: int                 # slots from it on are not written yet
    tiles: tuple[QueryTile, ...]


def plan_attention(spans: Sequence[tuple[AttentionSpan, bool]], window: int | None,
                   page_size: int, group: int, dtype: npt.DTypeLike) -> tuple[SpanPlan, ...]:
    """Prepare the attention of one step, once for all layers of a geometry.

    spans: (span, whether its rows are generated tokens). window None means all earlier keys.
    group = query heads per kv head. page_size and KEY_CHUNK must divide one another.
    """
    return tuple(_plan_span(span, decode, window, page_size, group, dtype)
                 for span, decode in spans)


def _plan_span(span: AttentionSpan, decode: bool, window: int | None, page_size: int, group: int,
               dtype: npt.DTypeLike) -> SpanPlan:
    step = max(page_size, KEY_CHUNK)
    assert step % page_size == 0 and step % KEY_CHUNK == 0, page_size
    end = span.start_position + span.num_rows
    first = 0 if window is None else max(0, span.start_position - window + 1)
    base = first // step * step
    num_keys = (end - base + step - 1) // step * step
    ids = np.zeros(num_keys // page_size, np.int64)
    low, high = first // page_size, (end + page_size - 1) // page_size
    held = span.pages[low:high]
    assert held.size == high - low and held.min() >= 0, (span, window)
    ids[low - base // page_size:high - base // page_size] = held
    keys = np.arange(base, base + num_keys, dtype=np.int64)
    tiles = []
    row = 0
    while row < span.num_rows:
        position = span.start_position + row
        size = max(1, DECODE_HEADS // group) if decode else QUERY_TILE
        left = span.num_rows - row
        count = left if decode else min(size - position % size, left)
        tiles.append(_plan_tile(span, span.start_row + row, position, count, size, keys, window,
                                group, dtype))
        row += count
    return SpanPlan(ids, num_keys, first - base, end - base, tuple(tiles))


def _plan_tile(span: AttentionSpan, row: int, position: int, count: int, size: int,
               keys: npt.NDArray[Any], window: int | None, group: int,
               dtype: npt.DTypeLike) -> QueryTile:
    base, slot = int(keys[0]), position % size
    num_tiles = -(-(slot + count) // size)
    # padding rows look at the first or last real row's keys; their results are dropped
    rows = np.clip(np.arange(position - slot, position - slot + num_tiles * size), position,
                   position + count - 1)
    first, last = _visible(span, rows, window)
    if span.sees_block:
        last = np.full_like(rows, position + count - 1)
    low, high = (int(first.min()) - base) // KEY_CHUNK, (int(last.max()) - base) // KEY_CHUNK + 1
    keys = keys[low * KEY_CHUNK:high * KEY_CHUNK].reshape(1, -1, 1, 1, KEY_CHUNK)
    first, last = (bound.repeat(group).reshape(num_tiles, 1, 1, size * group, 1)
                   for bound in (first, last))
    bias = np.zeros(np.broadcast_shapes(keys.shape, first.shape), dtype)
    bias[(keys > last) | (keys < first)] = -np.inf
    return QueryTile(row, count, size, slot, slice(low, high), bias)


def _visible(span: AttentionSpan, rows: npt.NDArray[Any], window: int | None,
             ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The first and the last key that each position sees: all between them are visible."""
    first = np.zeros_like(rows) if window is None else np.maximum(0, rows - window + 1)
    last = rows.copy()
    for start, stop in span.blocks:
        inside = (rows >= start) & (rows < stop)
        last[inside] = stop - 1
        if span.whole_blocks:
            first[inside] = np.minimum(first[inside], start)
    return first, last


def attention_ref(out: Array, q: Array, k_pages: Array, v_pages: Array,
                  plan: tuple[SpanPlan, ...], *, scratch: Scratch,
                  rounding: Rounding = 'none') -> None:
    """Write out (T, Q, D) from q (T, Q, D) and pages (P, S, KV, D), for the rows of the plan.

    Rows run in tiles, of one size for generated and of another for prompt rows. 'device' rounds
    the probabilities of a chunk to bf16 before they meet V, and the result to bf16.
    """
    num_q_heads, head_dim = q.shape[1:]
    num_kv_heads = k_pages.shape[2]
    group = num_q_heads // num_kv_heads
    for span in plan:
        shape = (-1, KEY_CHUNK, num_kv_heads, head_dim)
        k = _gather(k_pages, span, 'attention_k', scratch).reshape(shape)
        v = _gather(v_pages, span, 'attention_v', scratch).reshape(shape)
        for tile in span.tiles:
            rows = slice(tile.start_row, tile.start_row + tile.num_rows)
            num, size = tile.num_tiles, tile.size
            slots = slice(tile.slot, tile.slot + tile.num_rows)
            padded = scratch.get('attention_q', num, size, num_kv_heads, group, head_dim)
            flat = padded.reshape(-1, num_kv_heads, group, head_dim)
            flat[:tile.slot] = flat[slots.stop:] = 0
            flat[slots] = q[rows].reshape(-1, num_kv_heads, group, head_dim)
            heads = padded.transpose(0, 2, 1, 3, 4).reshape(num, 1, num_kv_heads, -1, head_dim)
            result = _attend(heads, k[tile.chunks], v[tile.chunks], tile.bias, scratch, rounding)
            result = result.reshape(num, num_kv_heads, size, group, head_dim)
            result = result.transpose(0, 2, 1, 3, 4).reshape(-1, num_q_heads, head_dim)
            out[rows] = result[slots]
    stored(out, rounding)


def _gather(pages: Array, span: SpanPlan, name: str, scratch: Scratch) -> Array:
    """The span's keys or values in order, (num_keys, KV, D); zeros where nothing was written."""
    num_pages = span.page_ids.size
    buffer = scratch.get(name, num_pages, *pages.shape[1:])
    np.take(pages, span.page_ids, axis=0, out=buffer, mode='clip')
    flat = buffer.reshape(span.num_keys, *pages.shape[2:])
    flat[:span.first_key] = 0
    flat[span.end_key:] = 0
    return flat


def _attend(q: Array, k: Array, v: Array, bias: Array, scratch: Scratch,
            rounding: Rounding) -> Array:
    """(n, 1, KV, R, D) queries on (chunks, C, KV, D) keys -> (n, KV, R, D)."""
    num, _, num_kv_heads, rows, head_dim = q.shape
    chunks, size = k.shape[:2]
    scores = scratch.get('attention_scores', num, chunks, num_kv_heads, rows, size)
    partial = scratch.get('attention_partial', num, chunks, num_kv_heads, rows, head_dim)
    np.matmul(q, k.transpose(0, 2, 3, 1), out=scores)
    scores += bias
    top = scores.max(axis=-1)
    np.maximum(top, top.dtype.type(_LOWEST), out=top)
    scores -= top[..., None]
    np.exp(scores, out=scores)
    if rounding == 'device':             # MLX keeps the probabilities in float32
        stored(scores, rounding)
    total = scores.sum(axis=-1)
    np.matmul(scores, v.transpose(0, 2, 1, 3), out=partial)
    weight = np.exp(top - top.max(axis=1, keepdims=True))
    total *= weight
    partial *= weight[..., None]
    result = scratch.get('attention_result', num, num_kv_heads, rows, head_dim)
    result[...] = 0
    norm = np.zeros_like(total[:, 0])
    for chunk in range(chunks):
        result += partial[:, chunk]
        norm += total[:, chunk]
    result /= norm[..., None]
    return result


def bytes_moved(num_keys: int, num_tokens: int, num_q_heads: int, num_kv_heads: int,
                head_dim: int, element_bytes: int) -> int:
    """K and V of the visible keys, the queries and the results."""
    per_key = 2 * num_kv_heads * head_dim
    per_token = 2 * num_q_heads * head_dim
    return (num_keys * per_key + num_tokens * per_token) * element_bytes
