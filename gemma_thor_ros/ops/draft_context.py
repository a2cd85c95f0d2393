# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""K and V that a DFlash drafter keeps of a target's rows, into pages beside the target's own.

All its layers of one type at once; twin: kv_append.norm_rope_ref and a write. Called behind every
step of the target.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.shapes import check


def draft_context(k_pages: Any, v_pages: Any, kv: Any, k_norms: Any, turns: Any, sequences: Any,
                  positions: Any, page_table: Any, column: int, eps: float, stream: Any) -> None:
    """Enqueue the rows' K and V in pages (L, P, S, KV, D) bf16.

    kv (T, N) bf16: KV heads of k, then KV of v, layer by layer, from `column` on; k_norms (L, D)
    f32; turns from kv_append.rope_turns; sequences (T,) i32 is each row's row of page_table
    (B, max_pages) i32, -1 for padding.
    """
    sizes = check('draft_context', k_pages=k_pages, v_pages=v_pages, kv=kv, k_norms=k_norms,
                  sequences=sequences, positions=positions, page_table=page_table)
    layers, heads = sizes['L'], 2 * sizes['KV']
    assert column + layers * heads * sizes['D'] <= sizes['N'] and column % 8 == 0, sizes
    kernel = device.compiled(spec(sizes['D'], turns.shape[0], sizes['KV'], sizes['S']))
    device.launch(kernel, (-(-sizes['T'] * layers * heads // 4),), 128,
                  (k_pages, v_pages, kv, k_norms, turns, sequences, positions, page_table,
                   sizes['T'], layers, sizes['P'], sizes['N'], column, sizes['maxP'],
                   float(eps)), stream)


def spec(head_dim: int, num_pairs: int, num_kv_heads: int, page_size: int) -> KernelSpec:
    """What is compiled for one drafter."""
    assert head_dim % 8 == 0 and head_dim <= 512, head_dim
    return KernelSpec.of('draft_context', D=head_dim, PAIRS=num_pairs, KV=num_kv_heads,
                         S=page_size)


def bytes_moved(num_tokens: int, num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """K and V read and written."""
    return 8 * num_tokens * num_layers * num_kv_heads * head_dim
