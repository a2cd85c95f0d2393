# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of prompt rows against the twin in float64, and equal bits however a prompt is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from machine import Array, Machine, error, from_bf16, poisoned, to_bf16
from test_attention_decode import (
    DEMO,
    DEMO_FULL,
    ERROR,
    FULL,
    NARROW,
    ONE_HEAD,
    SLIDING,
    Geometry,
    Pages,
    queries,
)

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops import prefill_attention as op
from gemma_thor_ros.ops.attention import AttentionSpan, attention_ref, plan_attention
from gemma_thor_ros.ops.scratch import Scratch

Span = tuple[int, int, int, int]         # first row, rows, position of the first, sees_block


def attend(machine: Machine, pages: Pages, q: Array, spans: Sequence[Span],
           block: tuple[int, int] | None = None, max_rows: int | None = None,
           blocks: Array | None = None, whole: bool = False) -> Array:
    """The device's result; rows of no span stay poisoned."""
    put = machine.put
    out = put(poisoned(q.shape, 'bf16'))
    args = (put(q), put(pages.bits[0]), put(pages.bits[1]), put(np.array(spans, np.int32)),
            put(pages.table), (put(pages.scales[0]), put(pages.scales[1])))
    rows = max_rows or max(span[1] for span in spans)
    placed = None if blocks is None else put(blocks)
    machine.run(lambda: op.prefill_attention(out, *args, pages.shape.window, rows, machine.stream,
                                             placed, whole, block))
    return machine.get(out)


def other_block(shape: Geometry, fp8: bool) -> tuple[int, int]:
    """Tiles of as many keys as a launch takes, for a smaller or larger block of queries."""
    groups, tile = op.block_of(shape.head_dim, fp8, device.info().shared_bytes_per_block)
    return 4 if groups == 2 else 2, tile


def expected(pages: Pages, q: Array, spans: Sequence[Span],
             images: Sequence[tuple[int, int]] = (), whole: bool = False) -> Array:
    """The twin's result in float64; one that sees its block needs the bias of generated rows."""
    out = np.full(q.shape, np.nan)
    for b, (row, count, start, sees_block) in enumerate(spans):
        if not count:
            continue
        span = AttentionSpan(row, count, start, pages.table[b], bool(sees_block), tuple(images),
                             whole)
        plan = plan_attention([(span, bool(sees_block))], pages.shape.window, pages.page_size,
                              pages.shape.group, np.float64)
        attention_ref(out, from_bf16(q), pages.values[0], pages.values[1], plan,
                      scratch=Scratch(np.float64))
    return out


def check(machine: Machine, shape: Geometry, spans: Sequence[Span], fp8: bool, num_rows: int,
          first_keys: Sequence[int] | None = None, **options: Any) -> None:
    pages = Pages(shape, [max(start + count, 1) for _, count, start, _ in spans], 16, fp8,
                  first_keys=first_keys)
    q = queries(shape, num_rows)
    out = attend(machine, pages, q, spans, **options)
    reference = expected(pages, q, spans)
    real = np.isfinite(reference[:, 0, 0])
    assert error(from_bf16(out[real]), reference[real]) < ERROR
    assert (out[~real] == 0x7FC0).all()


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('shape', 'count', 'start'), [
    (NARROW, 45, 100), (DEMO_FULL, 9, 60), (DEMO, 600, 120), (SLIDING, 300, 0),
    (SLIDING, 129, 2000), (FULL, 257, 0), (FULL, 65, 1000), (ONE_HEAD, 80, 90)])
def test_against_the_twin(machine: Machine, shape: Geometry, count: int, start: int,
                          fp8: bool) -> None:
    if machine.small and shape in (SLIDING, FULL, ONE_HEAD, DEMO):
        pytest.skip('large, for a device')
    check(machine, shape, [(0, count, start, 0)], fp8, count)


@pytest.mark.parametrize('shape', [NARROW, DEMO_FULL])
def test_several_sequences(machine: Machine, shape: Geometry) -> None:
    """Mixed lengths, an empty place, freed pages, rows of no span, more blocks than are needed."""
    spans = [(2, 20, 100, 0), (30, 0, 0, 0), (30, 1, 7, 0), (33, 5, 90, 0)]
    first_keys = [100 - 69, 0, 0, 21] if shape.window else None
    check(machine, shape, spans, shape.window is None, 50, first_keys, max_rows=64)


@pytest.mark.parametrize('shape', [NARROW, SLIDING, FULL])
def test_rows_that_see_their_block(machine: Machine, shape: Geometry) -> None:
    if machine.small and shape is not NARROW:
        pytest.skip('large, for a device')
    check(machine, shape, [(0, 40, 30, 1)], False, 40)


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('shape', 'count'), [
    (NARROW, 100), (DEMO_FULL, 50), (SLIDING, 1500), (FULL, 700)])
def test_the_cut_of_a_prompt_changes_no_bit(machine: Machine, shape: Geometry, count: int,
                                            fp8: bool) -> None:
    """One prompt whole, in odd chunks, row by row, in smaller blocks, in other pages."""
    if machine.small and (shape in (SLIDING, FULL) or fp8 != (shape is DEMO_FULL)):
        pytest.skip('large, for a device')
    pages = Pages(shape, [count], 16, fp8)
    q = queries(shape, count)
    whole = attend(machine, pages, q, [(0, count, 0, 0)])
    cuts = [0, 33, count - 1, count]
    for start, end in zip(cuts, cuts[1:], strict=False):
        part = attend(machine, pages, q[start:end], [(0, end - start, start, 0)])
        assert np.array_equal(part, whole[start:end]), (start, end)
    smaller = attend(machine, pages, q, [(0, count, 0, 0)], block=other_block(shape, fp8))
    assert np.array_equal(smaller, whole)
    if not machine.small:
        for row in range(0, count, 37):
            alone = attend(machine, pages, q[row:row + 1], [(0, 1, row, 0)])
            assert np.array_equal(alone[0], whole[row]), row
    other = Pages(shape, [count, 5], 16 if machine.small else 48, fp8, seed=9)
    other.scales = pages.scales
    two = np.concatenate([q, q[:3]])
    out = attend(machine, other, two, [(0, count, 0, 0), (count, 3, 2, 0)])
    assert np.array_equal(out[:count], whole)


def blocks_of(positions: Array, images: Sequence[tuple[int, int]]) -> Array:
    """(T, 2) of rows at these positions: their image, or themselves."""
    blocks = np.stack([positions, positions + 1], axis=1).astype(np.int32)
    for start, stop in images:
        blocks[(positions >= start) & (positions < stop)] = start, stop
    return blocks


# rows, position of the first, images: two side by side and one at the end; one beyond the window
IMAGES = [(28, 50, [(52, 60), (60, 64), (70, 78)]), (76, 40, [(42, 115)])]


@pytest.mark.parametrize('whole', [False, True])
@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('shape', 'case'), [
    (NARROW, 0), (NARROW, 1), (DEMO_FULL, 0), (SLIDING, 0), (SLIDING, 1), (FULL, 1)])
def test_rows_see_their_image(machine: Machine, shape: Geometry, case: int, fp8: bool,
                              whole: bool, grid: bool) -> None:
    """Against the twin; rows before and behind images have the bits of a prompt without them."""
    if machine.small and (shape in (SLIDING, FULL) or fp8 != (case == 0)):
        pytest.skip('large, for a device')
    if machine.small and not grid and (shape is DEMO_FULL or whole != (case == 1)):
        pytest.skip('without a CUDA device this is part of make grid')
    count, start, images = IMAGES[case]
    pages = Pages(shape, [start + count], 16, fp8)
    q = queries(shape, count)
    spans, positions = [(0, count, start, 0)], np.arange(start, start + count)
    blocks = blocks_of(positions, images)
    out = attend(machine, pages, q, spans, blocks=blocks, whole=whole)
    assert error(from_bf16(out), expected(pages, q, spans, images, whole)) < ERROR
    plain = attend(machine, pages, q, spans)
    # the last row of an image that the window holds sees what it would have seen anyway
    seeing = (blocks[:, 1] > positions + 1) | (blocks[:, 0] < positions)
    changed = (out != plain).any(axis=(1, 2))
    assert not changed[~seeing].any() and changed[blocks[:, 1] > positions + 1].all()
    if grid or not machine.small:
        smaller = attend(machine, pages, q, spans, blocks=blocks, whole=whole,
                         block=other_block(shape, fp8))
        assert np.array_equal(smaller, out)
    # a chunk that begins behind the first image, or with the only one
    cut = images[0][1] - start if case == 0 else images[0][0] - start
    part = attend(machine, pages, q[cut:], [(0, count - cut, start + cut, 0)],
                  blocks=blocks[cut:], whole=whole)
    assert np.array_equal(part, out[cut:])
    # planted: images of half their length; a row that lacks a single key may hardly differ
    short = blocks_of(positions, [(first, (first + stop) // 2) for first, stop in images])
    wrong = attend(machine, pages, q, spans, blocks=short, whole=whole)
    lost = (short != blocks).any(axis=1)
    right = expected(pages, q, spans, images, whole)
    assert error(from_bf16(wrong)[lost], right[lost]) > ERROR


def test_planted_errors_are_seen(machine: Machine) -> None:
    """A window that is one key too wide, and a changed key that a row sees."""
    pages = Pages(NARROW, [120], 16, False)
    q = to_bf16(from_bf16(queries(NARROW, 20)) * 0.05)      # an even mean
    spans = [(0, 20, 100, 0)]
    out = attend(machine, pages, q, spans)
    assert error(from_bf16(out), expected(pages, q, spans)) < ERROR
    pages.shape = Geometry(256, 1, 3, 71)
    assert error(from_bf16(out), expected(pages, q, spans)) > 3 * ERROR
    pages.shape = NARROW
    pages.bits[1][pages.table[0, 110 // 16], 110 % 16] ^= 0x8000
    changed = (attend(machine, pages, q, spans) != out).any(axis=(1, 2))
    assert not changed[:10].any() and changed[10:].all()


@pytest.mark.parametrize(('shape', 'fp8', 'block'), [
    (DEMO_FULL, True, (4, 128)), (DEMO_FULL, True, (4, 64)), (DEMO_FULL, False, (4, 64)),
    (NARROW, True, (8, 64)), (NARROW, False, (4, 32))])
def test_blocks_of_other_devices(machine: Machine, shape: Geometry, fp8: bool,
                                 block: tuple[int, int]) -> None:
    least = op.shared_bytes(shape.head_dim, fp8, block)
    if not machine.small and least > device.info().shared_bytes_per_block:
        pytest.skip('this device has less shared memory')
    check(machine, shape, [(0, 9, 130, 0)], fp8, 9, block=block)


def test_blocks_fit_into_shared_memory() -> None:
    for head_dim in (256, 512):
        for fp8 in (False, True):
            for limit in (99, 163, 227):
                block = op.block_of(head_dim, fp8, limit * 1024)
                assert op.shared_bytes(head_dim, fp8, block) <= limit * 1024
    assert op.block_of(512, True, 227 * 1024) == (4, 128)
    assert op.block_of(512, False, 99 * 1024) == (2, 32)
