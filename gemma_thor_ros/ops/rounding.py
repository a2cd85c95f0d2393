# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Rounding of activations and of K and V to the types that a CUDA device stores.

The twins call `stored` wherever the device writes a number to memory in a narrower type than it
computes in, and `stored_kv` for the cache: docs/numerics.md lists these points. Knows no op.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# 'device': where a CUDA device of ours stores bf16; 'mlx': where MLX does, for affine packs
Rounding = Literal['none', 'device', 'mlx']
KvDtype = Literal['float32', 'bf16', 'fp8']

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
    return x if rounding == 'none' else round_to_bf16(x)


def stored_by_mlx(x: Array, rounding: Rounding) -> Array:
    """The same for what MLX keeps in bf16 and a CUDA device in float32: the residual, logits."""
    return round_to_bf16(x) if rounding == 'mlx' else x


E4M3_MAX = 448.0


def round_to_e4m3(x: Array) -> Array:
    """Round to the nearest e4m3 number, ties to even, in place; gives x back.

    Any shape, float32 or float64. Beyond 448 it saturates, as the device's conversion does; NaN
    stays NaN.
    """
    _, exponent = np.frexp(x)
    # a number in [2^e, 2^(e + 1)) has steps of 2^(e - 3), subnormals of 2^-9; frexp gives e + 1
    step = np.ldexp(x.dtype.type(1.0), np.maximum(exponent - 4, -9))
    x /= step
    np.rint(x, out=x)
    x *= step
    np.clip(x, -E4M3_MAX, E4M3_MAX, out=x)
    return x


def e4m3_scale(largest: float) -> float:
    """The least power of two that brings numbers up to `largest` into e4m3's range.

    A power of two changes no bit of a number but its exponent, so that applying it early, late or
    to a score gives the same result.
    """
    return 2.0 ** math.ceil(math.log2(max(largest, 2.0 ** -100) / E4M3_MAX))


def stored_kv(x: Array, kv_dtype: KvDtype, scales: Array | None) -> Array:
    """What a KV page holds after x (T, KV, D) was written to it, as a number; rounds x in place.

    scales (KV,) are powers of two, read for 'fp8' alone: the page holds e4m3 of x / scale.
    """
    if kv_dtype == 'bf16':
        return round_to_bf16(x)
    if kv_dtype == 'fp8':
        assert scales is not None, 'an FP8 cache needs scales'
        x *= (1.0 / scales).astype(x.dtype)[:, None]
        round_to_e4m3(x)
        x *= scales.astype(x.dtype)[:, None]
    return x
