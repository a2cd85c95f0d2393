# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The rows of one step: a Batch for the model, and whose rows are in it.

Knows sequences and their pages; no queue, no priority, no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from gemma_thor_ros.engine.page_pool import PageManager, PageTables
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.batch import Batch, Role, Span


@dataclass(frozen=True)
class Part:
    """The rows of one sequence in a plan.

    `logit_row` is -1 where no token is wanted yet, else the first of 1 + len(drafts) rows of
    logits; the drafts are the last of the part's rows.
    """

    sequence: Sequence
    role: Role
    num_rows: int
    logit_row: int
    drafts: tuple[int, ...] = ()


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
    that the rest of a budget may be of any size; only an image is never cut. One that is longer
    than the whole budget is a chunk of its own.
    """
    chosen = []
    budget = prefill_chunk
    for sequence in running:
        if sequence.role is Role.DECODE:
            num_rows = min(max_rows, sequence.num_tokens - sequence.num_committed)
        else:
            num_rows = prompt_rows(sequence, budget, alone=budget == prefill_chunk)
            budget = max(0, budget - num_rows)
        if num_rows:
            chosen.append((sequence, num_rows))
    return chosen


def prompt_rows(sequence: Sequence, budget: int, alone: bool) -> int:
    """The next prompt rows of a sequence, at most `budget`, without cutting an image.

    `alone`: nobody has used of the budget, so an image that begins here may exceed it.
    """
    start = sequence.num_committed
    end = min(start + budget, sequence.num_prompt)
    for image in sequence.request.images:
        if image.start < end < image.stop:
            if image.start > start:
                return image.start - start
            return image.stop - start if alone else 0
    return end - start


def build_plan(chosen: Seq[tuple[Sequence, int]], pages: PageManager,
               drafts: Mapping[Sequence, tuple[int, ...]]) -> Plan:
    """Write the rows of the chosen sequences into a batch; gives the pages that they need.

    A sequence with drafts has them as rows behind its own, which end with its newest token.
    """
    num_rows_total = sum(num_rows + len(drafts.get(sequence, ())) for sequence, num_rows in chosen)
    token_ids = np.empty(num_rows_total, np.int32)
    positions = np.empty(num_rows_total, np.int32)
    spans: list[Span] = []
    parts: list[Part] = []
    logit_rows: list[int] = []
    row = 0
    for sequence, num_own in chosen:
        start, guesses = sequence.num_committed, drafts.get(sequence, ())
        own_end, num_rows = start + num_own, num_own + len(guesses)
        end, tables = start + num_rows, tables_of(sequence)
        assert end <= sequence.max_positions, (end, sequence.max_positions)
        pages.grow(tables, end)
        if sequence.role is Role.DECODE and end == tables.num_given * pages.page_size:
            pages.grow_ahead(tables)                     # the step after this one is its first row
        token_ids[row:row + num_own] = sequence.token_ids[start:own_end]
        token_ids[row + num_own:row + num_rows] = guesses
        positions[row:row + num_rows] = range(start, end)
        spans.append(Span(sequence.role, row, num_rows, start, tables.sliding, tables.full,
                          _image_blocks(sequence, start, own_end)))
        logit_row = -1
        if own_end == sequence.num_tokens:               # the newest token: what comes after it?
            logit_row = len(logit_rows)
            logit_rows.extend(range(row + num_own - 1, row + num_rows))
        parts.append(Part(sequence, sequence.role, num_rows, logit_row, guesses))
        row += num_rows
    batch = Batch(token_ids, positions, tuple(spans), np.array(logit_rows, np.int32))
    return Plan(batch, tuple(parts))


def _image_blocks(sequence: Sequence, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The images among the positions start .. end - 1 of a sequence."""
    blocks = tuple((image.start, image.stop) for image in sequence.request.images
                   if image.start < end and image.stop > start)
    assert all(start <= first and stop <= end for first, stop in blocks), (
        f'rows {start} to {end - 1} cut an image: {blocks}')
    return blocks


def tables_of(sequence: Sequence) -> PageTables:
    """The page tables of a sequence that has been admitted."""
    assert sequence.pages is not None, f'request {sequence.request.request_id!r} holds no pages'
    return sequence.pages
