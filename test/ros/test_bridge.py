# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The tool bridge in this process, goal_guard and action servers of all tempers in others."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bridge_rig import POLICY, TOOL, Rig

from gemma_thor_ros.ros.bridge import ToolBridge
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.verdict import CallEvent, Outcome, Step, Verdict
from gemma_thor_ros.schema import ConfigError, FinishReason, ToolCall

# behaviour -> seconds
SERVERS = {'succeed': 0.2, 'abort': 0.1, 'reject': 0, 'late': 1.0, 'later': 2.0, 'never': 0,
           'reject_cancel': 2.0, 'deaf': 2.0, 'stubborn': 2.6, 'flood': 0.8}


@pytest.fixture(scope='module')
def shared_rig(module_client: Any, module_processes: Any) -> Iterator[Rig]:
    made = Rig(module_client, module_processes, SERVERS)
    yield made
    made.close()


@pytest.fixture
def rig(shared_rig: Rig) -> Rig:
    """The rig of this file, with nothing left over from the test before."""
    shared_rig.wait_allowed()
    shared_rig.client.wait_until(lambda: not shared_rig.children(), 10.0, 'the end of all goals')
    return shared_rig


def test_a_call_runs_to_its_result(rig: Rig) -> None:
    verdict = rig.run('succeed', 1.25)
    assert verdict.succeeded
    assert verdict.result_json == '{"status":"succeeded","distance_m":1.25,"x":1.0}'
    assert verdict.target == '/base/succeed' and len(verdict.goal_id) == 16
    assert rig.steps() == [Step.PROPOSED, Step.SENT, Step.ACCEPTED, Step.FINISHED]
    assert 'goal(1.25)' in rig.server.output()
    assert verdict.goal_id.hex() in rig.server.output()


def test_case_d09_an_abort_is_no_success(rig: Rig) -> None:
    verdict = rig.run('abort')
    assert (verdict.outcome, verdict.status) == (Outcome.EXECUTED, 'aborted')
    assert not verdict.succeeded
    assert verdict.result_json == '{"status":"aborted","reason":"path blocked"}'


def test_a_rejected_goal_says_so(rig: Rig) -> None:
    verdict = rig.run('reject')
    assert verdict.status == 'rejected'
    assert json.loads(verdict.result_json)['reason'] == 'the server rejected the goal'


def test_case_d08_a_goal_beyond_its_time_is_canceled_before_the_answer(rig: Rig) -> None:
    before = len(rig.times_of('never', 'canceled'))
    verdict = rig.run('never')
    assert len(rig.times_of('never', 'canceled')) == before + 1, 'it runs on after the answer'
    assert verdict.status == 'timeout_canceled'
    assert json.loads(verdict.result_json) == {
        'status': 'timeout_canceled', 'reason': 'not finished within 1 s'}
    assert rig.steps() == [Step.PROPOSED, Step.SENT, Step.ACCEPTED, Step.TIMEOUT,
                           Step.CANCEL_SENT, Step.CANCEL_ACKNOWLEDGED, Step.FINISHED]
    assert 1.0 <= verdict.duration_ms / 1e3 < 2.0


@pytest.mark.parametrize(('behaviour', 'words'), [
    ('reject_cancel', 'the server rejected the cancel'),
    ('deaf', 'not acknowledged within 0.5 s'),
    ('stubborn', 'not ended within 0.8 s after the cancel'),
])
def test_case_d08_a_cancel_that_fails_inhibits_motion_until_the_goal_has_ended(
        rig: Rig, behaviour: str, words: str) -> None:
    verdict = rig.run(behaviour)
    assert verdict.status == 'timeout_canceled'
    assert words in verdict.reason and 'may still run' in verdict.reason
    rig.client.wait_until(rig.bridge.guard.motion_fault, 1.0)
    assert words in rig.bridge.guard.motion_fault()
    sent = len(rig.times_of('succeed', 'goal'))
    assert rig.run('succeed').outcome is Outcome.REFUSED_STOPPED
    assert not rig.times_of(behaviour, 'ended'), 'the goal ended too early for this test'
    rig.wait_allowed()
    assert rig.times_of(behaviour, 'ended')
    assert len(rig.times_of('succeed', 'goal')) == sent


def test_case_d16_a_cancel_before_the_acknowledgement_is_remembered(rig: Rig) -> None:
    cancel = threading.Event()
    thread, verdicts = rig.start('late', cancel=cancel)
    rig.wait_for('late', 'goal')
    canceled_at = time.monotonic()
    cancel.set()
    thread.join(5.0)
    assert verdicts[0].status == 'canceled'
    assert time.monotonic() - canceled_at < 0.5, 'the caller waited for the late server'
    assert not rig.times_of('late', 'answered'), 'the server was not late enough for this test'
    rig.wait_for('late', 'canceled')
    answered, asked = rig.times_of('late', 'answered')[0], rig.times_of('late', 'cancel')
    assert len(asked) == 1 and 0.0 <= asked[0] - answered < 0.5
    assert verdicts[0].goal_id.hex() in rig.server.output()
    rig.client.wait_until(lambda: not rig.children())


def test_case_d16_only_the_goal_that_was_given_up_is_canceled(rig: Rig) -> None:
    others, other_verdicts = rig.start('succeed')
    verdict = rig.run('later')                     # answers after 2 s, server_timeout_s is 1.2
    assert verdict.status == 'unavailable'
    assert 'did not acknowledge the goal within 1.2 s' in verdict.reason
    rig.wait_for('later', 'canceled')
    assert 'had been given up' in rig.guard.output()
    others.join(5.0)
    assert other_verdicts[0].succeeded and not rig.times_of('succeed', 'cancel')


def test_case_d10_a_cancel_ends_the_child_goal_quickly(rig: Rig) -> None:
    cancel = threading.Event()
    running, canceled = (len(rig.times_of('never', e)) for e in ('executing', 'canceled'))
    thread, verdicts = rig.start('never', cancel=cancel)
    rig.wait_for('never', 'executing', running + 1)
    at = time.monotonic()
    cancel.set()
    thread.join(2.0)
    assert time.monotonic() - at < 0.35
    assert verdicts[0].status == 'canceled'
    rig.wait_for('never', 'canceled', canceled + 1, 1.0)
    assert rig.times_of('never', 'cancel')[-1] - at < 0.2


def test_a_request_canceled_before_sending_sends_nothing(rig: Rig) -> None:
    cancel = threading.Event()
    cancel.set()
    sent = len(rig.times_of('succeed', 'goal'))
    assert rig.run(cancel=cancel).outcome is Outcome.REFUSED_PRECONDITION
    assert len(rig.times_of('succeed', 'goal')) == sent


def test_without_a_server_the_call_is_unavailable(rig: Rig) -> None:
    verdict = rig.run_call(ToolCall('c', 'say', {'text': 'hello'}))
    assert (verdict.outcome, verdict.status) == (Outcome.UNAVAILABLE, 'unavailable')
    assert verdict.reason == 'there is no server of /voice/say'


def test_flooding_feedback_is_thinned_and_harmless(rig: Rig) -> None:
    verdict = rig.run('flood')
    assert verdict.succeeded
    feedback = [event for event in rig.events if event.step is Step.FEEDBACK]
    assert 2 <= len(feedback) <= 12
    assert feedback[0].detail == 'distance_driven=0.500, remaining=0.500'


def test_refused_calls_reach_no_server(rig: Rig) -> None:
    turn = TurnContext(FinishReason.TOOL_CALLS)
    cut = TurnContext(FinishReason.LENGTH)
    name = 'drive_succeed'
    cases: list[tuple[ToolCall, TurnContext, Outcome]] = [
        (ToolCall('c', 'fly', {}), turn, Outcome.REFUSED_UNKNOWN_TOOL),
        (ToolCall('c', name, {'distance': 'nan'}), turn, Outcome.REFUSED_SCHEMA),
        (ToolCall('c', name, {'distance': 50}), turn, Outcome.REFUSED_RANGE),
        (ToolCall('c', name, {'distance': 1}, repaired=True), turn, Outcome.REFUSED_REPAIRED),
        (ToolCall('c', name, {'distance': 1}), cut, Outcome.REFUSED_REPAIRED),
    ]
    sent = len(rig.times_of('succeed', 'goal'))
    for call, context, outcome in cases:
        verdict = rig.run_call(call, turn=context)
        assert (verdict.outcome, verdict.status) == (outcome, 'refused')
        assert rig.steps() == [Step.PROPOSED, Step.REFUSED]
        assert json.loads(verdict.result_json) == {'status': 'refused', 'reason': verdict.reason}
    assert rig.run(turn=turn).succeeded
    duplicate = rig.run_call(ToolCall('c', name, {'distance': 1}), turn=turn)
    assert duplicate.outcome is Outcome.REFUSED_DUPLICATE
    assert len(rig.times_of('succeed', 'goal')) == sent + 1


def test_a_dry_run_sends_nothing(rig: Rig) -> None:
    sent = len(rig.times_of('succeed', 'goal'))
    verdict = rig.run(dry_run=True)
    assert (verdict.outcome, verdict.status) == (Outcome.DRY_RUN, 'dry_run')
    assert rig.run(distance=50.0, dry_run=True).outcome is Outcome.REFUSED_RANGE
    assert len(rig.times_of('succeed', 'goal')) == sent


def test_an_inactive_node_gets_no_goal(rig: Rig) -> None:
    running = len(rig.times_of('never', 'executing'))
    thread, verdicts = rig.start('never')
    rig.wait_for('never', 'executing', running + 1)
    rig.active = False
    try:
        thread.join(3.0)
        assert verdicts[0].status == 'canceled'
        assert verdicts[0].reason == 'the node is not active'
        verdict = rig.run()
        assert verdict.outcome is Outcome.UNAVAILABLE
        assert verdict.reason == 'the node is not active'
    finally:
        rig.active = True
        time.sleep(0.25)


def test_a_fault_in_the_callers_event_handler_cancels_the_goal(rig: Rig) -> None:
    canceled = len(rig.times_of('never', 'canceled'))

    def broken(event: CallEvent) -> None:
        if event.step is Step.ACCEPTED:
            raise ValueError('broken')

    with pytest.raises(ValueError, match='broken'):
        rig.run('never', on_event=broken)
    rig.wait_for('never', 'canceled', canceled + 1, 2.0)


def test_several_calls_at_once_keep_apart(rig: Rig) -> None:
    distances = [0.5 + index / 8 for index in range(8)]
    verdicts: dict[float, Verdict] = {}

    def run(distance: float) -> None:
        verdicts[distance] = rig.bridge.run(
            ToolCall(f'c{distance}', 'drive_succeed', {'distance': distance}), request_id='r',
            turn=TurnContext(FinishReason.TOOL_CALLS))

    threads = [threading.Thread(target=run, args=(distance,)) for distance in distances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert {distance: json.loads(verdict.result_json).get('distance_m')
            for distance, verdict in verdicts.items()} == {d: d for d in distances}


def test_a_server_that_dies_in_mid_goal_leaves_motion_inhibited(
        client: Any, processes: Any) -> None:
    rig = Rig(client, processes, {'die': 0.3})
    try:
        verdict = rig.run('die')
        assert verdict.status == 'timeout_canceled' and 'may still run' in verdict.reason
        rig.client.wait_until(rig.bridge.guard.motion_fault, 1.0)
        # A new server under the name says that it has no such goal: then it is over.
        rig.start_server({'die': 30.0})
        rig.wait_allowed(15.0)
    finally:
        rig.close()


def test_a_server_that_leaves_in_mid_goal_is_not_waited_for(client: Any, processes: Any) -> None:
    policy = 'version: 1\ntools:\n' + TOOL.replace('NAME', 'leave').replace(
        '    timeout_s: 1\n', '    timeout_s: 30\n')
    rig = Rig(client, processes, {'leave': 0.3}, policy)
    try:
        verdict = rig.run('leave')
        waited = time.monotonic() - rig.times_of('leave', 'left')[0]
        assert verdict.status == 'unknown' and 'left the graph' in verdict.reason
        assert waited < 2.5
        rig.client.wait_until(rig.bridge.guard.motion_fault, 1.0)
        rig.start_server({'leave': 30.0})
        rig.wait_allowed(15.0)
    finally:
        rig.close()


def bridge_for(client: Any, policy: str) -> Callable[[], ToolBridge]:
    return lambda: ToolBridge(client.node, parse_policy(policy, 'p.yaml'), instance_id='i')


@pytest.mark.parametrize('name', [
    'test_client/chat', '~/chat', 'goal_guard/run_child', '/arm/change_state', '/tf',
    '/arm/set_parameters', '/clock',
])
def test_forbidden_targets_are_refused_at_start(client: Any, name: str) -> None:
    policy = POLICY.replace('base/succeed', name)
    with pytest.raises(ConfigError, match=r'^p\.yaml:6: .*tools may not reach'):
        bridge_for(client, policy)()


def test_targets_are_judged_after_remapping(ros_env: dict[str, str], tmp_path: Path) -> None:
    import rclpy
    from rclpy.context import Context
    from rclpy.node import Node

    context = Context()
    rclpy.init(context=context, args=['x', '--ros-args', '-r', 'base/succeed:=/tf'])
    node = Node('test_client', context=context, namespace='/robot')
    try:
        with pytest.raises(ConfigError, match=r'^p\.yaml:6: /tf is a name of the ROS system'):
            ToolBridge(node, parse_policy(POLICY, 'p.yaml'), instance_id='i')
    finally:
        node.destroy_node()
        rclpy.try_shutdown(context=context)
