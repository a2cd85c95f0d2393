# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which rows the next step runs: admission by priority, decode rows of all, prompt chunks beside.

Works on sequences and page counts alone; knows no model, no thread and no clock. Not thread-safe:
the engine thread's own.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import numpy as np

from gemma_thor_ros.engine.page_pool import PageManager, PageTables
from gemma_thor_ros.engine.prefix_cache import PrefixCache, Trail
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.batch import Batch, Role, Span


@dataclass(frozen=True)
class Part:
    """The rows of one sequence in a plan. `logit_row` is -1 where a prompt goes on after them."""

    sequence: Sequence
    role: Role
    num_rows: int
    logit_row: int


@dataclass(frozen=True)
class Plan:
    """One step: the model's batch and whose rows are in it."""

    batch: Batch
    parts: tuple[Part, ...]


class Scheduler:
    """Waiting and running sequences. Higher priority first, first come first within one.

    At most `max_sequences` run; at most `prefill_chunk` prompt rows are in a step, in order.
    """

    def __init__(self, pages: PageManager, cache: PrefixCache, *, max_sequences: int,
                 prefill_chunk: int) -> None:
        self.pages = pages
        self.cache = cache
        self.max_sequences = max_sequences
        self.prefill_chunk = prefill_chunk
        self.waiting: list[Sequence] = []                # sorted by Sequence.order
        self.running: list[Sequence] = []                # likewise

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence among the waiting."""
        insort(self.waiting, sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, waiting or running, and free its pages at once."""
        if sequence.pages is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self.pages.release(sequence.pages)
        sequence.pages = None

    def admit(self, now: float) -> None:
        """Start waiting sequences while slots and pages last, strictly in order.

        The first that does not fit holds back those behind it, so that a large request is not
        overtaken for ever by small ones.
        """
        while self.waiting and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            trail = self._trail(sequence)
            prefix = self.cache.match(trail)
            sequence.pages = self.pages.admit(sequence.max_positions, prefix)
            if sequence.pages is None:
                return
            del self.waiting[0]
            self.cache.use(trail, prefix)
            sequence.num_committed = prefix.num_pages * self.pages.page_size
            sequence.cached_tokens = sequence.num_committed
            sequence.admitted = now
            insort(self.running, sequence, key=lambda s: s.order)

    def plan(self) -> Plan:
        """The next step for the running sequences (at least one); gives the pages that it needs.

        Every decoding sequence has one row; what the chunk allows goes to prompts in order. Where
        a chunk ends changes no result, so that the rest of a budget may be of any size.
        """
        chosen: list[tuple[Sequence, int]] = []
        budget = self.prefill_chunk
        for sequence in self.running:
            if sequence.role is Role.DECODE:
                num_rows = sequence.num_tokens - sequence.num_committed
            else:
                num_rows = min(budget, sequence.num_prompt - sequence.num_committed)
                budget -= num_rows
            if num_rows:
                chosen.append((sequence, num_rows))
        assert chosen, f'none of {len(self.running)} running sequences has a row to run'
        return self._build(chosen)

    def commit(self, part: Part) -> None:
        """Count a part's rows as cached and free the sliding pages that this leaves behind."""
        sequence = part.sequence
        sequence.num_committed += part.num_rows
        if part.role is Role.PREFILL:
            self.cache.leave(self._trail(sequence), _tables(sequence), sequence.num_committed)
        self.pages.trim(_tables(sequence), sequence.num_committed)

    def _trail(self, sequence: Sequence) -> Trail:
        if sequence.trail is None:
            request = sequence.request
            sequence.trail = self.cache.trail(
                sequence.token_ids[:sequence.num_prompt], request.identity, request.checkpoints)
        return sequence.trail

    def _build(self, chosen: list[tuple[Sequence, int]]) -> Plan:
        num_rows_total = sum(num_rows for _, num_rows in chosen)
        token_ids = np.empty(num_rows_total, np.int32)
        positions = np.empty(num_rows_total, np.int32)
        spans: list[Span] = []
        parts: list[Part] = []
        logit_rows: list[int] = []
        row = 0
        for sequence, num_rows in chosen:
            start = sequence.num_committed
            end, tables = start + num_rows, _tables(sequence)
            self.pages.grow(tables, end)
            token_ids[row:row + num_rows] = sequence.token_ids[start:end]
            positions[row:row + num_rows] = range(start, end)
            spans.append(Span(sequence.role, row, num_rows, start, tables.sliding, tables.full))
            logit_row = -1
            if end == sequence.num_tokens:               # the newest token: what comes after it?
                logit_row = len(logit_rows)
                logit_rows.append(row + num_rows - 1)
            parts.append(Part(sequence, sequence.role, num_rows, logit_row))
            row += num_rows
        batch = Batch(token_ids, positions, tuple(spans), np.array(logit_rows, np.int32))
        return Plan(batch, tuple(parts))


def _tables(sequence: Sequence) -> PageTables:
    assert sequence.pages is not None, f'request {sequence.request.request_id!r} holds no pages'
    return sequence.pages
