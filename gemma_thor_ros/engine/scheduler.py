# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Who runs: admission by priority, preemption at step borders, memory taken back when it is short.

A sequence waits (no pages), runs, or is paused (keeps its pages, has no rows). A higher class
takes a slot from the lowest one, whose K and V stay; when memory is short it takes that as well,
and the dropped sequence is recomputed later. Works on sequences and page counts alone; knows no
model, no thread and no clock. Not thread-safe: the engine thread's own.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from gemma_thor_ros.engine.page_pool import PageManager, PageNeed, Prefix
from gemma_thor_ros.engine.plan import Part, Plan, build_plan, choose_rows, tables_of
from gemma_thor_ros.engine.prefix_cache import PrefixCache, Trail
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.batch import Role

Propose = Callable[[Seq[tuple[Sequence, int]]], Mapping[Sequence, tuple[int, ...]]]


class Scheduler:
    """The queues of one engine. Higher priority first, first come first within one class.

    At most `max_sequences` run; at most `prefill_chunk` prompt rows are in a step, in order.
    Within a class nobody is preempted.
    """

    def __init__(self, pages: PageManager, cache: PrefixCache, *, max_sequences: int,
                 prefill_chunk: int) -> None:
        self.pages = pages
        self.cache = cache
        self.max_sequences = max_sequences
        self.prefill_chunk = prefill_chunk
        self.waiting: list[Sequence] = []                # all three sorted by Sequence.order
        self.paused: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preempted = 0                           # paused or dropped while running
        self.num_dropped = 0                             # lost their pages
        self._refused: tuple[int, ...] = ()              # who did not fit, and with what books

    @property
    def busy(self) -> bool:
        """Whether any sequence is here."""
        return bool(self.running or self.waiting or self.paused)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence among the waiting."""
        sequence.scheduled = True
        _insert(self.waiting, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its pages at once."""
        sequence.scheduled = False
        if sequence.pages is None:
            self.waiting.remove(sequence)
            return
        (self.running if sequence in self.running else self.paused).remove(sequence)
        self.pages.release(sequence.pages)
        sequence.pages = None

    def admit(self, now: float) -> None:
        """Decide who runs in the next step, strictly in order.

        A waiting sequence that does not fit, even if all lower classes were dropped, holds back
        those that wait behind it, so that a large request is not overtaken for ever by small ones.
        Paused ones need no memory and may run meanwhile.
        """
        if not (self.waiting or self.paused):
            return
        blocked, candidates = False, self._candidates()
        while candidates:
            sequence = candidates.popleft()
            if len(self.running) >= self.max_sequences and not _below(self.running[-1], sequence):
                return
            if sequence.pages is None:
                num_dropped = self.num_dropped
                if blocked or not self._start(sequence):
                    blocked = True
                    continue
                if sequence.admitted is None:
                    sequence.admitted = now
                if self.num_dropped > num_dropped:       # they wait now, in their old order
                    candidates = self._candidates(after=sequence)
            else:
                self.paused.remove(sequence)
            if len(self.running) >= self.max_sequences:
                self.num_preempted += 1
                _insert(self.paused, self.running.pop())
            _insert(self.running, sequence)

    def plan(self, propose: Propose | None = None) -> Plan:
        """The next step of the running sequences (at least one); gives the pages that it needs.

        `propose` gives drafts for some of the sequences that were chosen, with their own rows.
        """
        chosen = choose_rows(self.running, self.prefill_chunk, self.pages.max_rows)
        assert chosen, f'none of {len(self.running)} running sequences has a row to run'
        return build_plan(chosen, self.pages, {} if propose is None else propose(chosen))

    def commit(self, part: Part, num_kept: int) -> None:
        """Count the rows that stand as cached and free the sliding pages that this leaves behind.

        The rows of refused drafts lie past the length then, and are written over.
        """
        sequence, tables = part.sequence, tables_of(part.sequence)
        sequence.num_committed += num_kept
        if part.role is Role.PREFILL:
            self.cache.leave(self.trail(sequence), tables, sequence.num_committed)
        self.pages.trim(tables, sequence.num_committed)

    def drop(self, sequence: Sequence) -> None:
        """Take the pages of a running or paused sequence; it waits to be computed again.

        Its tokens stay. Prompt tokens will run as prompt rows, from the best checkpoint on, and
        generated ones as decode rows, so that nothing changes but time.
        """
        self.num_preempted += sequence in self.running
        self.num_dropped += 1
        self.remove(sequence)
        sequence.num_committed = 0
        sequence.trail = None
        self.add(sequence)

    def trail(self, sequence: Sequence) -> Trail:
        """The way of a sequence's prompt through the prefix cache."""
        if sequence.trail is None:
            request = sequence.request
            sequence.trail = self.cache.trail(
                sequence.token_ids[:sequence.num_prompt], request.identity, request.checkpoints,
                request.images)
        return sequence.trail

    def _candidates(self, after: Sequence | None = None) -> deque[Sequence]:
        """Who may get a slot, in order; of those that come after a sequence."""
        ordered = sorted([*self.waiting, *self.paused], key=_order)
        return deque(each for each in ordered if after is None or each.order > after.order)

    def _start(self, sequence: Sequence) -> bool:
        """Give a waiting sequence its pages, dropping lower classes if need be and if it helps."""
        books = (sequence.arrival, self.pages.num_releases, self.cache.num_left)
        if books == self._refused:
            return False
        trail = self.trail(sequence)
        prefix = self.cache.match(trail)
        need = self.pages.need(sequence.max_positions)
        if not self.pages.fits(need, prefix) and not self._make_room(sequence, need, prefix):
            self._refused = books
            return False
        sequence.pages = self.pages.admit(sequence.max_positions, prefix)
        assert sequence.pages is not None, f'{need} was to fit'
        self.waiting.remove(sequence)
        self.cache.use(trail, prefix)
        sequence.num_committed = prefix.num_pages * self.pages.page_size
        if sequence.admitted is None:
            sequence.cached_tokens = sequence.num_committed
        return True

    def _make_room(self, sequence: Sequence, need: PageNeed, prefix: Prefix) -> bool:
        """Drop as few sequences of lower classes as it takes, the last in order first."""
        held = sorted([*self.running, *self.paused], key=_order, reverse=True)
        victims: list[Sequence] = []
        for victim in held:
            if not _below(victim, sequence):
                return False
            victims.append(victim)
            if self.pages.fits(need, prefix, [tables_of(each) for each in victims]):
                for each in victims:
                    self.drop(each)
                return True
        return False


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _below(one: Sequence, other: Sequence) -> bool:
    """Whether one is of a lower class."""
    return one.request.priority < other.request.priority


def _insert(queue: list[Sequence], sequence: Sequence) -> None:
    insort(queue, sequence, key=_order)
