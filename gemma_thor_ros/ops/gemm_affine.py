# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""y = x W^T with W in MLX affine codes: projections, geglu(x G^T, x U^T), the soft-capped head.

Generated rows and prompt rows run one kernel, 16 rows a pass; a row has the same bits alone and
among others, because how the columns are cut follows from the weight's shape alone. The twins are
gemm_nvfp4_ref and gemm_bf16_ref, which take any stored weight.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from gemma_thor_ros.ops import device, gemv
from gemma_thor_ros.ops.affine_order import AffineFragments, AffineStack, planes, tile_scales
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS, row_tiles
from gemma_thor_ros.ops.gemm_nvfp4 import ROWS_PER_LAUNCH_TILE, blocks_of
from gemma_thor_ros.ops.shapes import check

Form = Literal['plain', 'geglu', 'head']
_FORMS: tuple[Form, ...] = ('plain', 'geglu', 'head')
_TOTALS_BYTES = 528                      # of a row tile, 8 rows and a warp
_RING_BYTES = 6200                       # of a warp, at most: 16 of them fit into 99 KB
_STAGES = 5
_LEAST_WARPS, _MOST_WARPS = 6, 16        # of a block, where there are so many tiles
EXPERTS_READ = 8                         # of a layer at once, about: for the cut
_BLOCK_TILES = 2                         # what a block costs beside its tiles, in tiles
# Blocks of 8 rows, row tiles of a block -> warps that are resident on a multiprocessor.
_RESIDENT = {(1, 1): 36, (2, 1): 28, (2, 2): 24}


def gemm_affine(out: Any, x: Any, weight: AffineFragments | AffineStack, stream: Any, *,
                prompt: bool = False) -> None:
    """Enqueue out (T, N) bf16 = x (T, M) bf16 times the weight; T >= 1, in passes of 16 rows.

    With interleaved gate and up out is (T, I), geglu of the two products. prompt: there are many
    rows; it changes no bit.
    """
    num_tokens = check('gemm_nvfp4', {'N': weight.num_outputs, 'M': weight.columns}, out=out,
                       x=x)['T']
    parts = weight.parts if isinstance(weight, AffineStack) else (weight,)
    flat, start = out.reshape(-1), 0
    for part in parts:
        _launch(flat[start:], x, part, num_tokens, weight.num_outputs,
                'geglu' if part.interleaved else 'plain', 1.0, stream, prompt)
        start += part.num_outputs


def head_affine(logits: Any, x: Any, weight: AffineFragments, softcap: float, stream: Any) -> None:
    """Enqueue logits (R, V) f32 = cap tanh(x W^T / cap) with the tied table in affine codes."""
    num_rows = check('head_nvfp4', {'V': weight.num_outputs, 'H': weight.columns}, logits=logits,
                     x=x)['R']
    _launch(logits, x, weight, num_rows, weight.num_outputs, 'head', softcap, stream, False)


def _launch(out: Any, x: Any, weight: AffineFragments, num_tokens: int, stride: int, form: Form,
            cap: float, stream: Any, prompt: bool) -> None:
    single = single_spec(
        weight.columns, weight.bits, weight.group_size, form, device.info().shared_bytes_per_block,
        num_row_tiles=weight.num_row_tiles) if num_tokens == 1 and not prompt else None
    if single:
        launch_single(out, x, weight, single, float(cap), stream)
        return
    kernel = device.compiled(spec(weight.columns, num_tokens, weight.bits, weight.group_size, form,
                                  prompt, num_row_tiles=weight.num_row_tiles))
    constants = dict(kernel.spec.defines)
    tiles = weight.num_row_tiles
    grid = (-(-tiles // constants['ROW_TILES']), -(-num_tokens // ROWS_PER_LAUNCH_TILE))
    # where experts have order and items, nothing is read here
    device.launch(kernel, grid[::-1] if prompt else grid, constants['K_WARPS'] * 32,
                  (out, x, weight.words, weight.scales, weight.words, weight.words, 1, num_tokens,
                   tiles, weight.num_outputs, stride, float(cap)), stream, shared_bytes(constants))


def launch_single(out: Any, x: Any, weight: AffineFragments, single: KernelSpec, cap: float,
                  stream: Any) -> None:
    """Enqueue the kernel of one row alone; cap: the head's."""
    values = dict(single.defines)
    share = gemv.share(weight.num_row_tiles, device.info().num_multiprocessors,
                       values['MIN_BLOCKS'])
    device.launch(device.compiled(single), (share.blocks,), values['K_WARPS'] * 32,
                  (out, x, weight.words, weight.scales, share.each, share.more,
                   weight.num_outputs, cap), stream, gemv.launch_bytes(
                       values, _tile_bytes(weight.bits, weight.group_size),
                       _sums(weight.group_size), device.info().shared_bytes_per_block, share))


@cache
def single_spec(columns: int, bits: int, group_size: int, form: Form, shared_limit: int, *,
                num_row_tiles: int, **override: int) -> KernelSpec | None:
    """What is compiled for one row alone; None: `spec` serves it."""
    if group_size == 128:                # a stage may begin within a group
        return None
    values = gemv.constants(columns, num_row_tiles, cut(num_row_tiles, columns),
                            _tile_bytes(bits, group_size), _sums(group_size), shared_limit,
                            **override)
    if values is None:
        return None
    return KernelSpec.of('gemv_affine', **{
        'BITS': bits, 'GROUP': group_size, 'FORM': _FORMS.index(form),
        'RAW': int(planes(bits)[1] == 0), **values})


def spec(columns: int, num_tokens: int, bits: int, group_size: int, form: Form = 'plain',
         prompt: bool = False, experts: bool = False, *, num_row_tiles: int,
         **override: int) -> KernelSpec:
    """What is compiled for a matrix and a number of rows; `override` is for measurements."""
    warps, tiles = cut(num_row_tiles, columns)
    blocks = 2 if prompt else blocks_of(num_tokens)
    # row tiles share activations and their sums, where registers let enough blocks be resident
    rows = 2 if blocks == 2 and (warps <= 7 if bits > 5 else prompt) else 1
    resident = _RESIDENT[blocks, rows]
    if form == 'geglu' or experts or group_size == 32 or (rows == 2 and bits > 4):
        resident -= 4                    # these need more registers
    each = rows * _tile_bytes(bits, group_size)
    # what a stage costs beside its tiles is shared by them
    stage_tiles = next((count for count in ((2,) if group_size == 32 else (3, 2))
                        if blocks == 1 and tiles % count == 0
                        and 2 * count * each <= _RING_BYTES), 1)
    constants = {
        'BITS': bits, 'GROUP': group_size, 'COLUMNS': columns,
        'COLUMN_TILES': -(-columns // TILE_COLUMNS), 'K_WARPS': warps, 'WARP_TILES': tiles,
        'ROW_TILES': rows, 'BLOCKS': blocks, 'SINGLE': int(num_tokens == 1 and not prompt),
        'FORM': _FORMS.index(form), 'PROMPT': int(prompt),
        'EXPERTS': int(experts), 'MIN_BLOCKS': max(1, resident // warps),
        'STAGE_TILES': stage_tiles,
        'STAGES': max(2, min(_STAGES, -(-tiles // stage_tiles) + 1,
                             _RING_BYTES // (stage_tiles * each))), **override}
    return KernelSpec.of('gemm_affine', **constants)


@cache
def cut(num_row_tiles: int, columns: int) -> tuple[int, int]:
    """(warps that share the columns, tiles of each): a function of the weight's shape alone.

    The least time on a device of gemv.MULTIPROCESSORS: rounds of blocks times the tiles of a warp
    (bench/LOG.md). Other devices take the same, so that a row has the same bits there. Cuts
    without waste go before others: a single row needs one (gemv.py).
    """
    tiles = -(-columns // TILE_COLUMNS)
    options = [(warps, -(-tiles // warps))
               for warps in range(min(_LEAST_WARPS, tiles), min(_MOST_WARPS, tiles) + 1)]
    waste = min(warps * each for warps, each in options)
    most = tiles if waste == tiles else 1.035 * max(waste, tiles)
    if tiles <= 64 and num_row_tiles <= gemv.FEW and waste == tiles:
        return max(option for option in options if option[0] * option[1] == tiles)

    def time(option: tuple[int, int]) -> float:
        warps, each = option
        rounds = num_row_tiles / (gemv.MULTIPROCESSORS * (_RESIDENT[1, 1] // warps))
        whole = -(-num_row_tiles // (gemv.MULTIPROCESSORS * (_RESIDENT[1, 1] // warps)))
        # the costs of a stage are shared by 3 tiles, by 2, or by none
        uneven = 1.0 if each % 3 == 0 or each == 1 else 1.15 if each % 2 else 1.06
        return (whole if rounds < 3 else rounds + 0.3) * (each + _BLOCK_TILES) * uneven

    return min((option for option in options if option[0] * option[1] <= most),
               key=lambda option: (time(option), option))


def shared_bytes(constants: dict[str, int]) -> int:
    """Dynamic shared memory of a block: a ring for each warp, and after them the totals."""
    tiles = constants['STAGES'] * constants['STAGE_TILES']
    ring = tiles * _tile_bytes(constants['BITS'], constants['GROUP'])
    return constants['K_WARPS'] * constants['ROW_TILES'] * max(
        ring, constants['BLOCKS'] * _TOTALS_BYTES)


def _sums(group_size: int) -> int:
    """Sums of activations that a column tile has."""
    return 2 if group_size == 32 else 1


def _tile_bytes(bits: int, group_size: int) -> int:
    """With its scales."""
    return 128 * bits + (128 if group_size == 32 else 64)


def bytes_moved(num_tokens: int, num_outputs: int, columns: int, bits: int, group_size: int,
                interleaved: bool = False) -> int:
    """The weights once, the rows in and out."""
    tiles = row_tiles(num_outputs, interleaved)
    codes = tiles * -(-columns // TILE_COLUMNS) * 128 * bits
    return (codes + tiles * tile_scales(columns, group_size) * 4
            + num_tokens * (num_outputs + columns) * 2)
