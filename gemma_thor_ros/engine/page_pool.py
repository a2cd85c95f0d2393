# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Who holds which KV page: two pools (sliding and full layers) and the rule that frees a page.

A request is admitted only when its worst case fits beside the worst cases of all others that hold
pages, so that a running sequence never waits for a page; pages themselves are taken when rows need
them. Pages that only the prefix cache keeps count as available: they are evicted on demand. Knows
page ids and positions, not the memory behind them and not the requests.
"""

from __future__ import annotations

from collections import Counter
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


@dataclass(frozen=True)
class Prefix:
    """The cached pages of a prompt's first `num_pages` pages, to be shared with a sequence."""

    full: Seq[int]                       # ids of pages 0 .. num_pages - 1
    sliding: Seq[int]                    # ids of the last ones: what the next rows can see

    @property
    def num_pages(self) -> int:
        """Pages of the prefix."""
        return len(self.full)


NO_PREFIX = Prefix((), ())


class PagePool:
    """Page ids 0 .. num_pages - 1 of one geometry. Not thread-safe: the engine thread's own.

    A page has owners (sequences whose table names it) and may be kept by the prefix cache. With
    neither it is free; kept without an owner it is evictable. `reclaim` is the cache's: it must
    drop something, and is called until a page is free.
    """

    def __init__(self, geometry: str, num_pages: int, on_freed: OnFreed | None = None) -> None:
        self.geometry = geometry
        self.num_pages = num_pages
        self.num_kept = 0
        self.num_evictable = 0
        self.reclaim: Callable[[], None] | None = None
        self.owners = [0] * num_pages
        self._kept = bytearray(num_pages)
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: the page freed last goes first
        self._on_freed = on_freed

    @property
    def num_used(self) -> int:
        """Pages that sequences hold now."""
        return self.num_pages - self.num_available

    @property
    def num_available(self) -> int:
        """Pages that `take` could give out, one after the other."""
        return len(self._free) + self.num_evictable

    def take(self) -> int:
        """Give a page to one owner, evicting cached ones if need be. Admission guarantees one."""
        while not self._free:
            assert self.num_evictable and self.reclaim is not None, \
                f'no {self.geometry} page is left: {self.num_used} of {self.num_pages} are in use'
            self.reclaim()
        page = self._free.pop()
        self.owners[page] = 1
        return page

    def share(self, pages: Seq[int]) -> None:
        """Give pages that somebody holds or that are kept to one more owner."""
        for page in pages:
            if self.owners[page] == 0:
                assert self._kept[page], f'{self.geometry} page {page} is free, not to be shared'
                self.num_evictable -= 1
            self.owners[page] += 1

    def give_back(self, pages: Seq[int]) -> None:
        """Take one owner from each page; the contents of those without one may be overwritten."""
        freed = []
        for page in pages:
            assert self.owners[page] > 0, f'{self.geometry} page {page} is freed twice'
            self.owners[page] -= 1
            if self.owners[page] == 0:
                if self._kept[page]:
                    self.num_evictable += 1
                else:
                    freed.append(page)
        self._put(freed)

    def keep(self, page: int) -> None:
        """Mark an owned page as kept by the prefix cache."""
        assert self.owners[page] and not self._kept[page], f'{self.geometry} page {page}'
        self._kept[page] = 1
        self.num_kept += 1

    def forget(self, page: int) -> None:
        """The prefix cache no longer keeps a page."""
        assert self._kept[page], f'{self.geometry} page {page} is not kept'
        self._kept[page] = 0
        self.num_kept -= 1
        if self.owners[page] == 0:
            self.num_evictable -= 1
            self._put([page])

    def _put(self, pages: list[int]) -> None:
        self._free.extend(pages)
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

    @property
    def held_full(self) -> list[int]:
        """Ids of the full pages in the table."""
        return [int(page) for page in self.full[:self.num_given]]


class PageManager:
    """Gives, shares, frees and counts the pages of both geometries.

    `window`: keys that a query of a sliding layer sees, itself included. `max_rows`: the most rows
    that a later step may roll back. `max_chunk`: the most rows of a sequence in one step.

    Sliding pages are promised in full, shared or not: a sequence that leaves a shared page behind
    takes a new one while the other still holds it. Full pages stay to the end, so only those that
    a sequence has yet to take are promised.
    """

    def __init__(self, *, page_size: int, num_sliding_pages: int, num_full_pages: int, window: int,
                 max_rows: int, max_chunk: int, on_freed: OnFreed | None = None) -> None:
        self.page_size = page_size
        self.window = window
        self.max_rows = max_rows
        self.max_chunk = max_chunk
        self.sliding = PagePool('sliding', num_sliding_pages, on_freed)
        self.full = PagePool('full', num_full_pages, on_freed)
        self.promised_sliding = 0
        self.promised_full = 0
        self.num_errands = 0             # that hold pages, though no sequence does
        self.num_releases = 0            # a request that did not fit need not try before it grows

    def need(self, num_positions: int) -> PageNeed:
        """The most pages that a sequence of this many positions holds at one time."""
        return page_need(num_positions, page_size=self.page_size, window=self.window,
                         max_rows=self.max_rows, max_chunk=self.max_chunk)

    def can_ever_fit(self, need: PageNeed) -> bool:
        """Whether an empty engine could run it."""
        return need.sliding <= self.sliding.num_pages and need.full <= self.full.num_pages

    def admit(self, num_positions: int, prefix: Prefix = NO_PREFIX,
              need: PageNeed | None = None) -> PageTables | None:
        """Promise a sequence its worst case and share a cached prefix with it; None: no room.

        need: when it is known to be less than that of these positions.
        """
        need = need or self.need(num_positions)
        if not self.fits(need, prefix):
            return None
        max_pages, num_cached = -(-num_positions // self.page_size), prefix.num_pages
        tables = PageTables(np.full(max_pages, -1, np.int32), np.full(max_pages, -1, np.int32),
                            need, num_cached - len(prefix.sliding), num_cached,
                            list(prefix.sliding))
        self.promised_sliding += need.sliding
        self.promised_full += need.full - num_cached
        self.full.share(prefix.full)
        self.sliding.share(prefix.sliding)
        tables.full[:num_cached] = prefix.full
        tables.sliding[tables.first_sliding:num_cached] = prefix.sliding
        return tables

    def fits(self, need: PageNeed, prefix: Prefix = NO_PREFIX,
             without: Seq[PageTables] = ()) -> bool:
        """Whether a sequence could be admitted, once the owners of `without` had been released."""
        if need.sliding > (self.sliding.num_pages - self.promised_sliding
                           + sum(tables.need.sliding for tables in without)):
            return False
        owners = self.full.owners
        freed = Counter(page for tables in without for page in tables.held_full)
        available = self.full.num_available - self.promised_full + sum(
            tables.need.full - tables.num_given for tables in without)
        available += sum(owners[page] == count for page, count in freed.items())
        # evictable pages of the prefix would stop being so
        pinned = sum(owners[page] == freed.get(page, 0) for page in prefix.full)
        return need.full - prefix.num_pages <= available - pinned

    def grow(self, tables: PageTables, num_positions: int) -> None:
        """Give pages until positions 0 .. num_positions - 1 have one in both tables."""
        num_pages = -(-num_positions // self.page_size)
        while tables.num_given < num_pages:
            page = self.sliding.take()
            tables.held_sliding.append(page)
            tables.sliding[tables.num_given] = page
            tables.full[tables.num_given] = self.full.take()
            tables.num_given += 1
            self.promised_full -= 1

    def grow_ahead(self, tables: PageTables) -> None:
        """Give the next page early, where that is within the promise: a step may start early."""
        if tables.num_given < tables.full.size and len(tables.held_sliding) < tables.need.sliding:
            self.grow(tables, (tables.num_given + 1) * self.page_size)

    def trim(self, tables: PageTables, num_committed: int) -> None:
        """Give back the sliding pages that a sequence can't reach any more, also by a rollback.

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

    def first_visible(self, num_pages: int) -> int:
        """The first page that a row right after `num_pages` pages sees in sliding layers."""
        return max(0, num_pages * self.page_size - (self.window - 1)) // self.page_size

    def release(self, tables: PageTables) -> None:
        """Give back everything that a sequence holds, its promise included."""
        self.num_releases += 1
        self.promised_sliding -= tables.need.sliding
        self.promised_full -= tables.need.full - tables.num_given
        self.sliding.give_back(tables.held_sliding)
        self.full.give_back(tables.held_full)
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


def window_pages(page_size: int, window: int) -> int:
    """The most sliding pages that one checkpoint of the prefix cache keeps."""
    return -(-(window - 1) // page_size)


def plan_pages(context_length: int, num_sequences: int, *, page_size: int, window: int,
               prefill_chunk: int, max_rows: int = 16) -> tuple[int, int]:
    """(num_sliding_pages, num_full_pages) for this many sequences of full context length."""
    need = page_need(context_length, page_size=page_size, window=window, max_rows=max_rows,
                     max_chunk=prefill_chunk)
    return need.sliding * num_sequences, need.full * num_sequences
