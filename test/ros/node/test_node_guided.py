# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Guided answers of the chat action and of ~/chat_once, over a model that wants to say others."""

from __future__ import annotations

import json

import pytest

from gemma_thor_ros.msg import ChatMessage, SamplingParams, Tool, ToolVerdict
from gemma_thor_ros.srv import Chat as ChatOnce

GREEDY = SamplingParams(temperature=0.0, max_tokens=100)
REFUSAL = 'I would rather talk about the weather.<turn|>'
FLY = '<|tool_call>call:fly{height:9}<tool_call|><turn|>'
SCHEMA = json.dumps({'type': 'object', 'properties': {'level': {'type': 'integer'}},
                     'required': ['level'], 'additionalProperties': False})
TOOLS = [Tool(name='get_battery'),
         Tool(name='look', parameters_json='{"type": "object", "properties": {}}')]


@pytest.fixture(scope='module')
def node(peer, start_module_node):
    process = start_module_node(**{'model.script': [REFUSAL, FLY], 'tools.policy_file': 'demo'})
    peer.wait_active(process)
    return process


@pytest.fixture(scope='module', autouse=True)
def texts(peer, node):
    """The scripted model repeats its answer to the same prompt; these are for its two answers."""
    peer.run_goal('refuse', tools=TOOLS)
    peer.run_goal('fly', tools=TOOLS)


def test_a_call_that_is_required_or_named(peer):
    for choice, names in (('required', {'get_battery', 'look'}), ('look', {'look'})):
        result = peer.run_goal('refuse', tools=TOOLS, tool_choice=choice, sampling=GREEDY)[1]
        assert result.error_code == 0, result.error_msg
        assert (result.finish_reason, result.text) == ('tool_calls', '')
        assert {call.name for call in result.tool_calls} <= names and len(result.tool_calls) == 1
        assert not result.tool_calls[0].repaired


def test_the_service_is_guided_as_the_action(peer):
    messages = [ChatMessage(role='user', content='refuse')]
    answer = peer.call(ChatOnce, 'chat_once', messages=messages, tools=TOOLS, tool_choice='look',
                       sampling=GREEDY)
    assert [call.name for call in answer.tool_calls] == ['look']
    answer = peer.call(ChatOnce, 'chat_once', messages=messages, response_schema_json=SCHEMA,
                       sampling=GREEDY)
    assert list(json.loads(answer.text)) == ['level']


def test_a_schema_makes_json_of_the_text(peer):
    result = peer.run_goal('refuse', response_schema_json=SCHEMA, sampling=GREEDY)[1]
    assert result.error_code == 0, result.error_msg
    assert list(json.loads(result.text)) == ['level'] and result.finish_reason == 'stop'


def test_no_call_of_a_tool_that_is_not_declared(peer):
    result = peer.run_goal('fly', tools=TOOLS, sampling=GREEDY)[1]
    assert {call.name for call in result.tool_calls} <= {'get_battery', 'look'}
    assert not any(call.repaired for call in result.tool_calls)


def test_one_call_at_most(peer):
    result = peer.run_goal('fly', tools=TOOLS, parallel_tool_calls=False, sampling=GREEDY)[1]
    assert len(result.tool_calls) == 1


def test_the_agent_loop_is_held_to_the_policy(peer):
    """The call that is asked for is made once; then the model may say what it likes."""
    result = peer.run_goal('refuse', execute_tools=True, dry_run=True, tool_choice='dock',
                           sampling=GREEDY)[1]
    assert result.error_code == 0, result.error_msg
    (verdict,) = result.tool_verdicts
    assert (verdict.name, verdict.arguments_json) == ('dock', '{}')
    assert verdict.outcome == ToolVerdict.OUTCOME_DRY_RUN and not verdict.repaired
    assert result.rounds == 2 and result.finish_reason == 'stop'
    refused = peer.run_goal('refuse', execute_tools=True, dry_run=True, tool_choice='fly')[1]
    assert refused.error_code == 1 and "'fly'" in refused.error_msg
