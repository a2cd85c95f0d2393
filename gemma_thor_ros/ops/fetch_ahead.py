# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What a launch asks the L2 cache to fetch for later ones: see kernels/fetch_ahead.cuh.

Knows arrays and row tiles, no op and no order of launches (fetch_plan.py has those).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

MOST_RANGES = 12


class Range(NamedTuple):
    """Some row tiles of an array: see FetchRange in fetch_ahead.cuh."""

    array: Any
    unit: int                            # bytes of a row tile
    shares: int
    each: int
    more: int
    skipped: int
    tiles: int

    @property
    def nbytes(self) -> int:
        """Bytes that are asked for."""
        return self.shares * self.tiles * self.unit


class _FetchRange(ctypes.Structure):
    _fields_ = (('start', ctypes.c_void_p), ('unit', ctypes.c_uint32), ('shares', ctypes.c_int),
                ('each', ctypes.c_int), ('more', ctypes.c_int), ('skipped', ctypes.c_int),
                ('count', ctypes.c_int))


class FetchAhead(ctypes.Structure):
    """The argument, by value; `arrays` are what its ranges lie in."""

    _fields_ = (('ranges', _FetchRange * MOST_RANGES), ('num_ranges', ctypes.c_int),
                ('early', ctypes.c_int))
    arrays: tuple[Any, ...] = ()


def fetch_ahead(ranges: Iterable[Range], early: int = 0) -> FetchAhead:
    """The argument for these ranges, in their order; as many as there is room for.

    early: how many row tiles before its end a product of one row asks for them.
    """
    chosen = [one for one in ranges if one.nbytes][:MOST_RANGES]
    made = FetchAhead(num_ranges=len(chosen), early=early)
    for place, one in zip(made.ranges, chosen, strict=False):
        last = (one.shares - 1) * one.each + min(one.shares - 1, one.more) + one.skipped
        assert one.unit % 16 == 0, one.unit
        assert (last + one.tiles) * one.unit <= one.array.nbytes, (one[1:], one.array.nbytes)
        place.start = _address(one.array)
        place.unit, place.shares, place.each = one.unit, one.shares, one.each
        place.more, place.skipped, place.count = one.more, one.skipped, one.tiles
    made.arrays = tuple(one.array for one in chosen)
    return made


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


NOTHING = FetchAhead()
