# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The ends of a vision part: pixels to numbers, position embeddings, pooling to soft tokens.

Patches stand row by row, `columns` of them in a row. One image is one call, so that its bits
depend on nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.rounding import Array, Rounding, stored
from gemma_thor_ros.ops.shapes import check

Levels = npt.NDArray[np.uint8]


def patch_numbers_ref(out: Array, patches: Levels, centred: bool,
                      rounding: Rounding = 'none') -> None:
    """Write x / 255, or 2 (x / 255 - 1/2) where `centred`, of patches (P, M) to out (P, M).

    'device' rounds the result to bf16.
    """
    number = out.dtype.type
    np.multiply(patches, number(1 / 255), out=out)
    if centred:
        out -= number(0.5)
        out *= number(2)
    stored(out, rounding)


def add_positions_ref(x: Array, x_table: Array, y_table: Array, columns: int) -> None:
    """x (P, H) += x_table[p mod columns] + y_table[p div columns]; tables (rows, H).

    Never rounded: the sum stays in the residual.
    """
    places = np.arange(x.shape[0])
    x += x_table[places % columns]
    x += y_table[places // columns]


def pool_ref(out: Array, x: Array, columns: int, size: int, scale: float) -> None:
    """out (N, H) = the mean of each size x size block of x (P, H), times scale; never rounded."""
    hidden = x.shape[1]
    rows = x.shape[0] // columns
    blocks = x.reshape(rows // size, size, columns // size, size, hidden)
    total = out.reshape(rows // size, columns // size, hidden)
    total[...] = 0
    for row in range(size):                              # in one order, whatever the shape
        for column in range(size):
            total += blocks[:, row, :, column]
    out *= out.dtype.type(scale / (size * size))


def standardize_ref(x: Array, bias: Array, scale: Array, rounding: Rounding = 'none') -> None:
    """x (N, H) = (x - bias) * scale in place; 'device' rounds the result to bf16."""
    x -= bias
    x *= scale
    stored(x, rounding)


# On the device an image is one call too. What goes into a product is bf16, all else f32.

def vision_numbers(out: Any, patches: Any, centred: bool, stream: Any) -> None:
    """Enqueue out (P, M) bf16 = numbers of patches (P, M) u8, as patch_numbers_ref.

    The first launch of an image, so it does not overlap the one before it.
    """
    sizes = check('vision_numbers', out=out, patches=patches)
    _launch('vision_numbers', sizes, (out, patches), stream, False, CENTRED=int(centred))


def vision_widen(out: Any, x: Any, stream: Any) -> None:
    """Enqueue out (P, M) f32 = x (P, M) bf16: products, or soft tokens into the residual."""
    _launch('vision_widen', check('vision_widen', out=out, x=x), (out, x), stream)


def vision_positions(x: Any, x_table: Any, y_table: Any, columns: int, stream: Any) -> None:
    """Enqueue x (P, M) f32 += the rows of each patch's x and y, of two tables (rows, M) f32.

    The rows of both tables may lie apart, equally far.
    """
    sizes = check('vision_positions', x=x)
    size, strides = sizes['M'], x_table.strides
    assert x_table.shape == y_table.shape and y_table.strides == strides, (
        x_table.shape, strides, y_table.shape, y_table.strides)
    assert x_table.shape[1] == size and strides[1] == 4, (sizes, x_table.shape, strides)
    assert x_table.shape[0] >= max(columns, -(-sizes['P'] // columns)), (x_table.shape, columns)
    _launch('vision_positions', sizes,
            (x, x_table, y_table, int(columns), strides[0] // 4), stream)


def vision_pool(out: Any, x: Any, columns: int, size: int, scale: float, stream: Any) -> None:
    """Enqueue out (N, M) f32 = means of size x size blocks of x (P, M) f32, times scale."""
    sizes = check('vision_pool', out=out, x=x)
    assert sizes['N'] * size * size == sizes['P'] and columns % size == 0, (sizes, columns)
    _launch('vision_pool', {'P': sizes['N'], 'M': sizes['M']},
            (out, x, int(columns), size, float(scale / (size * size))), stream)


def vision_standardize(x: Any, bias: Any, scale: Any, stream: Any) -> None:
    """Enqueue x (P, M) f32 = (x - bias) * scale in place, rounded to bf16; bias, scale (M,)."""
    sizes = check('vision_standardize', x=x, bias=bias, scale=scale)
    _launch('vision_standardize', sizes, (x, bias, scale), stream)


def vision_bias(x: Any, bias: Any, stream: Any) -> None:
    """Enqueue x (P, M) f32 += bias (M,) in place, rounded to bf16."""
    _launch('vision_bias', check('vision_bias', x=x, bias=bias), (x, bias), stream)


def vision_clip(out: Any, x: Any, low: float, high: float, stream: Any) -> None:
    """Enqueue out (P, M) bf16 = x (P, M) bf16 held to [low, high]; out may be some columns."""
    sizes = check('vision_clip', x=x)
    assert out.shape == x.shape and out.dtype == x.dtype and out.strides[1] == 2, (
        out.shape, out.dtype, out.strides)
    _launch('vision_clip', sizes, (out, x, float(low), float(high), out.strides[0] // 2), stream)


def spec(entry: str, num_columns: int, **constants: int) -> KernelSpec:
    """What is compiled for rows of so many numbers."""
    assert num_columns % 8 == 0, num_columns
    return KernelSpec.of('vision_patches', entry, N=num_columns, **constants)


def _launch(entry: str, sizes: dict[str, int], args: tuple[Any, ...], stream: Any,
            overlap: bool = True, **constants: int) -> None:
    kernel = device.compiled(spec(entry, sizes['M'], **constants))
    device.launch(kernel, (-(-sizes['M'] // 1024), sizes['P']), 128, args, stream,
                  overlap=overlap)


def bytes_moved(num_patches: int, hidden_size: int, element_bytes: int) -> int:
    """Rows read and rows written."""
    return 2 * num_patches * hidden_size * element_bytes
