# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of the vision tower: every patch of an image sees every other one.

Head norms as in the text model (q and k with a weight, v without), then axial rope: the first half
of a head turns with the patch's x, the second with its y, each half by rotate-half inside itself.
The scale is 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.rms_norm import inverse_rms
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.shapes import check

QUERY_TILE = 128                         # rows of one BLAS call: bounds the memory of the scores
# Warps of a block, and groups of 16 queries that a warp reads K and V for at once.
SHAPES = ((4, 1), (4, 2))
_KEYS = 64                               # of a tile


def axial_rope_table(num_patches: int, columns: int, theta: float, head_dim: int,
                     dtype: npt.DTypeLike) -> tuple[Array, Array]:
    """cos and sin (P, 1, 2, D / 4) of each patch's x and y.

    Frequency i is theta^(-2i / (D / 2)). Angles in float64, the results rounded once to dtype.
    """
    half = head_dim // 2
    exponent = np.arange(half // 2, dtype=np.float64) * (-2.0 / half)
    places = np.arange(num_patches)
    where = np.stack([places % columns, places // columns], axis=1).astype(np.float64)
    angles = where[:, None, :, None] * np.power(float(theta), exponent)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def vision_heads_ref(qkv: Array, q_norm: Array, k_norm: Array, cos: Array, sin: Array,
                     num_heads: int, eps: float, rounding: Rounding = 'none') -> None:
    """Norm and turn the heads of qkv (P, 3 N D) in place; q_norm and k_norm (D,).

    'device' rounds the result to bf16.
    """
    heads = qkv.reshape(qkv.shape[0], 3, num_heads, -1)
    heads *= inverse_rms(heads, eps)[..., None]
    for part, weight in ((0, q_norm), (1, k_norm)):
        heads[:, part] *= weight
        axes = heads[:, part].reshape(*heads.shape[:1], num_heads, 2, 2, cos.shape[-1])
        low, high = axes[..., 0, :], axes[..., 1, :]
        turned = high * cos + low * sin
        low *= cos
        low -= high * sin
        high[...] = turned
    stored(qkv, rounding)


def vision_attention_ref(out: Array, qkv: Array, num_heads: int,
                         rounding: Rounding = 'none') -> None:
    """out (P, N D) = softmax(q k^T) v for each head of qkv (P, 3 N D).

    'device' rounds the probabilities to bf16 before they meet V, and the result.
    """
    num_patches = qkv.shape[0]
    heads = qkv.reshape(num_patches, 3, num_heads, -1)
    q, k, v = (np.ascontiguousarray(heads[:, part].transpose(1, 0, 2)) for part in range(3))
    result = out.reshape(num_patches, num_heads, -1)
    for start in range(0, num_patches, QUERY_TILE):
        rows = slice(start, start + QUERY_TILE)
        scores = q[:, rows] @ k.transpose(0, 2, 1)       # (N, R, P)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        if rounding == 'device':         # MLX keeps the probabilities in float32
            stored(scores, rounding)
        total = scores.sum(axis=-1, keepdims=True)
        attended = scores @ v
        attended /= total
        result[rows] = attended.transpose(1, 0, 2)
    stored(out, rounding)


def vision_attention(out: Any, qkv: Any, stream: Any,
                     shape: tuple[int, int] = SHAPES[0]) -> None:
    """Enqueue out (P, N, D) bf16 = attention of qkv (P, 3, N, D) bf16, normed and turned.

    shape: one of SHAPES; it changes no bit.
    """
    sizes = check('vision_attention', out=out, qkv=qkv)
    assert sizes['three'] == 3, sizes
    chosen, (warps, parts) = attention_spec(sizes['N'], sizes['D'], shape), shape
    device.launch(device.compiled(chosen), (-(-sizes['P'] // (16 * warps * parts)), sizes['N']),
                  32 * warps, (out, qkv, sizes['P']), stream, shared_bytes(sizes['D']))


def attention_spec(num_heads: int, head_dim: int,
                   shape: tuple[int, int] = SHAPES[0]) -> KernelSpec:
    """What is compiled for N heads of D numbers."""
    assert head_dim % 8 == 0 and head_dim <= 128, head_dim
    return KernelSpec.of('vision_attention', D=head_dim, HEADS=num_heads, WARPS=shape[0],
                         PARTS=shape[1])


def shared_bytes(head_dim: int) -> int:
    """Dynamic shared memory: two tiles of K and of V, rows padded so that no bank is met twice."""
    return 2 * _KEYS * (32 * (-(-head_dim // 16) | 1) + 16 * (head_dim // 8 | 1))


def vision_heads(qkv: Any, q_norm: Any, k_norm: Any, cos: Any, sin: Any, columns: int, eps: float,
                 stream: Any) -> None:
    """Enqueue norm and rope of qkv (P, 3, N, D) bf16 in place; norms (D,) f32.

    cos, sin (places, D / 4) f32 of each x and y: `axial_rope_table` of so many patches in a row
    has them for x.
    """
    sizes = check('vision_heads', qkv=qkv, q_norm=q_norm, k_norm=k_norm, cos=cos, sin=sin)
    assert sizes['three'] == 3 and sizes['quarter'] * 4 == sizes['D'], sizes
    assert sizes['places'] >= max(columns, -(-sizes['P'] // columns)), (sizes, columns)
    device.launch(device.compiled(heads_spec(sizes['N'], sizes['D'])), (sizes['P'],), 256,
                  (qkv, q_norm, k_norm, cos, sin, int(columns), float(eps)), stream)


def heads_spec(num_heads: int, head_dim: int) -> KernelSpec:
    """What is compiled for N heads of D numbers."""
    assert head_dim % 8 == 0 and head_dim <= 128, head_dim
    return KernelSpec.of('vision_patches', 'vision_heads', D=head_dim, HEADS=num_heads)


def flops(num_patches: int, num_heads: int, head_dim: int) -> int:
    """Multiplications and additions of all pairs of patches."""
    return 4 * num_patches ** 2 * num_heads * head_dim


def bytes_moved(num_patches: int, num_heads: int, head_dim: int, element_bytes: int) -> int:
    """q, k, v and the results."""
    return 4 * num_patches * num_heads * head_dim * element_bytes
