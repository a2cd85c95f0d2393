# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Products of 2 to 16 rows that stay in registers: the bits of the other kernels, or an error."""
from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import (
    device,
    fragment_order,
    gemm_nvfp4,
    head_nvfp4,
    rows_nvfp4,
    stream_nvfp4,
)

from . import cases

# STAGE_TILES, STAGES, PLACES, ADDERS; columns, outputs, rows, head
WAYS = [((2, 2, 2, 2), 1408, 104, 7, False), ((1, 3, 3, 1), 704, 176, 13, True)]
MORE_WAYS = [((4, 3, 4, 2), 2816, 112, 8, True), ((4, 2, 2, 2), 2816, 72, 4, False),
             ((4, 2, 2, 1), 2816, 72, 16, False), ((1, 2, 3, 3), 320, 88, 16, False)]


def check_way(cp: Any, stream: Any, monkeypatch: pytest.MonkeyPatch, way: tuple[int, ...],
              columns: int, outputs: int, num_tokens: int, head: bool) -> None:
    if device.info().arch in ('sm_80', 'sm_86', 'sm_89') and hasattr(stream, 'ptr'):
        pytest.skip('no handovers on this device')
    part = cases.random_weight(cp, (outputs, columns), 1, (0x20, 0x50), 0.01)
    made = fragment_order.to_fragments([part], stream=stream)
    x = cases.random_rows(cp, (num_tokens, columns), 3)
    kind = 'f32' if head else 'bf16'
    kept, plain = (cases.poisoned(cp, (num_tokens, outputs), kind) for _ in range(2))
    cp.cuda.runtime.deviceSynchronize()
    hardware = device.has_e2m1_conversion()
    spec = rows_nvfp4.spec(columns, num_tokens, head, hardware, gemm_nvfp4.cut(columns),
                           **dict(zip(rows_nvfp4.NAMES, way, strict=True)))
    assert rows_nvfp4.fits(dict(spec.defines), 227 << 10)
    monkeypatch.setattr(stream_nvfp4, 'share', _few)
    gemm_nvfp4.launch_rows(kept, x, made, spec, cases.SOFTCAP, stream)
    if head:
        monkeypatch.setattr(gemm_nvfp4, 'rows_spec', lambda *_, **__: None)
        head_nvfp4.head_nvfp4(plain, x, made, cases.SOFTCAP, stream)
    else:
        gemm_nvfp4.gemm_nvfp4(plain, x, made, stream)
    stream.synchronize()
    assert bool((kept == plain).all()) and bool(cp.isfinite(
        kept if head else cases.from_bf16(cp, kept)).all())


def _few(num_row_tiles: int, *_: int) -> stream_nvfp4.Share:
    """Three blocks, so that each has several row tiles."""
    return stream_nvfp4.Share(3, num_row_tiles // 3, num_row_tiles % 3)


@pytest.mark.parametrize('way', WAYS, ids=['product', 'head'])
def test_rows_in_registers_give_the_same_bits(small: tuple[Any, Any],
                                              monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    check_way(*small, monkeypatch, *way)


def test_a_missing_handover_shows(small: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: totals are added before they are all there."""
    if hasattr(small[1], 'ptr'):
        pytest.skip('a device may be lucky')
    original, wait = compiler.kernel_source, 'wait_for_handover(full + place, r / PLACES & 1);'
    back = 'hand_over(empty + place);'       # would come too early, too, and be missed
    assert wait in original('rows_nvfp4') and back in original('rows_nvfp4')
    monkeypatch.setattr(compiler, 'kernel_source', lambda name: original(name).replace(
        wait, '').replace(back, ';'))
    with pytest.raises(AssertionError):
        check_way(*small, monkeypatch, (2, 2, 4, 2), *WAYS[0][1:])   # a place for each row tile


@pytest.mark.parametrize('way', MORE_WAYS)
def test_every_way_gives_the_same_bits(small: tuple[Any, Any], full: None,
                                       monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    check_way(*small, monkeypatch, *way)


def test_more_adders_than_places_are_refused() -> None:
    """The third of three would take a round that has not come for the one before it."""
    with pytest.raises(AssertionError):
        rows_nvfp4.spec(320, 16, False, False, gemm_nvfp4.cut(320),
                        **dict(zip(rows_nvfp4.NAMES, (1, 2, 1, 3), strict=True)))


def test_what_is_served() -> None:
    """Rows of the 26B where there is room; no gate and up, no head of 16, no small device."""
    limit = 227 << 10
    for (tiles, row_tiles, blocks), way in rows_nvfp4._FASTEST.items():
        spec = gemm_nvfp4.rows_spec(64 * tiles, 8 * blocks, False, row_tiles, limit, 132,
                                    head=row_tiles == 16384)
        assert spec and dict(spec.defines)['ADDERS'] == way[3]
        assert rows_nvfp4.fits(dict(spec.defines), limit)
    served = partial(gemm_nvfp4.served_spec, 2816, hardware=False, num_row_tiles=512)
    assert served(4, False, shared_limit=limit, multiprocessors=132).file == 'rows_nvfp4'
    assert served(16, False, shared_limit=limit, multiprocessors=132).file == 'rows_nvfp4'
    assert served(4, True, shared_limit=limit, multiprocessors=132).file == 'gemm_nvfp4'
    assert served(4, False, shared_limit=99 << 10, multiprocessors=132).file == 'gemm_nvfp4'
    assert served(4, False, shared_limit=limit, multiprocessors=20).file == 'gemm_nvfp4'
    assert head_nvfp4.served_spec(2816, 8, limit, False).file == 'rows_nvfp4'
    assert head_nvfp4.served_spec(2816, 9, limit, False).file == 'head_nvfp4'
