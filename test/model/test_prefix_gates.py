# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""resumed == fresh on a model of random logits whose pages know whose they are.

Each gate is followed by the errors that it must catch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from engine_gates import TEMPERATURES, HashModel, make_request
from hypothesis import given, settings
from hypothesis import strategies as st
from prefix_gates import (
    Kitchen,
    Visit,
    conversation,
    forget_the_windows,
    hit_past_the_checkpoint,
    interleaved,
    length_visits,
    warm_gate,
)

from gemma_thor_ros.engine import page_pool, prefix_cache, scheduler
from gemma_thor_ros.schema import Request

WINDOW, PAGE = 24, 8                     # the model's and the gates' defaults
request = partial(make_request, max_tokens=5)
EDGES = [7, 8, 9, 23, 24, 25, 31, 32, 33, 40, 47, 48, 49]


class TestResumedEqualsFresh:

    def test_prefixes_of_every_length(self) -> None:
        """1 to 66 tokens: past two pages and two windows, with the hits that they must give."""
        visits = length_visits(request, range(1, 66), PAGE)
        assert warm_gate(HashModel(), visits) == []

    @pytest.mark.parametrize('page_size, window', [(1, 24), (4, 1), (4, 9), (16, 24), (32, 24)])
    def test_other_pages_and_windows(self, page_size: int, window: int) -> None:
        visits = length_visits(request, range(1, 60, 3), page_size)
        assert warm_gate(HashModel(sliding_window=window), visits, page_size=page_size) == []

    @pytest.mark.parametrize('chunk', [1, 5, 8, 23])
    def test_chunked(self, chunk: int) -> None:
        visits = length_visits(request, EDGES, PAGE)
        assert warm_gate(HashModel(), visits, prefill_chunk=chunk) == []

    @pytest.mark.parametrize('temperature', TEMPERATURES)
    def test_turns_of_a_conversation(self, temperature: float) -> None:
        """Answers of different lengths; a generated token is prefilled by the next turn."""
        make = partial(make_request, temperature=temperature, max_tokens=19)
        visits = conversation(HashModel(), make, 8, PAGE)
        assert [visit.cached for visit in visits][1:3] == [32, 64]
        assert warm_gate(HashModel(), visits) == []

    @pytest.mark.parametrize('together', [1, 2, 6])
    def test_interleaved_users(self, together: int) -> None:
        """Case H11; side by side too, where the second of a pair may come while the first runs."""
        visits = interleaved(request, 50, 11)
        if together == 1:
            cached = [0, 48, 48, 56, 56, 56]
            visits = [replace(v, cached=n) for v, n in zip(visits, cached, strict=True)]
        assert warm_gate(HashModel(), visits, together=together) == []

    @given(prompts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 2),
                                      st.integers(0, 40)), min_size=2, max_size=12),
           together=st.integers(1, 4), chunk=st.integers(1, 30), windows=st.integers(0, 4),
           spare=st.integers(0, 20), interval=st.integers(1, 9))
    @settings(max_examples=40, deadline=None)
    def test_random_trees_on_few_pages(
            self, prompts: list[tuple[int, int, int, int]], together: int, chunk: int,
            windows: int, spare: int, interval: int) -> None:
        """Prompts that share beginnings, a tight budget of windows, pages evicted and reused."""
        visits = []
        for i, (system, num_system, user, num_user) in enumerate(prompts):
            ids = (*request(f's{system}', 40).prompt_ids[:num_system],
                   *request(f'u{user}', 41).prompt_ids[:num_user + 1])
            visits.append(Visit(replace(request(f'r{i}', 1, i), prompt_ids=ids,
                                        checkpoints=(num_system,))))
        num_pages = 11 + spare
        assert warm_gate(HashModel(), visits, together=together, prefill_chunk=chunk,
                         num_full_pages=num_pages, num_sliding_pages=num_pages,
                         max_checkpoint_pages=3 * windows, checkpoint_interval=interval) == []

    def test_what_was_generated_is_not_shared(self) -> None:
        """The next prompt repeats prompt and answer; only the prompt's pages are a hit."""
        first = request('a', 16, max_tokens=40)
        kitchen = Kitchen(HashModel())
        answer = kitchen.answer(first)['a']
        second = replace(request('b', 1), prompt_ids=(*first.prompt_ids, *answer.token_ids))
        assert kitchen.answer(second)['b'].cached_tokens == 8
        kitchen.close()

    def test_a_failed_prefill_leaves_nothing(self) -> None:
        """A step that fails may have written anything to its pages."""
        faults = [True]

        class Failing(HashModel):
            def forward(self, batch: Any, kv_cache: Any) -> Any:
                logits = super().forward(batch, kv_cache)
                if faults:
                    raise OSError(f'planted {faults.pop()}')
                return logits
        kitchen = Kitchen(Failing())
        kitchen.answer(request('a', 40))
        assert kitchen.answer(request('a', 40))['a'].cached_tokens == 0
        assert kitchen.answer(request('a', 40))['a'].cached_tokens == 32
        kitchen.close()


VISITS = length_visits(request, EDGES, PAGE)
CHAT = conversation(HashModel(), partial(make_request, max_tokens=19), 4, PAGE)


class TestPlantedErrors:

    def test_the_visits_pass_unharmed(self) -> None:
        assert warm_gate(HashModel(), VISITS) == []
        assert warm_gate(HashModel(), CHAT) == []

    def test_hit_one_token_past_a_checkpoint(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hit_past_the_checkpoint(monkeypatch)
        visits = length_visits(request, [9, 25, 33, 49], PAGE)   # two rows and more are left
        found = warm_gate(HashModel(), visits)
        assert any('page contents' in line for line in found), found

    def test_window_that_is_one_page_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = page_pool.PageManager.first_visible
        monkeypatch.setattr(page_pool.PageManager, 'first_visible', lambda self, num_pages: min(
            num_pages, right(self, num_pages) + 1))
        found = warm_gate(HashModel(), VISITS)
        assert any('sliding pages' in line for line in found), found

    def test_window_that_is_not_held(self, monkeypatch: pytest.MonkeyPatch) -> None:
        forget_the_windows(monkeypatch)
        found = warm_gate(HashModel(), VISITS, audit=False)
        assert any('page contents' in line for line in found), found

    def test_window_trimmed_before_the_checkpoint(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = prefix_cache.PrefixCache.leave

        def wrong(self: prefix_cache.PrefixCache, trail: Any, tables: Any, committed: int) -> None:
            self._pages.trim(tables, committed + 2 * PAGE)
            right(self, trail, tables, committed)
        monkeypatch.setattr(prefix_cache.PrefixCache, 'leave', wrong)
        assert warm_gate(HashModel(), VISITS) != []

    def test_pages_that_decode_filled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """At its end a request leaves its whole history, as many engines do."""
        right = scheduler.Scheduler.remove

        def wrong(self: scheduler.Scheduler, sequence: Any) -> None:
            if sequence.pages is not None:
                trail = self.cache.trail(sequence.token_ids[:sequence.num_committed].copy(), '',
                                         ())
                self.cache.leave(trail, sequence.pages, sequence.num_committed)
            right(self, sequence)
        monkeypatch.setattr(scheduler.Scheduler, 'remove', wrong)
        lines = warm_gate(HashModel(), [replace(visit, cached=-1) for visit in CHAT])
        assert any('turn1' in line for line in lines)

    def test_pages_told_apart_by_a_part_of_their_content(self, monkeypatch: pytest.MonkeyPatch,
                                                         ) -> None:
        right = prefix_cache.Trail.key
        monkeypatch.setattr(prefix_cache.Trail, 'key', lambda self, page: right(self, page)[:-4])
        first = request('a', 40)
        ids = first.prompt_ids
        second = replace(request('b', 1), prompt_ids=(*ids[:7], ids[7] ^ 1, *ids[8:]))
        assert warm_gate(HashModel(), [Visit(first), Visit(second)]) != []

    def test_page_evicted_while_it_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A hit that counts no owner: the page goes when its checkpoint goes."""
        monkeypatch.setattr(page_pool.PagePool, 'share', lambda self, pages: None)
        monkeypatch.setattr(page_pool.PagePool, 'give_back', lambda self, pages: [
            self._put([page]) for page in pages])
        requests: list[Request] = [request('a', 40), request('b', 40), request('c', 60)]
        visits = [Visit(replace(r, request_id=f'{r.request_id}{i}'))
                  for i in range(2) for r in requests]
        kitchen = Kitchen(HashModel(), num_full_pages=24, num_sliding_pages=24)
        answers: dict[str, Any] = {}
        for visit in visits:
            answers |= kitchen.answer(visit.request)
        kitchen.engine.stop(5.0)
        assert any('page contents' in answer.message or 'engine failed' in answer.message
                   for answer in answers.values())


def test_the_hash_model_tells_prompt_from_answer() -> None:
    """Else the gate could not see a shared page that decode filled."""
    model, history = HashModel(), np.arange(20, dtype=np.int32)
    rows = np.zeros((2, 128), np.float32)
    model.fill_logits(rows[0], history, np.zeros(20, np.bool_))
    model.fill_logits(rows[1], history, np.arange(20) >= 16)
    assert (rows[0] != rows[1]).any()
