# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What one forward pass works on: rows of several sequences, each with its pages.

Built by the engine's scheduler, read by models/. Holds plain NumPy arrays (the CUDA runner copies
them to its static buffers). Knows no text, no sampling settings and no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


class Role(Enum):
    """Which kernel family runs the rows: it follows the token's role, never the row count."""

    PREFILL = 'prefill'      # prompt tokens, also when a chunk or a cache hit leaves one row
    DECODE = 'decode'        # generated tokens: decode and verify rows, 1 to 16 a sequence


@dataclass(frozen=True)
class Span:
    """The consecutive rows of one sequence in a batch.

    Rows start_row .. start_row + num_rows - 1 hold positions start_position .. (consecutive).
    K and V of each row are written to the pages first, then row i attends keys 0 .. its position.
    Key position p of a layer lies in page `pages[p // page_size]`, slot `p % page_size`; the two
    tables are for the two layer geometries. Entries of freed sliding pages are -1 and never read.
    `blocks` are the positions [start, stop) of images, each wholly among the rows: in the layers
    that have them, rows of a block attend all of it.
    """

    role: Role
    start_row: int
    num_rows: int
    start_position: int
    sliding_pages: Int32     # (max_pages,)
    full_pages: Int32        # (max_pages,)
    blocks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class SoftRows:
    """Rows of a batch whose embedding is an image's soft tokens instead of their token id's."""

    start_row: int
    values: Any              # (n, H), unscaled


@dataclass(frozen=True)
class Batch:
    """Rows of one step. T = token_ids.size; spans cover 0 .. T - 1 without gaps, in order."""

    token_ids: Int32         # (T,)
    positions: Int32         # (T,)
    spans: tuple[Span, ...]
    logit_rows: Int32        # (R,) rows whose logits are wanted, ascending
    soft_rows: tuple[SoftRows, ...] = ()
