# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Time limits, deadlines and queue positions, from the settings and requests to the engine."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ChatRequest, ErrorCode, FinishReason, Priority, RequestError

LONG = 'one two three four five six seven eight nine ten ' * 4 + '<turn|>'
HELLO = ({'role': 'user', 'content': 'hello'},)


def start(**settings: Any) -> Runtime:
    runtime = Runtime(EngineConfig.from_mapping({
        'model.path': 'scripted', 'model.script': [LONG], 'model.script_delay': 0.04,
        'engine.max_sequences': 1, **settings}))
    runtime.start()
    assert runtime.wait_ready(20.0)
    return runtime


def test_first_token_and_token_gap() -> None:
    runtime = start(**{'request.first_token_timeout': 1.0, 'request.token_timeout': 1.0})
    chat = runtime.require_chat()
    first = chat.submit(ChatRequest(HELLO, priority=Priority.BACKGROUND))
    first.wait(10.0)
    second = chat.submit(ChatRequest(HELLO, priority=Priority.BACKGROUND))
    third = chat.submit(ChatRequest(HELLO, priority=Priority.OPERATOR))
    results = [stream.result(20.0) for stream in (first, second, third)]
    assert [result.code for result in results] == [
        ErrorCode.TIMEOUT, ErrorCode.TIMEOUT, ErrorCode.NONE]
    assert results[0].text and LONG.startswith(results[0].text), 'preempted for too long'
    assert results[0].message.startswith('No token came within 1 s of token ')
    assert results[1].message == 'No token came within 1 s of the submission.'
    assert results[2].finish_reason is FinishReason.STOP
    runtime.stop()


def test_a_deadline_that_can_not_be_met_is_refused() -> None:
    runtime = start()
    chat = runtime.require_chat()
    chat.ask('hello', 20.0)
    stream = chat.submit(ChatRequest(HELLO))
    with pytest.raises(RequestError, match='can not be met') as caught:
        chat.submit(ChatRequest(HELLO, deadline_s=0.1))
    assert caught.value.code is ErrorCode.DEADLINE
    assert stream.result(20.0).code is ErrorCode.NONE
    runtime.stop()


def test_queue_position() -> None:
    runtime = start()
    chat = runtime.require_chat()
    chat.ask('hello', 20.0)
    streams = [chat.submit(ChatRequest(HELLO)) for _ in range(3)]
    streams[0].wait(10.0)
    places = [chat.queue_position(stream.request_id) for stream in streams]
    assert places[0] is None
    assert [place.position for place in places[1:] if place] == [1, 2]
    waits = [place.expected_wait_s for place in places[1:] if place]
    assert 0.0 < waits[0] < waits[1] < 60.0
    for stream in streams:
        stream.cancel()
        stream.result(20.0)
    assert chat.queue_position(streams[1].request_id) is None
    runtime.stop()
