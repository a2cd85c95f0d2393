# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The tree of cached prefixes against a memory that knows what was written to each page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from engine_books import check_books
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gemma_thor_ros.engine.page_pool import (
    NO_PREFIX,
    PageManager,
    PageTables,
    Prefix,
    window_pages,
)
from gemma_thor_ros.engine.prefix_cache import PrefixCache, Trail

ALPHABET = (3, 4)                        # so few that prompts often share pages


@dataclass
class Run:
    """A prompt under way."""

    prompt: tuple[int, ...]
    wanted: tuple[int, ...]              # page borders at which checkpoints are to be left
    identity: str
    trail: Trail
    tables: PageTables
    committed: int


class Bench:
    """Page manager, cache, and what the memory behind the pages holds: the history of a page."""

    def __init__(self, page_size: int = 4, window: int = 9, num_sliding: int = 40,
                 num_full: int = 60, max_window_pages: int = 100, interval: int = 100) -> None:
        self.memory: dict[tuple[str, int], Any] = {}
        self.pages = PageManager(
            page_size=page_size, num_sliding_pages=num_sliding, num_full_pages=num_full,
            window=window, max_rows=2, max_chunk=7, on_freed=self.freed)
        self.cache = PrefixCache(self.pages, max_window_pages=max_window_pages, interval=interval)
        self.runs: list[Run] = []
        self.left: set[tuple[str, tuple[int, ...]]] = set()   # checkpoints, were none evicted

    def freed(self, geometry: str, pages: Any) -> None:
        for page in pages:
            self.memory.pop((geometry, page), None)

    def admit(self, prompt: tuple[int, ...], marks: tuple[int, ...] = (), identity: str = '',
              ) -> Run | None:
        trail = self.cache.trail(np.array(prompt, np.int32), identity, marks)
        wanted = tuple(trail.wanted)
        prefix = self.cache.match(trail)
        self.check(prompt, identity, prefix)
        tables = self.pages.admit(len(prompt) + 8, prefix)
        if tables is None:
            return None
        self.cache.use(trail, prefix)
        run = Run(prompt, wanted, identity, trail, tables,
                  prefix.num_pages * self.pages.page_size)
        self.runs.append(run)
        return run

    def check(self, prompt: tuple[int, ...], identity: str, prefix: Prefix) -> None:
        """A hit is what this very prompt would write, and as long as it can be."""
        size, count = self.pages.page_size, prefix.num_pages
        assert count * size < len(prompt)
        assert len(prefix.sliding) == count - self.pages.first_visible(count)
        for geometry, ids, first in (('full', prefix.full, 0),
                                     ('sliding', prefix.sliding, count - len(prefix.sliding))):
            for i, page in enumerate(ids):
                history = (identity, prompt[:(first + i + 1) * size])
                assert self.memory[geometry, page] == history
        if self.cache.num_evicted == 0:
            most = max((len(known) for name, known in self.left if name == identity
                        and len(known) < len(prompt) and prompt[:len(known)] == known), default=0)
            assert count * size == most

    def advance(self, run: Run, rows: int) -> None:
        size = self.pages.page_size
        total = len(run.prompt) + 8
        if run.committed < len(run.prompt):
            end = min(run.committed + rows, len(run.prompt))
        else:
            end = min(run.committed + 1, total)
        self.pages.grow(run.tables, end)
        for position in range(run.committed, end):
            generated = position >= len(run.prompt)
            history = ('generated', id(run)) if generated else (
                run.identity, run.prompt[:(position // size + 1) * size])
            for geometry, table in (('full', run.tables.full), ('sliding', run.tables.sliding)):
                page = int(table[position // size])
                assert page >= 0
                pool = self.pages.full if geometry == 'full' else self.pages.sliding
                assert pool.owners[page] == 1 and not pool._kept[page], 'written while shared'
                self.memory[geometry, page] = history
        prefill = run.committed < len(run.prompt)
        before, run.committed = run.committed, end
        if prefill:
            self.cache.leave(run.trail, run.tables, end)
            for depth in run.wanted:
                window = depth - self.pages.first_visible(depth)
                if before < depth * size <= end and window <= self.cache.max_window_pages:
                    self.left.add((run.identity, run.prompt[:depth * size]))
        self.pages.trim(run.tables, end)

    def release(self, run: Run) -> None:
        self.runs.remove(run)
        self.pages.release(run.tables)

    def complete(self, prompt: tuple[int, ...], **options: Any) -> int:
        """Run a prompt alone; gives the tokens that were cached."""
        run = self.admit(prompt, **options)
        assert run is not None
        cached = run.committed
        while run.committed < len(prompt):
            self.advance(run, 7)
        self.release(run)
        self.books()
        return cached

    def books(self) -> None:
        check_books(self.pages, self.cache, [run.tables for run in self.runs])


class CacheMachine(RuleBasedStateMachine):
    """Prompts come, run and go at random on few pages."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(num_sliding=14, num_full=22, max_window_pages=9, interval=3)

    @rule(prompt=st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=30),
          marks=st.lists(st.integers(0, 30), max_size=2), identity=st.sampled_from(['', '', 'b']))
    def admit(self, prompt: list[int], marks: list[int], identity: str) -> None:
        self.bench.admit(tuple(prompt), tuple(marks), identity)

    @precondition(lambda self: self.bench.runs)
    @rule(which=st.integers(0, 99), rows=st.integers(1, 7), times=st.integers(1, 6))
    def advance(self, which: int, rows: int, times: int) -> None:
        run = self.bench.runs[which % len(self.bench.runs)]
        for _ in range(times):
            if run.committed < len(run.prompt) + 8:
                self.bench.advance(run, rows)

    @precondition(lambda self: self.bench.runs)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        self.bench.release(self.bench.runs[which % len(self.bench.runs)])

    @invariant()
    def books_agree(self) -> None:
        self.bench.books()

    def teardown(self) -> None:
        for run in list(self.bench.runs):
            self.bench.release(run)
        self.bench.books()
        self.bench.cache.clear()
        self.bench.books()
        pages = self.bench.pages
        assert pages.full.num_available == pages.full.num_pages == len(pages.full._free)
        assert pages.sliding.num_available == pages.sliding.num_pages


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class TestHits:

    @pytest.mark.parametrize('num_prompt', range(1, 41))
    def test_the_same_prompt_again(self, num_prompt: int) -> None:
        """Whole pages, and at least the last token is run again."""
        prompt = tuple(range(num_prompt))
        bench = Bench()
        assert bench.complete(prompt) == 0
        assert bench.complete(prompt) == (num_prompt - 1) // 4 * 4
        assert bench.complete((*prompt, 99)) == (num_prompt - 1) // 4 * 4

    def test_only_checkpoints_can_be_resumed(self) -> None:
        """Two prompts that part in the middle go back to the last mark before that."""
        bench = Bench()
        system = tuple(range(50, 71))
        assert bench.complete((*system, *range(20)), marks=(21,)) == 0
        assert bench.complete((*system, *range(10), 99, 98), marks=(21,)) == 20
        assert bench.complete((*system, *range(10), 99, 98, 97), marks=(21,)) == 32
        assert bench.complete((*system[:10], *range(60)), marks=()) == 0, 'no checkpoint so early'

    def test_interval(self) -> None:
        bench = Bench(interval=3)
        bench.complete(tuple(range(60)))
        assert [bench.complete((*range(n), 99, 98)) for n in (11, 12, 23, 24, 58)] == [
            0, 12, 12, 24, 56]

    def test_no_interval_before_the_first_mark(self) -> None:
        trail = Bench(interval=3).cache.trail(np.arange(60, dtype=np.int32), '', (30, 3, 60))
        assert trail.wanted[::-1] == [7, 10, 13, 14, 15]
        trail = Bench(interval=3).cache.trail(np.arange(13, dtype=np.int32), '', (1,))
        assert trail.wanted == [3], 'a mark in the first page is none'

    def test_identities_are_apart(self) -> None:
        bench = Bench()
        prompt = tuple(range(30))
        bench.complete(prompt)
        assert bench.complete(prompt, identity='other template') == 0
        assert bench.complete(prompt, identity='other template') == 28

    def test_a_full_page_is_stored_once(self) -> None:
        """Two that prefill the same prompt side by side leave one copy."""
        bench = Bench()
        prompt = tuple(range(30))
        first, second = bench.admit(prompt), bench.admit(prompt)
        assert first is not None and second is not None
        for run in (first, second):
            while run.committed < 30:
                bench.advance(run, 7)
        bench.books()
        assert bench.pages.full.num_kept == 7
        bench.release(first)
        bench.release(second)
        assert bench.complete(prompt) == 28


class TestBudget:

    def test_windows_are_evicted_as_units_least_recently_used_first(self) -> None:
        size = window_pages(4, 9)
        assert size == 2
        bench = Bench(max_window_pages=3 * size)
        prompts = [tuple(range(100 * i, 100 * i + 30)) for i in range(4)]
        for prompt in prompts[:3]:
            bench.complete(prompt)
        assert bench.complete(prompts[0]) == 28, 'used again'
        bench.complete(prompts[3])
        assert bench.cache.num_evicted == 1
        assert bench.pages.sliding.num_kept == 3 * size
        assert [bench.cache.num_cached(bench.cache.trail(np.array(p, np.int32), '', ()))
                for p in prompts] == [28, 0, 28, 28]

    def test_the_system_prompt_outlives_the_turns_of_its_conversation(self) -> None:
        bench = Bench(max_window_pages=5)
        system = tuple(range(50, 71))
        prompt = system
        for turn in range(6):
            prompt = (*prompt, *range(100 * turn, 100 * turn + 12))
            bench.complete(prompt, marks=(21,))
        assert bench.cache.num_evicted > 0
        assert bench.complete((*system, 7, 8, 9), marks=(21,)) == 20

    def test_a_budget_below_one_window_keeps_nothing(self) -> None:
        bench = Bench(max_window_pages=1)
        for _ in range(2):
            assert bench.complete(tuple(range(30))) == 0
        assert bench.pages.full.num_kept == bench.cache.num_checkpoints == 0
        assert bench.complete((1, 2, 3, 4, 5)) == 0
        assert bench.complete((1, 2, 3, 4, 5)) == 4, 'a prefix of one page has a window of one'

    def test_running_sequences_come_first(self) -> None:
        """Cached pages give way, of both geometries, and only as far as they have to."""
        bench = Bench(num_full=20, num_sliding=10)
        for i in range(3):
            bench.complete(tuple(range(100 * i, 100 * i + 20)))
        assert bench.pages.full.num_evictable == 12
        run = bench.admit(tuple(range(900, 960)))
        assert run is not None
        while run.committed < 60:
            bench.advance(run, 7)
            bench.books()
        assert 0 < bench.cache.num_evicted < 4
        bench.release(run)


@given(page_size=st.integers(1, 9), window=st.integers(1, 40), depth=st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_a_window_is_what_the_next_row_sees(page_size: int, window: int, depth: int) -> None:
    pages = PageManager(page_size=page_size, num_sliding_pages=1, num_full_pages=1, window=window,
                        max_rows=1, max_chunk=1)
    position = depth * page_size
    visible = {key // page_size for key in range(max(0, position - window + 1), position)}
    assert visible == set(range(pages.first_visible(depth), depth))
    assert len(visible) <= window_pages(page_size, window)


def test_use_of_no_prefix_leaves_no_trace() -> None:
    bench = Bench()
    bench.cache.use(bench.cache.trail(np.arange(9, dtype=np.int32), '', ()), NO_PREFIX)
    assert not bench.cache._roots
