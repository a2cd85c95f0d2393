# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of generated rows over pages, on the device: decode and verify; twin: attention.py.

Keys are cut into chunks at absolute positions; the cuts are in kernels/attention_chunks.cuh and
here. Called once per layer, after kv_append.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gemma_thor_ros.ops import attention_window, device
from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.shapes import check

MAX_SPAN_ROWS = 16                       # of one sequence
_TILE = 64                               # keys
_CHUNK = 128                             # keys of a chunk below _FLAT_KEYS
_WINDOW_CHUNK = 64                       # and where there is a window
_FLAT_KEYS = 8192
_DOUBLING = 64
_WARPS = 8
_SPLIT_ROWS = 4
_GROUP_CHUNKS, _MAX_CHUNKS = 32, 512     # as in kernels/attention_combine.cuh
_CLUSTER = 8                             # blocks of a cluster; 1: none
# Up to this many (query, 128 columns) of so few chunks the block that ends last adds the partial
# results alone. A round of its eight warps takes half of that columns and reads eight chunks at a
# time, about 0.6 us each, so with more a launch that spreads them over the device costs less
# (bench/LOG.md).
_MAX_FUSED = 8
_MAX_FUSED_CHUNKS = 32


@dataclass(frozen=True)
class AttentionScratch:
    """Partial results of one launch; layers may share it. Arrays of the device.

    partial (T, Q, max_chunks, D) f32, used as (max_chunks, rows of a launch, Q, D); partial_ml
    (T, Q, max_chunks, 2) f32; tickets u32: zeros at first.
    """

    partial: Any
    partial_ml: Any
    tickets: Any

    @classmethod
    def empty(cls, xp: Any, num_rows: int, num_sequences: int, num_q_heads: int, head_dim: int,
              max_chunks: int) -> AttentionScratch:
        """Room for num_rows rows of num_sequences sequences; xp: the array module."""
        shape = (num_rows, num_q_heads, max_chunks)
        return cls(xp.empty((*shape, head_dim), 'float32'), xp.empty((*shape, 2), 'float32'),
                   xp.zeros(num_sequences * num_q_heads * MAX_SPAN_ROWS, 'uint32'))


def chunk_of(position: int, window: int | None) -> int:
    """The chunk that holds a key position."""
    if window is not None or position < _FLAT_KEYS:
        return position // _chunk(window)
    level = (position // _FLAT_KEYS).bit_length() - 1
    flat = _FLAT_KEYS // _CHUNK - _DOUBLING
    return flat + level * _DOUBLING + position // (_TILE << (level + 1))


def max_chunks(context_length: int, window: int | None) -> int:
    """Chunks that the rows of one sequence can see together below a context length."""
    if window is None or window >= context_length:
        return chunk_of(context_length - 1, window) + 1
    return min(_most_seen(window), chunk_of(context_length - 1, window) + 1)


def _chunk(window: int | None) -> int:
    return _WINDOW_CHUNK if window else _CHUNK


def _most_seen(window: int) -> int:
    return (window + MAX_SPAN_ROWS - 3) // _WINDOW_CHUNK + 2


def attention_decode(out: Any, q: Any, k_pages: Any, v_pages: Any, scratch: AttentionScratch,
                     spans: Any, page_table: Any, scales: tuple[Any, Any], window: int | None,
                     max_rows: int, stream: Any) -> None:
    """Enqueue out (T, Q, D) bf16 = attention of q (T, Q, D) bf16 over the pages of its sequence.

    k_pages, v_pages (P, S, KV, D) bf16, or e4m3 (u8) times scales, two arrays (KV,) f32; spans
    (B, 4) i32 {first row, rows, position of the first row, 0} on the device, of at most max_rows
    rows each; page_table (B, max_pages) i32. Rows of no span stay as they are.
    """
    sizes = check('attention_decode', out=out, q=q, k_pages=k_pages, v_pages=v_pages, spans=spans,
                  page_table=page_table)
    shape = _scratch_shape(scratch, sizes)
    assert sizes['four'] == 4 and 0 < max_rows <= MAX_SPAN_ROWS, (sizes, max_rows)
    if window is not None and _by_window(sizes, window, max_rows):
        attention_window.attention_window(out, q, (k_pages, v_pages), scales, spans, page_table,
                                          window, stream)
        return
    attention = spec('attention_decode', sizes['D'], sizes['Q'] // sizes['KV'], sizes['KV'],
                     sizes['S'], window, k_pages.dtype.itemsize == 1, max_rows,
                     CLUSTER=_cluster(sizes, window, max_rows),
                     **_once(sizes['D'], max_rows * sizes['Q'] // sizes['KV'],
                             window if sizes['B'] == 1 else None))
    _launch(attention, sizes, shape, out, scratch, q, (k_pages, v_pages), scales, spans,
            page_table, (), max_rows, stream)


def attention_append(out: Any, qkv: Any, k_pages: Any, v_pages: Any, scratch: AttentionScratch,
                     spans: Any, page_table: Any, norms: tuple[Any, Any], turns: Any,
                     scales: tuple[Any, Any], inverse_scales: tuple[Any, Any],
                     window: int | None, eps: float, stream: Any) -> None:
    """Enqueue kv_append and attention_decode of one row of one sequence as one launch.

    out (1, Q, D) bf16 and the row's K and V in their pages, the same bits as of the two launches;
    q is not written. Arguments as there: qkv (1, (Q + KV [+ KV]) D) bf16, norms two arrays (D,)
    f32, turns (pairs,) u64, spans (1, 4) i32.
    """
    sizes = check('attention_append', out=out, qkv=qkv, k_pages=k_pages, v_pages=v_pages,
                  spans=spans, page_table=page_table, q_norm=norms[0], k_norm=norms[1])
    shape = _scratch_shape(scratch, sizes)
    num_heads = sizes['Q'] + 2 * sizes['KV']
    has_v = sizes['N'] == num_heads * sizes['D']
    assert has_v or sizes['N'] == (num_heads - sizes['KV']) * sizes['D'], sizes
    assert sizes['T'] == sizes['B'] == 1 and sizes['four'] == 4 and can_append(sizes['KV']), sizes
    attention = append_spec(sizes['D'], sizes['Q'] // sizes['KV'], sizes['KV'], sizes['S'], window,
                            k_pages.dtype.itemsize == 1, has_v, turns.shape[0],
                            CLUSTER=_cluster(sizes, window, 1))
    _launch(attention, sizes, shape, out, scratch, qkv, (k_pages, v_pages), scales, spans,
            page_table, (*norms, turns, *inverse_scales, float(eps)), 1, stream)


def can_append(num_kv_heads: int) -> bool:
    """Whether `attention_append` runs here: the last chunk of each kv head is a block's first."""
    return num_kv_heads <= device.info().num_multiprocessors


def _cluster(sizes: dict[str, int], window: int | None, max_rows: int) -> int:
    """The blocks of one sequence are clusters where the device has them; of more they fill it."""
    alone = sizes['B'] == 1 and compiler.arch_number(device.info().arch) >= 90
    queries = max_rows * sizes['Q'] // sizes['KV']
    return most_in_cluster(sizes['D'], queries, window) if alone else 1


def _by_window(sizes: dict[str, int], window: int, max_rows: int) -> bool:
    """Whether attention_window does it."""
    heads = sizes['KV']
    return (max_rows == sizes['B'] == sizes['T'] == 1
            and compiler.arch_number(device.info().arch) >= 90
            and attention_window.serves(sizes['D'], sizes['Q'] // heads, heads, window))


def _once(head_dim: int, queries: int, window: int | None) -> dict[str, Any]:
    """Several rows of one sequence in a window: blocks of one tile each."""
    return {'ONCE': 1} if window and queries * (head_dim // 128) > _MAX_FUSED else {}


def most_in_cluster(head_dim: int, queries: int, window: int | None) -> int:
    """Blocks of a kv head that share chunks: see kernels/attention_cluster.cuh; 1: none."""
    few = queries * (head_dim // 128) <= _MAX_FUSED
    fits = window and _most_seen(window) <= _MAX_FUSED_CHUNKS and head_dim == 256
    return _CLUSTER if few and fits else 1


def _scratch_shape(scratch: AttentionScratch, sizes: dict[str, int]) -> tuple[int, ...]:
    shape: tuple[int, ...] = scratch.partial.shape
    assert shape[0] >= sizes['T'] and shape[1] == sizes['Q'] and shape[3] == sizes['D'], shape
    return shape


def _launch(attention: KernelSpec, sizes: dict[str, int], shape: tuple[int, ...], out: Any,
            scratch: AttentionScratch, rows: Any, pages: tuple[Any, Any],
            scales: tuple[Any, Any], spans: Any, page_table: Any, more: tuple[Any, ...],
            max_rows: int, stream: Any) -> None:
    """The attention, and where the last block of a query does not do it the sum of the chunks."""
    constants = dict(attention.defines)
    tiles, group, fp8 = constants['NT'], constants['GROUP'], bool(constants['FP8'])
    fused = (max_rows * group * (sizes['D'] // 128) <= _MAX_FUSED
             and shape[2] <= _MAX_FUSED_CHUNKS)
    shared = sizes['B'] * sizes['KV'] * -(-max_rows * group // (8 * tiles))
    cluster, sent = constants['CLUSTER'], 0
    grid: tuple[int, ...]
    if constants.get('ONCE'):
        grid = shared // sizes['KV'], sizes['KV'], shape[2]
        assert sizes['B'] == 1 and constants['CHUNK'] == _TILE and not fused, (sizes, constants)
    elif cluster > 1:                      # the last block adds what one cluster has not all of
        grid = (shared * cluster * -(-_most_seen(constants['WINDOW']) // cluster),)
        sent = cluster * 8 * (32 * 4 + 8)
        assert fused and constants['CHUNK'] == _TILE, (shape, constants)
    else:
        grid = (min(shared * shape[2],
                    device.info().num_multiprocessors * constants['MIN_BLOCKS']),)
    device.launch(device.compiled(attention), grid, _WARPS * 32,
                  (out, scratch.partial, scratch.partial_ml, scratch.tickets, rows, *pages,
                   *scales, spans, page_table, int(fused), sizes['B'], sizes['T'], sizes['maxP'],
                   shape[2], *more), stream,
                  shared_bytes(sizes['D'], tiles, fp8) + sent)
    if fused:
        return
    combine = spec('attention_decode_combine', sizes['D'], group, sizes['KV'], sizes['S'],
                   constants['WINDOW'], fp8, max_rows)
    slices = sizes['T'] * sizes['Q'] * (sizes['D'] // 32) // dict(combine.defines)['COLUMNS_EACH']
    # a block's warps take groups of chunks each; the slices of many rows fill the device anyway
    split = shape[2] > _GROUP_CHUNKS and sizes['T'] <= _SPLIT_ROWS
    assert shape[2] <= _MAX_CHUNKS, shape
    device.launch(device.compiled(combine), (slices if split else -(-slices // _WARPS),),
                  _WARPS * 32,
                  (out, scratch.partial, scratch.partial_ml, scales[1], spans, int(split),
                   sizes['B'], sizes['T'], shape[2]), stream)


def query_tiles(head_dim: int, group: int, fp8: bool, max_rows: int) -> int:
    """Tiles of 8 queries that one block works on.

    More would not fit into the registers, nor two tiles more of bf16 into 99 KB; of head dim 256
    two let two blocks be resident.
    """
    most = 2 if head_dim == 512 and not fp8 else 4
    wanted = -(-max_rows * group // 8)
    return min(most, 1 << (wanted - 1).bit_length())


def shared_bytes(head_dim: int, tiles: int, fp8: bool) -> int:
    """Dynamic shared memory of attention_decode."""
    q_tile, scores = 8 * head_dim * 2, 2 * 8 * _TILE * 4
    k_tile = _TILE * head_dim * (1 if fp8 else 2)
    exchanged = tiles * (_TILE // 16) * 256 if tiles > 1 else scores     # or two sets of scores
    items, scales = 3 * 44 + 12, 8 + 64  # and their order, two words, scales of up to 16 kv heads
    return tiles * (q_tile + scores + 32) + k_tile + exchanged + items + scales


def spec(entry: str, head_dim: int, group: int, num_kv_heads: int, page_size: int,
         window: int | None, fp8: bool, max_rows: int, **override: int) -> KernelSpec:
    """What is compiled for one layer geometry, cache type and number of rows of a sequence."""
    assert head_dim in (256, 512), f'head_dim is {head_dim}: 256 and 512 are supported'
    assert page_size % 16 == 0, f'page_size is {page_size}: multiples of 16 are supported'
    assert num_kv_heads <= 16, f'{num_kv_heads} kv heads: up to 16 are supported'
    assert 1 <= group <= 16, f'{group} query heads per kv head: 1 to 16 are supported'
    tiles = query_tiles(head_dim, group, fp8, max_rows)
    # two blocks have twice the bytes under way; of head dim 512 the registers allow it where rows
    # are few and the cache is FP8
    pair = head_dim == 256 or tiles <= int(fp8)
    constants = {'D': head_dim, 'GROUP': group, 'KV': num_kv_heads, 'S': page_size,
                 'WINDOW': window or 0, 'FP8': int(fp8), 'CHUNK': _chunk(window), 'NT': tiles,
                 'MIN_BLOCKS': 2 if pair else 1}
    if entry == 'attention_decode_combine':
        columns = 2 if head_dim == 256 else 4            # of a lane
        constants['COLUMNS_EACH'] = columns if max_rows > _SPLIT_ROWS else 1
    else:
        constants['CLUSTER'] = 1
    return KernelSpec.of('attention_decode', entry, **constants | override)


def decode_specs(head_dim: int, group: int, num_kv_heads: int, page_size: int,
                 window: int | None, fp8: bool, rows: Iterable[int]) -> list[KernelSpec]:
    """What `attention_decode` launches for these numbers of rows, of one or of more sequences."""
    sizes = head_dim, group, num_kv_heads, page_size, window, fp8
    specs = [made for count in rows for made in (
        spec('attention_decode', *sizes, count),
        spec('attention_decode', *sizes, count,
             CLUSTER=most_in_cluster(head_dim, count * group, window)),
        spec('attention_decode', *sizes, count, **_once(head_dim, count * group, window)),
        spec('attention_decode_combine', *sizes, count))]
    return list(dict.fromkeys([*specs, *attention_window.specs(*sizes)]))


def append_spec(head_dim: int, group: int, num_kv_heads: int, page_size: int,
                window: int | None, fp8: bool, has_v: bool, num_pairs: int,
                **override: int) -> KernelSpec:
    """What is compiled for `attention_append`."""
    assert num_pairs % 8 == 0, num_pairs
    return spec('attention_append', head_dim, group, num_kv_heads, page_size, window, fp8, 1,
                APPEND=1, HAS_V=int(has_v), PAIRS=num_pairs, **override)


def append_specs(head_dim: int, group: int, num_kv_heads: int, page_size: int,
                 window: int | None, fp8: bool, has_v: bool, num_pairs: int) -> list[KernelSpec]:
    """What `attention_append` launches, with and without clusters."""
    return [append_spec(head_dim, group, num_kv_heads, page_size, window, fp8, has_v, num_pairs,
                        CLUSTER=cluster)
            for cluster in sorted({1, most_in_cluster(head_dim, group, window)})]


def bytes_moved(num_keys: int, num_tokens: int, num_q_heads: int, num_kv_heads: int,
                head_dim: int, page_bytes: int) -> int:
    """K and V of the visible keys once, in page_bytes each; queries and results in bf16."""
    return (num_keys * 2 * num_kv_heads * head_dim * page_bytes
            + num_tokens * 2 * num_q_heads * head_dim * 2)
