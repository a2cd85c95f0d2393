# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which row tiles of coming weights a product asks for, within its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.affine_order import AffineFragments, AffineStack, tile_scales
from gemma_thor_ros.ops.fetch_ahead import MOST_RANGES, FetchAhead
from gemma_thor_ros.ops.fetch_plan import FetchPlan, coming, default_plan, nbytes
from gemma_thor_ros.ops.fragment_order import Nvfp4Fragments, row_tiles


def on_a_device(monkeypatch: pytest.MonkeyPatch, arch: str = 'sm_90a', multiprocessors: int = 132,
                l2_bytes: int = 50 << 20) -> None:
    info = device.DeviceInfo('none', arch, multiprocessors, 232448, l2_bytes)
    monkeypatch.setattr(device, 'info', lambda: info)
    monkeypatch.setattr(device, 'has_e2m1_conversion', lambda: False)


def nvfp4(outputs: int, columns: int, pair: bool = False) -> Nvfp4Fragments:
    tiles = row_tiles(outputs, pair) * (columns // 64)
    return Nvfp4Fragments(np.empty(tiles * 128, np.uint32), np.empty(tiles * 16, np.uint32), None,
                          outputs, columns, pair, 0)


def affine(outputs: int, columns: int) -> AffineFragments:
    tiles = row_tiles(outputs, False)
    return AffineFragments(np.empty(tiles * (columns // 64) * 128, np.uint32),
                           np.empty(tiles * tile_scales(columns, 64), np.uint32), outputs, columns,
                           4, 64, False)


def asked(made: FetchAhead, array: Any, unit: int) -> list[int]:
    """How often each row tile of an array is asked for."""
    times = np.zeros(array.nbytes // unit, int)
    for one, where in zip(made.ranges, made.arrays, strict=False):
        if where is array:
            assert one.unit == unit
            for share in range(one.shares):
                first = share * one.each + min(share, one.more) + one.skipped
                times[first:first + one.count] += 1
    found: list[int] = times.tolist()
    return found


def size(made: FetchAhead) -> int:
    return sum(one.unit * one.shares * one.count for one in made.ranges[:made.num_ranges])


def test_first_what_some_blocks_have_beyond_others_then_all_blocks_alike(
        monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_device(monkeypatch)
    down = nvfp4(3840, 15360)            # 240 row tiles: 108 blocks have two, 24 one
    unit = 240 * 576
    for count in (60, 108, 130, 240, 300):
        made = coming(FetchPlan(gate_up=count * unit), 'gate_up', None, (down,), True)
        codes = asked(made, down.codes, 240 * 512)
        assert codes == asked(made, down.scales, 240 * 64)
        assert size(made) == min(count, 240) * unit and max(codes) == 1
        second = codes[1:216:2]
        assert sum(second) == min(count, 108) and second == sorted(second, reverse=True)
        if count == 130:
            assert codes[:43:2] == [1] * 22 and not any(codes[44:216:2])


@pytest.mark.parametrize('qkv', [0, 5, 14, 30])
@pytest.mark.parametrize('single', [True, False])
def test_o_goes_on_where_qkv_ended(monkeypatch: pytest.MonkeyPatch, qkv: int,
                                   single: bool) -> None:
    on_a_device(monkeypatch)
    own, gate_up = nvfp4(3840, 4096), nvfp4(15360, 3840, True)
    plan = FetchPlan(qkv=qkv * 10**6, o=12 * 10**6)
    first = coming(plan, 'qkv', None, (own, gate_up), single)
    second = coming(plan, 'o', own, (gate_up,), single)
    unit = 60 * 512
    both = np.add(asked(first, gate_up.codes, unit), asked(second, gate_up.codes, unit))
    whole = sum(asked(first, own.codes, 64 * 512))
    assert whole == min(240, qkv * 10**6 // (64 * 576))
    rest = max(0, qkv * 10**6 - nbytes(own))
    assert abs(int(both.sum()) - (rest + 12 * 10**6) // (60 * 576)) <= 1
    assert (both > 1).sum() <= 1
    assert max(len(one.arrays) for one in (first, second)) <= MOST_RANGES


def test_stacks_and_plain_matrices_go_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_device(monkeypatch)
    stack = AffineStack((affine(256, 128), affine(64, 128)))
    router = np.empty((128, 2816), np.uint16)
    made = coming(FetchPlan(down=10**9), 'down', None, (router, stack), True)
    assert size(made) == router.nbytes + nbytes(stack) == router.nbytes + stack.parts[0].nbytes * (
        5 / 4)
    made = coming(FetchPlan(down=10**5), 'down', None, (router, stack), True)
    assert size(made) == 10**5 // 5632 * 5632 and made.num_ranges == 1
    assert size(coming(FetchPlan(qkv=10**9), 'down', None, (router,), True)) == 0


def test_small_devices_fetch_less_and_old_ones_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_device(monkeypatch)
    most = default_plan()
    assert 0 < most.qkv <= 25 << 20
    on_a_device(monkeypatch, 'sm_110a', 20, 32 << 20)
    assert 0 < default_plan().qkv < most.qkv / 6
    on_a_device(monkeypatch, 'sm_120a', 170, 8 << 20)
    assert default_plan().qkv <= 4 << 20
    on_a_device(monkeypatch, 'sm_89', 128, 72 << 20)
    assert default_plan() == FetchPlan()
