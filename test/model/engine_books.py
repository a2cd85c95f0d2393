# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Recounts the books of pages and prefix cache from the tables and the tree alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from gemma_thor_ros.engine.page_pool import PageManager, PagePool, PageTables
from gemma_thor_ros.engine.prefix_cache import PrefixCache


def check_books(pages: PageManager, cache: PrefixCache, tables: Iterable[PageTables]) -> None:
    """Every page has the owners that the tables say, is kept as the tree says, or is free."""
    tables = list(tables)
    nodes = list(tree(cache))
    full = Counter(page for each in tables for page in each.full[:each.num_given].tolist())
    sliding = Counter(page for each in tables for page in each.sliding.tolist() if page >= 0)
    for each in tables:
        given = each.sliding[each.first_sliding:each.num_given].tolist()
        assert each.held_sliding == given
        assert (each.sliding[:each.first_sliding] == -1).all()
        assert len(given) <= each.need.sliding and each.num_given <= each.need.full
    check_pool(pages.full, full, [node.full_page for node in nodes])
    kept = [node.sliding_page for node in nodes if node.num_windows]
    check_pool(pages.sliding, sliding, kept)
    assert len(kept) <= cache.max_window_pages
    assert pages.promised_sliding == sum(each.need.sliding for each in tables)
    assert pages.promised_full == sum(each.need.full - each.num_given for each in tables)
    assert pages.promised_sliding <= pages.sliding.num_pages
    assert pages.promised_full <= pages.full.num_available
    windows: Counter[int] = Counter()
    for node in nodes:
        assert node.alive and (node.children or node.is_checkpoint), 'a page nobody can resume'
        if node.is_checkpoint:
            windows.update(id(each) for each in path(node)[pages.first_visible(node.depth):])
    assert all(node.num_windows == windows[id(node)] for node in nodes)
    assert all((node.sliding_page >= 0) == (node.num_windows > 0) for node in nodes)
    assert set(cache._checkpoints) == {node for node in nodes if node.is_checkpoint}
    assert all(root.children for root in cache._roots.values())


def check_pool(pool: PagePool, owners: Counter[int], kept: list[int]) -> None:
    assert len(set(kept)) == len(kept) == pool.num_kept, 'a page is kept twice'
    assert [owners[page] for page in range(pool.num_pages)] == pool.owners
    free = set(range(pool.num_pages)) - set(owners) - set(kept)
    assert sorted(free) == sorted(pool._free)
    assert pool.num_evictable == len(set(kept) - set(owners))


def tree(cache: PrefixCache) -> Iterator[Any]:
    """All nodes that have a page."""
    stack = [child for root in cache._roots.values() for child in root.children.values()]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def path(node: Any) -> list[Any]:
    """From the first page to this one."""
    nodes = []
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]
