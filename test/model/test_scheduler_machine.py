# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""concurrent == solo for 8 conversations started, cancelled, preempted and resumed at random.

Short runs by hypothesis, which finds the edges and shrinks what fails, and long random ones on
very few pages. The undisturbed answer is that of a loop without engine, pages and neighbours
(random logits), or of a fresh engine (tiny Gemma 4 with an FP8 or bf16 cache).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from conversations import CONVERSATIONS, STOP_ID, WINDOW, Conversations, plain_loop
from engine_gates import Answer, HashModel, Job, solo
from forward import TINY_DENSE, TINY_MOE, random_model
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gemma_thor_ros.engine import page_pool, prefix_cache, scheduler
from gemma_thor_ros.models.scripted_drafter import ScriptedDrafter
from gemma_thor_ros.schema import Priority, Request

ANSWERS: dict[tuple[Any, ...], Answer] = {}


@cache
def model(name: str) -> Any:
    if name == 'hash':
        return HashModel(sliding_window=WINDOW)
    raw, rounding, kv_dtype = (
        (TINY_MOE, 'device', 'bf16') if name == 'moe' else (TINY_DENSE, 'none', 'fp8'))
    return random_model({**raw, 'sliding_window': WINDOW}, rounding=rounding, kv_dtype=kv_dtype)


def reference(name: str, request: Request) -> Answer:
    """The undisturbed answer; computed once for equal requests."""
    key = (name, request.prompt_ids, request.sampling)
    if key not in ANSWERS:
        ANSWERS[key] = plain_loop(request) if name == 'hash' else solo(
            model(name), [Job(request)], page_size=8, stop_ids=(STOP_ID,))[request.request_id]
    return ANSWERS[key]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Planted faults would fill the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def start(name: str, *, right: float | None = None, **options: Any) -> Conversations:
    """right: how often a drafter that knows the undisturbed answers is right; None: no drafts."""
    if right is not None:
        options['drafter'] = ScriptedDrafter(known_answer, 96, right=right, window=WINDOW)
    return Conversations(model(name), lambda request: reference(name, request), **options)


def known_answer(history: np.ndarray, generated: np.ndarray) -> Sequence[int]:
    """What comes next in an answer whose beginning the history holds, if any is known."""
    num_prompt = history.size - int(generated.sum())
    prompt, begun = tuple(history[:num_prompt].tolist()), history[num_prompt:].tolist()
    for (_, prompt_ids, _), answer in ANSWERS.items():
        if prompt_ids == prompt and list(answer.token_ids[:len(begun)]) == begun:
            return answer.token_ids[len(begun):]
    return ()


class Machine(RuleBasedStateMachine):
    name = 'hash'

    @initialize(max_sequences=st.integers(1, 4), chunk=st.sampled_from([3, 8, 17, 64]),
                page_size=st.sampled_from([4, 8]), spare=st.integers(0, 24),
                windows=st.sampled_from([0, 6, 20, 100]), interval=st.integers(1, 6),
                max_rows=st.sampled_from([1, 4, 16]),
                right=st.sampled_from([None, 0.3, 0.9]),
                num_drafts=st.sampled_from([None, 1, 5]))
    def begin(self, **options: Any) -> None:
        self.talks = start(self.name, **options)

    @rule(turns=st.lists(st.tuples(
        st.integers(0, CONVERSATIONS - 1), st.integers(1, 12), st.sampled_from(Priority),
        st.integers(1, 24), st.sampled_from([0.0, 0.7, 1.5]), st.integers(0, 1),
        st.sampled_from([1.0, 1.3])), min_size=1, max_size=4))
    def say(self, turns: list[tuple[int, int, Priority, int, float, int, float]]) -> None:
        for turn in turns:
            self.talks.say(*turn)

    @rule(who=st.integers(0, CONVERSATIONS - 1))
    def cancel(self, who: int) -> None:
        self.talks.cancel(who)

    @rule(count=st.integers(1, 12), fault=st.integers(0, 30))
    def step(self, count: int, fault: int) -> None:
        self.talks.step(count, fault in (11, 23))

    def teardown(self) -> None:
        if hasattr(self, 'talks'):
            self.talks.finish()


class GemmaMachine(Machine):
    name = 'dense'


TestShortRuns = Machine.TestCase
TestShortRuns.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestShortGemmaRuns = GemmaMachine.TestCase
TestShortGemmaRuns.settings = settings(max_examples=5, stateful_step_count=20, deadline=None)


def long_run(name: str, seed: int, num_actions: int, right: float | None = None) -> Any:
    """Random actions, mostly steps; gives the engine's figures."""
    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    talks = start(name, max_sequences=pick(1, 2, 3), chunk=pick(3, 8, 17), page_size=pick(4, 8),
                  spare=pick(0, 4, 12), windows=pick(6, 20, 100), interval=pick(1, 3, 6),
                  max_rows=pick(4, 16), right=right, num_drafts=pick(None, 3, 7))
    for _ in range(num_actions):
        if rng.random() < 0.5:
            talks.say(int(rng.integers(CONVERSATIONS)), int(rng.integers(1, 13)),
                      Priority(int(rng.choice(4, p=[0.4, 0.2, 0.2, 0.2]))),
                      int(rng.integers(1, 25)), pick(0.0, 0.7, 1.5), pick(0, 1), pick(1.0, 1.3))
        elif rng.random() < 0.1:
            talks.cancel(int(rng.integers(CONVERSATIONS)))
        else:
            talks.step(int(rng.integers(1, 6)), rng.random() < 0.03)
    talks.finish()
    return talks.engine.stats()


@pytest.mark.parametrize('name, seeds, num_actions, right', [
    ('hash', range(3), 400, None), ('hash', range(3, 6), 400, 0.8), ('dense', (1, 2), 150, 0.8),
    ('moe', (1,), 150, None)])
def test_long_runs(name: str, seeds: Sequence[int], num_actions: int, right: float | None,
                   grid: bool) -> None:
    """All of it has to happen, and often; without drafts and with them."""
    if grid:
        seeds, num_actions = range(40), 600
    all_stats = [long_run(name, seed, num_actions, right) for seed in seeds]
    if right is not None:
        assert sum(stats.accepted_tokens for stats in all_stats) > 30 * len(seeds)
    figures = {field: sum(getattr(stats, field) for stats in all_stats) for field in (
        'requests_finished', 'preemptions', 'drops', 'cached_prompt_tokens',
        'checkpoints_evicted', 'requests_cancelled', 'requests_failed')}
    assert all(count >= 3 for count in figures.values()), figures
    assert figures['preemptions'] > figures['requests_finished'] / 10, figures


class TestPlantedErrors:
    """In the long runs; what only disturbs fairness must show in the model of the scheduler."""

    def fails(self) -> bool:
        for seed in range(3):
            try:
                long_run('hash', seed, 300, None if seed else 0.8)
            except AssertionError:
                return True
        return False

    def test_without_an_error(self) -> None:
        assert not self.fails()

    def test_preemption_within_a_class(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduler, '_below', lambda one, other: (
            one.request.priority <= other.request.priority and one.arrival > other.arrival))
        assert self.fails()

    def test_no_preemption(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduler, '_below', lambda one, other: False)
        assert self.fails()

    def test_small_requests_overtake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = scheduler.Scheduler._start

        def wrong(self: scheduler.Scheduler, sequence: Any) -> bool:
            if not right(self, sequence):
                self.waiting.remove(sequence)
                later = next((s for s in self.waiting if right(self, s)), None)
                scheduler._insert(self.waiting, sequence)
                if later is not None:
                    later.admitted = 0.0
                    scheduler._insert(self.paused, later)
                return False
            return True
        monkeypatch.setattr(scheduler.Scheduler, '_start', wrong)
        assert self.fails()

    def test_a_refusal_that_is_never_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_pool.PageManager, 'num_releases', property(
            lambda self: 0, lambda self, value: None), raising=False)
        assert self.fails()

    def test_drop_that_keeps_its_promise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = page_pool.PageManager.release

        def wrong(self: page_pool.PageManager, tables: Any) -> None:
            self.promised_full += 1
            right(self, tables)
        monkeypatch.setattr(page_pool.PageManager, 'release', wrong)
        assert self.fails()

    def test_prefix_that_counts_as_free_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Evictable pages that the newcomer itself pins are promised to it as well."""
        right = page_pool.PageManager.fits

        def wrong(self: page_pool.PageManager, need: Any, prefix: Any = page_pool.NO_PREFIX,
                  without: Any = ()) -> bool:
            less = page_pool.PageNeed(need.sliding, need.full - prefix.num_pages)
            return right(self, less, page_pool.NO_PREFIX, without)
        monkeypatch.setattr(page_pool.PageManager, 'fits', wrong)
        assert self.fails()

    def test_evicted_node_that_stays_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A prompt goes on below a node that has left the tree."""
        right = prefix_cache.PrefixCache._find

        def wrong(self: prefix_cache.PrefixCache, trail: Any, depth: int) -> Any:
            if trail.node is not None:
                trail.node.alive = True
            return right(self, trail, depth)
        monkeypatch.setattr(prefix_cache.PrefixCache, '_find', wrong)
        assert self.fails()
