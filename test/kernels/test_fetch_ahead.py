# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What products of one row fetch ahead: every byte asked for once, none beyond the arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.ops import affine_order, fragment_order, gemm_affine, gemm_nvfp4
from gemma_thor_ros.ops.fetch_ahead import NOTHING, FetchAhead, Range, fetch_ahead

from . import cases
from .affine_cases import random_affine

SHAPE = (57, 5120)                       # four row tiles on the emulator's three multiprocessors
UNIT = 4096 + 48                         # more than one request, and not a whole number of them


def products(cp: Any, stream: Any, form: str) -> Any:
    """A product of one row in this form: its bits, with something to fetch ahead."""
    x = cases.random_rows(cp, (1, SHAPE[1]), 18)
    if form == 'nvfp4':
        made: Any = fragment_order.to_fragments(
            [cases.random_weight(cp, SHAPE, 17, (0x20, 0x50), 0.01)], stream=stream)
    else:
        cp.cuda.runtime.deviceSynchronize()
        made = affine_order.to_affine([random_affine(cp, 15, SHAPE, 2, 64)], stream=stream)
    run = gemm_nvfp4.gemm_nvfp4 if form == 'nvfp4' else gemm_affine.gemm_affine

    def product(ahead: FetchAhead) -> Any:
        out = cases.poisoned(cp, (1, SHAPE[0]), 'bf16')
        cp.cuda.runtime.deviceSynchronize()
        run(out, x, made, stream, ahead=ahead)       # type: ignore[operator]
        stream.synchronize()
        return cp.asnumpy(out)

    return product


@pytest.mark.parametrize('form', ['nvfp4', 'affine'])
@pytest.mark.parametrize('early', [0, 1, 9])
def test_all_is_fetched_once_and_changes_nothing(
        small: tuple[Any, Any], request: pytest.FixtureRequest, form: str, early: int) -> None:
    cp, stream = small
    if form == 'affine' and early != 9:
        pytest.skip('as nvfp4')
    product = products(cp, stream, form)
    coming = cp.zeros(40 * UNIT, np.uint8)           # 2 shares of 14 units, 1 of 13 with one over
    shared: dict[str, Any] = {'array': coming, 'unit': UNIT, 'each': 13}
    ranges = [Range(shares=1, more=1, skipped=13, tiles=1, **shared),
              Range(shares=3, more=1, skipped=0, tiles=2, **shared),
              Range(shares=3, more=1, skipped=2, tiles=0, **shared),
              Range(cp.zeros(4096, np.uint8), 4096, 1, 1, 0, 0, 1)]
    assert (product(fetch_ahead(ranges, early)) == product(NOTHING)).all()
    if hasattr(stream, 'ptr'):
        return                                       # a device says nothing of what it fetched
    fetched = request.getfixturevalue('emulator').fetched
    seen = np.zeros(coming.size, int)
    for address, num_bytes in fetched:
        start = address - coming.ctypes.data
        if 0 <= start < coming.size:
            seen[start:start + num_bytes] += 1
    units = seen.reshape(40, UNIT)
    wanted = [0, 1, 13, 14, 15, 27, 28]
    assert (units[wanted] == 1).all() and units.sum() == len(wanted) * UNIT
    assert sum(num_bytes for _, num_bytes in fetched) == len(wanted) * UNIT + 4096


def test_what_lies_beyond_an_array_is_seen(small: tuple[Any, Any]) -> None:
    cp, stream = small
    coming = cp.zeros(4 * UNIT, np.uint8)
    with pytest.raises(AssertionError):
        fetch_ahead([Range(coming, UNIT, 2, 2, 1, 0, 2)])
    if hasattr(stream, 'ptr'):
        return
    made = fetch_ahead([Range(coming, UNIT, 2, 2, 0, 0, 2)])
    product = products(cp, stream, 'nvfp4')
    product(made)
    made.ranges[0].more = 1                          # planted: the second share one unit further
    with pytest.raises(AssertionError, match='gemv_nvfp4 fetches beyond arrays'):
        product(made)
