# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Rounding of activations to the types that a CUDA device stores.

The twins call `stored` wherever the device writes a number to memory in a narrower type than it
computes in: docs/numerics.md lists these points. Knows no op.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rounding = Literal['none', 'device']

# dtype -> (integer view, bits that bf16 drops): fractions have 52, 23 and 7 bits.
_DROPPED: dict[Any, tuple[Any, int]] = {
    np.dtype(np.float32): (np.uint32, 16),
    np.dtype(np.float64): (np.uint64, 45),
}


def round_to_bf16(x: Array) -> Array:
    """Round to the nearest bf16, ties to even, in place; gives x back.

    Any shape, C-contiguous float32 or float64. Exact for normal numbers and zeros; numbers under
    2^-126 are rounded as if bf16 had no subnormals. NaN stays NaN unless its payload is all ones.
    """
    integer, dropped = _DROPPED[x.dtype]
    bits = x.view(integer)
    half = integer((1 << (dropped - 1)) - 1)
    last = bits >> integer(dropped)
    last &= integer(1)
    last += half
    bits += last
    bits &= integer(~((1 << dropped) - 1) & (2 ** (8 * x.itemsize) - 1))
    return x


def stored(x: Array, rounding: Rounding) -> Array:
    """What memory holds after x was written to it: x itself, or x rounded to bf16 in place."""
    return round_to_bf16(x) if rounding == 'device' else x
