# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Results, calls, counts and errors as ROS messages and back. Needs the built interfaces."""

from __future__ import annotations

import json

import pytest

pytest.importorskip('gemma_thor_ros.msg')

from hypothesis import given
from hypothesis import strategies as st

from gemma_thor_ros import action, srv
from gemma_thor_ros.ros import answers as a
from gemma_thor_ros.schema import (
    ChatResult,
    ErrorCode,
    FinishReason,
    RequestError,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)

TEXT = st.text(st.characters(blacklist_categories=('Cs',), blacklist_characters='\0'), max_size=20)
COUNT = st.integers(0, 2**32 - 1)
MS = st.floats(0.0, 1e9)
CALL = st.builds(
    lambda call_id, name, arguments, repaired: ToolCall(
        call_id, name, arguments, repaired, json.dumps(arguments)
    ),
    TEXT,
    TEXT,
    st.dictionaries(TEXT, st.integers(-1000, 1000) | TEXT | st.booleans(), max_size=3),
    st.booleans(),
)
USAGE = st.builds(Usage, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT,
                  st.lists(COUNT, max_size=15).map(tuple))
TIMINGS = st.builds(Timings, MS, MS, MS, MS, MS, MS)


@given(CALL)
def test_tool_call_round_trip(call):
    assert a.tool_call_from_ros(a.tool_call_to_ros(call)) == call


@given(st.builds(ToolCallDelta, COUNT, TEXT, TEXT, TEXT))
def test_tool_call_delta_round_trip(delta):
    assert a.tool_call_delta_from_ros(a.tool_call_delta_to_ros(delta)) == delta


@given(USAGE, USAGE)
def test_usages_add_up_position_by_position(one, other):
    total = one + other
    assert total.completion_tokens == one.completion_tokens + other.completion_tokens
    assert sum(total.accepted_by_position) == sum(one.accepted_by_position) + sum(
        other.accepted_by_position)
    assert one + Usage() == one


@given(USAGE)
def test_usage_round_trip(usage):
    assert a.usage_from_ros(a.usage_to_ros(usage)) == usage


@given(TIMINGS)
def test_timings_round_trip(timings):
    assert a.timings_from_ros(a.timings_to_ros(timings)) == timings


@pytest.mark.parametrize('kind', [action.Chat.Result, srv.Chat.Response])
@given(
    result=st.builds(
        ChatResult,
        request_id=TEXT,
        text=TEXT,
        reasoning=TEXT,
        tool_calls=st.lists(CALL, max_size=2).map(tuple),
        finish_reason=st.sampled_from(FinishReason),
        usage=USAGE,
        timings=TIMINGS,
        token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple),
        malformed=st.booleans(),
        code=st.sampled_from(ErrorCode),
        message=TEXT,
    )
)
def test_chat_result_round_trip(kind, result):
    assert a.chat_result_from_ros(a.chat_result_to_ros(result, kind())) == result


def test_logprobs_stand_beside_the_token_ids():
    result = ChatResult('r', 'a', '', (), FinishReason.STOP, Usage(), Timings(), (5, 6))
    answer = a.chat_result_to_ros(
        result, action.Chat.Result(), [TokenLogprob(5, -0.5), TokenLogprob(6, -1.5)]
    )
    assert list(answer.token_ids) == [5, 6] and list(answer.token_logprobs) == [-0.5, -1.5]


def test_error_to_ros():
    error = RequestError(ErrorCode.CONTEXT_LENGTH, 'prompt has 9,012 tokens, context is 8,192')
    for answer in (action.Chat.Result(), srv.Ask.Response(), srv.Tokenize.Response()):
        a.error_to_ros(error, answer)
        assert answer.error_code == 2 and answer.error_msg == error.message
