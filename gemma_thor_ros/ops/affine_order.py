# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""MLX affine matrices in the order in which the matrix instruction takes them; done once at load.

A tile is 16 weight rows x 64 columns: 32 * bits words of codes and, for each group of columns in
it, 16 words of scales. This file is the definition; affine_tile.cuh reads it, affine_order.cu
writes it. Lane 4 g + t holds rows g and g + 8 and, in each half h, columns 32 h + 8 t .. + 7:
register 8 h + 4 s + r has columns 4 s + 2 (r // 2) and the next of row g (r even) or g + 8 (odd).

A lane's codes lie in two planes: the lower bits (2, 4 or 8 of them) and what is left (0, 1 or 2).
Register p has the bits of its even column at place p * width of the plane, counted in the lower
halves of the lane's words, and those of the odd column 16 bits higher. A word of scales is a bf16
scale times 2^shifted(bits, upper), which decoding leaves out, below a bf16 bias; row g, row g + 8
(upper), and the same of the second group. Groups of 128 columns have their words with every second
tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.fragment_order import TILE_COLUMNS, TILE_ROWS, row_tiles
from gemma_thor_ros.schema import ConfigError

Array = npt.NDArray[Any]
BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)


class RawAffine(Protocol):
    """One matrix (N, M) as packs store it, or E of them, scales and biases as bf16 bits.

    words (..., N, M * bits / 32) u32; scales, biases (..., N, M / group_size) u16.
    """

    @property
    def words(self) -> Any: ...
    @property
    def scales(self) -> Any: ...
    @property
    def biases(self) -> Any: ...
    @property
    def bits(self) -> int: ...
    @property
    def group_size(self) -> int: ...


@dataclass(frozen=True)
class StoredAffine:
    """RawAffine with its arrays on the device."""

    words: Any
    scales: Any
    biases: Any
    bits: int
    group_size: int


@dataclass(frozen=True)
class AffineFragments:
    """A matrix on the device, or E of them; arrays are CuPy's.

    words (E * R * C * 32 * bits,) u32, scales (u32): R row tiles, C column tiles. `interleaved`:
    gate and up of an MLP alternate by 8 rows, and num_outputs counts the rows of one of them.
    """

    words: Any
    scales: Any
    num_outputs: int             # N, or I where interleaved
    columns: int                 # M
    bits: int
    group_size: int
    interleaved: bool
    num_experts: int = 0         # 0: one matrix

    @property
    def num_row_tiles(self) -> int:
        """R of one matrix."""
        return row_tiles(self.num_outputs, self.interleaved)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.words.nbytes + self.scales.nbytes)


@dataclass(frozen=True)
class AffineStack:
    """Matrices of one M stacked by rows whose widths or groups differ."""

    parts: tuple[AffineFragments, ...]

    @property
    def num_outputs(self) -> int:
        """N of all."""
        return sum(part.num_outputs for part in self.parts)

    @property
    def columns(self) -> int:
        """M."""
        return self.parts[0].columns


def column_tiles(columns: int) -> int:
    """C."""
    return -(-columns // TILE_COLUMNS)


def tile_scales(columns: int, group_size: int) -> int:
    """Words of scales of a row tile."""
    tiles = column_tiles(columns)
    return 16 * (2 * tiles if group_size == 32 else tiles if group_size == 64 else -(-tiles // 2))


def planes(bits: int) -> tuple[int, int]:
    """Bits of the lower and of the upper plane."""
    high = 2 if bits == 6 else bits % 2
    return bits - high, high


def shifted(bits: int, upper: bool) -> int:
    """The power of two that decoded codes lack and stored scales have; upper: of row g + 8.

    With one plane codes can be multiplied as the bf16 numbers that their bits are, q 2^-133 times
    2 to their place, if the row is multiplied by 2^64: this is what then remains.
    """
    low, high = planes(bits)
    return 6 + low if high else 69 - low % 8 * upper


def affine_order_ref(low: RawAffine, high: RawAffine | None = None) -> tuple[Array, Array]:
    """The twin: words (R, C, 32 bits) and scales (R, tile_scales) u32 of one matrix.

    With `high` the two interleave by 8 rows, `low` first.
    """
    bits, group = low.bits, low.group_size
    codes = _tiled(_codes_of(low), None if high is None else _codes_of(high), TILE_COLUMNS)
    num_rows, num_columns = codes.shape[0] // 16, codes.shape[1] // TILE_COLUMNS
    # axes: R, upper, g, C, half, t, step, register // 2, parity
    split = codes.reshape(num_rows, 2, 8, num_columns, 2, 4, 2, 2, 2).astype(np.uint32)
    # -> R, C, lane (g, t), p (half, step, register // 2, upper), parity
    lanes = split.transpose(0, 3, 2, 5, 4, 6, 7, 1, 8).reshape(num_rows, num_columns, 32, 16, 2)
    low_bits, high_bits = planes(bits)
    stored = [_plane(lanes & ((1 << low_bits) - 1), low_bits)]
    if high_bits:
        stored.append(_plane(lanes >> low_bits, high_bits))
    words = np.concatenate(stored, axis=-1)
    width = 128 if group == 128 else TILE_COLUMNS
    tiled = _tiled(low.scales, None if high is None else high.scales, width // group)
    biases = _tiled(low.biases, None if high is None else high.biases, width // group)
    powers = np.repeat([2.0 ** shifted(bits, False), 2.0 ** shifted(bits, True)], 8)
    values = (tiled.astype(np.uint32) << 16).view(np.float32) * np.tile(powers, num_rows)[:, None]
    # exact
    tiled = (values.astype(np.float32).view(np.uint32) >> 16 | biases.astype(np.uint32) << 16)
    # R, upper, g, scale tile, group of the tile -> R, scale tile, g, group, upper
    scales = tiled.reshape(num_rows, 2, 8, -1, width // group).transpose(0, 3, 2, 4, 1)
    return words, np.ascontiguousarray(scales).reshape(num_rows, -1)


def _codes_of(matrix: RawAffine) -> Array:
    """(N, M) u8."""
    stream = np.unpackbits(np.ascontiguousarray(matrix.words, '<u4').view(np.uint8), axis=-1,
                           bitorder='little')
    bits = stream.reshape(stream.shape[0], -1, matrix.bits).astype(np.uint16)
    codes: Array = (bits << np.arange(matrix.bits, dtype=np.uint16)).sum(-1).astype(np.uint8)
    return codes


def _tiled(low: Array, high: Array | None, width: int) -> Array:
    """Rows in tile order, padded to whole tiles with zeros."""
    size = TILE_ROWS if high is None else TILE_ROWS // 2
    num_rows, num_columns = -(-low.shape[0] // size), -(-low.shape[1] // width)
    parts = []
    for part in [low] if high is None else [low, high]:
        whole = np.zeros((num_rows * size, num_columns * width), part.dtype)
        whole[:part.shape[0], :part.shape[1]] = part
        parts.append(whole.reshape(num_rows, size, -1))
    return np.concatenate(parts, axis=1).reshape(num_rows * TILE_ROWS, -1)


def _plane(lanes: Array, width: int) -> Array:
    """(R, C, 32 width) words of one plane, in the vectors in which lanes load them."""
    per_word = 16 // width
    halves = lanes.reshape(*lanes.shape[:3], width, per_word, 2)
    shifts = np.arange(per_word)[:, None] * width + np.arange(2) * 16
    words = np.bitwise_or.reduce(halves << shifts.astype(np.uint32), axis=(-2, -1))
    vector = min(width, 4)
    vectors = words.reshape(*words.shape[:3], width // vector, vector).swapaxes(2, 3)
    return np.ascontiguousarray(vectors).reshape(*words.shape[:2], 32 * width)


def to_affine(parts: Sequence[RawAffine], *, interleaved: bool = False,
              stream: Any) -> AffineFragments:
    """Put matrices that lie on the device in order; several are stacked by rows.

    parts: matrices (N, M) of one M, width and group, each N but the last a multiple of 16; or,
    `interleaved`, gate and up, both (I, M) with I a multiple of 8. With a leading axis E in all of
    them, which must fill their tiles, the result has E matrices. Only enqueues. Raises ConfigError
    for sizes that do not fit.
    """
    bits, group, columns = _check_parts(parts, interleaved)
    lead = parts[0].words.shape[:-2]
    num_experts = int(lead[0]) if lead else 0
    counts = [part.words.shape[-2] for part in parts]
    num_outputs = counts[0] if interleaved else sum(counts)
    tiles, width = row_tiles(num_outputs, interleaved), column_tiles(columns)
    tiles *= max(num_experts, 1)
    with stream:
        words = device.empty(tiles * width * 32 * bits, np.uint32)
        scales = device.empty(tiles * tile_scales(columns, group), np.uint32)
        kernel = device.compiled(spec(bits, group))
        first = 0
        for low, high in _launches(parts, interleaved):
            count = low.words.shape[-2] * max(num_experts, 1)
            step, offset = (8, 0) if interleaved else (16, 8)
            own = -(-count // step)
            device.launch(
                kernel, (-(-own * width * 32 // 256),), 256,
                (words[first * width * 32 * bits:], scales[first * tile_scales(columns, group):],
                 low.words, low.scales, low.biases, high.words, high.scales, high.biases, count,
                 columns, own, width, step, offset), stream, overlap=False)
            first += own
    return AffineFragments(words, scales, num_outputs, columns, bits, group, interleaved,
                           num_experts)


def _launches(parts: Sequence[RawAffine],
              interleaved: bool) -> Iterator[tuple[RawAffine, RawAffine]]:
    """What one launch each puts in order."""
    if interleaved:
        yield parts[0], parts[1]
        return
    for part in parts:
        yield part, part


def _check_parts(parts: Sequence[RawAffine], interleaved: bool) -> tuple[int, int, int]:
    """Bits, group size and M of all."""
    bits, group = parts[0].bits, parts[0].group_size
    leads = {part.words.shape[:-2] for part in parts}
    shapes = [(part.words.shape[-2], part.words.shape[-1] * 32 // part.bits) for part in parts]
    if {(part.bits, part.group_size) for part in parts} != {(bits, group)} or len(
            {columns for _, columns in shapes}) != 1 or len(leads) != 1:
        raise ConfigError('MLX affine matrices of different widths or groups cannot be stacked: '
                          + ', '.join(f'{part.bits} bits in groups of {part.group_size}, '
                                      f'{shape[0]} x {shape[1]}'
                                      for part, shape in zip(parts, shapes, strict=True)))
    if interleaved and (len(parts) != 2 or len(set(shapes)) != 1 or shapes[0][0] % 8):
        raise ConfigError(f'gate and up must be two equal matrices with a multiple of 8 rows, '
                          f'got {shapes}')
    if not interleaved and any(rows % TILE_ROWS for rows, _ in shapes[:-1]):
        raise ConfigError(f'stacked MLX affine matrices need multiples of 16 rows, got {shapes}')
    if leads != {()} and ((len(parts) > 1 and not interleaved)
                          or shapes[0][0] % (8 if interleaved else TILE_ROWS)):
        raise ConfigError(f'experts in MLX affine need multiples of 16 rows, got {shapes}')
    return bits, group, shapes[0][1]


def spec(bits: int, group_size: int) -> KernelSpec:
    """What is compiled for one width."""
    assert bits in BITS and group_size in GROUPS, (bits, group_size)
    return KernelSpec.of('affine_order', BITS=bits, GROUP=group_size)


def bytes_moved(num_rows: int, columns: int, bits: int, group_size: int) -> int:
    """Codes and scales read, and written."""
    return 2 * (num_rows * columns * bits // 8 + num_rows * columns // group_size * 4)
