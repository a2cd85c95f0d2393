# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Array arguments and constants, against an action that has such fields."""

from typing import Any

import pytest

from gemma_thor_ros.ros.binding import bind_policy
from gemma_thor_ros.ros.checks import TurnContext, check_call
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome
from gemma_thor_ros.schema import ConfigError, FinishReason, ToolCall

POLICY = """\
version: 1
tools:
  chat:
    description: Chat.
    motion: false
    action: {name: other/chat, type: gemma_thor_ros/action/Chat}
    timeout_s: 5
    args:
      weights: {type: array, items: number, unit: cm, min: -1 m, max: 1 m, min_items: 1,
                max_items: 3, field: sampling.logit_bias, description: How much}
      ids: {type: array, items: integer, max_items: 2, min: 0, max: 9, required: false,
            field: sampling.logit_bias_ids}
      words: {type: array, items: string, max_items: 2, max_length: 3, required: false,
              enum: [a, b, cde], field: sampling.stop}
    constants:
      sampling.stop_token_ids: [1, 106]
"""


def goal(**arguments: Any) -> Any:
    policy = parse_policy(POLICY, 'p.yaml')
    checked = check_call(policy, ToolCall('c', 'chat', arguments),
                         TurnContext(FinishReason.TOOL_CALLS))
    return bind_policy(policy)['chat'].make_message(checked.fields)


def refused(**arguments: Any) -> tuple[Outcome, str]:
    with pytest.raises(CallRefusedError) as caught:
        goal(**arguments)
    return caught.value.outcome, caught.value.reason


def test_arrays_are_converted_element_by_element() -> None:
    sampling = goal(weights=[50, -100.0], ids=[3], words=['cde', 'a']).sampling
    assert list(sampling.logit_bias) == [0.5, -1.0]
    assert list(sampling.logit_bias_ids) == [3] and sampling.stop == ['cde', 'a']
    assert list(sampling.stop_token_ids) == [1, 106]


def test_the_schema_says_what_an_array_holds() -> None:
    properties = parse_policy(POLICY).openai_tools()[0]['function']['parameters']['properties']
    assert properties['weights'] == {
        'type': 'array', 'items': {'type': 'number'}, 'minItems': 1, 'maxItems': 3,
        'description': 'How much'}
    assert properties['ids']['items'] == {'type': 'integer', 'minimum': 0.0, 'maximum': 9.0}
    assert properties['words']['items'] == {'type': 'string', 'enum': ['a', 'b', 'cde']}


@pytest.mark.parametrize(('arguments', 'outcome', 'words'), [
    ({'weights': []}, Outcome.REFUSED_RANGE, 'weights has 0 elements, it takes 1 to 3'),
    ({'weights': [1] * 4}, Outcome.REFUSED_RANGE, 'weights has 4 elements'),
    ({'weights': 1}, Outcome.REFUSED_SCHEMA, 'weights must be a list, not 1'),
    ({'weights': [1, 'nan']}, Outcome.REFUSED_SCHEMA, 'weights[1] must be a number'),
    ({'weights': [1, [1]]}, Outcome.REFUSED_SCHEMA, 'weights[1] must be a number, not a list'),
    ({'weights': [0, 101]}, Outcome.REFUSED_RANGE, 'weights[1] 101 cm (1.01 m) is above'),
    ({'weights': [1], 'ids': [1.0]}, Outcome.REFUSED_SCHEMA, 'ids[0] must be a whole number'),
    ({'weights': [1], 'ids': [10]}, Outcome.REFUSED_RANGE, 'ids[0] 10 is above the limit of 9'),
    ({'weights': [1], 'words': ['c']}, Outcome.REFUSED_SCHEMA, 'words[0] must be one of'),
])
def test_wrong_elements_are_named(arguments: dict[str, Any], outcome: Outcome,
                                  words: str) -> None:
    got, reason = refused(**arguments)
    assert got is outcome and words in reason


@pytest.mark.parametrize(('old', 'new', 'words'), [
    ('items: number, ', '', 'weights is an array, so it needs items'),
    ('max_items: 3, ', '', 'so it needs max_items'),
    ('max_items: 3', 'max_items: 0', 'max_items'),
    ('min_items: 1', 'min_items: 5', 'below its min_items'),
    ('field: sampling.logit_bias,', 'field: sampling.temperature,', 'temperature is float64'),
    ('type: array, items: integer, max_items: 2', 'type: integer', 'an array of int32'),
    ('field: sampling.stop}', 'field: messages}', 'one value cannot fill'),
    ('[1, 106]', '[1, 2.5]', '2.5 does not fit sampling.stop_token_ids[1]'),
    ('[1, 106]', '7', '7 does not fit sampling.stop_token_ids'),
    ('max: 9, ', 'max: 4294967296, ', '4.29497e+09 of ids does not fit'),
    ('motion: false', 'motion: true', 'ids moves the robot'),
])
def test_what_does_not_fit_is_refused_at_start(old: str, new: str, words: str) -> None:
    assert POLICY.count(old) == 1
    text = POLICY.replace(old, new)
    if new == 'motion: true':
        text = text.replace('min: 0, max: 9, ', '')
    with pytest.raises(ConfigError) as caught:
        bind_policy(parse_policy(text, 'p.yaml'))
    assert words in str(caught.value)


def test_bounded_and_fixed_arrays_are_counted() -> None:
    from geometry_msgs.msg import PoseWithCovariance
    from rcl_interfaces.msg import ParameterDescriptor

    from gemma_thor_ros.ros.interfaces import InterfaceError, field_type, set_field

    fixed = field_type(PoseWithCovariance, 'covariance')
    assert fixed.counts == (36, 36) and fixed.kind == 'number'
    message = PoseWithCovariance()
    set_field(message, 'covariance', fixed, [1.5] * 36)
    assert list(message.covariance) == [1.5] * 36
    with pytest.raises(InterfaceError, match='does not take 35 elements'):
        set_field(message, 'covariance', fixed, [1.5] * 35)
    with pytest.raises(InterfaceError, match='one value cannot fill'):
        field_type(ParameterDescriptor, 'floating_point_range')    # an array of messages
