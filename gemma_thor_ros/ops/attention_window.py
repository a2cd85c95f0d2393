# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of one row of one sequence in a window, as one launch of clusters.

Its bits are those of attention_decode.py, which calls this where it serves; twin: attention.py.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec

_CHUNK, _RING = 64, 16                   # keys, and chunks that a cluster has
_THREADS = 256
# With more kv heads the blocks leave no room for the launches beside them: 100 us of a step of the
# 31B, which has 16 (bench/LOG.md).
_MOST_KV_HEADS = 8
# Blocks of a cluster. Sixteen with a chunk each are up to 8 us of a step faster than eight with
# two (2026-11-30, H200), but not all devices have room for them in one place.
CLUSTERS = (16, 8)


def serves(head_dim: int, group: int, num_kv_heads: int, window: int | None) -> bool:
    """Whether there is a kernel for these layers; on devices that have clusters."""
    return (head_dim == 256 and group == 2 and num_kv_heads <= _MOST_KV_HEADS
            and window is not None and window % _CHUNK == 0 and window <= _RING * _CHUNK)


def attention_window(out: Any, q: Any, pages: tuple[Any, Any], scales: tuple[Any, Any],
                     spans: Any, page_table: Any, window: int, stream: Any) -> None:
    """Enqueue out (1, Q, D) bf16; arguments as of attention_decode, of one row."""
    num_kv_heads, page_size = pages[0].shape[2], pages[0].shape[1]
    sizes = (q.shape[2], q.shape[1] // num_kv_heads, num_kv_heads, page_size, window,
             pages[0].dtype.itemsize == 1)
    for cluster in CLUSTERS:
        kernel = device.compiled(spec(*sizes, cluster))
        room = device.clusters_at_once(kernel, cluster, _THREADS, 0)
        if room >= num_kv_heads or cluster == CLUSTERS[-1]:
            break
    device.launch(kernel, (num_kv_heads * cluster,), _THREADS,
                  (out, q, *pages, *scales, spans, page_table), stream)


def spec(head_dim: int, group: int, num_kv_heads: int, page_size: int, window: int, fp8: bool,
         cluster: int, **override: int) -> KernelSpec:
    """What is compiled for one layer geometry and cache type."""
    assert serves(head_dim, group, num_kv_heads, window), (head_dim, group, num_kv_heads, window)
    assert page_size % 16 == 0, f'page_size is {page_size}: multiples of 16 are supported'
    constants = {'D': head_dim, 'GROUP': group, 'KV': num_kv_heads, 'S': page_size,
                 'WINDOW': window, 'FP8': int(fp8), 'CLUSTER': cluster, 'SLOTS': _RING // cluster,
                 'MIN_BLOCKS': 2 if cluster == _RING else 1}
    return KernelSpec.of('attention_window', **constants | override)


def specs(head_dim: int, group: int, num_kv_heads: int, page_size: int, window: int | None,
          fp8: bool) -> list[KernelSpec]:
    """What `attention_window` launches, with and without room for the larger clusters."""
    if window is None or not serves(head_dim, group, num_kv_heads, window):
        return []
    return [spec(head_dim, group, num_kv_heads, page_size, window, fp8, cluster)
            for cluster in CLUSTERS]
