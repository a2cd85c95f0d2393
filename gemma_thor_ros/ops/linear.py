# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""y = x W^T for the rows of one step, each row with the same bits whatever rows stand beside it.

BLAS picks its algorithm by the shape and by a row's place in the matrix (with OpenBLAS's kernels
for AVX2 the rows 6 .. 11 of a float32 product of 16 rows differ in the last bit from equal rows 0
.. 5). So generated rows run one at a time, as matrix-vector products of one shape, and prompt
rows in tiles of one shape in which the row of position p always has place p mod tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops.rounding import Array, Rounding, stored

# A block is at most this many numbers: bounds the memory of weights that are dequantised at use.
_BLOCK_SIZE = 1 << 25


@runtime_checkable
class DenseValues(Protocol):
    """A stored weight whose numbers stand in memory one by one."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> DenseValues: ...
    def to_float(self, dtype: npt.DTypeLike = ...) -> Array: ...


@runtime_checkable
class PackedValues(Protocol):
    """A stored weight that has to be unpacked."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> PackedValues: ...
    def dequantize(self, dtype: npt.DTypeLike = ...) -> Array: ...


StoredWeight = DenseValues | PackedValues


def values(weight: StoredWeight, dtype: npt.DTypeLike) -> Array:
    """The numbers of a stored weight as float32 or float64."""
    if isinstance(weight, PackedValues):
        return weight.dequantize(dtype)
    return weight.to_float(dtype)


@dataclass(frozen=True)
class RowTiles:
    """Rows that an op works on together, by role. Prompt rows stand at position mod `prefill`."""

    decode: int
    prefill: int


# 32 wastes little of a short prompt and runs at 85% of the speed of 128 rows (bench/LOG.md).
CPU_TILES = RowTiles(decode=1, prefill=32)


class LinearWeight:
    """One projection, or several that read the same input, stacked along their out features.

    shape (N, M). `resident` keeps the numbers as `dtype`; otherwise they are dequantised block by
    block at every use, to the same values.
    """

    def __init__(self, parts: Sequence[StoredWeight], dtype: npt.DTypeLike,
                 resident: bool = True) -> None:
        sizes = {part.shape[-1] for part in parts}
        assert len(sizes) == 1 and all(len(part.shape) == 2 for part in parts), (
            [part.shape for part in parts])
        self.dtype = np.dtype(dtype)
        self.shape = (sum(part.shape[0] for part in parts), sizes.pop())
        self._parts = tuple(parts)
        self._array: Array | None = None
        rows = max(64, _BLOCK_SIZE // self.shape[1] // 64 * 64)
        self.blocks = tuple((start, min(start + rows, self.shape[0]))
                            for start in range(0, self.shape[0], rows))
        if resident:
            self._array = self.rows(0, self.shape[0])
            self._parts = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of the resident form, whether it is resident or not."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> Array:
        """Rows start .. stop - 1 of W as (stop - start, M), C-contiguous."""
        if self._array is not None:
            return self._array[start:stop]
        pieces = []
        offset = 0
        for part in self._parts:
            low, high = max(start - offset, 0), min(stop - offset, part.shape[0])
            if low < high:
                pieces.append(values(part[low:high], self.dtype))
            offset += part.shape[0]
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        result: Array = np.ascontiguousarray(whole, self.dtype)
        return result


class TableWeight:
    """The tied embedding table: rows for the embedding, W (V, H) for the head."""

    def __init__(self, weight: StoredWeight, dtype: npt.DTypeLike, resident: bool = True) -> None:
        self.linear = LinearWeight([weight], dtype, resident)
        self._weight = weight
        self._resident = resident

    def rows(self, token_ids: npt.NDArray[Any]) -> Array:
        """(T,) token ids -> (T, H), unscaled."""
        if self._resident:
            table = self.linear.rows(0, self.linear.shape[0])
            return np.take(table, token_ids, axis=0)
        ids = token_ids.tolist()
        return np.concatenate([self.linear.rows(token, token + 1) for token in ids])


def tiled_matmul(out: Array, x: Array, matrix: Array, tile: int) -> None:
    """out (T, N) = x (T, M) matrix (N, M)^T, one BLAS call for every `tile` rows.

    T is a multiple of tile. np.matmul runs the stacked tiles one after the other.
    """
    num_tiles = x.shape[0] // tile
    np.matmul(x.reshape(num_tiles, tile, x.shape[1]), matrix.T,
              out=out.reshape(num_tiles, tile, matrix.shape[0]))


def linear_ref(out: Array, x: Array, weight: LinearWeight, num_decode_rows: int, *,
               tiles: RowTiles = CPU_TILES, rounding: Rounding = 'none') -> None:
    """Write out (T, N) from x (T, M): num_decode_rows generated rows first, then prompt rows.

    The prompt rows fill whole tiles. 'device' rounds the result to bf16.
    """
    split = num_decode_rows
    for start, stop in weight.blocks:
        matrix = weight.rows(start, stop)
        if split:
            tiled_matmul(out[:split, start:stop], x[:split], matrix, tiles.decode)
        if split < x.shape[0]:
            tiled_matmul(out[split:, start:stop], x[split:], matrix, tiles.prefill)
    stored(out, rounding)


def bytes_moved(num_rows: int, shape: tuple[int, int], weight_bytes: int,
                element_bytes: int) -> int:
    """The weight once, the rows in and out."""
    return weight_bytes + num_rows * (shape[0] + shape[1]) * element_bytes
