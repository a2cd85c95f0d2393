# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The agent loop: scripted calls become motion, through node, guard and demo robot."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from action_msgs.msg import GoalStatus
from rclpy.qos import QoSProfile
from std_msgs.msg import String

import gemma_thor_ros.msg
import gemma_thor_ros.srv
from gemma_thor_ros.action import Chat
from gemma_thor_ros.audit import read_records
from gemma_thor_ros.msg import (
    ChatMessage,
    ErrorCode,
    GuardState,
    RequestRecord,
    Sentence,
    TokenChunk,
    Tool,
    ToolEvent,
    ToolVerdict,
)
from gemma_thor_ros.srv import GetModelInfo, ListSessions, RenderPrompt


def call(distance, name='drive', direction='forward', unit='m'):
    return (f'<|tool_call>call:{name}{{direction:<|"|>{direction}<|"|>,distance:{distance},'
            f'unit:<|"|>{unit}<|"|>}}<tool_call|>')


END = '<|tool_response>'


@pytest.fixture
def peer(fresh_peer):
    return fresh_peer


@pytest.fixture
def start_robot(processes, peer, start_node):
    """Start guard, robot and a node with a script; wait until motion is free."""

    def start(*script, **settings):
        processes.module('gemma_thor_ros.ros.goal_guard')
        processes.module('gemma_thor_ros.demo.robot')
        node = start_node({'model.script': list(script), 'tools.policy_file': 'demo', **settings})
        peer.wait_active(node)
        states = peer.collect(GuardState, '/goal_guard/state', QoSProfile(depth=1))
        peer.until(lambda: states and not states[-1].stopped)
        return node

    return start


def test_a_call_becomes_motion_and_its_result_an_answer(peer, start_robot):
    start_robot(call(0.2) + END, 'I drove 0.2 m.<turn|>', call(0.1) + END, 'And back.<turn|>')
    tokens = peer.collect(TokenChunk, '/llm_node/tokens', 10)
    events = peer.collect(ToolEvent, '/llm_node/tool_events', 100)
    feedback = []
    status, result = peer.run_goal(
        'drive 0.2 m', request_id='go', session_id='s', execute_tools=True,
        feedback=feedback.append,
    )
    assert status == GoalStatus.STATUS_SUCCEEDED, result.error_msg
    assert (result.text, result.rounds, result.finish_reason) == ('I drove 0.2 m.', 2, 'stop')
    (verdict,) = result.tool_verdicts
    assert verdict.outcome == ToolVerdict.OUTCOME_EXECUTED and verdict.status == 'succeeded'
    assert verdict.motion and verdict.target == '/demo_robot/drive' and not verdict.repaired
    assert json.loads(verdict.result_json)['distance_m'] == pytest.approx(0.2, abs=0.01)
    assert [m.role for m in result.new_messages] == ['assistant', 'tool', 'assistant']
    assert result.new_messages[0].tool_calls[0].name == 'drive'
    assert result.new_messages[1].content == verdict.result_json
    assert result.new_messages[1].tool_call_id == verdict.call_id
    assert result.usage.completion_tokens > len(result.token_ids)  # of both rounds

    peer.until(lambda: tokens and tokens[-1].last, 3.0)
    assert [c.sequence for c in tokens] == list(range(len(tokens)))
    assert sorted({c.round for c in tokens}) == [0, 1] and {c.request_id for c in tokens} == {'go'}
    streamed = ''.join(d.arguments for c in tokens for d in c.tool_calls)
    assert json.loads(streamed) == {'distance': 0.2, 'unit': 'm', 'direction': 'forward'}

    steps = [event.event for event in events]
    assert steps[0] == ToolEvent.PROPOSED and steps[-1] == ToolEvent.FINISHED
    assert ToolEvent.SENT in steps and ToolEvent.ACCEPTED in steps
    assert {(e.request_id, e.session_id, e.call_id) for e in events} == {
        ('go', 's', verdict.call_id)
    }
    shown = [f.feedback.tool_event.event for f in feedback
             if f.feedback.kind == Chat.Feedback.TOOL_EVENT]
    assert shown[0] == ToolEvent.PROPOSED

    # The session goes on: the calls of its later turns have other ids.
    second = peer.run_goal('and back', session_id='s', execute_tools=True)[1]
    assert second.text == 'And back.' and second.tool_verdicts[0].status == 'succeeded'
    assert second.tool_verdicts[0].call_id != verdict.call_id
    session = peer.call(ListSessions, 'list_sessions').sessions[0]
    assert session.num_messages == 8


def test_cancel_of_the_goal_cancels_the_motion(peer, start_robot):
    start_robot(call(5) + END, 'Done.<turn|>')
    events = peer.collect(ToolEvent, '/llm_node/tool_events', 100)
    handle = peer.send_goal('drive 5 m', execute_tools=True)
    peer.until(lambda: any(e.event == ToolEvent.ACCEPTED for e in events), 10.0)
    start = time.monotonic()
    peer.wait(handle.cancel_goal_async())
    answer = peer.wait(handle.get_result_async())
    assert time.monotonic() - start < 0.5
    assert answer.status == GoalStatus.STATUS_CANCELED
    assert answer.result.error_code == ErrorCode.CANCELLED
    (verdict,) = answer.result.tool_verdicts
    assert verdict.status == 'canceled'
    states = peer.collect(GuardState, '/goal_guard/state', QoSProfile(depth=1))
    peer.until(lambda: states and not states[-1].child_goals, 5.0)


def test_calls_that_never_act(peer, start_robot):
    """Cut by length, ended by a stop string, repaired, unknown, out of range, too many rounds."""
    repaired = '<|tool_call>call:drive{distance:1,unit:m,direction:forward}<tool_call|>'
    start_robot(
        call(1) + ' and more' * 60 + END,
        'text STOP ' + call(1) + END,
        repaired + END, 'It was refused.<turn|>',
        call(1, name='fly') + END, 'There is no such tool.<turn|>',
        call(50) + END, 'Too far.<turn|>',
        # Else the guide would let none of these calls come out.
        **{'tools.max_rounds': 2, 'tools.constrain_calls': False},
    )
    events = peer.collect(ToolEvent, '/llm_node/tool_events', 100)

    def run(text, **fields):
        # Each text differs: the scripted model repeats its answer to the same prompt.
        events.clear()
        result = peer.run_goal(text, execute_tools=True, **fields)[1]
        assert result.error_code == 0, result.error_msg
        assert not [e for e in events if e.event == ToolEvent.SENT], result
        return result

    goal = Chat.Goal()
    goal.sampling.max_tokens = 60  # enough for the call, not for the rest
    cut = run('first', sampling=goal.sampling)
    assert cut.finish_reason == 'length' and len(cut.token_ids) == 60, cut
    assert [v.outcome for v in cut.tool_verdicts] == [ToolVerdict.OUTCOME_REFUSED_REPAIRED]
    assert cut.rounds == 1

    goal = Chat.Goal()
    goal.sampling.stop = ['STOP']
    stopped = run('second', sampling=goal.sampling)
    assert (stopped.text, stopped.finish_reason) == ('text', 'stop')
    assert not stopped.tool_verdicts and stopped.rounds == 1

    for outcome, text in [
        (ToolVerdict.OUTCOME_REFUSED_REPAIRED, 'It was refused.'),
        (ToolVerdict.OUTCOME_REFUSED_UNKNOWN_TOOL, 'There is no such tool.'),
        (ToolVerdict.OUTCOME_REFUSED_RANGE, 'Too far.'),
    ]:
        result = run(text)
        assert [v.outcome for v in result.tool_verdicts] == [outcome], result
        assert (result.text, result.rounds) == (text, 2)


def test_bounds_dry_run_and_refusals(peer, start_robot):
    start_robot(call(1) + END, **{'tools.max_rounds': 3})
    info = peer.call(GetModelInfo, 'get_model_info')
    assert 'drive' in info.policy_tools
    shown = peer.call(RenderPrompt, 'render_prompt', policy_tools=True,
                      messages=[ChatMessage(role='user', content='x')])
    assert 'drive' in shown.text and 'Drive straight' in shown.text

    endless = peer.run_goal('drive', execute_tools=True, dry_run=True)[1]
    assert endless.rounds == 3 and endless.finish_reason == 'tool_calls'
    assert [v.outcome for v in endless.tool_verdicts] == [ToolVerdict.OUTCOME_DRY_RUN] * 3

    once = peer.run_goal('drive', execute_tools=True, dry_run=True, max_rounds=1, session_id='s')
    assert once[1].rounds == 1 and len(once[1].tool_verdicts) == 1
    # What came of the call is told with the session's next words.
    peer.run_goal('and now?', session_id='s')
    history = peer.call(RenderPrompt, 'render_prompt', session_id='s',
                        messages=[ChatMessage(role='user', content='y')]).text
    assert history.index('dry_run') < history.index('and now?')

    for fields, words in [
        ({'max_rounds': 4}, ['max_rounds is 4', 'at most 3']),
        ({'tools': [Tool(name='drive')]}, ['tools has 1 entries', 'must be empty']),
    ]:
        refused = peer.run_goal('drive', execute_tools=True, **fields)[1]
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        for word in words:
            assert word in refused.error_msg

    # Without execute_tools a call is shown and nothing more.
    any_arguments = Tool(name='drive', parameters_json='{"additionalProperties": true}')
    plain = peer.run_goal('drive', tools=[any_arguments])[1]
    assert plain.finish_reason == 'tool_calls' and not plain.tool_verdicts
    assert json.loads(plain.tool_calls[0].arguments_json)['distance'] == 1


def test_words_on_the_prompt_topic_may_move_the_robot_and_are_audited(
    peer, start_robot, tmp_path
):
    path = tmp_path / 'audit.jsonl'
    start_robot(call(0.1) + END, 'There.<turn|>', call(99) + END, 'Too far.<turn|>',
                **{'tools.execute_prompts': True, 'audit.enabled': True,
                   'audit.file': str(path), 'tools.constrain_calls': False})
    records = peer.collect(RequestRecord, '/llm_node/requests', 100)
    spoken = peer.collect(Sentence, '/llm_node/sentences', 100)
    prompt = peer.make(lambda: peer.node.create_publisher(String, '/llm_node/prompt', 10))
    peer.until(prompt.get_subscription_count)
    prompt.publish(String(data='drive'))
    peer.until(lambda: len(records) == 2)
    first, second = records
    (verdict,) = first.tool_verdicts
    assert verdict.outcome == ToolVerdict.OUTCOME_EXECUTED and verdict.status == 'succeeded'
    assert verdict.target == '/demo_robot/drive' and any(verdict.goal_id.uuid)
    assert verdict.motion and json.loads(verdict.arguments_json)['distance'] == 0.1
    assert (first.client, first.front_end) == ('~/prompt', 'ros')
    assert not second.tool_verdicts and second.text == 'There.'
    assert [m['content'] for m in json.loads(second.messages_json) if m['role'] == 'tool'] == [
        verdict.result_json]
    peer.until(lambda: spoken and spoken[-1].last)
    assert [s.text for s in spoken if s.text] == ['There.']
    prompt.publish(String(data='drive far'))
    peer.until(lambda: len(records) == 4)
    (refused,) = records[2].tool_verdicts
    assert refused.outcome == ToolVerdict.OUTCOME_REFUSED_RANGE and not any(refused.goal_id.uuid)
    in_file = [(r['request_id'], len(r['tool_verdicts'])) for r in read_records(path)]
    assert in_file == [(r.request_id, len(r.tool_verdicts)) for r in records]


DOCS = Path(__file__).parents[3] / 'docs' / 'interfaces.md'
EXAMPLE = re.compile(r'ros2 (?:service call|action send_goal)[^/]*(/\S+) gemma_thor_ros/'
                     r'(srv|action)/(\w+)(?:\s*\\?\s*"(\{.*?\})")?')


def filled(message, values):
    """Set the fields of a message from YAML, as the ros2 command line does."""
    for name, value in values.items():
        field_type = type(message).get_fields_and_field_types()[name]
        if isinstance(value, dict):
            filled(getattr(message, name), value)
        elif field_type.startswith('sequence<gemma_thor_ros/'):
            kind = getattr(gemma_thor_ros.msg, field_type[len('sequence<gemma_thor_ros/'):-1])
            setattr(message, name, [filled(kind(), item) for item in value])
        else:
            setattr(message, name, value)
    return message


def test_the_examples_in_the_docs_work(peer, start_robot, tmp_path):
    start_robot(call(0.1) + END, **{'tools.max_rounds': 1, 'session.folder': str(tmp_path)})
    examples = EXAMPLE.findall(DOCS.read_text())
    assert len(examples) >= 13
    for name, kind, type_name, text in examples:
        values = yaml.safe_load(text or '{}')
        short = name.removeprefix('/llm_node/')
        if kind == 'action':
            result = peer.run_goal(**{'messages': [], **fields_of(filled(Chat.Goal(), values))})[1]
            assert result.tool_verdicts[0].status == 'succeeded'
        else:
            service = getattr(gemma_thor_ros.srv, type_name)
            result = peer.call(service, short, **fields_of(filled(service.Request(), values)))
        assert result.error_code == 0, (name, result.error_msg)


def fields_of(message):
    return {name: getattr(message, name) for name in message.get_fields_and_field_types()}
