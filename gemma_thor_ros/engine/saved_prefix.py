# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A cached prefix as plain data: taken out of the pages, and put back as if it had been prefilled.

What is saved is one checkpoint: its full pages and the sliding pages of its window. Putting it
back goes the way of a prompt: pages are promised and taken, filled, and left to the prefix cache,
so all of its rules hold. Both are errands, a few pages at a time. Knows no file and no model.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from gemma_thor_ros.engine.page_pool import PageManager, PageNeed, PageTables
from gemma_thor_ros.engine.prefix_cache import PrefixCache
from gemma_thor_ros.models.batch import Int32
from gemma_thor_ros.models.config import FULL, SLIDING
from gemma_thor_ros.models.page_planes import Bytes, Planes
from gemma_thor_ros.schema import ErrorCode, PromptImage, RequestError

PIECE_BYTES = 16 << 20                   # that one border copies: milliseconds


@dataclass(frozen=True)
class SavedPrefix:
    """The first n pages of a prompt, which can be resumed behind them.

    token_ids (n * page_size,); images: those that begin in it, without their pixels. full
    (n, bytes of a full page), sliding (m, bytes of a sliding page): the last m of the n pages.
    layout: Planes.layout of the cache that they are of.
    """

    token_ids: Int32
    identity: str
    images: tuple[PromptImage, ...]
    page_size: int
    layout: tuple[str, ...]
    full: Bytes
    sliding: Bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages."""
        return self.full.nbytes + self.sliding.nbytes


def save(pages: PageManager, cache: PrefixCache, planes: Planes, prompt_ids: Int32, identity: str,
         images: Seq[PromptImage], max_bytes: int) -> Generator[None, None, SavedPrefix | None]:
    """Copy the longest cached prefix of a prompt; None when nothing of it is cached.

    Raises RequestError: MEMORY when it is larger than max_bytes, or when its pages can't be held
    beside what the running requests were promised.
    """
    size = pages.page_size
    prefix = cache.match(cache.trail(prompt_ids, identity, (), images))
    if not prefix.num_pages:
        return None
    num_bytes = (prefix.num_pages * planes.page_bytes(FULL)
                 + len(prefix.sliding) * planes.page_bytes(SLIDING))
    if num_bytes > max_bytes:
        raise RequestError(ErrorCode.MEMORY,
                           f'{prefix.num_pages * size:,} tokens have {num_bytes:,} bytes of KV '
                           f'pages, at most {max_bytes:,} are saved')
    # held as a sequence holds them, so that nobody takes them between two pieces
    tables = pages.admit(prefix.num_pages * size, prefix,
                         PageNeed(len(prefix.sliding), prefix.num_pages))
    if tables is None:
        raise _no_room(prefix.num_pages)
    pages.num_errands += 1
    try:
        full = np.empty((prefix.num_pages, planes.page_bytes(FULL)), np.uint8)
        sliding = np.empty((len(prefix.sliding), planes.page_bytes(SLIDING)), np.uint8)
        for kind, ids, target in (FULL, prefix.full, full), (SLIDING, prefix.sliding, sliding):
            step = _pages_a_piece(planes, kind)
            for start in range(0, len(ids), step):
                planes.read(kind, ids[start:start + step], target[start:start + step])
                yield
    finally:
        pages.num_errands -= 1
        pages.release(tables)
    end = prefix.num_pages * size
    return SavedPrefix(prompt_ids[:end].copy(), identity, tuple(
        image for image in images if image.start < end), size, planes.layout, full, sliding)


def restore(pages: PageManager, cache: PrefixCache, planes: Planes, saved: SavedPrefix,
            ) -> Generator[None, None, int]:
    """Put a saved prefix into the cache; gives the tokens of it that a prompt can resume behind.

    They are fewer than saved where the cache's budget is too small. Raises RequestError:
    INVALID_REQUEST for pages of another shape, MEMORY when they can't be had beside what the
    running requests were promised.
    """
    size = pages.page_size
    if saved.page_size != size or saved.layout != planes.layout:
        raise RequestError(ErrorCode.INVALID_REQUEST,
                           f'its pages of {saved.page_size} positions hold '
                           f'{"; ".join(saved.layout)}, those of this engine, of {size}, '
                           f'{"; ".join(planes.layout)}')
    num_pages, window = saved.full.shape[0], saved.sliding.shape[0]
    first = pages.first_visible(num_pages)
    # one token more than the pages: the last token of a prompt is never looked up
    trail = cache.trail(np.append(saved.token_ids, np.int32(0)), saved.identity, (), saved.images)
    if (saved.token_ids.size != num_pages * size or window != num_pages - first
            or not trail.resumable(num_pages)):
        raise RequestError(ErrorCode.INVALID_REQUEST,
                           f'it has {saved.token_ids.size} tokens, {num_pages} full pages and '
                           f'{window} sliding ones; {num_pages * size} and {num_pages - first} '
                           'were expected, ending in no image')
    trail.wanted = [num_pages]
    prefix = cache.match(trail)
    tables = pages.admit(num_pages * size, prefix)
    if tables is None:
        raise _no_room(num_pages)
    pages.num_errands += 1
    try:
        # no more at once than the rows of a chunk, which is what was promised
        step = min(_pages_a_piece(planes, FULL), max(1, pages.max_chunk // size))
        for start in range(prefix.num_pages, num_pages, step):
            end = min(start + step, num_pages)
            _fill(pages, planes, tables, saved, range(start, end))
            yield
        cache.leave(trail, tables, num_pages * size)
    finally:
        pages.num_errands -= 1
        pages.release(tables)
    return cache.num_cached(trail)


def _fill(pages: PageManager, planes: Planes, tables: PageTables, saved: SavedPrefix,
          places: range) -> None:
    """Take the pages of some places, as prompt rows would, and write what they hold."""
    num_pages = saved.full.shape[0]
    first = num_pages - saved.sliding.shape[0]           # of the window
    pages.grow(tables, places.stop * pages.page_size)
    planes.write(FULL, tables.full[places.start:places.stop].tolist(),
                 saved.full[places.start:places.stop])
    low = max(places.start, first)
    if low < places.stop:
        planes.write(SLIDING, tables.sliding[low:places.stop].tolist(),
                     saved.sliding[low - first:places.stop - first])
    if places.stop < num_pages:          # the last ones are trimmed once they are left
        pages.trim(tables, places.stop * pages.page_size)


def _pages_a_piece(planes: Planes, kind: str) -> int:
    return max(1, PIECE_BYTES // max(1, planes.page_bytes(kind)))


def _no_room(num_pages: int) -> RequestError:
    return RequestError(ErrorCode.MEMORY, f'{num_pages} KV pages can not be held beside those of '
                                          'the running requests')
