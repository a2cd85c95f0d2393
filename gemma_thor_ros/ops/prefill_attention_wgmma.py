# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of prompt rows by a warpgroup's matrix products, on sm_90; twin: attention.py.

Takes the place of prefill_attention.cu where it serves, for every prompt row: its tiles are
others, so a row's bits are others too.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.shapes import check

QUERIES = 64                             # of a block
TILE = 128                               # keys
_THREADS = 256
_SHARED_BYTES = (
    QUERIES * 512 * 2 + QUERIES * TILE * 2       # queries, probabilities
    + 8 * 4 * 4096                       # rings of slices of K and V
    + 8 * QUERIES * 4 + 2 * QUERIES * 4)         # the warps' maxima, keys that are seen


def serves(head_dim: int, arch: str) -> bool:
    """Whether prompt rows of such layers are this kernel's."""
    return head_dim == 512 and arch == 'sm_90a'


def prefill_attention_wgmma(
        out: Any, q: Any, k_pages: Any, v_pages: Any, spans: Any, page_table: Any,
        scales: tuple[Any, Any], window: int | None, max_rows: int, stream: Any,
        blocks: Any = None, whole_blocks: bool = False) -> None:
    """Enqueue out (T, Q, D) bf16 = attention of q (T, Q, D) bf16 over the pages of its sequence.

    Arguments: prefill_attention.prefill_attention.
    """
    sizes = check('attention_decode', out=out, q=q, k_pages=k_pages, v_pages=v_pages, spans=spans,
                  page_table=page_table)
    assert sizes['four'] == 4 and max_rows > 0, (sizes, max_rows)
    group = sizes['Q'] // sizes['KV']
    chosen = spec(sizes['D'], group, sizes['KV'], sizes['S'], window,
                  k_pages.dtype.itemsize == 1, 0 if blocks is None else 1 + whole_blocks)
    if blocks is None:
        blocks = spans                   # nobody reads it
    else:
        check('attention_blocks', {'T': sizes['T']}, blocks=blocks)
    groups = -(-max_rows * group // QUERIES)
    device.launch(device.compiled(chosen), (groups * sizes['KV'], sizes['B']), _THREADS,
                  (out, q, k_pages, v_pages, *scales, spans, page_table, blocks, sizes['maxP']),
                  stream, _SHARED_BYTES)


def spec(head_dim: int, group: int, num_kv_heads: int, page_size: int, window: int | None,
         fp8: bool, blocks: int = 0) -> KernelSpec:
    """What is compiled for one layer geometry and cache type.

    blocks: 0 without images, 1 where rows see their image to its end, 2 the whole of it.
    """
    assert head_dim == 512, f'head_dim is {head_dim}: 512 is supported'
    assert page_size % 16 == 0, f'page_size is {page_size}: multiples of 16 are supported'
    assert 1 <= group <= 16, f'{group} query heads per kv head: 1 to 16 are supported'
    return KernelSpec.of('prefill_attention_wgmma', D=head_dim, GROUP=group, KV=num_kv_heads,
                         S=page_size, WINDOW=window or 0, FP8=int(fp8), BLOCKS=blocks)
