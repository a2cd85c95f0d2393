# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The rows of one step: a Batch for the model, and whose rows are in it.

Knows sequences and their pages; no queue, no priority, no model.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from gemma_thor_ros.engine.page_pool import PageManager, PageTables
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.batch import Batch, Role, Span


@dataclass(frozen=True)
class Part:
    """The rows of one sequence in a plan. `logit_row` is -1 where no token is wanted yet."""

    sequence: Sequence
    role: Role
    num_rows: int
    logit_row: int


@dataclass(frozen=True)
class Plan:
    """One step: the model's batch and whose rows are in it."""

    batch: Batch
    parts: tuple[Part, ...]


def choose_rows(running: Seq[Sequence], prefill_chunk: int, max_rows: int,
                ) -> list[tuple[Sequence, int]]:
    """How many rows each running sequence has in the next step.

    Generated tokens that are not in the cache: one, or after a drop up to max_rows of them.
    Prompts share prefill_chunk rows in the order given. Where a chunk ends changes no result, so
    that the rest of a budget may be of any size.
    """
    chosen = []
    budget = prefill_chunk
    for sequence in running:
        if sequence.role is Role.DECODE:
            num_rows = min(max_rows, sequence.num_tokens - sequence.num_committed)
        else:
            num_rows = min(budget, sequence.num_prompt - sequence.num_committed)
            budget -= num_rows
        if num_rows:
            chosen.append((sequence, num_rows))
    return chosen


def build_plan(chosen: Seq[tuple[Sequence, int]], pages: PageManager) -> Plan:
    """Write the rows of the chosen sequences into a batch; gives the pages that they need."""
    num_rows_total = sum(num_rows for _, num_rows in chosen)
    token_ids = np.empty(num_rows_total, np.int32)
    positions = np.empty(num_rows_total, np.int32)
    spans: list[Span] = []
    parts: list[Part] = []
    logit_rows: list[int] = []
    row = 0
    for sequence, num_rows in chosen:
        start = sequence.num_committed
        end, tables = start + num_rows, tables_of(sequence)
        pages.grow(tables, end)
        token_ids[row:row + num_rows] = sequence.token_ids[start:end]
        positions[row:row + num_rows] = range(start, end)
        spans.append(Span(sequence.role, row, num_rows, start, tables.sliding, tables.full))
        logit_row = -1
        if end == sequence.num_tokens:                   # the newest token: what comes after it?
            logit_row = len(logit_rows)
            logit_rows.append(row + num_rows - 1)
        parts.append(Part(sequence, sequence.role, num_rows, logit_row))
        row += num_rows
    batch = Batch(token_ids, positions, tuple(spans), np.array(logit_rows, np.int32))
    return Plan(batch, tuple(parts))


def tables_of(sequence: Sequence) -> PageTables:
    """The page tables of a sequence that has been admitted."""
    assert sequence.pages is not None, f'request {sequence.request.request_id!r} holds no pages'
    return sequence.pages
