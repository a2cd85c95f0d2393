# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of generated rows against the twin in float64, and the promise of equal bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import Array, Machine, error, from_bf16, normal, poisoned, to_bf16

from gemma_thor_ros.ops import attention_decode as op
from gemma_thor_ros.ops import attention_window, device
from gemma_thor_ros.ops.attention import AttentionSpan, attention_ref, plan_attention
from gemma_thor_ros.ops.kv_append import kv_append, rope_turns
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.weights.number_formats import E4M3_VALUES, encode_e4m3

ERROR = 3e-3                             # probabilities and result are rounded to bf16 once each


@dataclass(frozen=True)
class Geometry:
    head_dim: int
    num_kv_heads: int
    group: int
    window: int | None

    @property
    def num_q_heads(self) -> int:
        return self.num_kv_heads * self.group


SLIDING = Geometry(256, 8, 2, 1024)      # 26B-A4B
FULL = Geometry(512, 2, 8, None)
DEMO = Geometry(256, 2, 2, 512)
DEMO_FULL = Geometry(512, 1, 4, None)
WINDOW = Geometry(256, 1, 2, 1024)
NARROW = Geometry(256, 1, 3, 70)
ONE_HEAD = Geometry(512, 1, 16, None)    # 12B full
LONG = Geometry(256, 1, 2, None)         # cheap, for chunks of more than one tile


class Pages:
    """K and V of some sequences in shuffled pages; poison wherever no key is."""

    def __init__(self, shape: Geometry, lengths: Sequence[int], page_size: int, fp8: bool,
                 seed: int = 0, first_keys: Sequence[int] | None = None) -> None:
        self.shape, self.page_size, self.fp8 = shape, page_size, fp8
        self.scales = np.abs(normal(seed + 1, 2, shape.num_kv_heads)) + 0.5
        most = max(-(-length // page_size) for length in lengths)
        order = np.random.default_rng(seed).permutation(len(lengths) * most + 1)
        size = (order.size, page_size, shape.num_kv_heads, shape.head_dim)
        self.bits = [np.full(size, 0x7F, np.uint8) if fp8 else poisoned(size, 'bf16')
                     for _ in range(2)]
        self.values = [np.zeros(size) for _ in range(2)]
        self.table = np.full((len(lengths), most), -1, np.int32)
        for b, length in enumerate(lengths):
            first = first_keys[b] if first_keys else 0
            held = range(first // page_size, -(-length // page_size))
            self.table[b, held] = order[b * most:b * most + len(held)]
            keys = np.arange(first, length)
            place = self.table[b, keys // page_size], keys % page_size
            for i in range(2):
                # by position, so that the same keys can lie in other pages of another size
                numbers = normal(1000 * b + i + 7, length, *size[2:])[first:]
                if fp8:
                    codes = encode_e4m3(np.abs(numbers)) | (numbers < 0).astype(np.uint8) << 7
                    self.bits[i][place] = codes
                    self.values[i][place] = E4M3_VALUES[codes] * self.scales[i][:, None]
                else:
                    self.bits[i][place] = to_bf16(numbers)
                    self.values[i][place] = from_bf16(self.bits[i][place])


Span = tuple[int, int, int]              # first row, rows, position of the first


def attend(machine: Machine, pages: Pages, q: Array, spans: Sequence[Span],
           max_chunks: int | None = None, max_rows: int | None = None) -> Array:
    """The device's result; rows of no span stay poisoned."""
    shape = pages.shape
    end = max(start + count for _, count, start in spans)
    chunks = max_chunks or op.max_chunks(end, shape.window)
    out = machine.put(poisoned(q.shape, 'bf16'))
    scratch = op.AttentionScratch.empty(machine.xp, q.shape[0], len(spans), shape.num_q_heads,
                                        shape.head_dim, chunks)
    scratch.partial[...] = machine.xp.nan
    scratch.partial_ml[...] = machine.xp.nan
    table = np.array([[*span, 0] for span in spans], np.int32)
    put = machine.put
    scales = put(pages.scales[0]), put(pages.scales[1])
    args = put(q), put(pages.bits[0]), put(pages.bits[1]), scratch, put(table), put(pages.table)
    machine.run(lambda: op.attention_decode(
        out, *args, scales, shape.window, max_rows or max(count for _, count, _ in spans),
        machine.stream))
    assert not machine.get(scratch.tickets).any()
    return machine.get(out)


def expected(pages: Pages, q: Array, spans: Sequence[Span], first: int = 0) -> Array:
    """The twin's result in float64; the spans are of sequences first, first + 1, ..."""
    shape = pages.shape
    out = np.full(q.shape, np.nan)
    plan = plan_attention(
        [(AttentionSpan(row, count, start, pages.table[first + b]), True)
         for b, (row, count, start) in enumerate(spans)],
        shape.window, pages.page_size, shape.group, np.float64)
    attention_ref(out, from_bf16(q), pages.values[0], pages.values[1], plan,
                  scratch=Scratch(np.float64))
    return out


def queries(shape: Geometry, num_rows: int) -> Array:
    return to_bf16(0.2 * normal(3, num_rows, shape.num_q_heads, shape.head_dim))


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('count', 'start'), [
    (1, 0), (1, 63), (1, 300), (2, 62), (3, 500), (7, 130), (15, 700), (16, 0), (16, 1100)])
@pytest.mark.parametrize('shape', [DEMO, DEMO_FULL, NARROW, SLIDING, FULL, ONE_HEAD])
def test_against_the_twin(machine: Machine, shape: Geometry, count: int, start: int,
                          fp8: bool) -> None:
    if machine.small and (shape in (SLIDING, FULL, ONE_HEAD) or start > 600):
        pytest.skip('large, for a device')
    if not machine.small and count not in (1, 16) and count % 2 == fp8:
        pytest.skip('half of them, for a device has to compile them')
    pages = Pages(shape, [start + count], 16, fp8)
    q = queries(shape, count)
    spans = [(0, count, start)]
    out = from_bf16(attend(machine, pages, q, spans))
    assert error(out, expected(pages, q, spans)) < ERROR


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize('page_size', [16, 32, 64, 128])
def test_several_sequences(machine: Machine, page_size: int, fp8: bool) -> None:
    """Mixed lengths, an empty place, freed pages, rows of no span."""
    if machine.small and page_size in (32, 128):
        pytest.skip('two page sizes are enough')
    spans = [(2, 3, 200), (5, 0, 0), (5, 1, 7), (7, 16, 90)]
    first_keys = [200 - 69, 0, 0, 21]
    pages = Pages(NARROW, [max(start + count, 1) for _, count, start in spans], page_size, fp8,
                  first_keys=first_keys)
    q = queries(NARROW, 24)
    out = attend(machine, pages, q, spans)
    real = [*range(2, 6), *range(7, 23)]
    for b, (row, count, start) in enumerate(spans):
        if count:
            rows = slice(row, row + count)
            reference = expected(pages, q[rows], [(0, count, start)], b)
            assert error(from_bf16(out[rows]), reference) < ERROR
    rest = np.setdiff1d(np.arange(24), real)
    assert (out[rest] == 0x7FC0).all()


@pytest.mark.parametrize('fp8', [False, True])
def test_chunks_of_several_tiles(machine: Machine, fp8: bool) -> None:
    """Beyond position 8,192 a chunk has 128 keys, beyond 16,384 256."""
    for start in (8300,) if machine.small else (8192, 8300, 16500, 40000):
        pages = Pages(LONG, [start + 2], 64, fp8)
        q = queries(LONG, 2)
        out = from_bf16(attend(machine, pages, q, [(0, 2, start)]))
        assert error(out, expected(pages, q, [(0, 2, start)])) < ERROR


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('shape', 'start'), [
    (DEMO, 250), (DEMO_FULL, 250), (NARROW, 120), (LONG, 8185), (SLIDING, 1100), (FULL, 700)])
def test_a_row_has_the_same_bits_alone(machine: Machine, shape: Geometry, start: int,
                                       fp8: bool) -> None:
    """16 rows together, or one by one: other query tiles, other blocks, another way to combine."""
    if machine.small and (shape in (SLIDING, FULL) or (start > 8000 and fp8)):
        pytest.skip('large, for a device')
    pages = Pages(shape, [start + 16], 16, fp8)
    q = queries(shape, 16)
    together = attend(machine, pages, q, [(0, 16, start)])
    few = (7,) if shape is LONG else (0, 7, 15)
    for row in few if machine.small else range(16):
        alone = attend(machine, pages, q[row:row + 1], [(0, 1, start + row)])
        assert np.array_equal(alone[0], together[row]), row


def test_neither_pages_nor_neighbours_change_bits(machine: Machine) -> None:
    q = queries(NARROW, 5)
    alone = attend(machine, Pages(NARROW, [150], 16, False), q[:2], [(0, 2, 148)])
    for page_size in (16, 48, 64):
        pages = Pages(NARROW, [150, 90], page_size, False, seed=5)
        out = attend(machine, pages, q, [(0, 2, 148), (2, 3, 80)], max_chunks=9, max_rows=16)
        assert np.array_equal(out[:2], alone)


@pytest.mark.parametrize('position', [149, 1100, 4000])
def test_who_adds_the_chunks_changes_no_bit(machine: Machine, position: int) -> None:
    """The last block where few chunks are possible, a launch of its own where many are.

    In that launch a warp asks for up to 8 chunks, or 32, at once.
    """
    if machine.small and position > 2000:
        pytest.skip('large, for a device')
    pages = Pages(DEMO_FULL, [position + 1], 16, True)
    q = queries(DEMO_FULL, 1)
    few, many = (attend(machine, pages, q, [(0, 1, position)], max_chunks=chunks)
                 for chunks in (position // 128 + 1, 50))
    assert np.array_equal(few, many)


def appended(machine: Machine, shape: Geometry, has_v: bool, fp8: bool, position: int,
             together: bool, page_size: int = 16) -> list[Array]:
    """Attention, K and V after one row's kv_append and attention, in one launch or in two."""
    pages = Pages(shape, [position + 1], page_size, fp8)
    place = pages.table[0, position // page_size], position % page_size
    for bits in pages.bits:
        bits[place] = 0x7F if fp8 else 0x7FC0            # the row's own are still to come
    heads, pairs = shape.num_q_heads + (2 if has_v else 1) * shape.num_kv_heads, 64
    qkv = machine.put(to_bf16(normal(5, 1, heads * shape.head_dim)))
    norms = [machine.put(np.abs(normal(seed, shape.head_dim)) + np.float32(0.1))
             for seed in (6, 7)]
    turns = machine.put(rope_turns(1e4, shape.head_dim, pairs))
    k_pages, v_pages, table, scale, more = map(machine.put, (*pages.bits, pages.table,
                                                             *pages.scales))
    inverse = machine.put(1 / pages.scales[0]), machine.put(1 / pages.scales[1])
    size = 1, shape.num_q_heads, shape.head_dim
    out, q = machine.put(poisoned(size, 'bf16')), machine.put(poisoned(size, 'bf16'))
    scratch = op.AttentionScratch.empty(machine.xp, 1, 1, *size[1:], op.max_chunks(
        position + 1, shape.window))
    spans = machine.put(np.array([[0, 1, position, 0]], np.int32))
    if together:
        machine.run(lambda: op.attention_append(
            out, qkv, k_pages, v_pages, scratch, spans, table, (norms[0], norms[1]), turns,
            (scale, more), inverse, shape.window, 1e-6, machine.stream))
    else:
        numbers = [machine.put(np.array([n], np.int32)) for n in (0, position)]
        machine.run(lambda: kv_append(q, k_pages, v_pages, qkv, *norms, turns, *numbers, table,
                                      inverse, 1e-6, machine.stream))
        machine.run(lambda: op.attention_decode(
            out, q, k_pages, v_pages, scratch, spans, table, (scale, more), shape.window, 1,
            machine.stream))
    assert not machine.get(scratch.tickets).any()        # the next launch counts from zero
    return [machine.get(array) for array in (out, k_pages, v_pages)]


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('shape', 'has_v', 'position'), [
    (DEMO, True, 70), (DEMO_FULL, False, 0), (NARROW, True, 127), (DEMO, True, 1500),
    (SLIDING, True, 1100), (FULL, False, 3000), (FULL, True, 20000), (ONE_HEAD, False, 900)])
def test_one_launch_does_what_two_do(machine: Machine, shape: Geometry, has_v: bool,
                                     position: int, fp8: bool) -> None:
    if machine.small and (position > 100 or fp8 == has_v):
        pytest.skip('large, for a device')
    one, two = (appended(machine, shape, has_v, fp8, position, together)
                for together in (True, False))
    for array, other in zip(one, two, strict=True):
        assert np.array_equal(array, other)


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('shape', 'spans'), [
    (DEMO, [(0, 1, 300)]), (DEMO, [(0, 1, 700)]), (DEMO, [(1, 2, 127)]), (NARROW, [(0, 1, 300)]),
    (NARROW, [(2, 1, 200), (5, 0, 0), (5, 1, 7)]), (SLIDING, [(0, 1, 511)]),
    (SLIDING, [(0, 2, 512)]), (SLIDING, [(0, 1, 3000)])])
def test_a_cluster_changes_no_bit(machine: Machine, shape: Geometry, spans: list[Span],
                                  fp8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if machine.small and (shape is SLIDING or (spans[0][2] > 200) != fp8):
        pytest.skip('large, for a device')
    pages = Pages(shape, [max(start + count, 1) for _, count, start in spans], 16, fp8)
    q = queries(shape, 24)
    monkeypatch.setattr(op, '_cluster', lambda *_: 1)
    apart = attend(machine, pages, q, spans)
    monkeypatch.setattr(op, '_cluster', lambda *_: 8)
    together = attend(machine, pages, q, spans)
    assert np.array_equal(together, apart)


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize('cluster', attention_window.CLUSTERS)
@pytest.mark.parametrize(('shape', 'position', 'page_size'), [
    (DEMO, 0, 16), (DEMO, 447, 48), (DEMO, 700, 64), (WINDOW, 1023, 64), (WINDOW, 1024, 16),
    (WINDOW, 1100, 32), (SLIDING, 300, 64), (SLIDING, 5000, 64)])
def test_a_window_in_one_launch_changes_no_bit(
        machine: Machine, shape: Geometry, position: int, page_size: int,
        cluster: int, fp8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that share a slot, the row's own key, pages of all sizes; also where it begins."""
    if shape is not SLIDING and ((page_size > 32) != fp8 or (cluster == 16) == (position < 1100)):
        pytest.skip('the others tell as much')
    if machine.small and (shape is SLIDING or position in (447, 1023)):
        pytest.skip('large, for a device')
    monkeypatch.setattr(attention_window, 'CLUSTERS', (cluster,))
    first = max(0, position - (shape.window or 0) + 1) // 16 * 16
    pages = Pages(shape, [position + 1], page_size, fp8, first_keys=[first])
    q = queries(shape, 1)
    monkeypatch.setattr(op, '_by_window', lambda *_: False)
    apart = attend(machine, pages, q, [(0, 1, position)])
    monkeypatch.setattr(op, '_by_window', lambda *_: True)
    together = attend(machine, pages, q, [(0, 1, position)])
    assert np.array_equal(together, apart)


@pytest.mark.parametrize(('shape', 'position', 'fp8'), [
    (DEMO, 600, True), (DEMO, 130, True), (DEMO, 70, False), (NARROW, 0, True),
    (SLIDING, 1100, True), (SLIDING, 400, True), (SLIDING, 5000, False)])
def test_a_cluster_appends(machine: Machine, shape: Geometry, position: int, fp8: bool,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    if machine.small and (shape is SLIDING or not fp8):
        pytest.skip('large, for a device')
    monkeypatch.setattr(op, '_cluster', lambda *_: 1)
    two = appended(machine, shape, True, fp8, position, False)
    monkeypatch.setattr(op, '_cluster', lambda *_: 8)
    one = appended(machine, shape, True, fp8, position, True)
    for array, other in zip(one, two, strict=True):
        assert np.array_equal(array, other)


@pytest.mark.parametrize('position', [3, 640, 700, 767])
def test_claimed_chunks_change_no_bit(machine: Machine, position: int,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks for the chunks of a kv head; the last chunk has one tile or two."""
    info = replace(device.info(), num_multiprocessors=1)
    monkeypatch.setattr(device, 'info', lambda: info)
    one, two = (appended(machine, DEMO_FULL, False, True, position, together)
                for together in (True, False))
    for array, other in zip(one, two, strict=True):
        assert np.array_equal(array, other)


def test_many_claimed_chunks_change_no_bit(machine: Machine, full: None,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 40 multiprocessors; chunks of several lengths."""
    info = replace(device.info(), num_multiprocessors=40)
    monkeypatch.setattr(device, 'info', lambda: info)
    one, two = (appended(machine, LONG, False, True, 16900, together, 64)
                for together in (True, False))
    for array, other in zip(one, two, strict=True):
        assert np.array_equal(array, other)


def test_another_position_gives_other_bits(machine: Machine) -> None:
    one, later = (appended(machine, DEMO_FULL, False, True, position, True)
                  for position in (90, 91))
    assert not np.array_equal(one[0], later[0])


def test_a_planted_error_is_seen(machine: Machine) -> None:
    """The comparison would notice a window that is one key too wide."""
    pages = Pages(NARROW, [200], 16, False)
    q = to_bf16(0.01 * normal(3, 1, NARROW.num_q_heads, NARROW.head_dim))     # an even mean
    out = from_bf16(attend(machine, pages, q, [(0, 1, 199)]))
    assert error(out, expected(pages, q, [(0, 1, 199)])) < ERROR
    pages.shape = Geometry(256, 1, 3, 71)
    assert error(out, expected(pages, q, [(0, 1, 199)])) > 3 * ERROR


@given(st.integers(0, 262000), st.integers(1, 16), st.sampled_from([None, 64, 70, 512, 1024]))
def test_the_scratch_has_room_for_all_chunks(start: int, count: int, window: int | None) -> None:
    first = 0 if window is None else max(0, start - window + 1)
    chunks = op.chunk_of(start + count - 1, window) - op.chunk_of(first, window) + 1
    assert chunks <= op.max_chunks(start + count, window)
    assert op.max_chunks(262144, None) == 384


@given(st.integers(0, 262143))
def test_chunks_follow_one_another(position: int) -> None:
    chunk, following = op.chunk_of(position, None), op.chunk_of(position + 1, None)
    assert following - chunk in (0, 1)
    if following > chunk:                # every border is a border of tiles
        assert (position + 1) % 64 == 0


@pytest.mark.parametrize('fault', [{'head_dim': 128}, {'page_size': 24}, {'group': 17}])
def test_unsupported_sizes_are_named(fault: dict[str, Any]) -> None:
    sizes = {'head_dim': 256, 'group': 2, 'num_kv_heads': 2, 'page_size': 16, 'window': None,
             'fp8': False, 'max_rows': 1} | fault
    with pytest.raises(AssertionError, match='supported'):
        op.spec('attention_decode', **sizes)
