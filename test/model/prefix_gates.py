# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""resumed == fresh as functions, for any model: each gives the differences it found.

Requests run one after the other, or interleaved, on one engine with a prefix cache; each answer is
compared bit by bit with that of a fresh engine that has seen nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from engine_books import check_books
from engine_gates import WAIT, Answer, differences, poison, read, solo
from engine_gates import Job as SoloJob

from gemma_thor_ros.engine import Engine, page_pool, scheduler
from gemma_thor_ros.engine.saved_prefix import SavedPrefix
from gemma_thor_ros.schema import FinishReason, Request, RequestError


@dataclass(frozen=True)
class Visit:
    """A request of a conversation, and the cached tokens that it must report (-1: any)."""

    request: Request
    cached: int = -1


class Kitchen:
    """An engine with a prefix cache whose freed pages are poisoned."""

    def __init__(self, model: Any, **options: Any) -> None:
        settings = {'page_size': 8, 'num_sliding_pages': 300, 'num_full_pages': 600,
                    'max_sequences': 8, 'max_waiting': 1000, 'prefill_chunk': 2048,
                    'context_length': 2048, 'max_rows': 1, 'stop_ids': (), **options}
        self.engine = Engine(model, on_pages_freed=lambda geometry, pages: poison(
            self.engine.kv_cache, geometry, pages), **settings)
        self.engine.start()

    def answer(self, *requests: Request) -> dict[str, Answer]:
        """Submit all at once and read their answers."""
        outboxes, answers = [], {}
        for request in requests:
            try:
                outboxes.append(self.engine.submit(request))
            except RequestError as error:                # a planted error made the engine fail
                answers[request.request_id] = Answer((), (), FinishReason.ERROR, str(error), 0)
        return answers | {outbox.request_id: read(outbox) for outbox in outboxes}

    def close(self, audit: bool = True) -> None:
        """Stop; the books must be in order, and a cleared cache leaves no page behind."""
        assert self.engine.stop(WAIT)
        if audit and self.engine.stats().state == 'stopped':
            pages, cache = self.engine._pages, self.engine._cache
            check_books(pages, cache, [])
            cache.clear()
            assert pages.full.num_available == pages.full.num_pages
            check_books(pages, cache, [])


def fresh(model: Any, requests: Iterable[Request], **options: Any) -> dict[str, Answer]:
    """Every request on an engine of its own."""
    return solo(model, [SoloJob(request) for request in requests],
                **{'stop_ids': (), **options})


def warm_gate(model: Any, visits: Sequence[Visit], *, reference: Any = None, together: int = 1,
              audit: bool = True, **options: Any) -> list[str]:
    """resumed == fresh: visits in order on one engine, `together` of them at a time.

    Without `audit` the books are not looked at: what is planted must show in the answers.
    """
    kitchen = Kitchen(model, **options)
    found: dict[str, Answer] = {}
    try:
        for at in range(0, len(visits), together):
            found.update(kitchen.answer(*(v.request for v in visits[at:at + together])))
    finally:
        kitchen.close(audit)
    fixed = {name: options[name] for name in ('page_size', 'context_length', 'stop_ids',
                                              'max_image_tokens') if name in options}
    requests = [visit.request for visit in visits]
    whole = fresh(reference or model, requests, **fixed)
    lines = differences(found, whole, [SoloJob(request) for request in requests])
    for visit in visits:
        cached = found[visit.request.request_id].cached_tokens
        if visit.cached not in (-1, cached):
            lines.append(f'{visit.request.request_id}: {cached} cached tokens instead of '
                         f'{visit.cached}')
    return lines


def length_visits(make: Callable[..., Request], lengths: Iterable[int], page_size: int,
                  ) -> list[Visit]:
    """For each length: a prompt, the same again, one that goes on, one that parts at its end."""
    visits = []
    for n in lengths:
        first = make(f'first{n}', n + 1, n)
        base, border = first.prompt_ids, n // page_size * page_size
        more = make(f'more{n}', 9, n).prompt_ids
        other = (*base[:-1], base[-1] ^ 1, *more)
        visits += [Visit(first, 0), Visit(replace(first, request_id=f'again{n}'), border),
                   Visit(replace(first, request_id=f'longer{n}', prompt_ids=base + more), border),
                   Visit(replace(first, request_id=f'other{n}', prompt_ids=other), border)]
    return visits


def conversation(model: Any, make: Callable[..., Request], num_turns: int, page_size: int,
                 num_system: int = 30) -> list[Visit]:
    """A chat whose every prompt repeats the last one and its answer as prompt tokens."""
    visits: list[Visit] = []
    prompt = make('system', num_system).prompt_ids
    cached = 0
    for turn in range(num_turns):
        prompt = (*prompt, *make(f'user{turn}', 7 + 5 * turn, turn).prompt_ids)
        request = replace(make(f'turn{turn}', 1, turn), prompt_ids=prompt)
        visits.append(Visit(request, cached))
        cached = (len(prompt) - 1) // page_size * page_size
        prompt = (*prompt, *fresh(model, [request], page_size=page_size)[f'turn{turn}'].token_ids)
    return visits


def interleaved(make: Callable[..., Request], num_system: int, num_user: int) -> list[Visit]:
    """Case H11: one long prefix, three last user messages, each sent twice, interleaved."""
    system = make('system', num_system).prompt_ids
    visits = []
    for again in range(2):
        for user in range(3):
            tail = make(f'user{user}', num_user, user).prompt_ids
            request = replace(make(f'{user}.{again}', 1, user), prompt_ids=(*system, *tail),
                              checkpoints=(num_system,))
            visits.append(Visit(request))
    return visits

def save(engine: Engine, ids: tuple[int, ...], max_bytes: int = 1 << 30) -> SavedPrefix:
    found = engine.save_prefix(np.array(ids, np.int32), (), max_bytes).result(WAIT)
    assert found is not None
    return found


def saved_gate(model: Any, length: int, make: Callable[..., Request], page_size: int = 16,
               **options: Any) -> list[str]:
    """A turn, saved; the next one on another engine, in other pages, against one that is fresh."""
    options = {'page_size': page_size, **options}
    first, first_turn = Kitchen(model, **options), make('first', length)
    answer = first.answer(first_turn)['first']
    saved = save(first.engine, first_turn.prompt_ids)
    first.close()
    more = make('more', 30, 1)
    turn = replace(more, prompt_ids=(*first_turn.prompt_ids, *answer.token_ids, *more.prompt_ids))
    second = Kitchen(model, **options)
    second.answer(make('other', 50, 2))
    lines = []
    border = (length - 1) // page_size * page_size
    cached = second.engine.restore_prefix(saved).result(WAIT)
    if (cached, saved.token_ids.size) != (border, border):
        lines.append(f'{cached} of {saved.token_ids.size} tokens are cached, not {border}')
    before = second.engine.stats().prefill_tokens
    found = second.answer(turn)
    if second.engine.stats().prefill_tokens - before != len(turn.prompt_ids) - border:
        lines.append('the saved part was prefilled')
    second.close()
    return lines + differences(found, fresh(model, [turn], page_size=page_size), [SoloJob(turn)])


# ---- planted errors ----

def forget_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sliding pages are freed, and so poisoned, while a checkpoint still points at them."""
    right_keep, right_share = page_pool.PagePool.keep, page_pool.PagePool.share

    def keep(self: page_pool.PagePool, page: int) -> None:
        if self.geometry == 'full':
            right_keep(self, page)

    def share(self: page_pool.PagePool, pages: Any) -> None:
        if self.geometry == 'full':
            right_share(self, pages)
        else:
            self._free = [page for page in self._free if page not in pages]
            for page in pages:
                self.owners[page] += 1
    monkeypatch.setattr(page_pool.PagePool, 'keep', keep)
    monkeypatch.setattr(page_pool.PagePool, 'share', share)


def hit_past_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed sequence believes that one token more is in its pages."""
    right = scheduler.Scheduler.admit

    def wrong(self: scheduler.Scheduler, now: float) -> None:
        before = set(map(id, self.running))
        right(self, now)
        for sequence in self.running:
            if id(sequence) not in before and sequence.num_committed:
                sequence.num_committed += 1
    monkeypatch.setattr(scheduler.Scheduler, 'admit', wrong)
