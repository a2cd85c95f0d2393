# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The life of a request: answers, stop rules, settings, queueing, cancel, deadline, figures."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gemma_thor_ros.engine import Engine
from gemma_thor_ros.models.batch import Batch, Role
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.schema import (
    ErrorCode,
    FinishEvent,
    FinishReason,
    Priority,
    Request,
    RequestError,
    TokenEvent,
)

MakeEngine = Callable[..., Engine]
MakeModel = Callable[..., ScriptedModel]
MakeRequest = Callable[..., Request]
WAIT = 20.0


class Gate:
    """An on_step hook that holds the engine in a step until the test lets it go."""

    def __init__(self, at_step: int = 0) -> None:
        self.at_step = at_step
        self.entered = threading.Event()
        self.go = threading.Event()

    def __call__(self, step: int, batch: Batch) -> None:
        if step == self.at_step:
            self.entered.set()
            assert self.go.wait(WAIT)


class TestAnswers:

    def test_the_script_comes_out_and_the_stop_id_is_its_last_token(
            self, make_engine: MakeEngine, make_request: MakeRequest) -> None:
        outbox = make_engine().submit(make_request((200, 210, 220)))
        *tokens, finish = outbox.events(WAIT)
        assert tokens == [TokenEvent((i,)) for i in (201, 211, 221, 106)]
        assert isinstance(finish, FinishEvent)
        assert (finish.reason, finish.stop_id) == (FinishReason.STOP, 106)
        assert (finish.code, finish.message) == (ErrorCode.NONE, '')
        assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (3, 4)

    @pytest.mark.parametrize('stop_id', [1, 106, 50])
    def test_model_stop_ids(self, make_engine: MakeEngine, make_model: MakeModel,
                            make_request: MakeRequest, stop_id: int) -> None:
        engine = make_engine(make_model(lambda prompt: [7, stop_id, 8]))
        tokens, finish = engine.submit(make_request()).collect(WAIT)
        assert (tokens, finish.stop_id) == ([7, stop_id], stop_id)

    def test_request_stop_ids_also_when_eos_is_ignored(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        engine = make_engine(make_model(lambda prompt: [7, 106, 9, 8]))
        tokens, finish = engine.submit(make_request(stop_ids=(9,), ignore_eos=True)).collect(WAIT)
        assert (tokens, finish.stop_id) == ([7, 106, 9], 9)

    def test_length(self, make_engine: MakeEngine, make_request: MakeRequest) -> None:
        tokens, finish = make_engine().submit(make_request(max_tokens=2)).collect(WAIT)
        assert (tokens, finish.reason, finish.stop_id) == ([201, 202], FinishReason.LENGTH, -1)

    def test_a_stop_id_at_the_length_limit_is_a_stop(self, make_engine: MakeEngine,
                                                     make_request: MakeRequest) -> None:
        _, finish = make_engine().submit(make_request(max_tokens=4)).collect(WAIT)
        assert finish.reason is FinishReason.STOP

    def test_min_tokens_holds_the_stop_ids_back(self, make_engine: MakeEngine,
                                                make_model: MakeModel, make_request: MakeRequest,
                                                ) -> None:
        engine = make_engine(make_model(lambda prompt: [7]))
        tokens, _ = engine.submit(make_request(min_tokens=3)).collect(WAIT)
        assert tokens == [7, 0, 0, 106], 'all other logits are equal: the lowest id'

    def test_suppressed_tokens_never_come(self, make_engine: MakeEngine, make_request: MakeRequest,
                                          ) -> None:
        engine = make_engine(suppress_tokens=(0, 202))
        tokens, _ = engine.submit(make_request()).collect(WAIT)
        assert tokens == [201, 1]

    @pytest.mark.parametrize('temperature', [0.0, 0.7, 1.0, 2.0])
    def test_the_script_holds_at_usual_temperatures(self, make_engine: MakeEngine,
                                                    make_request: MakeRequest,
                                                    temperature: float) -> None:
        tokens, _ = make_engine().submit(make_request(temperature=temperature)).collect(WAIT)
        assert tokens == [201, 202, 203, 106]

    def test_logit_bias_bans_a_token(self, make_engine: MakeEngine, make_request: MakeRequest,
                                     ) -> None:
        request = make_request(logit_bias=((202, -60.0), (202, -40.0), (7, 1.0)))
        tokens, _ = make_engine().submit(request).collect(WAIT)
        assert tokens == [201, 7, 203, 106], 'repeated ids add up'

    def test_penalties_see_prompt_and_answer(self, make_engine: MakeEngine, make_model: MakeModel,
                                             make_request: MakeRequest) -> None:
        engine = make_engine(make_model(lambda prompt: [7, 7, 7, 300]))
        bias = ((9, 50.0),)
        tokens, _ = engine.submit(make_request(logit_bias=bias, frequency_penalty=20.0)
                                  ).collect(WAIT)
        assert tokens == [7, 7, 9, 300, 106], '80, 60, then 40 < 50'
        tokens, _ = engine.submit(make_request(logit_bias=bias, presence_penalty=31.0)
                                  ).collect(WAIT)
        assert tokens == [7, 9, 7, 300, 106], '80, 49 < 50, 49 > 19'
        tokens, _ = engine.submit(make_request((200, 7), logit_bias=bias, repetition_penalty=2.0)
                                  ).collect(WAIT)
        assert tokens == [9, 7, 7, 300, 106], '7 stands in the prompt: 40 < 50, 40 > 25'

    def test_logprobs(self, make_engine: MakeEngine, make_request: MakeRequest) -> None:
        outbox = make_engine().submit(make_request(logprobs=2, max_tokens=1))
        event = next(outbox.events(WAIT))
        assert isinstance(event, TokenEvent)
        (logprob,) = event.logprobs
        assert logprob.token_id == 201
        assert logprob.logprob == pytest.approx(-math.log1p(511 * math.exp(-80.0)))
        assert [i for i, _ in logprob.top] == [201, 0]
        assert logprob.top[1][1] == pytest.approx(-80.0)
        outbox = make_engine().submit(make_request(logprobs=0))
        assert all(len(e.logprobs) == 1 and e.logprobs[0].top == ()
                   for e in outbox.events(WAIT) if isinstance(e, TokenEvent))

    def test_long_prompts_and_answers_cross_pages_and_windows(
            self, make_engine: MakeEngine, make_request: MakeRequest) -> None:
        prompt = tuple(200 + i % 90 for i in range(100))
        tokens, _ = make_engine().submit(make_request(prompt, max_tokens=101)).collect(WAIT)
        assert tokens == [i + 1 for i in prompt] + [106]

    def test_prompt_rows_are_prefill_and_generated_rows_decode(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        batches: list[Batch] = []
        engine = make_engine(make_model(on_step=lambda step, batch: batches.append(batch)))
        engine.submit(make_request(tuple(range(200, 217)))).collect(WAIT)
        spans = [span for batch in batches for span in batch.spans]
        assert [(s.role, s.num_rows) for s in spans[:4]] == [
            (Role.PREFILL, 8), (Role.PREFILL, 8), (Role.PREFILL, 1), (Role.DECODE, 1)]
        assert [s.start_position for s in spans] == [0, 8, *range(16, 34)]
        assert [b.logit_rows.size for b in batches[:3]] == [0, 0, 1]
        assert all(b.token_ids.dtype == b.positions.dtype == b.logit_rows.dtype == 'int32'
                   for b in batches)


class TestQueue:

    def test_priority_order_and_first_come_inside(self, make_engine: MakeEngine,
                                                  make_model: MakeModel,
                                                  make_request: MakeRequest) -> None:
        gate = Gate()
        engine = make_engine(make_model(on_step=gate), max_sequences=1)
        order: list[str] = []

        def submit(name: str, priority: Priority) -> None:
            outbox = engine.submit(make_request(request_id=name, priority=priority, max_tokens=2))
            outbox.on_ready(lambda: order.append(name) if name not in order else None)

        submit('first', Priority.BACKGROUND)
        assert gate.entered.wait(WAIT)
        for name, priority in (('b1', 0), ('d1', 2), ('o1', 3), ('d2', 2), ('b2', 0), ('a1', 1)):
            submit(name, Priority(priority))
        last = engine.submit(make_request(priority=Priority.BACKGROUND))
        assert (engine.stats().running, engine.stats().waiting) == (1, 7)
        gate.go.set()
        last.collect(WAIT)
        assert order == ['first', 'o1', 'd1', 'd2', 'a1', 'b1', 'b2']

    def test_busy_with_numbers(self, make_engine: MakeEngine, make_model: MakeModel,
                               make_request: MakeRequest) -> None:
        gate = Gate()
        engine = make_engine(make_model(on_step=gate), max_sequences=2, max_waiting=1)
        outboxes = [engine.submit(make_request()) for _ in range(3)]
        with pytest.raises(RequestError, match='has 3 requests; it takes 2 running and 1 waiting'
                           ) as caught:
            engine.submit(make_request())
        assert caught.value.code is ErrorCode.BUSY
        gate.go.set()
        for outbox in outboxes:
            outbox.collect(WAIT)
        engine.submit(make_request()).collect(WAIT)

    def test_waits_for_memory_in_order(self, make_engine: MakeEngine, make_model: MakeModel,
                                       make_request: MakeRequest) -> None:
        """The second needs more than is left; the small third does not overtake it."""
        gate = Gate()
        num_spans: list[int] = []
        engine = make_engine(num_full_pages=10, model=make_model(
            on_step=lambda s, b: (gate(s, b), num_spans.append(len(b.spans)))))
        outboxes = [engine.submit(make_request(range(200, 224), max_tokens=9))]
        assert gate.entered.wait(WAIT)
        outboxes += [engine.submit(make_request(range(200, 224), max_tokens=9)),
                     engine.submit(make_request((200,), max_tokens=1))]
        gate.go.set()
        ends = [outbox.collect(WAIT)[1] for outbox in outboxes]
        assert [end.usage.completion_tokens for end in ends] == [9, 9, 1]
        alone = 3 + 8                                    # chunks of the first and its decode steps
        assert num_spans[:alone] == [1] * alone
        assert max(num_spans[alone:]) == 2

    def test_request_id_in_use(self, make_engine: MakeEngine, make_model: MakeModel,
                               make_request: MakeRequest) -> None:
        gate = Gate()
        engine = make_engine(make_model(on_step=gate))
        outbox = engine.submit(make_request(request_id='x'))
        with pytest.raises(RequestError, match="'x' is in use"):
            engine.submit(make_request(request_id='x'))
        gate.go.set()
        outbox.collect(WAIT)
        engine.submit(make_request(request_id='x')).collect(WAIT)

    def test_several_sequences_share_a_step(self, make_engine: MakeEngine, make_model: MakeModel,
                                            make_request: MakeRequest) -> None:
        shapes: list[list[tuple[Role, int]]] = []
        gate = Gate()

        def on_step(step: int, batch: Batch) -> None:
            gate(step, batch)
            shapes.append([(s.role, s.num_rows) for s in batch.spans])

        engine = make_engine(make_model(on_step=on_step))
        outboxes = [engine.submit(make_request((200, 201)))]
        assert gate.entered.wait(WAIT)
        outboxes += [engine.submit(make_request(range(200, 205))),
                     engine.submit(make_request(range(200, 206)))]
        gate.go.set()
        for outbox in outboxes:
            outbox.collect(WAIT)
        assert shapes[1] == [(Role.DECODE, 1), (Role.PREFILL, 5), (Role.PREFILL, 3)]
        assert shapes[2] == [(Role.DECODE, 1), (Role.DECODE, 1), (Role.PREFILL, 3)]


class TestCancelAndDeadline:

    def test_a_running_request_ends_with_the_step_under_way(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        gate = Gate(at_step=2)
        model = make_model(on_step=gate)
        engine = make_engine(model)
        request = make_request(range(200, 240), max_tokens=40)
        outbox = engine.submit(request)
        assert gate.entered.wait(WAIT)
        assert engine.cancel(request.request_id)
        gate.go.set()
        tokens, finish = outbox.collect(WAIT)
        assert (tokens, finish.reason) == ([], FinishReason.CANCELLED)
        assert finish.code is ErrorCode.CANCELLED
        assert model.num_steps == 3
        stats = engine.stats()
        assert (stats.full_pages_used, stats.sliding_pages_used) == (0, 0)
        assert not engine.cancel(request.request_id)

    def test_tokens_before_the_cancel_stay(self, make_engine: MakeEngine, make_model: MakeModel,
                                           make_request: MakeRequest) -> None:
        gate = Gate(at_step=5)
        engine = make_engine(make_model(on_step=gate))
        request = make_request(range(200, 208))
        outbox = engine.submit(request)
        assert gate.entered.wait(WAIT)
        engine.cancel(request.request_id)
        gate.go.set()
        tokens, finish = outbox.collect(WAIT)
        assert tokens == [201, 202, 203, 204, 205]
        assert finish.usage.completion_tokens == 5

    def test_waiting_requests_are_cancelled_at_the_next_border(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        """One that the scheduler holds, and one that is still in the inbox."""
        gate, later = Gate(at_step=0), Gate(at_step=1)
        engine = make_engine(make_model(on_step=lambda s, b: (gate(s, b), later(s, b))),
                             max_sequences=1)
        first = engine.submit(make_request())
        assert gate.entered.wait(WAIT)
        held = engine.submit(make_request(request_id='held'))
        gate.go.set()
        assert later.entered.wait(WAIT)
        fresh = engine.submit(make_request(request_id='fresh'))
        assert engine.cancel('held') and engine.cancel('fresh')
        later.go.set()
        for outbox in (held, fresh):
            tokens, finish = outbox.collect(WAIT)
            assert (tokens, finish.reason) == ([], FinishReason.CANCELLED)
            assert finish.timings.queued_ms == finish.timings.total_ms
        assert first.collect(WAIT)[0] == [201, 202, 203, 106]
        assert engine.stats().waiting == 0

    def test_unknown_requests(self, make_engine: MakeEngine) -> None:
        assert not make_engine().cancel('nobody')

    def test_cancel_from_a_callback(self, make_engine: MakeEngine, make_request: MakeRequest,
                                    ) -> None:
        """What chat.py does at a stop string: from the engine thread, in mid-delivery."""
        engine = make_engine()
        request = make_request(range(200, 230))
        seen: list[Any] = []
        gate = threading.Event()
        outbox = engine.submit(request)

        def on_ready() -> None:
            seen.extend(outbox.poll())
            if len(seen) == 3:
                engine.cancel(request.request_id)
            if isinstance(seen[-1], FinishEvent):
                gate.set()
        outbox.on_ready(on_ready)
        assert gate.wait(WAIT)
        assert seen[-1].reason is FinishReason.CANCELLED
        assert len(seen) == 4, 'no token after the cancel'

    @pytest.mark.parametrize('field', ['running', 'waiting'])
    def test_deadline(self, make_engine: MakeEngine, make_model: MakeModel,
                      make_request: MakeRequest, field: str) -> None:
        gate = Gate()                                    # no speed is known yet: nobody is refused
        engine = make_engine(make_model(step_delay_s=0.01, on_step=gate), max_sequences=1)
        blocker = engine.submit(make_request(range(200, 240))) if field == 'waiting' else None
        outbox = engine.submit(make_request(range(200, 240), deadline_s=0.1))
        gate.go.set()
        tokens, finish = outbox.collect(WAIT)
        assert (finish.reason, finish.code) == (FinishReason.ERROR, ErrorCode.DEADLINE)
        assert f'0.1 s passed after {len(tokens)} of at most 50 tokens' in finish.message
        assert finish.timings.total_ms < 1000.0
        assert (len(tokens) == 0) == (field == 'waiting')
        if blocker is not None:
            assert len(blocker.collect(WAIT)[0]) == 41


class TestFigures:

    def test_stats(self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
                   ) -> None:
        gate = Gate(at_step=3)
        engine = make_engine(make_model(on_step=gate), start=False)
        assert engine.stats().state == 'new'
        engine.start()
        outbox = engine.submit(make_request(range(200, 210)))
        assert gate.entered.wait(WAIT)
        stats = engine.stats()
        assert (stats.state, stats.running, stats.waiting, stats.steps) == ('running', 1, 0, 4)
        # 12 positions are three pages; the fourth is there one step early
        assert (stats.full_pages_used, stats.full_pages_total) == (4, 400)
        assert (stats.sliding_pages_used, stats.sliding_pages_total) == (4, 200)
        assert (stats.decode_tokens, stats.prefill_tokens) == (2, 10)
        gate.go.set()
        outbox.collect(WAIT)
        stats = engine.stats()
        assert (stats.requests_finished, stats.requests_cancelled, stats.requests_failed) \
            == (1, 0, 0)
        assert stats.decode_tokens_per_s > 0.0 and stats.prefill_tokens_per_s > 0.0

    def test_timings(self, make_engine: MakeEngine, make_model: MakeModel,
                     make_request: MakeRequest) -> None:
        engine = make_engine(make_model(step_delay_s=0.02))
        _, finish = engine.submit(make_request(range(200, 210), max_tokens=6)).collect(WAIT)
        timings = finish.timings
        assert timings.queued_ms < 20.0 < 40.0 <= timings.prefill_ms
        assert timings.time_to_first_token_ms == pytest.approx(
            timings.queued_ms + timings.prefill_ms)
        assert timings.decode_ms >= 5 * 20.0
        assert timings.tokens_per_s == pytest.approx(5e3 / timings.decode_ms)
        assert timings.total_ms >= timings.time_to_first_token_ms + timings.decode_ms

    def test_an_idle_engine_sleeps(self, make_engine: MakeEngine) -> None:
        make_engine()
        assert sys.getswitchinterval() < 0.001           # and is not kept waiting otherwise
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.15
