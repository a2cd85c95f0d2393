# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""q and k of a draft's rows, normed, turned and scaled in place; twin: kv_append.norm_rope_ref.

Called once per draft layer, after its fused projection; an assistant's layers have q alone.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.shapes import check


def draft_heads(heads: Any, q_norm: Any, k_norm: Any, turns: Any, starts: Any, *,
                num_q_heads: int, num_k_heads: int, offset: int, eps: float, q_scale: float,
                stream: Any) -> None:
    """Enqueue the change of heads (T, N) bf16: q heads, k heads, then what stays as it is.

    q_norm, k_norm (D,) f32 (k_norm is not read without k heads); turns from kv_append.rope_turns;
    starts (B,) i32: row t of T / B rows a sequence stands at starts[t / rows] + t % rows + offset.
    """
    sizes = check('draft_heads', heads=heads, q_norm=q_norm, k_norm=k_norm, starts=starts)
    head_dim, num_tokens = sizes['D'], sizes['T']
    assert sizes['N'] % head_dim == 0 and num_tokens % sizes['B'] == 0, sizes
    chosen = spec(head_dim, num_q_heads, num_k_heads, sizes['N'] // head_dim, turns.shape[0])
    warps = num_tokens * (num_q_heads + num_k_heads)
    device.launch(device.compiled(chosen), (-(-warps // 4),), 128,
                  (heads, q_norm, k_norm, turns, starts, num_tokens, num_tokens // sizes['B'],
                   offset, float(eps), float(q_scale)), stream)


def spec(head_dim: int, num_q_heads: int, num_k_heads: int, row_heads: int,
         num_pairs: int) -> KernelSpec:
    """What is compiled for one kind of draft layer."""
    assert head_dim % 8 == 0 and head_dim <= 512, head_dim
    assert num_pairs <= head_dim // 2, (num_pairs, head_dim)
    return KernelSpec.of('draft_heads', D=head_dim, Q_HEADS=num_q_heads, K_HEADS=num_k_heads,
                         ROW_HEADS=row_heads, PAIRS=num_pairs)


def bytes_moved(num_tokens: int, num_heads: int, head_dim: int) -> int:
    """Heads read and written."""
    return 4 * num_tokens * num_heads * head_dim
