# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which prompt prefixes are still in the pages, and from where a new prompt can go on.

A tree of full pages by content: a node's path spells the token ids from position 0 on. It can be
resumed only at checkpoints, page borders whose sliding window is kept too; a checkpoint and its
window come and go as one. Only whole pages that prefill rows filled get in. Knows pages and token
ids; no model, no request, no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from gemma_thor_ros.engine.page_pool import NO_PREFIX, PageManager, PageTables, Prefix
from gemma_thor_ros.models.batch import Int32
from gemma_thor_ros.schema import PromptImage


@dataclass(eq=False)
class _Node:
    """One page of a prefix. Pages before `depth - 1` are its ancestors'."""

    parent: _Node | None                 # None: a root, which has no page
    key: bytes                           # token ids of the page
    depth: int                           # pages up to here, this one included
    full_page: int = -1
    sliding_page: int = -1               # -1 unless a checkpoint's window needs it
    num_windows: int = 0                 # checkpoints whose window holds the sliding page
    is_checkpoint: bool = False
    alive: bool = True                   # in the tree
    children: dict[bytes, _Node] = field(default_factory=dict)


class Trail:
    """The way of one prompt through the tree: its page contents, and where to leave checkpoints.

    prompt_ids (n,); `marks`: positions that callers think worth resuming at. Checkpoints are left
    at the page border at or before each mark, every `interval` pages past the first one, and at
    the last border from which the same prompt could be resumed. Never inside an image: its rows
    see each other, so they are computed together or not at all. A border that would lie in one
    moves before it.
    """

    def __init__(self, prompt_ids: Int32, identity: str, marks: Iterable[int], page_size: int,
                 interval: int, images: Seq[PromptImage] = ()) -> None:
        self.identity = identity
        self._images = images
        self._page_size = page_size
        self.num_prompt = prompt_ids.size
        self.num_usable = (prompt_ids.size - 1) // page_size     # the last token has to be run
        depths = {min(mark, prompt_ids.size) // page_size for mark in marks} - {0}
        depths.update(range(min(depths, default=0) + interval, self.num_usable, interval))
        if self.num_usable:
            depths.add(self.num_usable)
        depths = {self._outside(depth) for depth in depths} - {0}
        self.wanted = sorted(depths, reverse=True)               # the next one is the last
        self.node: _Node | None = None                           # a known node of the path
        self._ids = prompt_ids

    def key(self, page: int) -> bytes:
        """The content of a page of the prompt: its token ids, and which images it is of.

        All of an image counts, also what lies on later pages: the earlier rows see it.
        """
        start, stop = page * self._page_size, (page + 1) * self._page_size
        seen = b''.join(image.digest for image in self._images
                        if image.start < stop and image.stop > start)
        return self._ids[start:stop].tobytes() + seen

    def resumable(self, depth: int) -> bool:
        """Whether the border behind `depth` pages lies in no image."""
        return self._outside(depth) == depth

    def _outside(self, depth: int) -> int:
        """The last border at or before `depth` that lies in no image."""
        for image in reversed(self._images):
            if image.start < depth * self._page_size < image.stop:
                depth = image.start // self._page_size
        return depth


class PrefixCache:
    """The cached prefixes of one engine. Not thread-safe, except `num_cached`.

    max_window_pages: the most sliding pages that all checkpoints together may keep; 0 switches the
    cache off. interval: a long prompt gets a checkpoint every so many pages. Full pages have no
    bound of their own: what no sequence needs is evicted when one needs it.
    """

    def __init__(self, pages: PageManager, *, max_window_pages: int, interval: int) -> None:
        self.max_window_pages = max_window_pages
        self.interval = interval
        self.num_left = 0                                        # checkpoints left so far
        self.num_evicted = 0
        self.tokens_looked_up = 0
        self.tokens_hit = 0
        self._pages = pages
        self._roots: dict[str, _Node] = {}
        self._checkpoints: OrderedDict[_Node, None] = OrderedDict()   # least recently used first
        pages.full.reclaim = self._reclaim_full
        pages.sliding.reclaim = self._reclaim_sliding

    @property
    def num_checkpoints(self) -> int:
        """Prefixes that can be resumed now."""
        return len(self._checkpoints)

    def trail(self, prompt_ids: Int32, identity: str, marks: Iterable[int],
              images: Seq[PromptImage] = ()) -> Trail:
        """What `match` and `leave` want to know of a prompt."""
        return Trail(prompt_ids, identity, tuple(marks), self._pages.page_size, self.interval,
                     images)

    def match(self, trail: Trail) -> Prefix:
        """The longest cached prefix of a prompt that leaves at least its last token to be run."""
        node = self._deepest_checkpoint(trail)
        if node is None:
            return NO_PREFIX
        path = [each.full_page for each in _upwards(node, node.depth)]
        window = [each.sliding_page for each in self._window(node)]
        return Prefix(path[::-1], window[::-1])

    def num_cached(self, trail: Trail) -> int:
        """Tokens that `match` would give now; a look from another thread may miss a change."""
        node = self._deepest_checkpoint(trail)
        return 0 if node is None else node.depth * self._pages.page_size

    def use(self, trail: Trail, prefix: Prefix) -> None:
        """Tell that a sequence goes on from the prefix that `match` has just given.

        Refreshes its checkpoint and the first one of its path: the system prompt that
        conversations share outlives their turns.
        """
        self.tokens_looked_up += trail.num_prompt
        self.tokens_hit += prefix.num_pages * self._pages.page_size
        if not prefix.num_pages:
            return
        node = self._find(trail, prefix.num_pages)
        trail.node = node
        while trail.wanted and trail.wanted[-1] <= prefix.num_pages:
            trail.wanted.pop()
        first = node
        for each in _upwards(node, node.depth):
            if each.is_checkpoint:
                first = each
        for each in (node, first):
            if each.is_checkpoint:
                self._checkpoints.move_to_end(each)

    def leave(self, trail: Trail, tables: PageTables, num_committed: int) -> None:
        """Leave the checkpoints that a prompt reached, before its sliding pages are trimmed."""
        while trail.wanted and trail.wanted[-1] * self._pages.page_size <= num_committed:
            self._leave(trail, tables, trail.wanted.pop())

    def clear(self) -> None:
        """Forget everything."""
        while self._checkpoints:
            self._evict(next(iter(self._checkpoints)))

    # ---- the tree ----

    def _deepest_checkpoint(self, trail: Trail) -> _Node | None:
        node = self._roots.get(trail.identity)
        best = None
        while node is not None and node.depth < trail.num_usable:
            node = node.children.get(trail.key(node.depth))
            if node is not None and node.is_checkpoint and trail.resumable(node.depth):
                best = node
        return best

    def _find(self, trail: Trail, depth: int) -> _Node:
        """The deepest node of a prompt's path down to `depth`; a root is made if need be."""
        node = trail.node
        if node is None or not node.alive:
            node = self._roots.get(trail.identity)
            if node is None:
                node = self._roots[trail.identity] = _Node(None, b'', 0)
        while node.depth < depth:
            child = node.children.get(trail.key(node.depth))
            if child is None:
                break
            node = child
        return node

    def _leave(self, trail: Trail, tables: PageTables, depth: int) -> None:
        num_visible = depth - self._pages.first_visible(depth)
        if num_visible > self.max_window_pages or self.max_window_pages == 0:
            return
        node = self._make_room(trail, depth)
        while node.depth < depth:
            page = int(tables.full[node.depth])
            self._pages.full.keep(page)
            child = _Node(node, trail.key(node.depth), node.depth + 1, page)
            node.children[child.key] = child
            node = child
        trail.node = node
        if not node.is_checkpoint:
            node.is_checkpoint = True
            self.num_left += 1
            for each in self._window(node):
                if each.num_windows == 0:
                    each.sliding_page = int(tables.sliding[each.depth - 1])
                    assert each.sliding_page >= 0, f'page {each.depth - 1} has left the window'
                    self._pages.sliding.keep(each.sliding_page)
                each.num_windows += 1
        self._checkpoints[node] = None
        self._checkpoints.move_to_end(node)

    def _make_room(self, trail: Trail, depth: int) -> _Node:
        """Evict checkpoints until one at `depth` is within the budget.

        Gives the deepest node of its path that is left.
        """
        first = self._pages.first_visible(depth)
        while True:
            node = self._find(trail, depth)
            held = sum(each.num_windows > 0 for each in _upwards(node, node.depth - first))
            if self._pages.sliding.num_kept + depth - first - held <= self.max_window_pages:
                return node
            self._evict(next(iter(self._checkpoints)))

    def _window(self, node: _Node) -> Iterator[_Node]:
        """The nodes whose sliding pages a row right after `node` sees, from the right."""
        return _upwards(node, node.depth - self._pages.first_visible(node.depth))

    # ---- eviction ----

    def _evict(self, node: _Node) -> None:
        self.num_evicted += 1
        del self._checkpoints[node]
        node.is_checkpoint = False
        for each in self._window(node):
            each.num_windows -= 1
            if each.num_windows == 0:
                self._pages.sliding.forget(each.sliding_page)
                each.sliding_page = -1
        self._prune(node)

    def _prune(self, node: _Node) -> None:
        """Drop a node and its ancestors as far as nothing can be resumed through them."""
        while not node.children and not node.is_checkpoint:
            node.alive = False
            if node.parent is None:
                self._roots = {name: root for name, root in self._roots.items()
                               if root is not node}
                return
            self._pages.full.forget(node.full_page)
            del node.parent.children[node.key]
            node = node.parent

    def _reclaim_full(self) -> None:
        """Evict the checkpoint used longest ago whose last page would become free."""
        owners = self._pages.full.owners
        leaves = [node for node in self._checkpoints if not node.children]
        self._evict(next((node for node in leaves if not owners[node.full_page]), leaves[0]))

    def _reclaim_sliding(self) -> None:
        """Evict the checkpoint used longest ago with a sliding page that would become free."""
        owners = self._pages.sliding.owners
        for node in self._checkpoints:
            if any(each.num_windows == 1 and not owners[each.sliding_page]
                   for each in self._window(node)):
                break
        else:
            node = next(iter(self._checkpoints))
        self._evict(node)


def _upwards(node: _Node, count: int) -> Iterator[_Node]:
    """A node and its ancestors, `count` in all."""
    each: _Node | None = node
    for _ in range(count):
        assert each is not None
        yield each
        each = each.parent
