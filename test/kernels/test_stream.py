# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Products of 2 to 16 rows as a stream: every way to share them out, the same bits."""
from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from emulator import SHARED_BYTES

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import device, fragment_order, gemm_nvfp4

from . import cases

NAMES = ('CLUSTER', 'TEAMS', 'ROW_TILES', 'STAGE_TILES', 'STAGES', 'HELD')
# these, columns (of which the parts are cut), outputs, rows, gate and up
WAYS = [((1, 1, 2, 1, 2, 0), 1408, 120, 9, False), ((2, 2, 2, 2, 3, 1), 1152, 40, 17, True)]
MORE_WAYS = [
    ((1, 1, 1, 1, 3, 0), 704, 120, 3, False), ((1, 3, 1, 1, 2, 1), 320, 88, 16, True),
    ((2, 2, 1, 4, 2, 0), 2816, 88, 16, False), ((2, 1, 3, 1, 8, 0), 1408, 200, 8, False),
    ((4, 2, 2, 2, 2, 1), 1152, 176, 16, False), ((4, 1, 4, 1, 2, 0), 1408, 72, 5, True),
    ((8, 2, 2, 2, 3, 1), 1280, 104, 16, True), ((8, 1, 1, 1, 2, 0), 512, 40, 4, False)]


def check_way(cp: Any, stream: Any, monkeypatch: pytest.MonkeyPatch, way: tuple[int, ...],
              columns: int, outputs: int, num_tokens: int, pair: bool) -> None:
    parts = [cases.random_weight(cp, (outputs, columns), seed, (0x20, 0x50), 0.01)
             for seed in range(1, 2 + pair)]
    made = fragment_order.to_fragments(parts, interleaved=pair, stream=stream)
    x = cases.random_rows(cp, (num_tokens, columns), 3)
    streamed, plain, alone = (cases.poisoned(cp, (num_tokens, outputs), 'bf16') for _ in range(3))
    cp.cuda.runtime.deviceSynchronize()
    launched = []
    original = device.launch

    def launch(kernel: Any, grid: tuple[int, ...], *rest: Any, **options: Any) -> None:
        launched.append(kernel.spec.file)
        original(kernel, grid, *rest, **options)

    monkeypatch.setattr(device, 'launch', launch)
    info = replace(device.info(), num_multiprocessors=3)     # so that blocks have several turns
    monkeypatch.setattr(device, 'clusters_at_once', lambda *_: 1)
    if info.name == 'emulator':
        info = replace(info, shared_bytes_per_block=SHARED_BYTES)
    elif info.shared_bytes_per_block < SHARED_BYTES:
        pytest.skip('blocks have too little shared memory for some of these ways')
    monkeypatch.setattr(device, 'info', lambda: info)
    run = gemm_nvfp4.gemm_nvfp4
    monkeypatch.setattr(gemm_nvfp4, 'stream_spec', partial(gemm_nvfp4.stream_spec, **dict(
        zip(NAMES, way, strict=True))))
    run(streamed, x, made, stream)
    some = [0, num_tokens // 2, num_tokens - 1]
    for row in some:
        run(alone[row:row + 1], x[row:row + 1], made, stream)
    monkeypatch.setattr(gemm_nvfp4, 'stream_spec', lambda *_: None)
    run(plain, x, made, stream)
    stream.synchronize()
    assert launched[0] == 'stream_nvfp4' and launched[-1] == 'gemm_nvfp4'
    assert 'stream_nvfp4' not in launched[1:]
    assert bool((streamed == plain).all()) and bool((streamed[some] == alone[some]).all())
    products = [cases.from_bf16(cp, x) @ cases.dequantized(cp, part).T for part in parts]
    expected = cases.geglu(cp, *products) if pair else products[0]
    assert cases.error(cp, cases.from_bf16(cp, streamed), expected) < (1 + pair) * 2.5e-3


@pytest.mark.parametrize('way', WAYS, ids=lambda way: f'cluster of {way[0][0]}')
def test_a_stream_gives_the_same_bits(small: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch,
                                      way: Any) -> None:
    check_way(*small, monkeypatch, *way)


def test_a_missing_meeting_shows(small: tuple[Any, Any],
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the warps of a cluster do not wait for each other's totals."""
    if hasattr(small[1], 'ptr'):
        pytest.skip('a device may be lucky')
    original, meeting = compiler.kernel_source, 'arrive_at_cluster(), wait_for_cluster();'
    assert meeting in original('stream_nvfp4')
    monkeypatch.setattr(compiler, 'kernel_source', lambda name: original(name).replace(
        meeting, ';'))
    with pytest.raises(AssertionError):
        check_way(*small, monkeypatch, *WAYS[1])


@pytest.mark.parametrize('way', MORE_WAYS)
def test_every_way_gives_the_same_bits(small: tuple[Any, Any], full: None,
                                       monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    check_way(*small, monkeypatch, *way)
