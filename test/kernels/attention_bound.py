# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 with the kernels' declared roundings, and what float64 leaves open of them.

A kernel takes the keys in tiles; a tile's probabilities are relative to the largest score that its
chain of tiles has met, are rounded, and their rounded values make the sum and the result. The
kernel's scores are float32 sums, so a probability may lie on the other side of a tie there than
here: `attend` counts those and says how much they can change. Knows no kernel and no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from machine import Array

_LOWEST = -1e30                          # a tile without a visible key
_EXP2 = 2.0 ** -22                       # relative error of the device's fast exp2
_F32 = 2.0 ** -24                        # half a step of a number in 1 .. 2


@dataclass(frozen=True)
class Kernel:
    """Where one kernel cuts the keys, and how it rounds.

    chains: of every tile, ascending, the number of the chain that it belongs to. bits: of a
    probability's significand, 11 of f16 and 8 of bf16. sums: a score's error in units of 2^-24 of
    the sum of its |terms|.
    """

    tile: int
    chains: tuple[int, ...]
    bits: int
    sums: float


@dataclass(frozen=True)
class Bound:
    """What a kernel's row may be: exact (R, D), but for `slack` (R, D); terms (R, D) = sum |p v|.

    plain (R, D): without any rounding of probabilities. num_open of num_rounded probabilities lie
    so near to a tie that the kernel may round them to either side.
    """

    exact: Array
    slack: Array
    terms: Array
    plain: Array
    num_open: int
    num_rounded: int


def attend(q: Array, k: Array, v: Array, seen: Array, kernel: Kernel) -> Bound:
    """Rows q (R, D) on keys k and v (C, D) of one kv head, C a multiple of the tile.

    seen (R, C): which keys a row sees, one at least; the others are finite.
    """
    num_rows, tiles = q.shape[0], len(kernel.chains)
    scores = q @ k.T
    sizes = np.abs(q) @ np.abs(k).T      # of the scores' terms
    scores[~seen] = -np.inf
    tops = running_maxima(scores.reshape(num_rows, tiles, kernel.tile).max(-1), kernel.chains)
    top = tops.max(1, keepdims=True)
    shares = scores.reshape(num_rows, tiles, kernel.tile) - tops[:, :, None]
    np.exp(shares, out=shares)           # relative to the maximum so far
    weights = np.exp(tops - top)[:, :, None]
    plain = (shares * weights).reshape(scores.shape)
    step, rounded, gap = rounding(shares, kernel.bits)
    # of a score, of its maximum, and of the exponent between them
    sizes += np.where(seen, sizes, 0).max(1, keepdims=True)
    sizes *= kernel.sums
    sizes += 2 * (np.abs(np.where(seen, scores, 0)) + np.abs(top))
    sizes += 15 if kernel.bits == 11 else 0
    sizes *= _F32
    sizes += _EXP2
    is_open = (gap <= sizes.reshape(gap.shape) * shares) & (shares > 0)
    rounded *= weights
    step *= weights
    step[~is_open] = 0
    rounded, step = (part.reshape(scores.shape) for part in (rounded, step))
    total = rounded.sum(1, keepdims=True)
    exact = rounded @ v / total
    # a step more or less of one probability moves the sum of p v and the sum of p
    most = step.sum(1, keepdims=True)
    slack = (step @ np.abs(v) + np.abs(exact) * most) / (total - most)
    terms = rounded @ np.abs(v) / total
    return Bound(exact, slack, terms, plain @ v / plain.sum(1, keepdims=True),
                 int(is_open.sum()), int(seen.sum()))


def running_maxima(tops: Array, chains: Sequence[int]) -> Array:
    """(R, tiles) maxima of tiles -> of the tiles of the same chain up to each."""
    found = np.maximum(tops, _LOWEST)
    order = np.asarray(chains)
    for chain in np.unique(order):
        own = np.flatnonzero(order == chain)
        if own.size > 1:
            found[:, own] = np.maximum.accumulate(found[:, own], axis=1)
    return found


def rounding(shares: Array, bits: int) -> tuple[Array, Array, Array]:
    """Step, nearest number (ties to even) and distance to the next tie of shares of 0 .. 1.

    f16 holds them times 2^15, so that its subnormal numbers begin below 2^-29.
    """
    exponent = np.frexp(shares)[1]
    if bits == 11:
        np.maximum(exponent, -28, out=exponent)
    step = np.ldexp(1.0, exponent - bits)
    shares = shares / step
    nearest = np.rint(shares)
    gap = (0.5 - np.abs(shares - nearest)) * step
    nearest *= step
    return step, nearest, gap
