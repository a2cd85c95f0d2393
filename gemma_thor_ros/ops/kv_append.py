# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Per-head norms of q, k and v, rope on q and k, and the write of k and v into their pages.

q = rope(rms(q; q_norm)), k = rope(rms(k; k_norm)), v = rms(v) without a weight. Without a v
projection v is the same raw k, before k_norm and rope. Runs after the fused projection of each
layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.rms_norm import inverse_rms
from gemma_thor_ros.ops.rounding import (
    Array,
    KvDtype,
    Rounding,
    e4m3_scale,
    stored,
    stored_by_mlx,
    stored_kv,
)
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.ops.shapes import check


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
                  cos: Array, sin: Array, where: PageRows, eps: float,
                  kv_scales: tuple[Array, Array] | None = None, *, scratch: Scratch,
                  rounding: Rounding = 'none', kv_dtype: KvDtype | None = None) -> None:
    """Write q (T, Q, D) and the rows' K and V pages (P, S, KV, D).

    qkv (T, (Q + KV [+ KV]) D) raw projections; norm_weight (Q + KV, D) is q_norm and k_norm
    repeated per head; cos, sin (T, 1, pairs); kv_scales (KV,) of k and of v, for 'fp8'. 'device'
    rounds q to bf16; k and v are rounded once to kv_dtype (None: bf16 for 'device', else float32).
    """
    kv_dtype = kv_dtype or ('float32' if rounding == 'none' else 'bf16')
    k_scales, v_scales = kv_scales or (None, None)
    num_tokens, num_q_heads, head_dim = q.shape
    num_kv_heads = k_pages.shape[2]
    num_roped = num_q_heads + num_kv_heads
    heads = qkv.reshape(num_tokens, -1, head_dim)
    scale = inverse_rms(heads, eps)[..., None]

    qk = scratch.get('kv_append_qk', num_tokens, num_roped, head_dim)
    np.multiply(heads[:, :num_roped], scale[:, :num_roped], out=qk)
    qk *= norm_weight
    stored_by_mlx(qk, rounding)
    _rotate(qk, cos, sin, scratch)
    q[...] = qk[:, :num_q_heads]
    stored(q, rounding)
    stored_kv(qk[:, num_q_heads:], kv_dtype, k_scales)

    v = scratch.get('kv_append_v', num_tokens, num_kv_heads, head_dim)
    raw = slice(-num_kv_heads, None)
    np.multiply(heads[:, raw], scale[:, raw], out=v)
    stored_kv(v, kv_dtype, v_scales)
    k_pages[where.pages, where.slots] = qk[where.rows, num_q_heads:]
    v_pages[where.pages, where.slots] = v[where.rows]


def norm_rope_ref(heads: Array, weight: Array, cos: Array, sin: Array, eps: float, *,
                  scratch: Scratch) -> Array:
    """rope(rms(heads; weight)) as a new array: heads (T, N, D), weight (D,); never rounded.

    For heads whose K and V take another way than the target's: a drafter's.
    """
    out: Array = heads * inverse_rms(heads, eps)[..., None]
    out *= weight
    _rotate(out, cos, sin, scratch)
    return out


def queries_ref(q: Array, weight: Array, cos: Array, sin: Array, eps: float, *,
                scratch: Scratch, rounding: Rounding = 'none') -> None:
    """q = rope(rms(q; weight)) in place, in a layer that reads another layer's K and V.

    q (T, Q, D) raw projections, weight (D,). 'device' rounds the result to bf16.
    """
    q *= inverse_rms(q, eps)[..., None]
    q *= weight
    stored_by_mlx(q, rounding)
    _rotate(q, cos, sin, scratch)
    stored(q, rounding)


def fp8_scales(k_norm: Array, num_kv_heads: int) -> tuple[Array, Array]:
    """(KV,) scales of k and of v for an FP8 cache, from the weights alone; k_norm (D,).

    A normed head has a 2-norm of at most sqrt(D), a rope keeps it, and k_norm stretches it by at
    most its largest weight: so nothing ever saturates, whatever a page will hold.
    """
    longest = k_norm.size ** 0.5 * 1.001                 # the norm's own rounding
    k_scale = e4m3_scale(longest * float(np.abs(k_norm).max()))
    return np.full(num_kv_heads, k_scale), np.full(num_kv_heads, e4m3_scale(longest))


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


def rope_turns(theta: float, head_dim: int, num_pairs: int) -> npt.NDArray[np.uint64]:
    """(num_pairs,) frequencies for the device: turns per position times 2^64, see rope_table."""
    exponents = range(num_pairs)
    return np.array([int(theta ** (-2.0 * i / head_dim) / (2 * math.pi) * 2.0 ** 64)
                     for i in exponents], np.uint64)


def kv_append(q: Any, k_pages: Any, v_pages: Any, qkv: Any, q_norm: Any, k_norm: Any, turns: Any,
              sequences: Any, positions: Any, page_table: Any, inverse_scales: tuple[Any, Any],
              eps: float, stream: Any) -> None:
    """Enqueue q (T, Q, D) bf16 and the rows' K and V in pages (P, S, KV, D), bf16 or e4m3 (u8).

    qkv (T, (Q + KV [+ KV]) D) bf16; q_norm, k_norm (D,) f32; turns from `rope_turns`; sequences
    (T,) i32 is each row's row of page_table (B, max_pages) i32, -1 for padding; inverse_scales two
    arrays (KV,) f32, read for e4m3 only: what K and V are multiplied by before they are rounded.
    """
    sizes = check('kv_append', q=q, k_pages=k_pages, v_pages=v_pages, qkv=qkv, q_norm=q_norm,
                  k_norm=k_norm, sequences=sequences, positions=positions, page_table=page_table)
    num_heads = sizes['Q'] + 2 * sizes['KV']
    has_v = sizes['N'] == num_heads * sizes['D']
    assert has_v or sizes['N'] == (num_heads - sizes['KV']) * sizes['D'], sizes
    kernel = device.compiled(spec(sizes['D'], sizes['Q'], sizes['KV'], has_v, turns.shape[0],
                                  sizes['S'], k_pages.dtype.itemsize == 1))
    device.launch(kernel, (-(-sizes['T'] * num_heads // 4),), 128,
                  (q, k_pages, v_pages, qkv, q_norm, k_norm, turns, sequences, positions,
                   page_table, *inverse_scales, sizes['T'], sizes['maxP'], float(eps)), stream)


def spec(head_dim: int, num_q_heads: int, num_kv_heads: int, has_v: bool, num_pairs: int,
         page_size: int, fp8: bool) -> KernelSpec:
    """What is compiled for one layer geometry and cache type."""
    assert head_dim in (256, 512) and num_pairs % 8 == 0, (head_dim, num_pairs)
    return KernelSpec.of('kv_append', D=head_dim, Q_HEADS=num_q_heads, KV=num_kv_heads,
                         HAS_V=int(has_v), PAIRS=num_pairs, S=page_size, FP8=int(fp8))


def bytes_moved(num_tokens: int, num_q_heads: int, num_kv_heads: int, head_dim: int,
                element_bytes: int) -> int:
    """The projections read, q, k and v written."""
    return 2 * num_tokens * (num_q_heads + 2 * num_kv_heads) * head_dim * element_bytes
