# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of one row of one sequence in a window, as one launch of clusters.

Its bits are those of attention_decode.py, which calls this where it serves; twin: attention.py.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec

_CHUNK = 64                              # keys, as in kernels/attention_chunks.cuh
CLUSTER, SLOTS = 8, 2                    # blocks of a kv head, and chunks of each


def serves(head_dim: int, group: int, window: int | None) -> bool:
    """Whether there is a kernel for these layers; on devices that have clusters."""
    return (head_dim == 256 and group == 2 and window is not None and window % _CHUNK == 0
            and window <= CLUSTER * SLOTS * _CHUNK)


def attention_window(out: Any, q: Any, pages: tuple[Any, Any], scales: tuple[Any, Any],
                     spans: Any, page_table: Any, window: int, stream: Any) -> None:
    """Enqueue out (1, Q, D) bf16; arguments as of attention_decode, of one row."""
    num_kv_heads, page_size = pages[0].shape[2], pages[0].shape[1]
    kernel = device.compiled(spec(q.shape[2], q.shape[1] // num_kv_heads, num_kv_heads, page_size,
                                  window, pages[0].dtype.itemsize == 1))
    blocks = num_kv_heads * dict(kernel.spec.defines)['CLUSTER']
    device.launch(kernel, (blocks,), 256, (out, q, *pages, *scales, spans, page_table), stream)


def spec(head_dim: int, group: int, num_kv_heads: int, page_size: int, window: int, fp8: bool,
         **override: int) -> KernelSpec:
    """What is compiled for one layer geometry and cache type."""
    assert serves(head_dim, group, window), (head_dim, group, window)
    assert page_size % 16 == 0, f'page_size is {page_size}: multiples of 16 are supported'
    constants = {'D': head_dim, 'GROUP': group, 'KV': num_kv_heads, 'S': page_size,
                 'WINDOW': window, 'FP8': int(fp8), 'CLUSTER': CLUSTER, 'SLOTS': SLOTS,
                 'MIN_BLOCKS': 1 if SLOTS > 1 else 2}
    return KernelSpec.of('attention_window', **constants | override)
