# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which weights the products of a layer fetch into the L2 cache for later ones, and how much.

A product reads its own weights as fast as the memory gives them; behind qkv's come attention,
norms and the router, which read next to nothing, and each launch's end and start. What is fetched
then is what the coming launches would read first. Knows matrices and their row tiles, no array of
activations and no launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gemma_thor_ros.ops import device, gemm_affine, gemm_nvfp4, gemv
from gemma_thor_ros.ops.affine_order import AffineFragments, AffineStack, tile_scales
from gemma_thor_ros.ops.compile import KernelSpec, arch_number
from gemma_thor_ros.ops.fetch_ahead import FetchAhead, Range, fetch_ahead
from gemma_thor_ros.ops.fragment_order import Nvfp4Fragments

PLACES = ('qkv', 'o', 'gate_up', 'down')
_MB = 10**6
_MULTIPROCESSORS = 132                   # of the device that amounts were chosen on (bench/LOG.md)


@dataclass(frozen=True)
class FetchPlan:
    """Bytes that each product of a layer asks for, at most.

    early: how many row tiles before its end a product of one row asks.
    """

    qkv: int = 0
    o: int = 0
    gate_up: int = 0
    down: int = 0
    early: int = 0


class _Slice(NamedTuple):
    """Some row tiles of each share of a weight's arrays; (array, bytes of a row tile) each."""

    arrays: tuple[tuple[Any, int], ...]
    shares: int
    each: int
    more: int
    skipped: int
    tiles: int

    @property
    def unit(self) -> int:
        """Bytes of a row tile, of all arrays."""
        return sum(unit for _, unit in self.arrays)

    @property
    def nbytes(self) -> int:
        return self.shares * self.tiles * self.unit


def default_plan() -> FetchPlan:
    """What this device fetches: by its multiprocessors, and at most half of its L2 cache."""
    info = device.info()
    if arch_number(info.arch) < 90:
        return FetchPlan()

    def amount(megabytes: int) -> int:
        return min(megabytes * _MB * info.num_multiprocessors // _MULTIPROCESSORS,
                   info.l2_bytes // 2)

    return FetchPlan(qkv=amount(18))


def coming(plan: FetchPlan, place: str, own: Any, weights: Sequence[Any],
           single: bool) -> FetchAhead:
    """What the launch of the product with `own` asks for.

    weights: the matrices that are read next, in order. single: by products of one row, each of
    which is shared out as gemv.py says; else each from its beginning to its end.
    """
    taken = 0
    if place == 'o':                     # qkv's launch has asked for all of o, and what follows
        taken = max(0, plan.qkv - nbytes(own))
    wanted = taken + int(getattr(plan, place))
    ranges: list[Range] = []
    for part in (part for weight in weights for part in _slices(weight, single)):
        if wanted <= 0:
            break
        first = min(taken, part.nbytes)
        ranges += _ranges(part, first, min(wanted, part.nbytes))
        taken, wanted = taken - first, wanted - part.nbytes
    return fetch_ahead(ranges, plan.early)


def nbytes(weight: Any) -> int:
    """Bytes of a weight's arrays."""
    return sum(part.nbytes for part in _slices(weight, False))


def _ranges(part: _Slice, begin: int, end: int) -> Iterator[Range]:
    """The row tiles of a slice from byte `begin` to byte `end`, each share's first ones first."""
    (row, share), (last, end_share) = (divmod(at // part.unit, part.shares)
                                       for at in (begin, end))
    if row < last and share:
        yield from _part(part, row, 1, share, part.shares)
        row, share = row + 1, 0
    if row < last:
        yield from _part(part, row, last - row, 0, part.shares)
        row, share = last, 0
    if share < end_share:
        yield from _part(part, row, 1, share, end_share)


def _part(part: _Slice, row: int, rows: int, share: int, end_share: int) -> Iterator[Range]:
    """Some row tiles of some shares."""
    start = part.skipped + row + share * part.each + min(share, part.more)
    for array, unit in part.arrays:
        yield Range(array, unit, end_share - share, part.each, max(0, part.more - share), start,
                    rows)


def _slices(weight: Any, single: bool) -> Iterator[_Slice]:
    """A weight's row tiles in the order in which they should come."""
    if isinstance(weight, AffineStack):
        for one in weight.parts:
            yield from _slices(one, single)
        return
    if not isinstance(weight, Nvfp4Fragments | AffineFragments):     # bf16: rows
        yield _Slice(((weight, weight.nbytes // weight.shape[0]),), weight.shape[0], 1, 0, 0, 1)
        return
    arrays, tiles = _arrays(weight), weight.num_row_tiles
    spec = _single_spec(weight) if single else None
    if spec is None:
        yield _Slice(arrays, tiles, 1, 0, 0, 1)
        return
    blocks, each, more = gemv.share(tiles, device.info().num_multiprocessors,
                                    dict(spec.defines)['MIN_BLOCKS'])
    if more:                             # what some blocks have beyond the others comes first
        yield _Slice(arrays, more, each, more, each, 1)
    yield _Slice(arrays, blocks, each, more, 0, each)


def _arrays(weight: Nvfp4Fragments | AffineFragments) -> tuple[tuple[Any, int], ...]:
    if isinstance(weight, Nvfp4Fragments):
        return (weight.codes, weight.column_tiles * 512), (weight.scales, weight.column_tiles * 64)
    tiles = -(-weight.columns // 64)
    return ((weight.words, tiles * 128 * weight.bits),
            (weight.scales, 4 * tile_scales(weight.columns, weight.group_size)))


def _single_spec(weight: Nvfp4Fragments | AffineFragments) -> KernelSpec | None:
    limit = device.info().shared_bytes_per_block
    if isinstance(weight, Nvfp4Fragments):
        return gemm_nvfp4.single_spec(weight.columns, weight.interleaved,
                                      device.has_e2m1_conversion(), weight.num_row_tiles, limit)
    return gemm_affine.single_spec(weight.columns, weight.bits, weight.group_size,
                                   'geglu' if weight.interleaved else 'plain', limit,
                                   num_row_tiles=weight.num_row_tiles)
