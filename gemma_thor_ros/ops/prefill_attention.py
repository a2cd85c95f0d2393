# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of prompt rows over pages, on the device; twin: attention.py.

Called once per layer, after kv_append. Keys are taken in tiles at absolute positions, so neither
the cut of a prompt into chunks nor other rows reach a row's bits.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.shapes import check

# (groups of 16 queries, keys of a tile) of a block, the best first; at most 32 keys of 32 queries
# are a warp's, and bf16 keys take twice the room
_BLOCKS = {(256, True): ((8, 64), (4, 64)), (256, False): ((8, 64), (4, 32)),
           (512, True): ((4, 128), (4, 64), (2, 32)), (512, False): ((4, 64), (4, 32), (2, 32))}


def prefill_attention(out: Any, q: Any, k_pages: Any, v_pages: Any, spans: Any, page_table: Any,
                      scales: tuple[Any, Any], window: int | None, max_rows: int, stream: Any,
                      blocks: Any = None, whole_blocks: bool = False,
                      block: tuple[int, int] | None = None) -> None:
    """Enqueue out (T, Q, D) bf16 = attention of q (T, Q, D) bf16 over the pages of its sequence.

    k_pages, v_pages (P, S, KV, D) bf16, or e4m3 (u8) times scales, two arrays (KV,) f32; spans
    (B, 4) i32 {first row, rows, position of the first row, sees_block} on the device, of at most
    max_rows rows each (any number); page_table (B, max_pages) i32. sees_block != 0: rows also see
    the span's later rows. Rows of no span stay as they are.
    blocks (T, 2) i32: [first, end) positions of the image that a row belongs to, or of the row
    alone; rows see to its end, with whole_blocks from its first on too.
    block: as block_of says where it is not given; its first number changes no bit.
    """
    sizes = check('attention_decode', out=out, q=q, k_pages=k_pages, v_pages=v_pages, spans=spans,
                  page_table=page_table)
    assert sizes['four'] == 4 and max_rows > 0, (sizes, max_rows)
    fp8, group = k_pages.dtype.itemsize == 1, sizes['Q'] // sizes['KV']
    block = block or block_of(sizes['D'], fp8, device.info().shared_bytes_per_block)
    chosen = spec(sizes['D'], group, sizes['KV'], sizes['S'], window, fp8, block,
                  0 if blocks is None else 1 + whole_blocks)
    if blocks is None:
        blocks = spans                   # nobody reads it
    else:
        check('attention_blocks', {'T': sizes['T']}, blocks=blocks)
    groups = -(-max_rows * group // (16 * block[0]))
    device.launch(device.compiled(chosen), (groups, sizes['KV'], sizes['B']),
                  32 * block[0] * sizes['D'] // 256,
                  (out, q, k_pages, v_pages, *scales, spans, page_table, blocks, sizes['maxP']),
                  stream, shared_bytes(sizes['D'], fp8, block))


def block_of(head_dim: int, fp8: bool, shared_limit: int) -> tuple[int, int]:
    """(groups of 16 queries, keys of a tile) of a block in so many bytes of shared memory."""
    blocks = _BLOCKS[head_dim, fp8]
    return next((block for block in blocks if shared_bytes(head_dim, fp8, block) <= shared_limit),
                blocks[-1])


def shared_bytes(head_dim: int, fp8: bool, block: tuple[int, int]) -> int:
    """Dynamic shared memory: queries, a tile of K and of V, and what the warps exchange."""
    queries, tile = 16 * block[0], block[1]
    exchanged = queries * (tile * 2 + (head_dim // 128 + 1) * 4)
    return queries * head_dim * 2 + 2 * tile * head_dim * (1 if fp8 else 2) + exchanged


def spec(head_dim: int, group: int, num_kv_heads: int, page_size: int, window: int | None,
         fp8: bool, block: tuple[int, int], blocks: int = 0) -> KernelSpec:
    """What is compiled for one layer geometry, cache type and size of a block.

    blocks: 0 without images, 1 where rows see their image to its end, 2 the whole of it.
    """
    assert head_dim in (256, 512), f'head_dim is {head_dim}: 256 and 512 are supported'
    assert page_size % 16 == 0, f'page_size is {page_size}: multiples of 16 are supported'
    assert 1 <= group <= 16, f'{group} query heads per kv head: 1 to 16 are supported'
    return KernelSpec.of('prefill_attention', D=head_dim, GROUP=group, KV=num_kv_heads,
                         S=page_size, WINDOW=window or 0, FP8=int(fp8), QUERY_WARPS=block[0],
                         TILE=block[1], BLOCKS=blocks)


def flops(num_rows: int, start: int, window: int | None, num_q_heads: int, head_dim: int) -> int:
    """Multiplications and additions of the visible (row, key) pairs of one span."""
    ends = range(start + 1, start + num_rows + 1)
    pairs = sum(min(end, window) if window else end for end in ends)
    return 4 * pairs * num_q_heads * head_dim
