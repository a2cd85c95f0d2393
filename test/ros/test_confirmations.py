# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Calls that a person has to allow: yes, no, no answer, too late, withdrawn, checked again."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from bridge_rig import Rig, StopButton, in_thread
from rclpy.qos import DurabilityPolicy, QoSProfile

from gemma_thor_ros.msg import ConfirmationRequest, ErrorCode
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.verdict import Outcome, Step, Verdict
from gemma_thor_ros.schema import FinishReason, ToolCall
from gemma_thor_ros.srv import Confirm, ReleaseStop

DRIVE = """\
  {name}:
    description: Drive.
    motion: true
    action: {{name: base/succeed, type: gemma_thor_ros/action/Drive}}
    timeout_s: 2
    confirm: {confirm}
    confirm_timeout_s: {limit}
    args:
      distance: {{type: number, unit: m, min: -5 m, max: 5 m, field: distance}}
"""
POLICY = 'version: 1\ntools:\n' + ''.join(
    DRIVE.format(name=name, confirm=confirm, limit=limit) for name, confirm, limit in (
        ('always', 'always', 5), ('short', 'always', 0.4), ('once', 'once_per_session', 5),
        ('never', 'never', 5)))
LATCHED = QoSProfile(depth=64, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Operator:
    """A rig, and somebody who watches ~/confirmations."""

    def __init__(self, client: Any, processes: Any) -> None:
        self.client = client
        self.button = StopButton(client, '/stop')
        self.rig = Rig(client, processes, {'succeed': 0.05}, POLICY, ('stop_topics:=[stop]',))
        self.asked: list[ConfirmationRequest] = []
        client.node.create_subscription(
            ConfirmationRequest, '/test_client/confirmations', self.asked.append, LATCHED)
        self.service = client.node.create_client(Confirm, '/test_client/confirm')
        self.release = client.node.create_client(ReleaseStop, '/test_client/release_stop')
        assert self.service.wait_for_service(10.0) and self.release.wait_for_service(10.0)
        client.wait_until(
            lambda: client.node.count_publishers('/test_client/confirmations'), 10.0)

    def start(self, tool: str, **options: Any) -> tuple[threading.Thread, list[Verdict]]:
        """Run a call in a thread and wait for the question."""
        before = len(self.open())
        turn = TurnContext(FinishReason.TOOL_CALLS, options.pop('session', ''))
        started = in_thread(lambda: self.rig.run_call(
            ToolCall('c1', tool, {'distance': 1.5}), turn=turn, **options))
        self.client.wait_until(lambda: len(self.open()) > before, 5.0, 'the question')
        return started

    def open(self) -> list[ConfirmationRequest]:
        return [message for message in self.asked if not message.withdrawn]

    def answer(self, approve: bool, confirmation_id: str = '',
               name: str = 'Ann') -> Confirm.Response:
        request = Confirm.Request(
            confirmation_id=confirmation_id or self.open()[-1].confirmation_id, approve=approve,
            operator_name=name, reason='' if approve else 'people near')
        response: Confirm.Response = self.client.wait(self.service.call_async(request))
        return response

    def goals(self) -> int:
        return len(self.rig.times_of('succeed', 'goal'))

    def let_go(self) -> None:
        self.button.value = False
        request = ReleaseStop.Request(operator_name='Ann', reason='test')
        self.client.wait_until(
            lambda: self.client.wait(self.release.call_async(request)).released, 5.0)
        self.rig.wait_allowed()


@pytest.fixture(scope='module')
def operator(module_client: Any, module_processes: Any) -> Iterator[Operator]:
    made = Operator(module_client, module_processes)
    made.rig.wait_allowed()
    # Until guard and server have found each other.
    made.client.wait_until(lambda: made.rig.run_call(
        ToolCall('c0', 'never', {'distance': 1.0})).succeeded, 15.0, 'the server')
    yield made
    made.rig.close()


def test_the_question_says_who_what_why_and_until_when(operator: Operator) -> None:
    thread, verdicts = operator.start('always', session='kitchen')
    question = operator.open()[-1]
    assert (question.request_id, question.session_id, question.front_end) == (
        'r1', 'kitchen', 'ros')
    assert (question.tool_name, question.target) == ('always', '/base/succeed')
    assert json.loads(question.arguments_json) == {'distance': 1.5}
    assert question.summary == (
        'Move the robot: always on /base/succeed with distance = 1.5 m?')
    assert question.reason == 'the policy wants it for always (always)'
    assert question.limit.sec == 5 and len(question.confirmation_id) == 32
    sent = operator.goals()
    time.sleep(0.1)
    assert operator.goals() == sent, 'it was sent before the answer'
    assert operator.answer(True).taken
    thread.join(5.0)
    assert verdicts[0].succeeded and operator.goals() == sent + 1
    steps = operator.rig.steps()
    assert steps[:4] == [Step.PROPOSED, Step.CONFIRMATION_REQUESTED, Step.CONFIRMED, Step.SENT]
    operator.client.wait_until(lambda: operator.asked[-1].withdrawn, 2.0)
    assert operator.asked[-1].confirmation_id == question.confirmation_id


def test_a_no_sends_nothing_and_says_why(operator: Operator) -> None:
    sent = operator.goals()
    thread, verdicts = operator.start('always')
    assert operator.answer(False).taken
    thread.join(5.0)
    assert (verdicts[0].outcome, verdicts[0].status) == (Outcome.DENIED, 'denied')
    assert json.loads(verdicts[0].result_json) == {
        'status': 'refused', 'reason': 'Ann said no: people near'}
    assert operator.rig.steps()[-1] is Step.DENIED and operator.goals() == sent


def test_case_d14_no_answer_is_a_no_and_a_late_one_counts_for_nothing(operator: Operator) -> None:
    sent = operator.goals()
    thread, verdicts = operator.start('short')
    thread.join(5.0)
    assert verdicts[0].outcome is Outcome.DENIED_TIMEOUT
    assert verdicts[0].reason == 'nobody confirmed it within 0.4 s'
    late = operator.answer(True)
    assert not late.taken and late.error_code == ErrorCode.UNKNOWN_REQUEST
    assert 'too late' in late.error_msg
    assert not operator.answer(True, 'x' * 1000).taken
    time.sleep(0.2)
    assert operator.goals() == sent


def test_an_answer_without_a_name_is_not_taken_and_the_question_waits_on(
        operator: Operator) -> None:
    sent = operator.goals()
    thread, verdicts = operator.start('always')
    for name in ('', ' \n'):
        refused = operator.answer(True, name=name)
        assert not refused.taken and refused.error_code == ErrorCode.INVALID_REQUEST
        assert 'operator_name is required' in refused.error_msg
    assert thread.is_alive() and operator.goals() == sent
    assert operator.answer(False).taken
    thread.join(5.0)
    assert verdicts[0].outcome is Outcome.DENIED and operator.goals() == sent


def test_the_first_answer_counts(operator: Operator) -> None:
    thread, verdicts = operator.start('always')
    assert operator.answer(False).taken
    assert not operator.answer(True).taken
    thread.join(5.0)
    assert verdicts[0].outcome is Outcome.DENIED


def test_a_cancel_withdraws_the_question(operator: Operator) -> None:
    sent = operator.goals()
    cancel = threading.Event()
    thread, verdicts = operator.start('always', cancel=cancel)
    cancel.set()
    thread.join(1.0)
    assert verdicts[0].outcome is Outcome.REFUSED_PRECONDITION
    assert verdicts[0].reason == 'the request was canceled'
    operator.client.wait_until(lambda: operator.asked[-1].withdrawn, 2.0)
    assert not operator.answer(True).taken and operator.goals() == sent


def test_a_stop_withdraws_the_question_and_all_approvals(operator: Operator) -> None:
    thread, verdicts = operator.start('once', session='s')
    operator.answer(True)
    thread.join(5.0)
    thread, verdicts = operator.start('always', session='s')
    operator.button.press()
    thread.join(1.0)
    assert verdicts[0].outcome is Outcome.REFUSED_STOPPED
    assert '/stop: true received' in verdicts[0].reason
    assert not operator.answer(True).taken
    operator.let_go()
    thread, verdicts = operator.start('once', session='s')      # asks again
    operator.answer(False)
    thread.join(5.0)
    assert verdicts[0].outcome is Outcome.DENIED


def test_everything_is_checked_again_after_the_answer(operator: Operator) -> None:
    """The node goes inactive while the question waits: yes is not enough."""
    sent = operator.goals()
    thread, verdicts = operator.start('always')
    operator.rig.active = False
    try:
        operator.client.wait_until(lambda: operator.rig.bridge.guard.fault() or (
            operator.rig.bridge.guard.state.heartbeat_age_s < 0.1), 2.0)
        time.sleep(0.6)                  # for the guard to hear it, on a busy machine too
        assert operator.answer(True).taken
        thread.join(5.0)
    finally:
        operator.rig.active = True
        time.sleep(0.6)
    assert verdicts[0].outcome is Outcome.UNAVAILABLE
    assert verdicts[0].reason == 'the node is not active' and operator.goals() == sent


def test_once_per_session_asks_once_per_session(operator: Operator) -> None:
    def run(session: str) -> Verdict:
        return operator.rig.run_call(
            ToolCall('c', 'once', {'distance': 1.0}),
            turn=TurnContext(FinishReason.TOOL_CALLS, session))

    for session in ('one', 'two', '', ''):       # without a session every call is asked for
        thread, verdicts = operator.start('once', session=session)
        operator.answer(True)
        thread.join(5.0)
        assert verdicts[0].succeeded
    questions = len(operator.open())
    assert run('one').succeeded and run('two').succeeded
    assert len(operator.open()) == questions
    operator.rig.bridge.forget_session('one')
    assert run('two').succeeded
    thread, verdicts = operator.start('once', session='one')
    operator.answer(False)
    thread.join(5.0)
    assert verdicts[0].outcome is Outcome.DENIED


def test_a_dry_run_asks_nobody(operator: Operator) -> None:
    questions = len(operator.open())
    verdict = operator.rig.run_call(ToolCall('c', 'always', {'distance': 1.0}), dry_run=True)
    assert verdict.outcome is Outcome.DRY_RUN
    assert 'a person would be asked first' in verdict.reason
    refused = operator.rig.run_call(ToolCall('c', 'always', {'distance': 50.0}))
    assert refused.outcome is Outcome.REFUSED_RANGE
    assert len(operator.open()) == questions


def test_two_questions_at_once_keep_apart(operator: Operator) -> None:
    first, first_verdicts = operator.start('always')
    first_id = operator.open()[-1].confirmation_id
    second, second_verdicts = operator.start('always')
    assert operator.answer(True).taken and operator.answer(False, first_id).taken
    first.join(5.0)
    second.join(5.0)
    assert first_verdicts[0].outcome is Outcome.DENIED and second_verdicts[0].succeeded
