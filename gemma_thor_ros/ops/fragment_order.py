# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""NVFP4 weights in the order in which the matrix instruction takes them; done once at load.

A tile is 16 weight rows x 64 columns: 128 words of codes, lane by lane, and 16 words of scales.
This file is the definition; common.cuh reads it, fragment_order.cu writes it. Lane 4 g + t holds
rows g and g + 8 and, in each half h, columns 32 h + 8 t .. + 7. Its word 2 h + s is one k step:
register r has columns 4 s + 2 (r // 2) and the next of row g (r even) or g + 8 (r odd).

The codes of a word pair stand in one of two orders. `hardware`: register r in byte r, the even
column low, for devices that convert e2m1. Else, for the bit trick, each half word has register 0
at bits 15, 8..6, register 1 four bits lower, register 2 ten bits lower (around the word's end);
the bits that are left over, 10, 9, 1 and 0, together with those of the pair's other word moved up
by two, hold the third registers of both words, six and twelve bits below bits 15, 8..6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.schema import ConfigError

Array = npt.NDArray[Any]
TILE_ROWS = 16
TILE_COLUMNS = 64
TILE_CODE_WORDS = 128
TILE_SCALE_WORDS = 16
LEFT_OVER = 0x06030603                   # bits of a word that registers 0..2 leave free
ROTATIONS = (0, 4, 10)                   # registers 0..2 of a word
FOURTH_ROTATIONS = (6, 12)               # register 3 of the first and the second word
# Powers of two that decoding leaves in the weights, undone by row_scales: the bit trick's codes
# carry 2^-126 and its scales 2^107; with the conversion the scales carry 2^-21.
LEFT_IN = {True: -21, False: -19}


class PackedMatrix(Protocol):
    """What the checkpoint reader gives: one NVFP4 matrix (N, M), or E of them."""

    @property
    def packed(self) -> npt.NDArray[np.uint8]: ...
    @property
    def group_scales(self) -> npt.NDArray[np.uint8]: ...
    @property
    def global_scale(self) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True)
class Nvfp4Fragments:
    """A matrix on the device, or E of them. Arrays are CuPy's.

    codes (E * R * C * 128,) u32, scales (E * R * C * 16,) u32, row_scales (E * R * 2,) float32 for
    rows 0..7 and 8..15 of each row tile; R row tiles, C column tiles. `interleaved`: gate and up
    of an MLP alternate by 8 rows, and num_outputs counts the rows of one of them.
    """

    codes: Any
    scales: Any
    row_scales: Any
    num_outputs: int             # N, or I where interleaved
    columns: int                 # M
    interleaved: bool
    num_experts: int             # 0: one matrix

    @property
    def num_row_tiles(self) -> int:
        """R of one matrix."""
        return row_tiles(self.num_outputs, self.interleaved)

    @property
    def column_tiles(self) -> int:
        """C."""
        return -(-self.columns // TILE_COLUMNS)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.codes.nbytes + self.scales.nbytes + self.row_scales.nbytes)


def row_tiles(num_outputs: int, interleaved: bool) -> int:
    """Row tiles of N outputs, or of gate and up with N rows each."""
    return -(-num_outputs // (TILE_ROWS // 2 if interleaved else TILE_ROWS))


def fragment_order_ref(low: PackedMatrix, high: PackedMatrix | None,
                       hardware: bool) -> tuple[Array, Array]:
    """The twin: codes (R, C, 32, 4) u32 and scales (R, C, 16) u32 of one matrix.

    With `high` the two interleave by 8 rows, `low` first. Codes under a scale of zero become 0.
    Raises ConfigError where a scale is negative or NaN.
    """
    codes, groups = (_tiled(_codes_of(low), _codes_of(high) if high else None, 1),
                     _tiled(low.group_scales, high.group_scales if high else None, 16))
    if (groups >= 0x7F).any():
        raise ConfigError('an NVFP4 matrix has a group scale that is negative or not a number')
    num_rows, num_columns = codes.shape[0] // 16, codes.shape[1] // 64
    # axes: R, high, g, C, half, t, step, register // 2, parity
    split = codes.reshape(num_rows, 2, 8, num_columns, 2, 4, 2, 2, 2)
    # -> R, C, g, t, half, step, register // 2, high, parity
    lanes = split.transpose(0, 3, 2, 5, 4, 6, 7, 1, 8).reshape(num_rows, num_columns, 32, 2, 2, 4,
                                                               2).astype(np.uint32)
    words = _pack_hardware(lanes) if hardware else _pack_bits(lanes)
    encoded = encode_scales(groups).reshape(num_rows, 2, 8, num_columns, 2, 2)
    # R, high, g, C, half, group of the half -> R, C, g, group of the half, half, high
    by_lane = encoded.transpose(0, 3, 2, 5, 4, 1).reshape(num_rows, num_columns, 16, 4)
    scales = np.ascontiguousarray(by_lane).view('<u4')[..., 0]
    return words.reshape(num_rows, num_columns, 32, 4), scales


def _codes_of(matrix: PackedMatrix) -> Array:
    """(N, M) codes, 0 where the group's scale is 0."""
    packed = matrix.packed
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    codes[np.repeat(matrix.group_scales == 0, 16, axis=1)] = 0
    return codes


def _tiled(low: Array, high: Array | None, columns_each: int) -> Array:
    """Rows in tile order, padded to whole tiles with zeros."""
    width = TILE_COLUMNS // columns_each
    size = TILE_ROWS if high is None else TILE_ROWS // 2
    num_rows, num_columns = -(-low.shape[0] // size), -(-low.shape[1] // width)

    def padded(part: Array) -> Array:
        whole = np.zeros((num_rows * size, num_columns * width), np.uint8)
        whole[:part.shape[0], :part.shape[1]] = part
        return whole.reshape(num_rows, size, -1)

    parts = [padded(low)] + ([] if high is None else [padded(high)])
    return np.concatenate(parts, axis=1).reshape(num_rows * TILE_ROWS, -1)


def encode_scales(e4m3: Array) -> Array:
    """e4m3 bits, not negative -> five bits of exponent + 10 over three of fraction; 0 stays 0."""
    table = np.zeros(256, np.uint8)
    table[8:0x7F] = np.arange(8, 0x7F) + 24
    for bits in range(1, 8):             # subnormals: bits * 2^-9
        top = bits.bit_length() - 1
        table[bits] = ((top + 1) << 3) | ((bits << (3 - top)) & 7)
    return table[e4m3]


def _pack_hardware(lanes: Array) -> Array:
    shifts = 8 * np.arange(4, dtype=np.uint32)[:, None] + 4 * np.arange(2, dtype=np.uint32)
    packed: Array = np.bitwise_or.reduce(lanes << shifts, axis=(-2, -1))
    return packed


def _pack_bits(lanes: Array) -> Array:
    low, high = lanes[..., 0], lanes[..., 1]
    # bits 15, 8..6 of each half word
    fields = ((low & 8) << 12) | ((low & 7) << 6) | ((high & 8) << 28) | ((high & 7) << 22)

    def placed(field: Array, rotation: int) -> Array:
        if rotation == 0:
            return field
        down, up = np.uint32(rotation), np.uint32(32 - rotation)
        moved: Array = (field >> down) | (field << up)
        return moved

    words: Array = np.bitwise_or.reduce(
        [placed(fields[..., r], n) for r, n in enumerate(ROTATIONS)], axis=0)
    fourth = placed(fields[..., 0, 3], FOURTH_ROTATIONS[0]) | placed(fields[..., 1, 3],
                                                                     FOURTH_ROTATIONS[1])
    left_over = np.uint32(LEFT_OVER)
    words[..., 0] |= fourth & left_over
    words[..., 1] |= (fourth & ~left_over) >> np.uint32(2)
    return words


def to_fragments(parts: Sequence[PackedMatrix], *, interleaved: bool = False, stream: Any,
                 unfit: Any = None) -> Nvfp4Fragments:
    """Copy matrices to the device and put them in order; several are stacked by rows.

    Their arrays may lie on the device already. parts: matrices (N, M) of one M, each N but the
    last a multiple of 16; or, `interleaved`, gate and up, both (I, M) with I a multiple of 8.
    With a leading axis E in all of them the result has E matrices. Raises ConfigError for sizes
    and scales that do not fit; with unfit, one u32 on the device, scales that do not fit set it
    instead, and nothing waits for the device: see `check_fit`.
    """
    _check_parts(parts, interleaved)
    cupy = device.cupy()
    if unfit is None:
        cupy.cuda.get_current_stream().synchronize()     # it may still write the parts
    lead = parts[0].packed.shape[:-2]
    num_experts = lead[0] if lead else 0
    columns = parts[0].packed.shape[-1] * 2
    counts = [part.packed.shape[-2] for part in parts]
    num_outputs = counts[0] if interleaved else sum(counts)
    tiles, column_tiles = row_tiles(num_outputs, interleaved), -(-columns // TILE_COLUMNS)
    copies = max(num_experts, 1)
    factor = np.float32(2.0 ** -LEFT_IN[device.has_e2m1_conversion()])
    with stream:
        codes = cupy.empty(copies * tiles * column_tiles * TILE_CODE_WORDS, cupy.uint32)
        scales = cupy.empty(copies * tiles * column_tiles * TILE_SCALE_WORDS, cupy.uint32)
        flag = cupy.zeros(1, cupy.uint32) if unfit is None else unfit
        row_scales = np.empty((copies, tiles, 2), np.float32)
        for matrices, first in _launches(parts, num_experts, interleaved, tiles):
            on_device = [tuple(cupy.ascontiguousarray(cupy.asarray(array))
                               for array in (packed, groups)) for packed, groups in matrices]
            low, high = on_device[0], on_device[-1]
            _fragment_order(codes, scales, flag, first, low, high, low[0].shape[0], columns,
                            *((8, 0) if interleaved else (16, 8)), stream)
        globals_ = [np.asarray(part.global_scale, np.float32).reshape(-1, 1) * factor
                    for part in parts]
        start = 0
        for count, scale in zip(counts, globals_, strict=True):
            if interleaved:
                row_scales[...] = np.concatenate(globals_, axis=1)[:, None]
                break
            size = row_tiles(count, False)
            row_scales[:, start:start + size] = scale[..., None]
            start += size
        result = Nvfp4Fragments(codes, scales, cupy.asarray(row_scales.reshape(-1)), num_outputs,
                                columns, interleaved, num_experts)
        if unfit is None:
            check_fit(flag)
    return result


def check_fit(unfit: Any) -> None:
    """Wait, and raise ConfigError if a matrix since `unfit` was 0 has scales that do not fit."""
    if int(unfit[0]):
        raise ConfigError('an NVFP4 matrix has a group scale that is negative or not a number')


_Arrays = tuple[Any, Any]                # codes and scales of some rows


def _launches(parts: Sequence[PackedMatrix], num_experts: int, interleaved: bool,
              tiles: int) -> Iterator[tuple[list[_Arrays], int]]:
    """What one launch each puts in order, and its first row tile.

    The rows of all experts are the rows of one matrix where each fills its tiles.
    """
    whole = interleaved or (len(parts) == 1 and parts[0].packed.shape[-2] % TILE_ROWS == 0)
    if num_experts and whole:
        yield [(part.packed.reshape(-1, part.packed.shape[-1]),
                part.group_scales.reshape(-1, part.group_scales.shape[-1]))
               for part in parts], 0
        return
    for copy in range(max(num_experts, 1)):
        matrices = [(part.packed[copy], part.group_scales[copy]) if num_experts
                    else (part.packed, part.group_scales) for part in parts]
        if interleaved:
            yield matrices, copy * tiles
            continue
        start = copy * tiles
        for matrix in matrices:
            yield [matrix], start
            start += row_tiles(matrix[0].shape[0], False)


def _check_parts(parts: Sequence[PackedMatrix], interleaved: bool) -> None:
    shapes = [part.packed.shape for part in parts]
    widths = {shape[-1] for shape in shapes}
    leads = {shape[:-2] for shape in shapes}
    if len(widths) != 1 or len(leads) != 1:
        raise ConfigError(f'NVFP4 matrices of different widths cannot be stacked: {shapes}')
    if interleaved and (len(parts) != 2 or len(set(shapes)) != 1 or shapes[0][-2] % 8):
        raise ConfigError(f'gate and up must be two equal matrices with a multiple of 8 rows, '
                          f'got {shapes}')
    if not interleaved and any(shape[-2] % TILE_ROWS for shape in shapes[:-1]):
        raise ConfigError(f'stacked NVFP4 matrices need multiples of 16 rows, got {shapes}')


def _fragment_order(codes: Any, scales: Any, unfit: Any, first_tile: int, low: tuple[Any, ...],
                    high: tuple[Any, ...], num_rows: int, columns: int, step: int,
                    high_offset: int, stream: Any) -> None:
    """Launch for one matrix (low is high) or for gate and up, written from row tile first_tile."""
    column_tiles = -(-columns // TILE_COLUMNS)
    tiles = -(-num_rows // step)
    place = first_tile * column_tiles
    kernel = device.compiled(spec(device.has_e2m1_conversion()))
    device.launch(kernel, (-(-tiles * column_tiles * 64 // 256),), 256,
                  (codes[place * TILE_CODE_WORDS:], scales[place * TILE_SCALE_WORDS:], unfit,
                   *low, *high, num_rows, columns, tiles, column_tiles, step, high_offset),
                  stream, overlap=False)


def spec(hardware: bool) -> KernelSpec:
    """What is compiled for one of the two orders."""
    return KernelSpec.of('fragment_order', E2M1_HARDWARE=int(hardware))


def bytes_moved(num_rows: int, columns: int) -> int:
    """Codes and scales read, and written."""
    return 2 * (num_rows * columns // 2 + num_rows * columns // 16)
