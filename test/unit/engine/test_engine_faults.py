# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Failed steps, stops and crowds: every request ends once, no page is leaked."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from gemma_thor_ros.engine import Engine, Outbox
from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.schema import (
    ErrorCode,
    FinishEvent,
    FinishReason,
    Priority,
    Request,
    RequestError,
)

MakeEngine = Callable[..., Engine]
MakeModel = Callable[..., ScriptedModel]
MakeRequest = Callable[..., Request]
WAIT = 20.0


class TestFailedSteps:

    def test_a_failed_step_fails_its_sequences_alone(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        entered, go = threading.Event(), threading.Event()

        def on_step(step: int, batch: Batch) -> None:
            if step == 0:
                entered.set()
                assert go.wait(WAIT)
            if step == 4:
                raise ArithmeticError('planted fault')

        engine = make_engine(make_model(on_step=on_step), max_sequences=2)
        outboxes = [engine.submit(make_request(range(200, 220)))]
        assert entered.wait(WAIT)
        outboxes += [engine.submit(make_request(range(200, 220))) for _ in range(2)]
        go.set()
        for outbox in outboxes[:2]:
            tokens, finish = outbox.collect(WAIT)
            assert tokens == [201, 202, 203, 204][:len(tokens)]
            assert (finish.reason, finish.code) == (FinishReason.ERROR, ErrorCode.ENGINE)
            assert finish.message == 'Step 5 of the engine failed: ArithmeticError: planted fault'
        tokens, finish = outboxes[2].collect(WAIT)
        assert tokens == [*range(201, 221), 106]
        assert engine.submit(make_request()).collect(WAIT)[0] == [201, 202, 203, 106]
        stats = engine.stats()
        assert (stats.state, stats.requests_failed, stats.full_pages_used) == ('running', 2, 0)

    def test_a_script_that_raises(self, make_engine: MakeEngine, make_model: MakeModel,
                                  make_request: MakeRequest) -> None:
        engine = make_engine(make_model(lambda prompt: [prompt[0] // (prompt[0] - 200)]))
        assert engine.submit(make_request((200,))).collect(WAIT)[1].code is ErrorCode.ENGINE
        assert engine.submit(make_request((201,))).collect(WAIT)[0] == [201, 106]

    def test_a_row_of_nan_fails_its_own_sequence(self, make_engine: MakeEngine,
                                                 make_request: MakeRequest) -> None:
        class NanModel(ScriptedModel):
            def fill_logits(self, logits: np.ndarray, history: np.ndarray,
                            generated: np.ndarray) -> None:
                super().fill_logits(logits, history, generated)
                if history[0] == 300:
                    logits[7] = np.nan

        gate = threading.Event()
        model = NanModel(lambda prompt: [i + 1 for i in prompt], 512, sliding_window=8,
                         on_step=lambda step, batch: gate.wait(WAIT))
        engine = make_engine(model)
        good, bad = engine.submit(make_request()), engine.submit(make_request((300, 301)))
        gate.set()
        assert good.collect(WAIT)[0] == [201, 202, 203, 106]
        tokens, finish = bad.collect(WAIT)
        assert (tokens, finish.code) == ([], ErrorCode.ENGINE)
        assert finish.message == 'No token could be chosen at position 2: the logits hold NaN.'

    def test_logits_of_a_wrong_shape(self, make_engine: MakeEngine, make_request: MakeRequest,
                                     ) -> None:
        class NarrowModel(ScriptedModel):
            def forward(self, batch: Batch, kv_cache: object) -> np.ndarray:
                return np.zeros((batch.logit_rows.size, 511), np.float32)

        engine = make_engine(NarrowModel(lambda prompt: [], 512))
        _, finish = engine.submit(make_request()).collect(WAIT)
        assert 'shape (1, 511) instead of (1, 512)' in finish.message

    def test_a_fault_of_our_own_books_answers_everybody(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            monkeypatch: pytest.MonkeyPatch) -> None:
        """The scheduler itself fails: nothing can go on, but nobody is left without an answer."""
        engine = make_engine(start=False, max_sequences=1)

        def broken(propose: object) -> None:
            raise KeyError('books')
        monkeypatch.setattr(engine._scheduler, 'plan', broken)
        engine.start()
        outbox = engine.submit(make_request())
        _, finish = outbox.collect(WAIT)
        assert (finish.reason, finish.code) == (FinishReason.ERROR, ErrorCode.ENGINE)
        assert "KeyError('books')" in finish.message
        with pytest.raises(RequestError, match="state is 'failed'") as caught:
            engine.submit(make_request())
        assert caught.value.code is ErrorCode.NOT_READY
        assert engine.stop(WAIT) and engine.stats().state == 'failed'


class TestStop:

    def test_open_requests_are_answered_with_cancelled(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        engine = make_engine(make_model(step_delay_s=0.01), max_sequences=2)
        outboxes = [engine.submit(make_request(range(200, 240))) for _ in range(5)]
        outboxes[0].wait(WAIT)
        assert engine.stop(WAIT)
        for outbox in outboxes:
            _, finish = outbox.collect(0.0)
            assert (finish.reason, finish.code) == (FinishReason.CANCELLED, ErrorCode.CANCELLED)
            assert finish.message == 'The engine was stopped.'
        with pytest.raises(RequestError, match="state is 'stopped'") as caught:
            engine.submit(make_request())
        assert caught.value.code is ErrorCode.NOT_READY
        assert not engine.cancel('r0')
        assert engine.stop(WAIT), 'a second stop is harmless'

    def test_before_the_start(self, make_engine: MakeEngine, make_request: MakeRequest) -> None:
        engine = make_engine(start=False)
        with pytest.raises(RequestError, match="state is 'new'"):
            engine.submit(make_request())
        assert engine.stop(WAIT)
        with pytest.raises(RuntimeError, match='stopped'):
            engine.start()

    def test_a_step_that_does_not_end_keeps_nobody_waiting(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        entered, go = threading.Event(), threading.Event()

        def on_step(step: int, batch: Batch) -> None:
            entered.set()
            assert go.wait(WAIT)

        engine = make_engine(make_model(on_step=on_step))
        outbox = engine.submit(make_request())
        assert entered.wait(WAIT)
        begin = time.monotonic()
        assert not engine.stop(0.1)
        assert time.monotonic() - begin < 5.0
        assert outbox.collect(0.0)[1].code is ErrorCode.CANCELLED
        go.set()
        assert engine.stop(WAIT)
        assert outbox.poll() == [], 'the late step adds nothing'

    def test_stop_from_a_callback(self, make_engine: MakeEngine, make_request: MakeRequest,
                                  ) -> None:
        engine = make_engine()
        outbox = engine.submit(make_request(range(200, 240)))
        outbox.on_ready(lambda: engine.stop(1.0))
        assert outbox.collect(WAIT)[1].code is ErrorCode.CANCELLED


def client(engine: Engine, seed: int, count: int, results: list[tuple[Request, Outbox, bool]],
           make: Callable[[random.Random], Request]) -> None:
    """Submit and cancel at random; keeps up to 6 requests open."""
    rng = random.Random(seed)
    open_requests: list[tuple[Request, Outbox]] = []
    cancelled: set[str] = set()
    for _ in range(count):
        request = make(rng)
        outbox = engine.submit(request)
        results.append((request, outbox, False))
        open_requests.append((request, outbox))
        if rng.random() < 0.3:
            victim = rng.choice(open_requests)[0].request_id
            if engine.cancel(victim):
                cancelled.add(victim)
        while len(open_requests) > 6:
            open_requests.pop(rng.randrange(len(open_requests)))[1].wait(WAIT)
        if rng.random() < 0.2:
            time.sleep(0.001)
    results[:] = [(r, o, r.request_id in cancelled) for r, o, _ in results]


def test_two_clients_200_requests_random_cancels_and_faults(
        make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest) -> None:
    """Each answer is the script's or a prefix of it; one FinishEvent each; all pages come back."""
    lock = threading.Lock()

    def make(rng: random.Random) -> Request:
        prompt = tuple(rng.randrange(200, 400) for _ in range(rng.randrange(1, 60)))
        with lock:
            return make_request(prompt, max_tokens=rng.randrange(1, 60), seed=rng.randrange(99),
                                temperature=rng.choice([0.0, 0.7, 1.5]),
                                priority=Priority(rng.randrange(4)))

    def on_step(step: int, batch: Batch) -> None:
        if step % 151 == 150:
            raise OSError('planted fault')

    engine = make_engine(make_model(on_step=on_step), num_sliding_pages=40, num_full_pages=70,
                         max_waiting=20)
    results: list[list[tuple[Request, Outbox, bool]]] = [[], []]
    threads = [threading.Thread(target=client, args=(engine, seed, 100, results[seed], make))
               for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    ends: dict[str, int] = {}
    for request, outbox, was_cancelled in results[0] + results[1]:
        events = list(outbox.events(WAIT))
        assert outbox.poll() == []
        assert [isinstance(event, FinishEvent) for event in events].count(True) == 1
        finish = events[-1]
        assert isinstance(finish, FinishEvent)
        tokens = [i for event in events[:-1] for i in event.token_ids]
        script = [*(i + 1 for i in request.prompt_ids), 106][:request.sampling.max_tokens]
        assert tokens == script[:len(tokens)]
        assert finish.usage.completion_tokens == len(tokens)
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert tokens == script
        elif finish.reason is FinishReason.CANCELLED:
            assert was_cancelled
        else:
            assert 'planted fault' in finish.message
        ends[str(finish.reason)] = ends.get(str(finish.reason), 0) + 1
    assert sum(ends.values()) == 200
    assert all(ends[reason] > 0 for reason in ('stop', 'length', 'cancelled', 'error')), ends
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert (stats.sliding_pages_used, stats.full_pages_used) == (0, 0)
    assert engine._pages.promised_full == engine._pages.promised_sliding == 0
    assert not engine._requests.all() and not engine._requests.has_news
    assert stats.requests_finished == 200
