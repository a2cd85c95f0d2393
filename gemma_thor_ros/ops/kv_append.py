# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Per-head norms of q, k and v, rope on q and k, and the write of k and v into their pages.

q = rope(rms(q; q_norm)), k = rope(rms(k; k_norm)), v = rms(v) without a weight. Without a v
projection v is the same raw k, before k_norm and rope. Runs after the fused projection of each
layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops.rms_norm import inverse_rms
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.scratch import Scratch


@dataclass(frozen=True)
class PageRows:
    """Where the real rows of a step go: row rows[i] to slot slots[i] of page pages[i]."""

    rows: npt.NDArray[Any]       # (n,) rows of the step
    pages: npt.NDArray[Any]      # (n,) page ids of one layer geometry
    slots: npt.NDArray[Any]      # (n,)


def rope_table(positions: npt.NDArray[Any], theta: float, head_dim: int, num_pairs: int,
               dtype: npt.DTypeLike) -> tuple[Array, Array]:
    """cos and sin (T, 1, num_pairs) of positions (T,).

    Frequency i is theta^(-2i / head_dim): the exponent runs over the whole head, also where only
    num_pairs < head_dim / 2 pairs rotate. Angles in float64, the results rounded once to dtype.
    """
    exponent = np.arange(num_pairs, dtype=np.float64) * (-2.0 / head_dim)
    angles = positions.astype(np.float64)[:, None, None] * np.power(float(theta), exponent)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def kv_append_ref(q: Array, k_pages: Array, v_pages: Array, qkv: Array, norm_weight: Array,
                  cos: Array, sin: Array, where: PageRows, eps: float, *, scratch: Scratch,
                  rounding: Rounding = 'none') -> None:
    """Write q (T, Q, D) and the rows' K and V pages (P, S, KV, D).

    qkv (T, (Q + KV [+ KV]) D) raw projections; norm_weight (Q + KV, D) is q_norm and k_norm
    repeated per head; cos, sin (T, 1, pairs). 'device' rounds q to bf16 and k, v to the cache
    type.
    """
    num_tokens, num_q_heads, head_dim = q.shape
    num_kv_heads = k_pages.shape[2]
    num_roped = num_q_heads + num_kv_heads
    heads = qkv.reshape(num_tokens, -1, head_dim)
    scale = inverse_rms(heads, eps)[..., None]

    qk = scratch.get('kv_append_qk', num_tokens, num_roped, head_dim)
    np.multiply(heads[:, :num_roped], scale[:, :num_roped], out=qk)
    qk *= norm_weight
    _rotate(qk, cos, sin, scratch)
    stored(qk, rounding)
    q[...] = qk[:, :num_q_heads]

    v = scratch.get('kv_append_v', num_tokens, num_kv_heads, head_dim)
    raw = slice(-num_kv_heads, None)
    np.multiply(heads[:, raw], scale[:, raw], out=v)
    stored(v, rounding)
    k_pages[where.pages, where.slots] = qk[where.rows, num_q_heads:]
    v_pages[where.pages, where.slots] = v[where.rows]


def _rotate(x: Array, cos: Array, sin: Array, scratch: Scratch) -> None:
    """Rotate the pairs (i, i + D / 2), i < num_pairs, of x (T, heads, D) in place."""
    half = x.shape[-1] // 2
    pairs = cos.shape[-1]
    low, high = x[..., :pairs], x[..., half:half + pairs]
    low_sin = scratch.get('rope_low', *low.shape)
    high_sin = scratch.get('rope_high', *low.shape)
    np.multiply(low, sin, out=low_sin)
    np.multiply(high, sin, out=high_sin)
    low *= cos
    low -= high_sin
    high *= cos
    high += low_sin


def bytes_moved(num_tokens: int, num_q_heads: int, num_kv_heads: int, head_dim: int,
                element_bytes: int) -> int:
    """The projections read, q, k and v written."""
    return 2 * num_tokens * (num_q_heads + 2 * num_kv_heads) * head_dim * element_bytes
