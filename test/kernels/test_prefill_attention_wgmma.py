# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of prompt rows by a warpgroup's products: the twin in float64, equal bits, layouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from machine import Array, Machine, error, from_bf16, poisoned, to_bf16
from test_attention_decode import DEMO_FULL, ERROR, FULL, ONE_HEAD, Geometry, Pages, queries
from test_prefill_attention import Span, blocks_of, expected

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops import prefill_attention_wgmma as op

SEEN_NARROWLY = Geometry(512, 1, 3, 70)
EIGHT = Geometry(512, 1, 8, None)


@pytest.fixture
def hopper(machine: Machine) -> Machine:
    """The emulator, or a device that has these products."""
    if not machine.small and not op.serves(512, device.info().arch):
        pytest.skip('the device has no products of a warpgroup')
    return machine


def attend(machine: Machine, pages: Pages, q: Array, spans: Sequence[Span],
           max_rows: int | None = None, blocks: Array | None = None, whole: bool = False) -> Array:
    """The device's result; rows of no span stay poisoned."""
    put = machine.put
    out = put(poisoned(q.shape, 'bf16'))
    args = (put(q), put(pages.bits[0]), put(pages.bits[1]), put(np.array(spans, np.int32)),
            put(pages.table), (put(pages.scales[0]), put(pages.scales[1])))
    rows = max_rows or max(span[1] for span in spans)
    placed = None if blocks is None else put(blocks)
    machine.run(lambda: op.prefill_attention_wgmma(
        out, *args, pages.shape.window, rows, machine.stream, placed, whole))
    return machine.get(out)


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('shape', 'spans', 'max_rows'), [
    (EIGHT, [(2, 9, 120, 0), (12, 0, 0, 0), (12, 1, 7, 0), (15, 5, 90, 1)], 64),
    (DEMO_FULL, [(0, 20, 120, 0)], 20),
    (SEEN_NARROWLY, [(0, 23, 240, 0)], 23), (FULL, [(0, 257, 0, 0)], 257),
    (FULL, [(0, 65, 1000, 0)], 65), (ONE_HEAD, [(0, 80, 90, 0)], 80),
    (FULL, [(0, 40, 30, 1)], 40)])
def test_against_the_twin(hopper: Machine, shape: Geometry, spans: list[Span], max_rows: int,
                          fp8: bool, grid: bool) -> None:
    """Odd rows, an empty place, a window, rows of no span, more blocks than are needed."""
    here = (EIGHT, True), (SEEN_NARROWLY, False)
    if hopper.small and (shape in (FULL, ONE_HEAD) or not (grid or (shape, fp8) in here)):
        pytest.skip('large, for a device or make grid')
    num_rows = max(row + count for row, count, *_ in spans) + 2
    pages = Pages(shape, [max(start + count, 1) for _, count, start, _ in spans], 16, fp8)
    q = queries(shape, num_rows)
    out = attend(hopper, pages, q, spans, max_rows)
    reference = expected(pages, q, spans)
    real = np.isfinite(reference[:, 0, 0])
    assert error(from_bf16(out[real]), reference[real]) < ERROR
    assert (out[~real] == 0x7FC0).all()


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('shape', 'count', 'cuts'), [
    (EIGHT, 13, (5,)), (FULL, 700, (33, 128, 699))])
def test_the_cut_of_a_prompt_changes_no_bit(hopper: Machine, shape: Geometry, count: int,
                                            cuts: tuple[int, ...], fp8: bool,
                                            grid: bool) -> None:
    """Behind 120 keys, whole, in odd chunks, in other pages beside another sequence."""
    if hopper.small and (shape is FULL or not (grid or fp8)):
        pytest.skip('large, for a device or make grid')
    pages = Pages(shape, [120 + count], 16, fp8)
    q = queries(shape, count)
    whole = attend(hopper, pages, q, [(0, count, 120, 0)])
    for start, end in zip((0, *cuts), (*cuts, count), strict=True):
        part = attend(hopper, pages, q[start:end], [(0, end - start, 120 + start, 0)])
        assert np.array_equal(part, whole[start:end]), (start, end)
    if hopper.small and not grid:
        return
    other = Pages(shape, [120 + count, 5], 48, fp8, seed=9)
    other.scales = pages.scales
    out = attend(hopper, other, np.concatenate([q, q[:3]]),
                 [(0, count, 120, 0), (count, 3, 2, 0)])
    assert np.array_equal(out[:count], whole)


@pytest.mark.parametrize('whole', [False, True])
@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('shape', 'count', 'start', 'image'), [
    (SEEN_NARROWLY, 30, 110, (112, 138)), (FULL, 76, 40, (42, 115))])
def test_rows_see_their_image(hopper: Machine, shape: Geometry, count: int, start: int,
                              image: tuple[int, int], fp8: bool, whole: bool, grid: bool) -> None:
    """Against the twin; rows outside of it have the bits of a prompt without images."""
    if hopper.small and (shape is FULL or not grid):
        pytest.skip('large, for a device or make grid')
    pages = Pages(shape, [start + count], 16, fp8)
    q, spans = queries(shape, count), [(0, count, start, 0)]
    positions = np.arange(start, start + count)
    out = attend(hopper, pages, q, spans, blocks=blocks_of(positions, [image]), whole=whole)
    assert error(from_bf16(out), expected(pages, q, spans, [image], whole)) < ERROR
    plain = attend(hopper, pages, q, spans)
    apart = (positions < image[0]) | (positions >= image[1])
    assert np.array_equal(out[apart], plain[apart])


def test_planted_errors_are_seen(hopper: Machine) -> None:
    """A window of the twin that is one key too wide, and a changed key that some rows see."""
    pages = Pages(SEEN_NARROWLY, [132], 16, False)
    q = to_bf16(from_bf16(queries(SEEN_NARROWLY, 12)) * 0.05)        # an even mean
    spans = [(0, 12, 120, 0)]
    out = attend(hopper, pages, q, spans)
    assert error(from_bf16(out), expected(pages, q, spans)) < ERROR
    pages.shape = Geometry(512, 1, 3, 71)
    assert error(from_bf16(out), expected(pages, q, spans)) > 3 * ERROR
    pages.shape = SEEN_NARROWLY
    pages.bits[1][pages.table[0, 126 // 16], 126 % 16] ^= 0x8000
    changed = (attend(hopper, pages, q, spans) != out).any(axis=(1, 2))
    assert not changed[:6].any() and changed[6:].all()


@pytest.mark.parametrize('planted', [
    ('SWIZZLED(row, step % 4 * 2 + j % 2)', '(step % 4 * 2 + j % 2)'),
    ('(u64)(1024 >> 4) << 32', '(u64)(512 >> 4) << 32'),
    ('wait_for_products<0>();\n        hold_result(scores);', 'hold_result(scores);'),
    ('i / 2 + i % 2 * 8 + h * 4', 'i + h * 8')])
def test_wrong_layouts_and_a_missing_wait_are_seen(
        hopper: Machine, grid: bool, planted: tuple[str, str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    if not (hopper.small and grid):
        pytest.skip('part of make grid, on the emulator')
    source = compiler.kernel_source

    def wrong(name: str) -> str:
        text = source(name)
        assert planted[0] in text, planted
        return text.replace(*planted)

    monkeypatch.setattr(compiler, 'kernel_source', wrong)
    pages, q = Pages(EIGHT, [20], 16, True), queries(EIGHT, 9)
    out = attend(hopper, pages, q, [(0, 9, 11, 0)])
    assert not error(from_bf16(out), expected(pages, q, [(0, 9, 11, 0)])) < ERROR


def test_serves_hopper_alone() -> None:
    assert op.serves(512, 'sm_90a')
    assert not op.serves(256, 'sm_90a') and not op.serves(512, 'sm_110a')
