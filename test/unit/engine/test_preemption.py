# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Who runs when: classes, slots, memory taken back. Engines are stepped by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gemma_thor_ros.engine import Engine
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.schema import FinishReason, Priority, Request, TokenEvent

BACKGROUND, AGENT, DIALOGUE, OPERATOR = Priority
MakeEngine = Callable[..., Engine]
MakeModel = Callable[..., ScriptedModel]
MakeRequest = Callable[..., Request]


@pytest.fixture
def stepped(make_engine: MakeEngine, make_model: MakeModel) -> Callable[..., Engine]:
    """An engine that steps only when it is told to, on a model that answers 60 tokens."""
    def make(**options: Any) -> Engine:
        engine = make_engine(make_model(lambda prompt: [i % 90 + 300 for i in range(60)]),
                             start=False, **options)
        engine.start(threaded=False)
        return engine
    return make


def names(sequences: list[Any]) -> list[str]:
    return [sequence.request.request_id for sequence in sequences]


def finish(engine: Engine) -> None:
    while engine.step():
        pass


class TestSlots:

    def test_the_lowest_class_gives_way_and_the_last_in_it_first(
            self, stepped: Callable[..., Engine], make_request: MakeRequest) -> None:
        engine = stepped(max_sequences=3)
        for name, priority in (('a1', AGENT), ('b1', BACKGROUND), ('b2', BACKGROUND)):
            engine.submit(make_request(request_id=name, priority=priority))
        engine.step()
        assert names(engine._scheduler.running) == ['a1', 'b1', 'b2']
        engine.submit(make_request(request_id='d1', priority=DIALOGUE))
        engine.step()
        assert names(engine._scheduler.running) == ['d1', 'a1', 'b1']
        assert names(engine._scheduler.paused) == ['b2']
        engine.submit(make_request(request_id='o1', priority=OPERATOR, max_tokens=2))
        engine.submit(make_request(request_id='a2', priority=AGENT))
        engine.step()
        assert names(engine._scheduler.running) == ['o1', 'd1', 'a1']
        assert names(engine._scheduler.paused) == ['b1', 'b2']
        assert names(engine._scheduler.waiting) == ['a2'], 'nobody gives way to his own class'
        engine.step()
        engine.step()
        assert names(engine._scheduler.running) == ['d1', 'a1', 'a2']
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.paused) == (3, 2, 2)
        assert (stats.preemptions, stats.drops) == (2, 0)
        finish(engine)

    def test_a_paused_sequence_keeps_its_pages_and_goes_on_with_one_row(
            self, stepped: Callable[..., Engine], make_request: MakeRequest) -> None:
        engine = stepped(max_sequences=1)
        low = engine.submit(make_request(request_id='b', priority=BACKGROUND))
        for _ in range(5):
            engine.step()
        used = engine.stats().full_pages_used
        high = engine.submit(make_request(priority=OPERATOR, max_tokens=1))
        engine.step()
        assert high.finished
        assert engine.stats().full_pages_used == used
        rows = engine._loop._runner._model.num_rows
        engine.step()
        assert engine._loop._runner._model.num_rows == rows + 1
        finish(engine)
        assert low.collect(0.0)[0] == [i % 90 + 300 for i in range(50)]

    def test_no_preemption_for_a_free_slot(self, stepped: Callable[..., Engine],
                                           make_request: MakeRequest) -> None:
        engine = stepped(max_sequences=2)
        engine.submit(make_request(priority=BACKGROUND))
        engine.step()
        engine.submit(make_request(priority=OPERATOR))
        engine.step()
        assert engine.stats().running == 2 and engine.stats().preemptions == 0
        finish(engine)

    def test_cancel_of_a_paused_sequence(self, stepped: Callable[..., Engine],
                                         make_request: MakeRequest) -> None:
        engine = stepped(max_sequences=1)
        low = engine.submit(make_request(request_id='low', priority=BACKGROUND))
        engine.step()
        engine.submit(make_request(priority=OPERATOR))
        engine.step()
        assert names(engine._scheduler.paused) == ['low']
        assert engine.cancel('low')
        engine.step()
        tokens, end = low.collect(0.0)
        assert (tokens, end.reason) == ([300], FinishReason.CANCELLED)
        assert engine.stats().paused == 0
        finish(engine)


@pytest.mark.parametrize('num_prompt', [1, 8, 9, 40])
def test_first_token_within_two_steps_and_its_own_prefill(
        stepped: Callable[..., Engine], make_request: MakeRequest, num_prompt: int) -> None:
    """8 background requests decode, 3 more are in their prompts; then somebody speaks."""
    engine = stepped(max_sequences=8, prefill_chunk=8)
    for _ in range(8):
        engine.submit(make_request(priority=BACKGROUND))
    for _ in range(6):
        engine.step()
    assert len(engine._scheduler.running) == 8
    for _ in range(3):
        engine.submit(make_request(range(200, 260), priority=BACKGROUND))
    high = engine.submit(make_request(range(200, 200 + num_prompt), priority=DIALOGUE))
    own_prefill = -(-num_prompt // 8)
    steps = 0
    while not any(isinstance(event, TokenEvent) for event in high.poll()):
        assert engine.step()
        steps += 1
    assert steps <= own_prefill, 'as many as its prompt alone takes'
    finish(engine)


def test_the_same_while_a_step_is_under_way(make_engine: MakeEngine, make_model: MakeModel,
                                            make_request: MakeRequest) -> None:
    """It arrives in the middle of a step of a running engine: that step, then its own."""
    loaded, answered = threading.Event(), threading.Event()
    first_token: list[int] = []

    def on_step(step: int, batch: Any) -> None:
        assert loaded.wait(20.0)
        if step == 12:
            assert len(engine._scheduler.running) == 8
            outbox = engine.submit(make_request(range(200, 220), priority=OPERATOR, max_tokens=1))
            outbox.on_ready(note)

    def note() -> None:
        first_token.append(model.num_steps - 1)
        answered.set()

    model = make_model(lambda prompt: [300] * 60, on_step=on_step)
    engine = make_engine(model, max_sequences=8)
    for _ in range(8):
        engine.submit(make_request(priority=BACKGROUND))
    loaded.set()
    assert answered.wait(20.0)
    assert first_token[0] - 12 <= -(-20 // 8), 'the step under way, and its own prefill'


class TestMemory:

    def test_kept_while_it_fits_dropped_when_it_does_not(
            self, stepped: Callable[..., Engine], make_request: MakeRequest) -> None:
        """Each of 52 positions takes 13 pages; 30 pages hold two of them."""
        engine = stepped(num_full_pages=30, max_sequences=2)
        low = [engine.submit(make_request(request_id=f'b{i}', priority=BACKGROUND))
               for i in range(2)]
        for _ in range(9):
            engine.step()
        engine.submit(make_request((200, 201), priority=AGENT, max_tokens=3, request_id='a'))
        engine.step()
        assert names(engine._scheduler.paused) == ['b1'] and engine.stats().drops == 0
        finish(engine)
        low += [engine.submit(make_request(request_id=f'b{i}', priority=BACKGROUND))
                for i in range(2, 4)]
        for _ in range(9):
            engine.step()
        engine.submit(make_request(priority=AGENT, max_tokens=30, request_id='a'))
        engine.step()
        assert names(engine._scheduler.running) == ['a', 'b2']
        assert names(engine._scheduler.waiting) == ['b3'], 'the last one, and no more than needed'
        assert engine.stats().drops == 1
        finish(engine)
        assert [box.collect(0.0)[0] for box in low] == [[i % 90 + 300 for i in range(50)]] * 4

    def test_nobody_is_dropped_in_vain(self, stepped: Callable[..., Engine],
                                       make_request: MakeRequest) -> None:
        """Even without the background the agent's memory would be missing: it waits."""
        engine = stepped(num_full_pages=30, max_sequences=8)
        engine.submit(make_request(request_id='a1', priority=AGENT))
        engine.submit(make_request(request_id='b1', priority=BACKGROUND, max_tokens=10))
        engine.step()
        engine.submit(make_request(range(200, 240), request_id='a2', priority=AGENT,
                                   max_tokens=40))
        engine.submit(make_request(request_id='b2', priority=BACKGROUND, max_tokens=10))
        engine.step()
        assert names(engine._scheduler.running) == ['a1', 'b1']
        assert names(engine._scheduler.waiting) == ['a2', 'b2'], 'b2 would fit, but comes later'
        engine.submit(make_request(request_id='o', priority=OPERATOR, max_tokens=10))
        engine.step()
        assert names(engine._scheduler.running) == ['o', 'a1', 'b1'], 'ahead of a2 it may start'
        finish(engine)

    def test_the_paused_run_on_while_the_head_waits_for_memory(
            self, stepped: Callable[..., Engine], make_request: MakeRequest) -> None:
        engine = stepped(num_full_pages=30, max_sequences=2)
        engine.submit(make_request(request_id='d1', priority=DIALOGUE))
        engine.submit(make_request(request_id='b1', priority=BACKGROUND, max_tokens=10))
        engine.step()
        engine.submit(make_request(request_id='o1', priority=OPERATOR, max_tokens=2))
        engine.step()
        assert names(engine._scheduler.paused) == ['b1']
        engine.submit(make_request(range(200, 240), request_id='d2', priority=DIALOGUE,
                                   max_tokens=40))
        engine.step()
        engine.step()
        assert names(engine._scheduler.running) == ['d1', 'b1']
        assert names(engine._scheduler.waiting) == ['d2']
        finish(engine)

    def test_shared_pages_count_once(self, stepped: Callable[..., Engine],
                                     make_request: MakeRequest) -> None:
        """8 requests on one long prompt fit where 3 would without sharing."""
        prompt = tuple(200 + i % 90 for i in range(100))
        engine = stepped(num_full_pages=80, max_sequences=8, context_length=256)
        first = engine.submit(make_request(prompt, max_tokens=8))
        finish(engine)
        assert first.finished
        for _ in range(8):
            engine.submit(make_request(prompt, max_tokens=8))
        engine.step()
        assert engine.stats().running == 8
        assert engine.stats().full_pages_used <= 24 + 8 * 2
        finish(engine)

    def test_a_drop_reports_the_cached_tokens_of_the_first_start(
            self, stepped: Callable[..., Engine], make_request: MakeRequest) -> None:
        engine = stepped(num_full_pages=16, max_sequences=1)
        low = engine.submit(make_request(range(200, 209), priority=BACKGROUND, max_tokens=40))
        for _ in range(9):
            engine.step()
        engine.submit(make_request(priority=AGENT))
        finish(engine)
        assert engine.stats().drops == 1
        assert low.collect(0.0)[1].usage.cached_tokens == 0
