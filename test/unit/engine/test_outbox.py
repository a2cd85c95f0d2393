# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The outbox: order, waiting, callbacks, one FinishEvent."""

from __future__ import annotations

import threading

import pytest

from gemma_thor_ros.engine import Outbox
from gemma_thor_ros.schema import FinishEvent, FinishReason, TokenEvent

FINISH = FinishEvent(FinishReason.STOP)


def test_poll_takes_in_order_and_never_twice() -> None:
    outbox = Outbox('a')
    assert outbox.poll() == []
    outbox.put(TokenEvent((1,)))
    outbox.put(TokenEvent((2,)))
    assert outbox.poll() == [TokenEvent((1,)), TokenEvent((2,))]
    outbox.put(FINISH)
    assert outbox.finished
    assert outbox.poll() == [FINISH]
    assert outbox.poll() == []


def test_nothing_follows_the_finish_event() -> None:
    outbox = Outbox('a')
    assert outbox.put(FINISH)
    assert not outbox.put(TokenEvent((1,)))
    assert not outbox.put(FINISH)
    assert outbox.poll() == [FINISH]


def test_wait() -> None:
    outbox = Outbox('a')
    assert not outbox.wait(0.01)
    timer = threading.Timer(0.05, lambda: outbox.put(TokenEvent((1,))))
    timer.start()
    assert outbox.wait(10.0)
    timer.join()
    outbox.poll()
    assert not outbox.wait(0.0)
    outbox.put(FINISH)
    outbox.poll()
    assert outbox.wait(), 'a finished request never blocks its reader'


def test_callback_comes_after_each_put_and_at_once_for_what_waits() -> None:
    outbox = Outbox('a')
    calls: list[int] = []
    outbox.on_ready(lambda: calls.append(len(outbox.poll())))
    assert calls == []
    outbox.put(TokenEvent((1,)))
    outbox.put(FINISH)
    assert calls == [1, 1]
    late = Outbox('b')
    late.put(FINISH)
    late.on_ready(lambda: calls.append(-1))
    assert calls == [1, 1, -1]


def test_a_failing_callback_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox('a')
    outbox.on_ready(lambda: 1 / 0)
    assert outbox.put(TokenEvent((1,)))
    assert 'callback of request' in caplog.text
    assert outbox.poll() == [TokenEvent((1,))]


def test_collect() -> None:
    outbox = Outbox('a')
    outbox.put(TokenEvent((1, 2)))
    with pytest.raises(TimeoutError, match=r'0\.01 s'):
        outbox.collect(0.01)
    outbox.put(TokenEvent((3,)))
    outbox.put(FINISH)
    assert outbox.collect(1.0) == ([3], FINISH)
    with pytest.raises(AssertionError, match='taken already'):
        outbox.collect(1.0)


def test_events_from_another_thread() -> None:
    outbox = Outbox('a')

    def write() -> None:
        for i in range(500):
            outbox.put(TokenEvent((i,)))
        outbox.put(FINISH)

    writer = threading.Thread(target=write)
    writer.start()
    events = list(outbox.events(10.0))
    writer.join()
    assert events == [TokenEvent((i,)) for i in range(500)] + [FINISH]
