# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""y = x W^T for generated rows with W in NVFP4; with gate and up interleaved, geglu(x G^T, x U^T).

The projections of attention and of the dense MLP in decode and verify steps. A row has the same
bits alone and among others: how the columns are cut depends on M alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from gemma_thor_ros.ops import device, gemv, rows_nvfp4, stream_nvfp4
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS, Nvfp4Fragments, row_tiles
from gemma_thor_ros.ops.geglu import geglu_ref
from gemma_thor_ros.ops.linear import StoredWeight, values
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.shapes import check

ROWS_PER_LAUNCH_TILE = 16                # activation rows of one pass over the weights
TILE_BYTES = 576                         # codes and scales
_MAX_WARPS = 16
_HEAD_TILES = 4                          # of a warp of a head, at least
_MAX_PREFETCH = 4                        # tiles in flight of a warp: 4 + 1 registers each; long
                                         # loops have room for 3
_REGISTERS = 56                          # of a thread, for as many resident blocks as that lets
_LIGHT_WARPS = 12                        # with so many, and 4 tiles each, there is more choice:
_FEW_TILES = 264                         # row tiles of which two a multiprocessor are enough
_MANY_THREADS = 1536                     # of a multiprocessor, else; leaves 40 registers a thread


def gemm_nvfp4_ref(out: Array, x: Array, parts: Sequence[StoredWeight], *,
                   interleaved: bool = False, rounding: Rounding = 'none') -> None:
    """Write out (T, N) from x (T, M) and matrices (N, M) stacked by rows.

    interleaved: the parts are gate and up (I, M), out is (T, I). 'device' rounds every product,
    and geglu's result, to bf16.
    """
    products = [x @ values(part, x.dtype).T for part in parts]
    product = np.ascontiguousarray(np.concatenate(products, axis=1))
    stored(product, rounding)
    if interleaved:
        geglu_ref(out, product, rounding)
    else:
        out[...] = product


def gemm_nvfp4(out: Any, x: Any, weight: Nvfp4Fragments, stream: Any) -> None:
    """Enqueue out (T, N) bf16 = x (T, M) bf16 times the weight; T >= 1, in passes of 16 rows."""
    num_tokens = check('gemm_nvfp4', {'N': weight.num_outputs, 'M': weight.columns}, out=out,
                       x=x)['T']
    info = device.info()
    served = served_spec(weight.columns, num_tokens, weight.interleaved,
                         device.has_e2m1_conversion(), weight.num_row_tiles,
                         info.shared_bytes_per_block, info.num_multiprocessors)
    if served.file == 'gemv_nvfp4':
        launch_single(out, x, weight, served, 1.0, stream)
        return
    if served.file == 'rows_nvfp4':
        launch_rows(out, x, weight, served, 1.0, stream)
        return
    if served.file == 'stream_nvfp4':
        _launch_stream(out, x, weight, served, num_tokens, stream)
        return
    kernel = device.compiled(served)
    constants = dict(served.defines)
    tiles = weight.num_row_tiles
    grid = (-(-tiles // constants['ROW_TILES']), -(-num_tokens // ROWS_PER_LAUNCH_TILE))
    device.launch(kernel, grid, constants['K_WARPS'] * 32,
                  (out, x, weight.codes, weight.scales, weight.row_scales, num_tokens, tiles,
                   weight.num_outputs), stream)


def launch_single(out: Any, x: Any, weight: Nvfp4Fragments, single: KernelSpec, cap: float,
                  stream: Any) -> None:
    """Enqueue the kernel of one row alone; cap: the head's."""
    values = dict(single.defines)
    share = gemv.share(weight.num_row_tiles, device.info().num_multiprocessors,
                       values['MIN_BLOCKS'])
    device.launch(device.compiled(single), (share.blocks,), values['K_WARPS'] * 32,
                  (out, x, weight.codes, weight.scales, weight.row_scales, share.each, share.more,
                   weight.num_outputs, cap), stream, gemv.launch_bytes(
                       values, TILE_BYTES, 0, device.info().shared_bytes_per_block, share))


def launch_rows(out: Any, x: Any, weight: Nvfp4Fragments, kept: KernelSpec, cap: float,
                stream: Any) -> None:
    """Enqueue the kernel whose rows stay in registers; cap: the head's."""
    values, num_tokens = dict(kept.defines), x.shape[0]
    share = stream_nvfp4.share(weight.num_row_tiles, device.info().num_multiprocessors, 1)
    device.launch(device.compiled(kept),
                  (share.clusters, -(-num_tokens // ROWS_PER_LAUNCH_TILE)),
                  rows_nvfp4.threads(values),
                  (out, x, weight.codes, weight.scales, weight.row_scales, num_tokens, share.each,
                   share.more, weight.num_outputs, cap), stream, rows_nvfp4.shared_bytes(values))


def stream_any(out: Any, x: Any, weight: Nvfp4Fragments, stream: Any) -> None:
    """As gemm_nvfp4, by stream_nvfp4 whatever it gains, in clusters if there are; a self-test."""
    info = device.info()
    spec = stream_spec(weight.columns, x.shape[0], weight.interleaved,
                       device.has_e2m1_conversion(), weight.num_row_tiles,
                       info.shared_bytes_per_block, info.num_multiprocessors,
                       CLUSTER=1 + stream_nvfp4.has_clusters(info.shared_bytes_per_block))
    assert spec is not None, weight.columns
    _launch_stream(out, x, weight, spec, x.shape[0], stream)


def rows_any(out: Any, x: Any, weight: Nvfp4Fragments, stream: Any) -> None:
    """As gemm_nvfp4, by rows_nvfp4 whatever it gains, if the device could be served by it."""
    if not rows_nvfp4.can(device.info().shared_bytes_per_block):
        gemm_nvfp4(out, x, weight, stream)
        return
    launch_rows(out, x, weight, rows_nvfp4.spec(
        weight.columns, x.shape[0], False, device.has_e2m1_conversion(), cut(weight.columns),
        **dict(zip(rows_nvfp4.NAMES, (1, 2, 2, 1), strict=True))), 1.0, stream)


def _launch_stream(out: Any, x: Any, weight: Nvfp4Fragments, streamed: KernelSpec,
                   num_tokens: int, stream: Any) -> None:
    values, kernel = dict(streamed.defines), device.compiled(streamed)
    cluster, threads = values['CLUSTER'], stream_nvfp4.warps(values) * 32
    shared_bytes = stream_nvfp4.shared_bytes(values)
    most = device.clusters_at_once(kernel, cluster, threads, shared_bytes) if cluster > 1 else 0
    share = stream_nvfp4.share(weight.num_row_tiles, device.info().num_multiprocessors, cluster,
                               most)
    device.launch(kernel, (share.clusters * cluster, -(-num_tokens // ROWS_PER_LAUNCH_TILE)),
                  threads,
                  (out, x, weight.codes, weight.scales, weight.row_scales, num_tokens, share.each,
                   share.more, weight.num_outputs), stream, shared_bytes)


@cache
def single_spec(columns: int, interleaved: bool, hardware: bool, num_row_tiles: int,
                shared_limit: int, head: bool = False, **override: int) -> KernelSpec | None:
    """What is compiled for one row alone; None: `spec`, or the head's, serves it."""
    values = gemv.constants(columns, num_row_tiles, head_cut(columns) if head else cut(columns),
                            TILE_BYTES, 0, shared_limit, **override)
    if values is None:
        return None
    return KernelSpec.of('gemv_nvfp4', **values, FORM=2 if head else int(interleaved),
                         E2M1_HARDWARE=int(hardware))


def served_spec(columns: int, num_tokens: int, interleaved: bool, hardware: bool,
                num_row_tiles: int, shared_limit: int, multiprocessors: int) -> KernelSpec:
    """What serves so many rows: one row's own kernel or a stream where it can, else `spec`'s."""
    kept = None if interleaved else rows_spec(columns, num_tokens, hardware, num_row_tiles,
                                              shared_limit, multiprocessors)
    if num_tokens == 1:
        found = single_spec(columns, interleaved, hardware, num_row_tiles, shared_limit)
    elif kept:
        found = kept
    else:
        found = stream_spec(columns, num_tokens, interleaved, hardware, num_row_tiles,
                            shared_limit, multiprocessors)
    return found or spec(columns, num_tokens, interleaved, hardware, num_row_tiles)


def rows_spec(columns: int, num_tokens: int, hardware: bool, num_row_tiles: int,
              shared_limit: int, multiprocessors: int, head: bool = False) -> KernelSpec | None:
    """What is compiled for 2 rows or more that stay in registers; None: others serve them."""
    found = rows_nvfp4.served(columns, num_tokens, num_row_tiles, multiprocessors, shared_limit)
    if found is None:
        return None
    parts = head_cut(columns) if head else cut(columns)
    return rows_nvfp4.spec(columns, num_tokens, head, hardware, parts, **found)


def stream_spec(columns: int, num_tokens: int, interleaved: bool, hardware: bool,
                num_row_tiles: int, shared_limit: int, multiprocessors: int,
                **override: int) -> KernelSpec | None:
    """What is compiled for 2 rows or more as a stream; None: `spec` serves them."""
    settled = override or stream_nvfp4.served(columns, num_tokens, num_row_tiles,
                                              multiprocessors)
    return None if settled is None else stream_nvfp4.spec(
        columns, num_tokens, interleaved, hardware, num_row_tiles, cut(columns), shared_limit,
        multiprocessors, **settled)


def spec(columns: int, num_tokens: int, interleaved: bool, hardware: bool, num_row_tiles: int,
         **override: int) -> KernelSpec:
    """What is compiled for a matrix and a number of rows; `override` is for measurements.

    With many row tiles more blocks are resident, of fewer registers each; long columns and more
    than 8 rows take two row tiles a block, so that activations are fetched half as often
    (bench/LOG.md). Nothing of it changes a bit of the result.
    """
    warps, tiles = cut(columns)
    blocks = blocks_of(num_tokens)
    light = tiles <= 4 and warps <= _LIGHT_WARPS         # weights and sums fit into few registers
    resident = max(1, 65536 // (_REGISTERS * warps * 32))
    if blocks == 2:
        resident = 2 if light and not hardware else 1
    elif num_row_tiles <= _FEW_TILES or hardware:
        resident = min(resident, 2)      # the conversion of sm_100 and up takes more registers
    elif light:
        resident = _MANY_THREADS // (warps * 32)
    prefetch = min(tiles, 3 if tiles > (4 if hardware else 8) else _MAX_PREFETCH)
    ahead = 1 if resident > 2 or tiles > prefetch else 4 if light else 2
    constants = {
        'COLUMNS': columns, 'COLUMN_TILES': -(-columns // TILE_COLUMNS), 'K_WARPS': warps,
        'WARP_TILES': tiles, 'BLOCKS': blocks, 'GEGLU': int(interleaved),
        'ROW_TILES': 2 if blocks == 2 and resident == 1 else 1, 'MIN_BLOCKS': resident,
        'PREFETCH': prefetch, 'ACTIVATIONS': activations_ahead(prefetch, ahead),
        'E2M1_HARDWARE': int(hardware), **override}
    return KernelSpec.of('gemm_nvfp4', **constants)


def activations_ahead(prefetch: int, most: int) -> int:
    """Tiles of activations in flight: a divisor of the weights' tiles in flight."""
    return max(count for count in range(1, most + 1) if prefetch % count == 0)


def blocks_of(num_tokens: int) -> int:
    """Blocks of 8 activation rows that a pass handles."""
    return 1 if num_tokens <= 8 else 2


def cut(columns: int) -> tuple[int, int]:
    """(warps that share the columns, tiles of each): a function of the weight's shape alone.

    The fewest wasted tiles, then the most warps.
    """
    tiles = -(-columns // TILE_COLUMNS)
    if tiles <= _MAX_WARPS:
        return tiles, 1
    options = [(warps, -(-tiles // warps)) for warps in range(8, _MAX_WARPS + 1)]
    return min(options, key=lambda option: (option[0] * option[1], -option[0]))


def head_cut(columns: int) -> tuple[int, int]:
    """As cut, of a head: it has row tiles for all blocks, so a warp need not have one tile."""
    warps, tiles = cut(columns)
    return (warps // _HEAD_TILES, _HEAD_TILES) if tiles == 1 and warps % _HEAD_TILES == 0 and (
        warps > _HEAD_TILES) else (warps, tiles)


def bytes_moved(num_tokens: int, num_outputs: int, columns: int, interleaved: bool = False) -> int:
    """The weights once, the rows in and out."""
    tiles = row_tiles(num_outputs, interleaved) * -(-columns // TILE_COLUMNS)
    return tiles * TILE_BYTES + num_tokens * (num_outputs + columns) * 2
