# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What becomes of prompts that come while one is answered, under each policy."""

from __future__ import annotations

import threading

import pytest

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.ros.prompt_intake import PromptIntake
from gemma_thor_ros.ros.running import Running
from gemma_thor_ros.schema import ErrorCode, RequestError


class Bench:
    """An intake whose requests end when told to."""

    def __init__(self, policy, most=2):
        self.config = EngineConfig(**{'ros.prompt_policy': policy, 'ros.prompt_queue': most})
        self.begun = []
        self.outcomes = []
        self.refused = []
        self.go = threading.Semaphore(0)
        self.changed = threading.Condition()
        self.before_begin = None
        self.intake = PromptIntake(self.config, self.run, self.refuse)

    def run(self, request, on_begin):
        if self.before_begin:
            self.before_begin()
        running = Running(request.request_id, request.session_id)
        on_begin(running)
        text = request.messages[0]['content']
        with self.changed:
            self.begun.append((text, running))
            self.changed.notify_all()
        if text == 'refused':
            raise RequestError(ErrorCode.NOT_READY, 'inactive')
        if text == 'broken':
            raise ValueError('broken')
        while not self.go.acquire(timeout=0.01):
            if running.cancelled.is_set():
                break
        with self.changed:
            self.outcomes.append((text, running.reason))
            self.changed.notify_all()

    def refuse(self, request_id, session_id, error):
        with self.changed:
            self.refused.append((request_id, session_id, error.code))
            self.changed.notify_all()

    def until(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, 5.0)


@pytest.fixture
def bench():
    made = []

    def make(*args):
        made.append(Bench(*args))
        return made[-1]

    yield make
    for one in made:
        for _ in range(10):
            one.go.release()
        assert one.intake.close(5.0)


def test_queue_keeps_the_order_and_refuses_one_too_many(bench):
    b = bench('queue')
    b.intake.put('one')
    b.until(lambda: len(b.begun) == 1)
    b.intake.put('two')
    b.intake.put('three')
    b.intake.put('four')
    assert [code for _, _, code in b.refused] == [ErrorCode.BUSY]
    for _ in range(3):
        b.go.release()
    b.until(lambda: len(b.outcomes) == 3)
    assert b.outcomes == [('one', ''), ('two', ''), ('three', '')]


def test_keep_last_lets_the_newest_wait(bench):
    b = bench('keep_last')
    b.intake.put('one')
    b.until(lambda: len(b.begun) == 1)
    old = b.intake.put('two')
    b.intake.put('three')
    assert b.refused == [(old, 'prompt', ErrorCode.CANCELLED)]
    b.go.release()
    b.go.release()
    b.until(lambda: len(b.outcomes) == 2)
    assert b.outcomes == [('one', ''), ('three', '')]


def test_interrupt_ends_what_runs_and_what_waits(bench):
    b = bench('interrupt')
    b.intake.put('one')
    b.until(lambda: len(b.begun) == 1)
    b.intake.put('two')
    b.until(lambda: len(b.begun) == 2)
    assert b.outcomes == [('one', 'a later prompt interrupted')]
    b.go.release()
    b.until(lambda: len(b.outcomes) == 2)
    assert b.outcomes[1] == ('two', '')


def test_interrupt_reaches_a_request_that_has_not_begun(bench):
    b = bench('interrupt')
    at_door, door = threading.Event(), threading.Event()

    def stop_once():
        b.before_begin = None
        at_door.set()
        assert door.wait(5.0)

    b.before_begin = stop_once
    b.intake.put('one')
    assert at_door.wait(5.0)
    b.intake.put('two')
    door.set()
    b.until(lambda: b.outcomes)
    assert b.outcomes[0] == ('one', 'a later prompt interrupted')


def test_faults_are_told_and_the_next_prompt_is_answered(bench):
    b = bench('queue', 5)
    for text in ('refused', 'broken', ' ', 'good'):
        b.intake.put(text)
    b.go.release()
    b.until(lambda: b.outcomes and len(b.refused) == 3)
    assert b.outcomes == [('good', '')]
    assert {code for _, _, code in b.refused} == {
        ErrorCode.NOT_READY, ErrorCode.ENGINE, ErrorCode.INVALID_REQUEST,
    }  # fmt: skip


def test_what_waits_can_be_cleared(bench):
    b = bench('queue')
    b.intake.put('one')
    b.until(lambda: len(b.begun) == 1)
    waiting = b.intake.put('two')
    b.intake.clear('the node was deactivated')
    assert b.refused == [(waiting, 'prompt', ErrorCode.CANCELLED)]
