# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""hidden[t] = table[token_ids[t]] * scale, the first thing of a forward pass.

scale is sqrt(hidden_size) rounded to bf16 by the caller: checkpoints were trained with that
constant. Padding rows (token id -1) become zeros, so that they stay finite through all layers.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.linear import TableWeight
from gemma_thor_ros.ops.rounding import Array, Rounding, stored, stored_by_mlx
from gemma_thor_ros.ops.shapes import check


def embed_ref(out: Array, token_ids: npt.NDArray[Any], table: TableWeight, scale: float,
              rounding: Rounding = 'none') -> None:
    """Write out (T, H) from token_ids (T,); 'device' rounds the product to bf16."""
    out[...] = 0
    real = token_ids >= 0
    out[real] = table.rows(token_ids[real])
    stored_by_mlx(out, rounding)         # a row of an affine table has more bits than bf16
    out *= out.dtype.type(scale)
    stored(out, rounding)


def embed(hidden: Any, token_ids: Any, table: Any, scale: float, stream: Any) -> None:
    """Enqueue hidden (T, H) f32 from token_ids (T,) i32 and the table (V, H) bf16.

    The first launch of a step, hence the one that does not overlap the launch before it: what
    earlier steps wrote is there before any later kernel of this step starts.
    """
    sizes = check('embed', hidden=hidden, token_ids=token_ids, table=table)
    kernel = device.compiled(spec(sizes['H']))
    device.launch(kernel, (sizes['T'],), -(-sizes['H'] // 256) * 32,
                  (hidden, token_ids, table, float(scale)), stream, overlap=False)


def spec(hidden_size: int) -> KernelSpec:
    """What is compiled for H columns."""
    assert hidden_size % 8 == 0 and hidden_size <= 8192, hidden_size
    return KernelSpec.of('embed', H=hidden_size)


def bytes_moved(num_tokens: int, hidden_size: int, element_bytes: int) -> int:
    """Rows read and rows written."""
    return 2 * num_tokens * hidden_size * element_bytes
