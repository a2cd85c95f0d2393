# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Who owns which KV page: two pools (sliding and full layers) and the rule that frees a page.

A request is admitted only when its worst case fits beside the worst cases of all running ones, so
that a running sequence never waits for a page; pages themselves are taken when rows need them.
Knows page ids and positions, not the memory behind them and not the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from gemma_thor_ros.models.batch import Int32

OnFreed = Callable[[str, Seq[int]], None]


@dataclass(frozen=True)
class PageNeed:
    """Pages that a sequence can hold at most at one time, per geometry."""

    sliding: int
    full: int


class PagePool:
    """Page ids 0 .. num_pages - 1 of one geometry. Not thread-safe: the engine thread's own."""

    def __init__(self, geometry: str, num_pages: int, on_freed: OnFreed | None = None) -> None:
        self.geometry = geometry
        self.num_pages = num_pages
        self.num_reserved = 0
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: the page freed last goes first
        self._held = bytearray(num_pages)
        self._on_freed = on_freed

    @property
    def num_used(self) -> int:
        """Pages that hold K and V of a sequence now."""
        return self.num_pages - len(self._free)

    @property
    def num_reservable(self) -> int:
        """Pages that are not promised to anybody."""
        return self.num_pages - self.num_reserved

    def take(self) -> int:
        """Give out a page. The reservations guarantee one."""
        assert self._free, f'no free {self.geometry} page: {self.num_reserved} of ' \
            f'{self.num_pages} are reserved'
        page = self._free.pop()
        self._held[page] = 1
        return page

    def give_back(self, pages: Seq[int]) -> None:
        """Free pages; their contents may be overwritten from now on."""
        for page in pages:
            assert self._held[page], f'{self.geometry} page {page} is freed twice'
            self._held[page] = 0
            self._free.append(page)
        if self._on_freed is not None and pages:
            self._on_freed(self.geometry, pages)


@dataclass
class PageTables:
    """The pages of one sequence. Entry i of a table holds positions i * S .. (i + 1) * S - 1.

    -1 stands for a page that was freed or not given yet. A rollback lowers the sequence's length
    and leaves the tables alone: pages past the length are overwritten later.
    """

    sliding: Int32                       # (max_pages,)
    full: Int32                          # (max_pages,)
    need: PageNeed
    first_sliding: int = 0               # pages below are freed
    num_given: int = 0                   # pages below are given, in both tables
    held_sliding: list[int] = field(default_factory=list)


class PageManager:
    """Gives, frees and counts the pages of both geometries.

    `window`: keys that a query of a sliding layer sees, itself included. `max_rows`: the most rows
    that a later step may roll back. `max_chunk`: the most rows of a sequence in one step.
    """

    def __init__(self, *, page_size: int, num_sliding_pages: int, num_full_pages: int, window: int,
                 max_rows: int, max_chunk: int, on_freed: OnFreed | None = None) -> None:
        self.page_size = page_size
        self.window = window
        self.max_rows = max_rows
        self.max_chunk = max_chunk
        self.sliding = PagePool('sliding', num_sliding_pages, on_freed)
        self.full = PagePool('full', num_full_pages, on_freed)

    def need(self, num_positions: int) -> PageNeed:
        """The most pages that a sequence of this many positions holds at one time."""
        return page_need(num_positions, page_size=self.page_size, window=self.window,
                         max_rows=self.max_rows, max_chunk=self.max_chunk)

    def can_ever_fit(self, need: PageNeed) -> bool:
        """Whether an empty engine could run it."""
        return need.sliding <= self.sliding.num_pages and need.full <= self.full.num_pages

    def admit(self, num_positions: int) -> PageTables | None:
        """Reserve a sequence's worst case; None when that does not fit now."""
        need = self.need(num_positions)
        if need.sliding > self.sliding.num_reservable or need.full > self.full.num_reservable:
            return None
        self.sliding.num_reserved += need.sliding
        self.full.num_reserved += need.full
        max_pages = -(-num_positions // self.page_size)
        return PageTables(np.full(max_pages, -1, np.int32), np.full(max_pages, -1, np.int32), need)

    def grow(self, tables: PageTables, num_positions: int) -> None:
        """Give pages until positions 0 .. num_positions - 1 have one in both tables."""
        num_pages = -(-num_positions // self.page_size)
        while tables.num_given < num_pages:
            page = self.sliding.take()
            tables.held_sliding.append(page)
            tables.sliding[tables.num_given] = page
            tables.full[tables.num_given] = self.full.take()
            tables.num_given += 1

    def trim(self, tables: PageTables, num_committed: int) -> None:
        """Free the sliding pages that no reader can reach any more, also after a rollback.

        A page goes when its last position < committed - (window - 1) - max_rows.
        """
        num_dead = self.num_dead(num_committed)
        if num_dead <= tables.first_sliding:
            return
        count = num_dead - tables.first_sliding
        tables.sliding[tables.first_sliding:num_dead] = -1
        tables.first_sliding = num_dead
        dead, tables.held_sliding = tables.held_sliding[:count], tables.held_sliding[count:]
        self.sliding.give_back(dead)

    def num_dead(self, num_committed: int) -> int:
        """How many pages from the left a sequence of this length no longer needs."""
        return max(0, num_committed - (self.window - 1) - self.max_rows) // self.page_size

    def release(self, tables: PageTables) -> None:
        """Free everything that a sequence holds, its reservation included."""
        self.sliding.give_back(tables.held_sliding)
        self.full.give_back(tables.full[:tables.num_given].tolist())
        self.sliding.num_reserved -= tables.need.sliding
        self.full.num_reserved -= tables.need.full
        tables.held_sliding = []
        tables.sliding[:] = -1
        tables.full[:] = -1
        tables.num_given = 0


def page_need(num_positions: int, *, page_size: int, window: int, max_rows: int, max_chunk: int,
              ) -> PageNeed:
    """The most pages that one sequence of `num_positions` positions holds at one time.

    Full layers keep all positions. Sliding layers keep, before a step, those from committed -
    (window - 1) - max_rows on, and the step adds up to max_chunk rows.
    """
    full = -(-num_positions // page_size)
    kept = (window - 1) + max_rows + max(max_chunk, max_rows)
    # `kept` consecutive positions that begin anywhere in a page touch at most this many pages
    sliding = (kept - 2) // page_size + 2
    return PageNeed(sliding=min(full, sliding), full=full)


def plan_pages(context_length: int, num_sequences: int, *, page_size: int, window: int,
               prefill_chunk: int, max_rows: int = 16) -> tuple[int, int]:
    """(num_sliding_pages, num_full_pages) for this many sequences of full context length."""
    need = page_need(context_length, page_size=page_size, window=window, max_rows=max_rows,
                     max_chunk=prefill_chunk)
    return need.sliding * num_sequences, need.full * num_sequences
