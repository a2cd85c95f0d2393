# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Conversions between ROS messages and schema objects: round trips, sentinels, refusals.

Needs the built interfaces, no running node.
"""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip('gemma_thor_ros.msg')

from builtin_interfaces.msg import Duration
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import Image

from gemma_thor_ros import action, msg, srv
from gemma_thor_ros.ros import conversions as c
from gemma_thor_ros.schema import ChatRequest, ErrorCode, Priority, RequestError

# What a ROS string can carry: no NUL, no lone surrogate.
TEXT = st.text(st.characters(blacklist_categories=('Cs',), blacklist_characters='\0'), max_size=20)
NAME = st.text('abcdefghijk_-.', min_size=1, max_size=10)
JSON_OBJECT = st.dictionaries(
    TEXT,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)
CALL = st.fixed_dictionaries(
    {
        'id': NAME,
        'type': st.just('function'),
        'function': st.fixed_dictionaries(
            {'name': NAME, 'arguments': JSON_OBJECT.map(json.dumps)}
        ),
    }
)
MESSAGE = st.fixed_dictionaries(
    {'role': st.sampled_from(['system', 'user', 'assistant', 'tool']), 'content': TEXT},
    optional={
        'reasoning_content': TEXT.filter(bool),
        'tool_calls': st.lists(CALL, min_size=1, max_size=3),
        'tool_call_id': NAME,
        'name': NAME,
    },
)
TOOL = st.fixed_dictionaries(
    {
        'type': st.just('function'),
        'function': st.fixed_dictionaries(
            {'name': NAME, 'description': TEXT}, optional={'parameters': JSON_OBJECT}
        ),
    }
)
SAMPLING = st.fixed_dictionaries(
    {
        'min_tokens': st.integers(0, 100),
        'presence_penalty': st.floats(-2.0, 2.0),
        'frequency_penalty': st.floats(-2.0, 2.0),
        'ignore_eos': st.booleans(),
    },
    optional={
        'temperature': st.floats(0.0, 10.0),
        'top_p': st.floats(0.0, 1.0),
        'min_p': st.floats(0.0, 1.0),
        'top_k': st.integers(0, 1000),
        'max_tokens': st.integers(0, 2**31 - 1),
        'seed': st.integers(0, 2**63 - 1),
        'repetition_penalty': st.floats(0.0, 10.0),
        'logprobs': st.integers(0, 20),
        'logit_bias': st.lists(
            st.tuples(st.integers(0, 2**31 - 1), st.floats(-100.0, 100.0)), min_size=1, max_size=3
        ),
        'stop_ids': st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3),
    },
)
# Durations of whole nanoseconds up to a day survive exactly.
SECONDS = st.integers(0, 86_400_000).map(lambda ms: ms / 1000.0)


@given(MESSAGE)
def test_message_round_trip(message):
    assert c.message_from_ros(c.message_to_ros(message)) == message


@given(TOOL)
def test_tool_round_trip(tool):
    assert c.tool_from_ros(c.tool_to_ros(tool)) == tool


@given(SAMPLING, st.lists(TEXT, max_size=3))
def test_sampling_round_trip(sampling, stop):
    assert c.sampling_from_ros(c.sampling_to_ros(sampling, stop)) == (sampling, tuple(stop))


@given(st.integers(0, 2**31 - 1), st.integers(0, 999_999_999))
def test_time_and_duration_round_trip(sec, nanosec):
    duration = Duration(sec=sec % 100_000, nanosec=nanosec)
    assert c.duration_to_ros(c.duration_from_ros(duration)) == duration
    # A float of seconds since 1970 resolves about a quarter of a microsecond.
    stamp = c.time_to_ros(sec + nanosec / 1e9)
    assert abs((stamp.sec - sec) * 1e9 + stamp.nanosec - nanosec) < 500


@pytest.mark.parametrize('value', [None, False, True])
def test_thinking_round_trip(value):
    assert c.thinking_from_ros(c.thinking_to_ros(value)) is value


@pytest.mark.parametrize('kind', [action.Chat.Goal, srv.Chat.Request])
@settings(max_examples=30)
@given(
    messages=st.lists(MESSAGE, min_size=1, max_size=3),
    tools=st.lists(TOOL, max_size=2),
    sampling=SAMPLING,
    stop=st.lists(TEXT, max_size=2),
    thinking=st.sampled_from([None, False, True]),
    priority=st.sampled_from([None, *Priority]),
    deadline=SECONDS,
    timeout=SECONDS,
    choice=st.integers(0, 2**32 - 1),
    continued=st.booleans(),
    wanted=st.sampled_from([('auto', ()), ('required', ()), ('required', ('drive',))]),
    parallel=st.booleans(),
    schema=st.none() | JSON_OBJECT,
    budget=st.none() | st.integers(0, 2**31 - 1),
)
def test_chat_request_round_trip(
    kind, messages, tools, sampling, stop, thinking, priority, deadline, timeout, choice,
    continued, wanted, parallel, schema, budget,
):  # fmt: skip
    request = ChatRequest(
        messages=tuple(messages),
        tools=tuple(tools),
        sampling=sampling,
        stop=tuple(stop),
        enable_thinking=thinking,
        session_id='s',
        request_id='r',
        priority=priority,
        deadline_s=deadline,
        timeout_s=timeout,
        front_end='ros',
        choice=choice,
        continue_final_message=continued,
        tool_choice=wanted[0],
        tool_names=wanted[1],
        parallel_tool_calls=parallel,
        response_schema=schema,
        response_schema_at='response_schema_json',
        thinking_budget=budget,
        client='~/chat' if kind is action.Chat.Goal else '~/chat_once',
    )
    assert c.chat_request_from_ros(c.chat_request_to_ros(request, kind())) == request


def test_goal_of_defaults_asks_for_no_setting():
    goal = action.Chat.Goal(messages=[msg.ChatMessage(role='user', content='hi')])
    request = c.chat_request_from_ros(goal)
    assert set(request.sampling) == {
        'min_tokens',
        'presence_penalty',
        'frequency_penalty',
        'ignore_eos',
    }
    assert request.enable_thinking is None and request.priority is None
    assert request.timeout_s == 0.0 and request.stop == () and request.tools == ()


def test_zero_temperature_is_greedy_and_no_sentinel():
    given_settings, _ = c.sampling_from_ros(msg.SamplingParams(temperature=0.0, top_k=0))
    assert given_settings['temperature'] == 0.0 and given_settings['top_k'] == 0


def test_nan_goes_on_to_be_refused_with_the_limits():
    given_settings, _ = c.sampling_from_ros(msg.SamplingParams(temperature=math.nan))
    assert math.isnan(given_settings['temperature'])


def test_tool_choice_none_shows_no_tools():
    goal = action.Chat.Goal(tools=[msg.Tool(name='drive')], tool_choice='none')
    assert c.chat_request_from_ros(goal).tools == ()


@pytest.mark.parametrize(('text', 'wanted'), [
    ('', ('auto', ())), ('auto', ('auto', ())), ('none', ('none', ())),
    ('required', ('required', ())), ('drive', ('required', ('drive',)))])  # fmt: skip
def test_tool_choice_is_a_word_or_the_name_of_a_tool(text, wanted):
    assert c.tool_choice_from_ros(text) == wanted


def test_ros_has_no_word_for_several_tools():
    for choice, names in (('required', ('a', 'b')), ('auto', ('a',))):
        with pytest.raises(RequestError):
            c.tool_choice_to_ros(choice, names)


def test_content_parts_are_joined():
    message = {'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, 'b']}
    assert c.message_to_ros(message).content == 'ab'


@pytest.mark.parametrize('text', ['', 'null', ' null '])
def test_absent_arguments_are_an_empty_object(text):
    call = msg.ToolCall(name='x', arguments_json=text)
    message = msg.ChatMessage(role='assistant', tool_calls=[call])
    assert c.message_from_ros(message)['tool_calls'][0]['function']['arguments'] == '{}'


def _goal(**fields):
    return action.Chat.Goal(messages=[msg.ChatMessage(role='user', content='hi')], **fields)


def _assistant(arguments):
    calls = [msg.ToolCall(name='x', arguments_json=arguments)]
    return action.Chat.Goal(messages=[msg.ChatMessage(role='assistant', tool_calls=calls)])


@pytest.mark.parametrize(
    ('goal', 'code', 'words'),
    [
        (_goal(request_id='x' * 65), 'INVALID_REQUEST', ['65', '64']),
        (_goal(thinking=3), 'INVALID_REQUEST', ['thinking is 3']),
        (_goal(priority=4), 'INVALID_REQUEST', ['priority is 4', '0 to 3', '255']),
        (_goal(timeout=Duration(sec=-1)), 'INVALID_REQUEST', ['timeout is -1 s']),
        (_goal(deadline=Duration(sec=-2)), 'INVALID_REQUEST', ['deadline is -2 s']),
        (
            _goal(tools=[msg.Tool(name='d', parameters_json='{"type":')]),
            'INVALID_REQUEST',
            ['tools[0].parameters_json is not JSON'],
        ),
        (
            _goal(tools=[msg.Tool(name='d', parameters_json='{"minimum": NaN}')]),
            'INVALID_REQUEST',
            ['tools[0].parameters_json is not JSON', 'NaN'],
        ),
        (
            _assistant('{"a": 1'),
            'INVALID_REQUEST',
            ['messages[0].tool_calls[0].arguments_json is not JSON'],
        ),
        (_assistant('[1]'), 'INVALID_REQUEST', ['must be a JSON object, not list']),
        (_assistant('[' * 100_000), 'INVALID_REQUEST', ['is not JSON']),
        (
            _goal(sampling=msg.SamplingParams(logit_bias_ids=[1, 2], logit_bias=[1.0])),
            'INVALID_REQUEST',
            ['2 entries', '1'],
        ),
        (
            _goal(sampling=msg.SamplingParams(num_draft_tokens=4)),
            'UNSUPPORTED',
            ['num_draft_tokens is 4'],
        ),
        (
            _goal(response_schema_json='{"type":'),
            'INVALID_REQUEST',
            ['response_schema_json is not JSON'],
        ),
        (
            action.Chat.Goal(messages=[msg.ChatMessage(role='user', images=[Image()])]),
            'UNSUPPORTED',
            ['messages[0] has images'],
        ),
    ],
)
def test_refusals_name_the_field_and_the_numbers(goal, code, words):
    with pytest.raises(RequestError) as caught:
        c.chat_request_from_ros(goal)
    assert caught.value.code is ErrorCode[code]
    for word in words:
        assert word in caught.value.message


@given(st.text(max_size=20))
def test_ros_text_can_always_be_sent_and_keeps_its_length(text):
    sent = c.ros_text(text)
    assert len(sent) == len(text) and '\0' not in sent
    sent.encode()
    if '\0' not in text and not any('\ud800' <= char <= '\udfff' for char in text):
        assert sent == text


def test_error_codes_are_those_of_the_interface():
    constants = {name: getattr(msg.ErrorCode, name) for name in ErrorCode.__members__}
    assert constants == {name: int(code) for name, code in ErrorCode.__members__.items()}
