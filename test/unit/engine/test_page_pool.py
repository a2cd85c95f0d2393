# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Pages: worst cases, reservations, the rule that frees a sliding page, double frees."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.engine.page_pool import PageManager, PagePool, PageTables, plan_pages


def manager(**options: int) -> PageManager:
    fields = {'page_size': 4, 'num_sliding_pages': 10, 'num_full_pages': 20, 'window': 8,
              'max_rows': 2, 'max_chunk': 6, **options}
    return PageManager(**fields)


def held(tables: PageTables) -> set[int]:
    return {i for i, page in enumerate(tables.sliding) if page >= 0}


@given(page_size=st.integers(1, 20), window=st.integers(1, 50), max_rows=st.integers(1, 16),
       chunk=st.integers(1, 40), num_positions=st.integers(1, 300), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_sequence_stays_inside_its_need_and_keeps_what_it_reads(
        page_size: int, window: int, max_rows: int, chunk: int, num_positions: int,
        data: st.DataObject) -> None:
    """Any run of chunks, with rollbacks to up to max_rows below the longest length so far."""
    pages = manager(page_size=page_size, window=window, max_rows=max_rows, max_chunk=chunk,
                    num_sliding_pages=400, num_full_pages=400)
    need = pages.need(num_positions)
    tables = pages.admit(num_positions)
    assert tables is not None
    committed = longest = 0
    while committed < num_positions:
        rows = min(data.draw(st.integers(1, chunk)), num_positions - committed)
        pages.grow(tables, committed + rows)
        if data.draw(st.booleans()):
            pages.grow_ahead(tables)                     # within the promise, or not at all
        assert pages.sliding.num_used <= need.sliding
        assert pages.full.num_used <= need.full
        first_read = max(0, committed - (window - 1))
        assert set(range(first_read // page_size, -(-(committed + rows) // page_size))) \
            <= held(tables)
        committed += rows
        longest = max(longest, committed)
        pages.trim(tables, committed)
        border = longest - (window - 1) - max_rows       # the rule, in its own words
        assert all((page + 1) * page_size - 1 < border for page in range(tables.first_sliding))
        assert (tables.first_sliding + 1) * page_size - 1 >= border
        if data.draw(st.integers(0, 2)) == 0:
            committed = max(1, min(committed, longest - max_rows))
        if data.draw(st.integers(0, 9)) == 0:
            break
    pages.release(tables)
    assert pages.sliding.num_used == pages.full.num_used == 0
    assert pages.promised_sliding == pages.promised_full == 0


def test_need_is_reached() -> None:
    """The bound is tight: some run of chunks holds exactly that many sliding pages."""
    pages = manager(page_size=4, window=8, max_rows=2, max_chunk=6)
    most = 0
    for first in range(1, 7):
        tables = pages.admit(60)
        assert tables is not None
        committed = 0
        for rows in [first] + [6] * 9:
            pages.grow(tables, committed + rows)
            most = max(most, pages.sliding.num_used)
            committed += rows
            pages.trim(tables, committed)
        pages.release(tables)
    assert most == pages.need(60).sliding


def test_the_next_page_comes_early_where_it_is_promised() -> None:
    pages = manager(page_size=4, window=8, max_rows=2, max_chunk=6)
    tables = pages.admit(12)
    assert tables is not None
    for count in (1, 2, 3, 3):                           # the fourth is past the last position
        pages.grow_ahead(tables)
        assert tables.num_given == count
    assert min(tables.full) >= 0 and pages.promised_full == 0


def test_short_sequences_need_no_window() -> None:
    assert manager().need(3).sliding == 1
    assert manager().need(5) == manager().need(8)
    assert manager().need(5).full == 2


def test_admission_reserves_the_worst_case() -> None:
    pages = manager()
    need = pages.need(40)
    assert (need.sliding, need.full) == (5, 10)
    assert pages.can_ever_fit(need)
    first, second = pages.admit(40), pages.admit(40)
    assert first is not None and second is not None
    assert pages.admit(1) is None, 'all 20 full pages are promised'
    assert pages.full.num_used == 0, 'nothing is taken yet'
    pages.release(first)
    assert pages.admit(1) is not None
    assert not pages.can_ever_fit(pages.need(81))
    assert not manager(num_sliding_pages=4).can_ever_fit(need)


def test_a_page_is_not_freed_twice() -> None:
    pool = PagePool('full', 2)
    page = pool.take()
    pool.give_back([page])
    with pytest.raises(AssertionError, match='freed twice'):
        pool.give_back([page])


def test_an_empty_pool_says_so() -> None:
    pool = PagePool('full', 1)
    pool.take()
    with pytest.raises(AssertionError, match='no full page is left: 1 of 1 are in use'):
        pool.take()


def test_freed_pages_are_reported() -> None:
    freed: list[tuple[str, list[int]]] = []
    pages = PageManager(page_size=4, num_sliding_pages=10, num_full_pages=20, window=8, max_rows=2,
                        max_chunk=6, on_freed=lambda kind, ids: freed.append((kind, list(ids))))
    tables = pages.admit(20)
    assert tables is not None
    pages.grow(tables, 16)
    pages.trim(tables, 12)
    assert freed == [], 'position 3 < 12 - 7 - 2 is false'
    pages.trim(tables, 13)
    assert freed == [('sliding', [0])]
    pages.release(tables)
    assert freed[1:] == [('sliding', [1, 2, 3]), ('full', [0, 1, 2, 3])]


def test_plan_pages() -> None:
    sliding, full = plan_pages(8192, 3, page_size=16, window=1024, prefill_chunk=256)
    assert full == 3 * 512
    assert sliding == 3 * ((1023 + 16 + 256 - 2) // 16 + 2)
