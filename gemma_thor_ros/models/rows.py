# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The rows of one step in the order in which the ops work on them.

Generated rows come first, padded to the decode tile, then the prompt rows of each sequence in
tiles of their own, where position p has place p mod tile. Padding rows have token id -1. Built
once per forward; knows sizes but no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.config import SLIDING, ImageBlocks
from gemma_thor_ros.ops.attention import AttentionSpan
from gemma_thor_ros.ops.kv_append import PageRows
from gemma_thor_ros.ops.linear import RowTiles

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowPlan:
    """Where each row of a Batch stands inside the forward pass."""

    token_ids: Indices                       # (T',) -1 in padding rows
    positions: Indices                       # (T',)
    num_decode_rows: int                     # padded: prompt rows start here
    num_prefill_rows: int                    # padded
    row_of_token: Indices                    # (T,) the Batch's row -> row here
    spans: tuple[tuple[Span, int], ...]      # (span, its first row here)
    soft_rows: tuple[tuple[Indices, Any], ...]   # (rows here, what stands in for their embedding)

    @property
    def num_rows(self) -> int:
        """T', padding included."""
        return self.num_decode_rows + self.num_prefill_rows

    def page_rows(self, layer_type: str, page_size: int) -> PageRows:
        """Pages and slots that the real rows write, for the layers of one type."""
        pages = []
        positions = []
        rows = []
        for span, row in self.spans:
            where = np.arange(span.start_position, span.start_position + span.num_rows)
            pages.append(_pages(span, layer_type)[where // page_size])
            positions.append(where)
            rows.append(np.arange(row, row + span.num_rows))
        page_ids = np.concatenate(pages)
        assert page_ids.min() >= 0, 'a row has no page'
        return PageRows(np.concatenate(rows), page_ids, np.concatenate(positions) % page_size)

    def attention_spans(self, layer_type: str, blocks: ImageBlocks = 'causal',
                        ) -> list[tuple[AttentionSpan, bool]]:
        """The spans for the layers of one type, and whether they are generated tokens."""
        return [(AttentionSpan(row, span.num_rows, span.start_position, _pages(span, layer_type),
                               blocks=() if blocks == 'causal' else span.blocks,
                               whole_blocks=blocks == 'whole'), span.role is Role.DECODE)
                for span, row in self.spans]


def plan_rows(batch: Batch, tiles: RowTiles) -> RowPlan:
    """Order the rows of a batch by role and pad them."""
    num_decode = sum(span.num_rows for span in batch.spans if span.role is Role.DECODE)
    num_decode = -(-num_decode // tiles.decode) * tiles.decode
    next_decode, next_prefill = 0, num_decode
    row_of_token = np.empty(batch.token_ids.size, np.int64)
    spans = []
    for span in batch.spans:
        if span.role is Role.DECODE:
            row = next_decode
            next_decode += span.num_rows
        else:
            slot = span.start_position % tiles.prefill
            row = next_prefill + slot
            next_prefill += -(-(slot + span.num_rows) // tiles.prefill) * tiles.prefill
        row_of_token[span.start_row:span.start_row + span.num_rows] = np.arange(
            row, row + span.num_rows)
        spans.append((span, row))
    num_prefill = next_prefill - num_decode
    token_ids = np.full(num_decode + num_prefill, -1, np.int64)
    token_ids[row_of_token] = batch.token_ids
    positions = np.zeros(num_decode + num_prefill, np.int64)
    positions[row_of_token] = batch.positions
    soft_rows = tuple((row_of_token[soft.start_row:soft.start_row + len(soft.values)], soft.values)
                      for soft in batch.soft_rows)
    return RowPlan(token_ids, positions, num_decode, num_prefill, row_of_token, tuple(spans),
                   soft_rows)


def _pages(span: Span, layer_type: str) -> npt.NDArray[Any]:
    return span.sliding_pages if layer_type == SLIDING else span.full_pages
