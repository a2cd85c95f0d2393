# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of a DFlash block over its context in pages and over itself; twin: attention.py.

Drafts decide no token, so that nothing here need be row-invariant. Called once per draft layer,
after draft_heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.shapes import check

CHUNKS = 32                              # parts of the keys that run side by side
_TILE = 64                               # keys


@dataclass(frozen=True)
class DraftScratch:
    """Partial results: (T, Q, CHUNKS, D) and (T, Q, CHUNKS, 2) f32. Layers share it."""

    partial: Any
    partial_ml: Any

    @classmethod
    def make(cls, zeros: Callable[..., Any], num_rows: int, num_q_heads: int,
             head_dim: int) -> DraftScratch:
        """Room for so many rows."""
        shape = (num_rows, num_q_heads, CHUNKS)
        return cls(zeros((*shape, head_dim), np.float32), zeros((*shape, 2), np.float32))


def draft_attention(out: Any, qkv: Any, k_pages: Any, v_pages: Any, scratch: DraftScratch,
                    page_table: Any, starts: Any, window: int | None, causal: bool,
                    stream: Any) -> None:
    """Enqueue out (T, Q, D) bf16 from qkv (T, (Q + 2 KV) D) bf16, T / B rows of each sequence.

    k_pages, v_pages (P, S, KV, D) bf16 hold the context: positions below starts (B,) i32.
    causal: a row sees no later one of its block; window: keys that it sees, itself included.
    """
    sizes = check('draft_attention', out=out, qkv=qkv, k_pages=k_pages, v_pages=v_pages,
                  page_table=page_table, starts=starts)
    heads, head_dim, block = sizes['Q'], sizes['D'], sizes['T'] // sizes['B']
    group = heads // sizes['KV']
    assert sizes['N'] == (heads + 2 * sizes['KV']) * head_dim, sizes
    assert scratch.partial.shape[0] >= sizes['T'], (scratch.partial.shape, sizes)
    attention, combine = (spec(entry, head_dim, sizes['KV'], group, block, sizes['S'], window,
                               causal) for entry in ('draft_attention', 'draft_attention_combine'))
    device.launch(device.compiled(attention), (CHUNKS, sizes['KV'], sizes['B']),
                  -(-block * group // 16) * 32,
                  (scratch.partial, scratch.partial_ml, qkv, k_pages, v_pages, page_table, starts,
                   sizes['maxP']), stream, shared_bytes(head_dim))
    device.launch(device.compiled(combine), (-(-sizes['T'] * heads // 4),), 128,
                  (out, scratch.partial, scratch.partial_ml, starts, sizes['T']), stream)


def shared_bytes(head_dim: int) -> int:
    """Dynamic shared memory: a tile of K and of V."""
    return 2 * _TILE * (2 * head_dim + 40)


def spec(entry: str, head_dim: int, num_kv_heads: int, group: int, block: int, page_size: int,
         window: int | None, causal: bool) -> KernelSpec:
    """What is compiled for one kind of draft layer."""
    assert head_dim % 16 == 0 and head_dim <= 128, head_dim
    assert 1 <= group <= 8 and 1 <= block <= 16, (group, block)
    return KernelSpec.of('draft_attention', entry, D=head_dim, KV=num_kv_heads, GROUP=group,
                         BLOCK=block, S=page_size, WINDOW=window or 0, CAUSAL=int(causal),
                         CHUNKS=CHUNKS)


def bytes_moved(num_keys: int, num_tokens: int, num_q_heads: int, num_kv_heads: int,
                head_dim: int) -> int:
    """K and V of the visible keys once; queries and results."""
    return 4 * head_dim * (num_keys * num_kv_heads + num_tokens * num_q_heads)
