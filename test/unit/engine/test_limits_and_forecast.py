# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Time: deadlines refused at once, limits to tokens, queue positions, a step that hangs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gemma_thor_ros.engine import Engine
from gemma_thor_ros.engine.forecast import Forecast, Work
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.scripted import ScriptedModel
from gemma_thor_ros.schema import (
    DeviceError,
    ErrorCode,
    FinishReason,
    Priority,
    PromptImage,
    QueuePosition,
    Request,
    RequestError,
    SamplingParams,
)

MakeEngine = Callable[..., Engine]
MakeModel = Callable[..., ScriptedModel]
MakeRequest = Callable[..., Request]
WAIT = 20.0


def forecast(token_s: float = 0.1, prompt_token_s: float = 0.01, answer: float = 10.0) -> Forecast:
    """As after steps of these speeds."""
    known = Forecast(prefill_chunk=8)
    known.step_done(0, 1, token_s)
    known.step_done(8, 0, 8 * prompt_token_s)
    known.answer_done(round(answer))
    return known


class TestForecast:

    def test_learns_from_full_chunks_and_pure_decode_steps(self) -> None:
        known = Forecast(prefill_chunk=8)
        known.step_done(3, 0, 5.0)
        assert known.prompt_token_s == 0.0, 'a step of a few rows tells nothing of long prompts'
        known.step_done(0, 4, 0.1)
        known.step_done(8, 4, 0.9)
        assert known.token_s == pytest.approx(0.1)
        assert known.prompt_token_s == pytest.approx(0.1), 'the decode rows beside cost 0.1 s'
        for _ in range(200):
            known.step_done(0, 1, 0.3)
            known.step_done(6, 0, 0.6)
            known.answer_done(30)
        assert (known.token_s, known.prompt_token_s, known.answer_tokens) == pytest.approx(
            (0.3, 0.1, 30.0), rel=1e-3)

    def test_wait_for_a_slot(self) -> None:
        known = forecast()
        ten, twenty = Work(0, 10), Work(100, 10)         # 1 s and 2 s
        assert known.wait_s([], 2) == known.wait_s([ten], 2) == 0.0
        assert known.wait_s([ten, twenty], 2) == pytest.approx(1.0)
        assert known.wait_s([twenty, ten, ten], 2) == pytest.approx(2.0)
        assert known.wait_s([ten, ten, ten, twenty, ten], 2) == pytest.approx(3.0)

    def test_least_work_decides(self) -> None:
        """Prompt 0.3 s and one token 0.1 s; max_tokens may never be used up."""
        def check(deadline_s: float, num_cached: int = 0, wait_s: float = 0.0,
                  **sampling: Any) -> None:
            request = Request('r', tuple(range(30)), SamplingParams(max_tokens=50, **sampling),
                              deadline_s=deadline_s)
            forecast().check_deadline(Sequence(request, 0.0), num_cached, wait_s)
        check(0.0)
        check(0.41)
        check(0.21, num_cached=20)
        with pytest.raises(RequestError) as caught:
            check(0.39)
        assert caught.value.code is ErrorCode.DEADLINE
        assert caught.value.message == (
            'The deadline of 0.39 s can not be met: about 0.4 s are needed, 0 s to wait, 0.3 s '
            'for 30 prompt tokens (0 more are cached) and 0.1 s for an answer of at least 1 '
            'tokens.')
        for late in ({'wait_s': 0.1}, {'min_tokens': 3}, {'ignore_eos': True}):
            with pytest.raises(RequestError, match='can not be met'):
                check(0.41, **late)

    def test_images_have_a_speed_of_their_own(self) -> None:
        """A tower that takes 9 s says nothing of text, and is counted where it has to run."""
        known = forecast()
        for _ in range(200):
            known.step_done(30, 1, 9.4, 20)              # 0.3 s of rows, 0.1 s beside them
        assert (known.prompt_token_s, known.image_token_s) == pytest.approx((0.01, 0.45), rel=1e-3)
        shown = PromptImage(5, 20, b'', None, 1)
        request = Request('r', tuple(range(30)), SamplingParams(max_tokens=1), images=(shown,),
                          deadline_s=9.0)
        with pytest.raises(RequestError, match=r'9\.3 s for 30 prompt tokens \(20 of images, 0 '):
            known.check_deadline(Sequence(request, 0.0), 0, 0.0)
        known.check_deadline(Sequence(request, 0.0), 26, 0.0)        # behind the image
        assert known.work(Sequence(request, 0.0)) == Work(30, 1, 20)
        text = replace(request, images=(), deadline_s=0.41)
        known.check_deadline(Sequence(text, 0.0), 0, 0.0)

    def test_nothing_is_refused_before_speeds_are_known(self) -> None:
        request = Request('r', tuple(range(30)), SamplingParams(), deadline_s=1e-6)
        Forecast(8).check_deadline(Sequence(request, 0.0), 0, 0.0)


class TestDeadlineAtSubmit:

    def test_refused_at_once_with_the_numbers(self, make_engine: MakeEngine,
                                              make_model: MakeModel, make_request: MakeRequest,
                                              ) -> None:
        engine = make_engine(make_model(step_delay_s=0.05))
        prompt = tuple(200 + i % 90 for i in range(160))
        engine.submit(make_request(prompt, max_tokens=4)).collect(WAIT)
        begin = time.monotonic()
        with pytest.raises(RequestError, match=r'deadline of 0\.8 s .* 160 prompt tokens'
                           ) as caught:
            engine.submit(make_request([i + 1 for i in prompt], deadline_s=0.8))
        assert time.monotonic() - begin < 0.8
        assert caught.value.code is ErrorCode.DEADLINE
        tokens, end = engine.submit(
            make_request((*prompt, 9), deadline_s=0.8, max_tokens=1)).collect(WAIT)
        assert (len(tokens), end.code) == (1, ErrorCode.NONE), 'what is cached needs no time'
        assert engine.stats().requests_failed == 0

    def test_waiting_counts_unless_the_class_is_higher(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        engine = make_engine(make_model(lambda prompt: [7] * 40, step_delay_s=0.03),
                             max_sequences=1)
        engine.submit(make_request()).collect(WAIT)
        blocker = engine.submit(make_request(request_id='blocker', priority=Priority.AGENT))
        with pytest.raises(RequestError, match='can not be met'):
            engine.submit(make_request(priority=Priority.AGENT, deadline_s=1.0))
        _, end = engine.submit(make_request(priority=Priority.OPERATOR, deadline_s=1.0,
                                            max_tokens=1)).collect(WAIT)
        assert end.code is ErrorCode.NONE
        blocker.collect(WAIT)


class TestQueuePosition:

    def test_position_and_wait(self, make_engine: MakeEngine, make_model: MakeModel,
                               make_request: MakeRequest) -> None:
        engine = make_engine(make_model(lambda prompt: [7] * 20), max_sequences=1, start=False)
        engine.start(threaded=False)
        for name, priority in (('a1', 1), ('a2', 1), ('a3', 1)):
            engine.submit(make_request(request_id=name, priority=Priority(priority)))
        assert engine.queue_position('a3') == QueuePosition(3, 0.0), 'no speed is known yet'
        engine.step()
        engine._forecast.token_s, engine._forecast.answer_tokens = 0.1, 21.0
        engine._forecast.prompt_token_s = 0.0
        assert engine.queue_position('a1') is None
        assert engine.queue_position('a2') == QueuePosition(1, pytest.approx(2.0))
        assert engine.queue_position('a3') == QueuePosition(2, pytest.approx(4.1))
        engine.submit(make_request(request_id='o', priority=Priority.OPERATOR))
        assert engine.queue_position('o') == QueuePosition(1, 0.0), 'it takes the slot'
        assert engine.queue_position('a2').position == 2
        engine.step()
        assert engine.queue_position('o') is None
        assert engine.queue_position('a1').position == 1, 'preempted, and next'
        assert engine.queue_position('nobody') is None
        while engine.step():
            pass
        assert engine.queue_position('a3') is None


class TestTimeLimits:

    def test_to_the_first_token(self, make_engine: MakeEngine, make_model: MakeModel,
                                make_request: MakeRequest) -> None:
        engine = make_engine(make_model(step_delay_s=0.03))
        prompt = tuple(200 + i % 90 for i in range(160))
        tokens, end = engine.submit(make_request(prompt, first_token_s=0.5)).collect(WAIT)
        assert (tokens, end.reason, end.code) == ([], FinishReason.ERROR, ErrorCode.TIMEOUT)
        assert end.message == 'No token came within 0.5 s of the submission.'
        assert 500.0 <= end.timings.total_ms < 2000.0
        tokens, end = engine.submit(make_request(first_token_s=0.5)).collect(WAIT)
        assert len(tokens) == 4, 'later tokens may take their time'

    def test_while_it_waits_for_its_turn(self, make_engine: MakeEngine, make_model: MakeModel,
                                         make_request: MakeRequest) -> None:
        engine = make_engine(make_model(lambda prompt: [7] * 40, step_delay_s=0.01),
                             max_sequences=1)
        first = engine.submit(make_request())
        _, end = engine.submit(make_request(first_token_s=0.1)).collect(WAIT)
        assert end.code is ErrorCode.TIMEOUT
        assert len(first.collect(WAIT)[0]) == 41

    def test_between_tokens(self, make_engine: MakeEngine, make_model: MakeModel,
                            make_request: MakeRequest) -> None:
        """One step is slow; a request without the limit lives through it."""
        def on_step(step: int, batch: Any) -> None:
            time.sleep(0.6 if step == 3 else 0.0)
        engine = make_engine(make_model(lambda prompt: [7] * 40, on_step=on_step))
        patient = engine.submit(make_request())
        _, end = engine.submit(make_request(token_gap_s=0.5)).collect(WAIT)
        assert end.code is ErrorCode.NONE, 'its token came before the next border'
        assert len(patient.collect(WAIT)[0]) == 41

    def test_between_tokens_of_a_preempted_request(self, make_engine: MakeEngine,
                                                   make_model: MakeModel,
                                                   make_request: MakeRequest) -> None:
        engine = make_engine(make_model(lambda prompt: [7] * 40, step_delay_s=0.01),
                             max_sequences=1)
        low = engine.submit(make_request(priority=Priority.BACKGROUND, token_gap_s=0.1))
        assert low.wait(WAIT)
        engine.submit(make_request(priority=Priority.OPERATOR)).collect(WAIT)
        tokens, end = low.collect(WAIT)
        assert end.code is ErrorCode.TIMEOUT
        assert end.message == f'No token came within 0.1 s of token {len(tokens)}.'

    @pytest.mark.parametrize('field', ['first_token_s', 'token_gap_s'])
    @pytest.mark.parametrize('value', [-1.0, float('nan'), float('inf')])
    def test_bad_limits(self, make_engine: MakeEngine, make_request: MakeRequest, field: str,
                        value: float) -> None:
        with pytest.raises(RequestError, match=field) as caught:
            make_engine().submit(make_request(**{field: value}))
        assert caught.value.param == field


class Hang:
    """Holds one step until the test lets it go."""

    def __init__(self, at_step: int) -> None:
        self.at_step = at_step
        self.go = threading.Event()

    def __call__(self, step: int, batch: Any) -> None:
        if step == self.at_step:
            assert self.go.wait(WAIT)


class TestWatchdog:

    def test_a_hanging_step_fails_its_requests_and_is_reported(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        hang = Hang(at_step=2)
        engine = make_engine(make_model(on_step=hang), max_sequences=1, step_timeout_s=0.5)
        running = engine.submit(make_request(range(200, 208), request_id='x'))
        waiting = engine.submit(make_request(request_id='waiting'))
        limited = engine.submit(make_request(first_token_s=1.0))
        tokens, end = running.collect(WAIT)
        assert (tokens, end.code) == ([201, 202], ErrorCode.ENGINE)
        assert re.fullmatch(r'Step 3 of the engine has not ended after [\d.]+ s; 0\.5 s are '
                            r'allowed\.', end.message)
        assert engine.stats().step_overdue_s > 0.5
        assert engine.stats().full_pages_used > 0, 'the step may still write to them'
        with pytest.raises(RequestError, match='step 3 has not ended') as caught:
            engine.submit(make_request())
        assert caught.value.code is ErrorCode.NOT_READY
        assert limited.collect(WAIT)[1].code is ErrorCode.TIMEOUT, 'limits hold meanwhile'
        assert not waiting.finished
        hang.go.set()
        assert waiting.collect(WAIT)[0] == [201, 202, 203, 106], 'the engine goes on'
        assert running.poll() == []
        assert engine.submit(make_request(request_id='x')).collect(WAIT)[0][-1] == 106
        stats = engine.stats()
        assert (stats.state, stats.step_overdue_s, stats.requests_failed) == ('running', 0.0, 2)

    def test_a_hanging_step_that_fails_in_the_end(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        go = threading.Event()

        def on_step(step: int, batch: Any) -> None:
            if step == 1:
                assert go.wait(WAIT)
                raise OSError('planted fault')
        engine = make_engine(make_model(on_step=on_step), step_timeout_s=0.3)
        outbox = engine.submit(make_request())
        assert 'has not ended' in outbox.collect(WAIT)[1].message
        go.set()
        deadline = time.monotonic() + WAIT
        while engine.stats().step_overdue_s > 0.0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert engine.submit(make_request()).collect(WAIT)[0] == [201, 202, 203, 106]

    def test_steps_in_time_are_left_alone(self, make_engine: MakeEngine, make_model: MakeModel,
                                          make_request: MakeRequest) -> None:
        """Many short steps, together far longer than the limit, and an idle time."""
        engine = make_engine(make_model(lambda prompt: [7] * 40, step_delay_s=0.03),
                             step_timeout_s=1.0)
        assert len(engine.submit(make_request()).collect(WAIT)[0]) == 41
        time.sleep(1.1)
        assert engine.stats().step_overdue_s == 0.0
        assert len(engine.submit(make_request()).collect(WAIT)[0]) == 41

    def test_stop_of_a_hanging_engine(self, make_engine: MakeEngine, make_model: MakeModel,
                                      make_request: MakeRequest) -> None:
        hang = Hang(at_step=0)
        engine = make_engine(make_model(on_step=hang), step_timeout_s=0.05)
        outbox = engine.submit(make_request())
        assert outbox.collect(WAIT)[1].code is ErrorCode.ENGINE
        assert not engine.stop(0.05)
        hang.go.set()
        assert engine.stop(WAIT)


class TestLostDevice:

    def test_everybody_is_told_and_nobody_is_taken(
            self, make_engine: MakeEngine, make_model: MakeModel, make_request: MakeRequest,
            ) -> None:
        gate = threading.Event()

        def on_step(step: int, batch: Any) -> None:
            assert gate.wait(WAIT)
            if step == 2:
                raise DeviceError('CUDA_ERROR_ILLEGAL_ADDRESS in moe_nvfp4')
        engine = make_engine(make_model(on_step=on_step), max_sequences=1)
        outboxes = [engine.submit(make_request()) for _ in range(3)]
        gate.set()
        for outbox in outboxes:
            _, end = outbox.collect(WAIT)
            assert (end.reason, end.code) == (FinishReason.ERROR, ErrorCode.DEVICE)
            assert end.message == 'The device is lost: CUDA_ERROR_ILLEGAL_ADDRESS in moe_nvfp4'
        with pytest.raises(RequestError, match="state is 'failed'"):
            engine.submit(make_request())
        assert engine.stats().state == 'failed'
        engine._loop.clear()                             # the fixture counts pages
