# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A policy against the installed ROS types, and strict conversion; no node, no rclpy."""

import math
from typing import Any

import pytest
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import Range

from gemma_thor_ros.action import Chat
from gemma_thor_ros.resources import folder
from gemma_thor_ros.ros.binding import BoundTool, bind_policy
from gemma_thor_ros.ros.interfaces import (
    FieldType,
    InterfaceError,
    constant,
    field_type,
    fit,
    load_type,
    message_text,
)
from gemma_thor_ros.ros.policy import load_policy, parse_policy
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome
from gemma_thor_ros.schema import ConfigError

GOOD = """\
version: 1
tools:
  chat:
    description: Chat.
    motion: false
    action: {name: other/chat, type: gemma_thor_ros/action/Chat}
    timeout_s: 5
    args:
      session: {type: string, field: session_id}
      think: {type: boolean, field: dry_run, default: false}
      rounds: {type: integer, field: max_rounds, min: 0, max: 9}
      heat: {type: number, field: sampling.temperature, required: false}
      level: {type: string, enum: [low, high], field: priority,
              values: {low: PRIORITY_BACKGROUND, high: 3}}
      limit: {type: integer, field: sampling.max_tokens, required: false}
    constants:
      sampling.top_k: 5
      thinking: THINKING_ON
    result:
      text: {field: text, max_length: 10}
      tokens: {field: usage.completion_tokens}
      ids: {field: token_ids}
      speed: {field: timings.tokens_per_s, round: 1}
"""


def chat_tool(text: str = GOOD) -> BoundTool:
    return bind_policy(parse_policy(text, 'p.yaml'))['chat']


def fault(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, f'{old!r} must stand once in the good policy'
    with pytest.raises(ConfigError) as caught:
        chat_tool(GOOD.replace(old, new))
    return str(caught.value)


def test_the_demo_policy_fits_the_demo_robot() -> None:
    bound = bind_policy(load_policy(folder('config') / 'tools' / 'demo.yaml'))
    goal = bound['drive'].make_message({'distance': -1.5})
    assert goal.distance == -1.5 and goal.speed == 0.0
    result = bound['drive'].result_class(distance_driven=1.5, x=-1.5, y=-1e-9)
    assert bound['drive'].result_values(result) == {'distance_m': 1.5, 'x': -1.5, 'y': 0.0}
    turned = bound['turn'].result_class(angle_turned=math.pi / 2)
    assert bound['turn'].result_values(turned) == {'angle_deg': 90.0}
    blocked = bound['dock'].result_class(error_msg='path blocked')
    assert bound['dock'].reason(blocked) == 'path blocked'


def test_goals_are_made_of_arguments_tables_and_constants() -> None:
    goal = chat_tool().make_message({
        'session_id': 's', 'dry_run': True, 'max_rounds': 3, 'priority': 'PRIORITY_BACKGROUND',
        'sampling.temperature': 1})
    assert (goal.session_id, goal.dry_run, goal.max_rounds, goal.priority) == ('s', True, 3, 0)
    assert goal.sampling.temperature == 1.0 and type(goal.sampling.temperature) is float
    assert goal.sampling.top_k == 5 and goal.thinking == Chat.Goal.THINKING_ON
    assert chat_tool().make_message({'priority': 3}).priority == 3


def test_values_that_an_integer_field_cannot_hold_are_refused() -> None:
    for value in (2**31, -2**31 - 1):
        with pytest.raises(CallRefusedError) as caught:
            chat_tool().make_message({'sampling.max_tokens': value})
        assert caught.value.outcome is Outcome.REFUSED_RANGE
        assert 'int32 takes' in caught.value.reason


def test_results_are_cut_visibly_and_rounded() -> None:
    result = Chat.Result(text='x' * 15, token_ids=list(range(40)))
    result.usage.completion_tokens = 7
    result.timings.tokens_per_s = 12.345
    told = chat_tool().result_values(result)
    assert told['text'] == 'x' * 10 + '… (5 more characters)'
    assert told['tokens'] == 7 and told['speed'] == 12.3
    assert told['ids'] == [*range(32), '… (8 more)']
    result.timings.tokens_per_s = math.nan
    assert chat_tool().result_values(result)['speed'] == 'nan'


@pytest.mark.parametrize(('old', 'new', 'line', 'words'), [
    ('gemma_thor_ros/action/Chat', 'no_such_msgs/action/Chat', 6, 'package no_such_msgs'),
    ('gemma_thor_ros/action/Chat', 'gemma_thor_ros/action/Chatter', 6, 'does not exist'),
    ('field: session_id', 'field: session', 9, 'has no field session; its fields are request_id'),
    ('field: session_id', 'field: messages', 9, 'one value cannot fill'),
    ('field: session_id', 'field: deadline', 9, 'one value cannot fill'),
    ('field: session_id', 'field: session_id.x', 9, 'session_id of'),
    ('field: session_id', 'field: choice', 9, 'is of type string, but choice is uint32'),
    ('{type: boolean, field: dry_run', '{type: boolean, field: request_id', 10, 'request_id is'),
    ('field: max_rounds', 'field: sampling.ignore_eos', 11, 'ignore_eos is bool'),
    ('max: 9}', 'max: 300}', 11, '300 of rounds does not fit max_rounds: uint8 takes 0 to 255'),
    ('min: 0', 'min: -1', 11, '-1 of rounds does not fit'),
    ('field: sampling.temperature', 'field: sampling.min_tokens', 12, 'min_tokens is int32'),
    ('low: PRIORITY_BACKGROUND', 'low: PRIORITY_LOW', 14, 'has no constant PRIORITY_LOW'),
    ('high: 3}', 'high: 256}', 14, 'uint8 takes 0 to 255'),
    ('high: 3}', 'high: 1.5}', 14, '1.5 does not fit priority'),
    ('top_k: 5', 'top_k: 5.0', 17, '5.0 does not fit sampling.top_k'),
    ('top_k: 5', 'top_x: 5', 17, 'has no field top_x'),
    ('thinking: THINKING_ON', 'thinking: OFFLINE', 18, 'has no constant OFFLINE'),
    ('field: text,', 'field: answer,', 20, 'has no field answer'),
    ('field: text,', 'field: usage,', 20, 'cannot be told'),
    ('{field: token_ids}', '{field: token_ids, unit: m}', 22, 'has no unit'),
    ('    result:\n', '    reason: rounds\n    result:\n', 19, 'is no string'),
])
def test_what_does_not_fit_is_refused_at_start(old: str, new: str, line: int, words: str) -> None:
    message = fault(old, new)
    assert message.startswith(f'p.yaml:{line}: '), message
    assert words in message


@pytest.mark.parametrize(('name', 'words'), [
    ('geometry_msgs/Point', 'not of the form'), ('nothing/msg/Point', 'not installed'),
    ('geometry_msgs/srv/Point', 'has no srv'), ('geometry_msgs/msg/Pointy', 'does not exist'),
    ('os.path/msg/X', 'not of the form'),
])
def test_types_that_do_not_exist(name: str, words: str) -> None:
    with pytest.raises(InterfaceError, match=words):
        load_type(name)


def test_field_types_are_seen_through_nested_messages() -> None:
    assert field_type(PoseStamped, 'pose.position.x') == FieldType('number', 'float64')
    assert field_type(PoseStamped, 'header.stamp.nanosec').high == 2**32 - 1
    assert field_type(PoseStamped, 'header.frame_id').kind == 'string'
    assert constant(Range, 'radiation_type', 'INFRARED') == 1
    for wrong in ('LATER', 'STAMP', 'SLOT_TYPES', '__init__', 'range'):
        with pytest.raises(InterfaceError):
            constant(Range, 'radiation_type', wrong)


@pytest.mark.parametrize(('value', 'kind', 'name', 'low', 'high'), [
    (1.9, 'integer', 'int8', -128, 127), (300, 'integer', 'int8', -128, 127),
    (True, 'integer', 'int8', -128, 127), ('1', 'integer', 'int8', -128, 127),
    ('nan', 'number', 'float64', -math.inf, math.inf),
    (math.nan, 'number', 'float64', -math.inf, math.inf),
    (math.inf, 'number', 'float64', -math.inf, math.inf),
    (True, 'number', 'float64', -math.inf, math.inf),
    (1e39, 'number', 'float32', -3.4e38, 3.4e38), (1, 'boolean', 'bool', -math.inf, math.inf),
    (1, 'string', 'string', -math.inf, math.inf), (None, 'string', 'string', -math.inf, math.inf),
])
def test_cases_d02_and_d03_nothing_is_cast(
        value: Any, kind: str, name: str, low: float, high: float) -> None:
    with pytest.raises(InterfaceError):
        fit(value, FieldType(kind, name, low, high), 'x')


def test_bounded_strings_are_measured_in_bytes() -> None:
    bounded = FieldType('string', 'string<=4', max_bytes=4)
    assert fit('äö', bounded, 'x') == 'äö'
    with pytest.raises(InterfaceError, match='takes 4 bytes of text, not 5'):
        fit('äöx', bounded, 'x')
    type_name = field_type(load_type('type_description_interfaces/msg/IndividualTypeDescription'),
                           'type_name')
    assert type_name == FieldType('string', 'string<=255', max_bytes=255)


def test_message_text_is_for_people() -> None:
    assert message_text(Range(range=1.5)).endswith('range=1.500, variance=0.000')
    assert 'more characters' in message_text(Range(), 10)
