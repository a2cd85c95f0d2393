# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""y = x W^T for prompt rows, W in NVFP4 (fragment order, as for generated rows) or bf16.

The twins are gemm_nvfp4_ref and gemm_bf16_ref. A row has the same bits in any company and at any
place: a sum runs over M in one fixed order, whatever tile of tokens `tile_of` chooses.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS, TILE_ROWS, Nvfp4Fragments
from gemma_thor_ros.ops.shapes import check

WARPS = 8
Shape = tuple[int, int, int, int, int]   # WARP_TOKENS, TOKEN_WARPS, ROW_TILES, STAGES, AHEAD
# Tokens of a tile -> its shape. The smallest has four times as many blocks as the largest for one
# matrix: few tokens must still fill the device. It is bound by reads, so these begin early.
TILES: dict[int, Shape] = {64: (32, 2, 1, 4, 4), 128: (64, 2, 2, 4, 1), 256: (128, 2, 2, 3, 1)}
# More of bf16's operands are in flight, so the tile of 256 has no room for its sums.
BF16_TILES = (64, 128)
_LARGE = 2048                            # tokens from which on the largest tile is taken


def prefill_gemm(out: Any, x: Any, weight: Nvfp4Fragments, stream: Any,
                 tile: int | None = None) -> None:
    """Enqueue out (T, N) bf16 = x (T, M) bf16 times the weight; any T >= 1, M and N % 8 == 0.

    With an interleaved weight out is (T, I), geglu of the two products. tile: 64, 128 or 256
    tokens, by default from T; it changes no bit.
    """
    num_tokens = check('gemm_nvfp4', {'N': weight.num_outputs, 'M': weight.columns}, out=out,
                       x=x)['T']
    _check_sizes(weight.num_outputs, weight.columns)
    assert not weight.num_experts, 'experts go through prefill_moe'
    chosen = spec(tile or tile_of(num_tokens), weight.interleaved, device.has_e2m1_conversion())
    constants = dict(chosen.defines)
    grid = (row_blocks(constants, weight.num_row_tiles), -(-num_tokens // tokens(constants)))
    device.launch(device.compiled(chosen), grid, WARPS * 32,
                  (out, x, weight.codes, weight.scales, weight.row_scales, num_tokens,
                   weight.num_row_tiles, weight.num_outputs, weight.columns), stream,
                  shared_bytes(constants))


def prefill_gemm_bf16(out: Any, x: Any, weight: Any, stream: Any, tile: int | None = None) -> None:
    """Enqueue out (T, N) bf16 = x (T, M) bf16 times weight (N, M) bf16; M and N % 8 == 0."""
    sizes = check('gemm_bf16', out=out, x=x, weight=weight)
    _check_sizes(sizes['N'], sizes['M'])
    chosen = bf16_spec(tile or min(tile_of(sizes['T']), max(BF16_TILES)))
    constants = dict(chosen.defines)
    grid = (row_blocks(constants, -(-sizes['N'] // TILE_ROWS)),
            -(-sizes['T'] // tokens(constants)))
    device.launch(device.compiled(chosen), grid, WARPS * 32,
                  (out, x, weight, sizes['T'], sizes['N'], sizes['M']), stream,
                  shared_bytes(constants))


def _check_sizes(num_outputs: int, columns: int) -> None:
    assert num_outputs % 8 == 0 and columns % 8 == 0, (
        f'{num_outputs} x {columns}: multiples of 8 are supported')


def tile_of(num_tokens: int) -> int:
    """Tokens of a tile for T tokens."""
    return 64 if num_tokens <= 64 else 128 if num_tokens < _LARGE else 256


def spec(tile: int, interleaved: bool, hardware: bool, **override: int) -> KernelSpec:
    """What is compiled for one size of tiles; it serves every shape of a weight."""
    return KernelSpec.of('prefill_gemm', 'prefill_gemm', **_constants(
        0, TILES[tile], GEGLU=int(interleaved), E2M1_HARDWARE=int(hardware), **override))


def bf16_spec(tile: int, **override: int) -> KernelSpec:
    """The same for bf16 weights."""
    assert tile in BF16_TILES, f'tiles of {tile} tokens: {BF16_TILES} are supported'
    # sixteen bits a weight take more registers
    *shape, ahead = TILES[tile]
    return KernelSpec.of('prefill_gemm', 'prefill_gemm_bf16', **_constants(
        2, (*shape, min(2, ahead)), GEGLU=0, **override))


def experts_spec(shape: Shape, interleaved: bool, hardware: bool) -> KernelSpec:
    """The same for rows that are sorted by expert; shape as in TILES."""
    return KernelSpec.of('prefill_gemm', 'prefill_experts', **_constants(
        1, shape, GEGLU=int(interleaved), E2M1_HARDWARE=int(hardware)))


def _constants(entry: int, shape: tuple[int, ...], **others: int) -> dict[str, int]:
    warp_tokens, token_warps, row_tiles, stages, ahead = shape
    sums = row_tiles * warp_tokens       # a warp's; what is left of the registers, for more blocks
    return {'ENTRY': entry, 'WARP_TOKENS': warp_tokens, 'TOKEN_WARPS': token_warps,
            'ROW_TILES': row_tiles, 'STAGES': stages, 'AHEAD': ahead,
            'MIN_BLOCKS': 2 if sums <= 64 else 1, **others}


def tokens(constants: dict[str, int]) -> int:
    """Tokens of a block."""
    return constants['WARP_TOKENS'] * constants['TOKEN_WARPS']


def row_blocks(constants: dict[str, int], num_row_tiles: int) -> int:
    """Blocks that share the weight rows."""
    return -(-num_row_tiles // (WARPS // constants['TOKEN_WARPS'] * constants['ROW_TILES']))


def shared_bytes(constants: dict[str, int]) -> int:
    """Dynamic shared memory: the stages, and after them the results."""
    stages = constants['STAGES'] * tokens(constants) * TILE_COLUMNS * 2
    outputs = constants['ROW_TILES'] * (8 if constants['GEGLU'] else 16)
    return max(stages, WARPS * constants['WARP_TOKENS'] * (outputs * 2 + 16))


def flops(num_tokens: int, num_outputs: int, columns: int, interleaved: bool = False) -> int:
    """Multiplications and additions; interleaved: of both matrices."""
    return 2 * num_tokens * num_outputs * columns * (2 if interleaved else 1)
