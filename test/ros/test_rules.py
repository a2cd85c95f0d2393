# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Preconditions on real topics, rates and provenance, from the call to the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from bridge_rig import Rig, in_thread
from geometry_msgs.msg import PoseWithCovarianceStamped
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import BatteryState
from std_msgs.msg import String

from gemma_thor_ros.msg import ConfirmationRequest
from gemma_thor_ros.ros.binding import bind_policy
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.provenance import Reads
from gemma_thor_ros.ros.verdict import Outcome, Verdict
from gemma_thor_ros.schema import ConfigError, FinishReason, ToolCall
from gemma_thor_ros.srv import Confirm

DRIVE = """\
  {name}:
    description: Drive.
    motion: true
    action: {{name: base/succeed, type: gemma_thor_ros/action/Drive}}
    timeout_s: 5
    confirm_timeout_s: 3
    args:
      distance: {{type: number, unit: m, min: -5 m, max: 5 m, field: distance}}
    {rules}
"""
POLICY = """\
version: 1
preconditions:
  charged: {topic: battery, type: sensor_msgs/msg/BatteryState, field: percentage, min: 0.2,
            max_age_s: 0.4, otherwise: the battery is low}
  cells: {topic: battery, type: sensor_msgs/msg/BatteryState, field: 'cell_voltage[1]', min: 3,
          max: 4.2, max_age_s: 5}
  localized: {topic: pose, type: geometry_msgs/msg/PoseWithCovarianceStamped, max_age_s: 0.5,
              stamp: true, field: 'pose.covariance[35]', max: 0.1}
  open: {topic: mode, type: std_msgs/msg/String, field: data, equals: open, latched: true}
tools:
""" + ''.join(DRIVE.format(name=name, rules=rules) for name, rules in (
    ('charged', 'requires: [charged]'), ('cells', 'requires: [cells]'),
    ('localized', 'requires: [localized]'), ('open', 'requires: [open]'),
    ('seldom', 'rate: {calls: 2, period_s: 1.5}'), ('plain', 'trusts: [plain]')))


class Robot:
    """A rig, and the robot's topics."""

    def __init__(self, client: Any, processes: Any) -> None:
        node = client.node
        self.client = client
        self.rig = Rig(client, processes, {'succeed': 0.02}, POLICY)
        self.battery = node.create_publisher(BatteryState, 'battery', 1)
        self.pose = node.create_publisher(PoseWithCovarianceStamped, 'pose', 1)
        self.mode = node.create_publisher(
            String, 'mode', QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL))
        self.rig.wait_allowed()
        client.wait_until(lambda: self.run('plain').succeeded, 20.0, 'the server')

    def run(self, tool: str, **options: Any) -> Verdict:
        return self.rig.run_call(ToolCall('c', tool, {'distance': 1}), **options)

    def tell(self, publisher: Any, message: Any) -> None:
        """Publish, and give the bridge the time to hear it."""
        publisher.publish(message)
        time.sleep(0.1)


@pytest.fixture(scope='module')
def robot(module_client: Any, module_processes: Any) -> Iterator[Robot]:
    made = Robot(module_client, module_processes)
    yield made
    made.rig.close()


def refused(verdict: Verdict, outcome: Outcome, words: str) -> None:
    assert verdict.outcome is outcome and verdict.status == 'refused', verdict
    assert words in verdict.reason, verdict.reason


NOT_MET = Outcome.REFUSED_PRECONDITION


def test_the_battery_must_be_charged_and_heard(robot: Robot) -> None:
    sent = len(robot.rig.times_of('succeed', 'goal'))
    refused(robot.run('charged'), NOT_MET,
            'the battery is low: nothing has been heard on /battery')
    robot.tell(robot.battery, BatteryState(percentage=0.1))
    refused(robot.run('charged'), NOT_MET,
            'the battery is low: percentage of /battery is 0.1, it must be at least 0.2')
    robot.tell(robot.battery, BatteryState(percentage=float('nan')))
    refused(robot.run('charged'), NOT_MET, 'percentage of /battery is nan')
    assert len(robot.rig.times_of('succeed', 'goal')) == sent
    robot.tell(robot.battery, BatteryState(percentage=0.5))
    assert robot.run('charged').succeeded
    time.sleep(0.4)
    refused(robot.run('charged'), NOT_MET, 'the last message on /battery is 0.')
    assert len(robot.rig.times_of('succeed', 'goal')) == sent + 1


def test_elements_of_arrays(robot: Robot) -> None:
    for cells, words in (([], 'there are 0 elements'), ([3.5, 2.5], 'is 2.5, it must be at least'),
                         ([3.5, 5.0], 'is 5, it must be at most 4.2'), ([3.5, 3.5], '')):
        robot.tell(robot.battery, BatteryState(cell_voltage=cells))
        verdict = robot.run('cells')
        assert verdict.succeeded is (words == '') and words in verdict.reason


def test_localisation_must_be_fresh_by_its_own_stamp(robot: Robot) -> None:
    message = PoseWithCovarianceStamped()
    message.header.stamp = robot.client.node.get_clock().now().to_msg()
    robot.tell(robot.pose, message)
    assert robot.run('localized').succeeded
    message.pose.covariance[35] = 0.5
    robot.tell(robot.pose, message)
    refused(robot.run('localized'), NOT_MET, 'pose.covariance[35] of /pose is 0.5')
    message.pose.covariance[35] = 0.0
    message.header.stamp.sec -= 10           # heard now, but measured long ago
    robot.tell(robot.pose, message)
    refused(robot.run('localized'), NOT_MET, 'the stamp on /pose is 10.')


def test_a_latched_topic_needs_no_age(robot: Robot) -> None:
    refused(robot.run('open'), NOT_MET, 'nothing has been heard on /mode')
    robot.tell(robot.mode, String(data='x' * 500))
    refused(robot.run('open'), NOT_MET, 'more characters), it must be open')
    robot.tell(robot.mode, String(data='open'))
    assert robot.run('open').succeeded


def test_preconditions_are_checked_again_after_a_confirmation(robot: Robot) -> None:
    """The battery falls silent while the question waits."""
    asked: list[ConfirmationRequest] = []
    client = robot.client
    client.node.create_subscription(
        ConfirmationRequest, '/test_client/confirmations', asked.append, 10)
    service = client.node.create_client(Confirm, '/test_client/confirm')
    assert service.wait_for_service(10.0)
    client.wait_until(lambda: client.node.count_publishers('/test_client/confirmations'), 10.0)
    robot.tell(robot.battery, BatteryState(percentage=0.9))
    turn = TurnContext(FinishReason.TOOL_CALLS, reads=Reads(frozenset({'camera'})))
    thread, verdicts = in_thread(lambda: robot.run('charged', turn=turn))
    client.wait_until(lambda: asked, 5.0, 'the question')
    assert asked[0].reason == (
        "the model has read results of camera since the user's last words")
    time.sleep(0.45)
    assert client.wait(service.call_async(Confirm.Request(
        confirmation_id=asked[0].confirmation_id, approve=True,
        operator_name='Ann'))).taken
    thread.join(5.0)
    refused(verdicts[0], NOT_MET, 'the last message on /battery is')


def test_a_rate_is_held(robot: Robot) -> None:
    assert robot.run('seldom', dry_run=True).outcome is Outcome.DRY_RUN
    first = time.monotonic()
    assert robot.run('seldom').succeeded and robot.run('seldom').succeeded
    refused(robot.run('seldom'), Outcome.REFUSED_RATE, 'seldom may act 2 times in 1.5 s')
    time.sleep(max(0.0, first + 1.6 - time.monotonic()))
    assert robot.run('seldom').succeeded


@pytest.mark.parametrize(('reads', 'asks'), [
    (Reads(), False), (Reads(frozenset({'plain'})), False),
    (Reads(frozenset({'plain', 'look'})), True), (Reads(images=True), True)])
def test_a_motion_after_untrusted_text_asks_a_person(
        robot: Robot, reads: Reads, asks: bool) -> None:
    turn = TurnContext(FinishReason.TOOL_CALLS, reads=reads)
    verdict = robot.run('plain', turn=turn, dry_run=True)
    assert verdict.outcome is Outcome.DRY_RUN
    assert ('a person would be asked first' in verdict.reason) is asks


@pytest.mark.parametrize(('old', 'new', 'words'), [
    ('field: percentage', 'field: percent', 'has no field percent'),
    ('cell_voltage[1]', 'percentage[1]', 'percentage is float32, no array'),
    ('covariance[35]', 'covariance[36]', 'covariance has 36 elements'),
    ('equals: open', 'equals: 1', '1 does not fit data'),
    ('field: data, equals: open', 'field: data, min: 1', 'so it has no min and max'),
    ("field: 'cell_voltage[1]'", 'field: cell_voltage', 'cell_voltage is no plain value'),
    ('type: std_msgs/msg/String', 'type: std_msgs/msg/Strings', 'does not exist'),
    ('max_age_s: 0.4,', 'max_age_s: 0.4, stamp: true,', ''),
    ('field: data, equals: open, latched: true', 'max_age_s: 1, stamp: true',
     'has no field header'),
])
def test_preconditions_that_do_not_fit_are_refused_at_start(
        old: str, new: str, words: str) -> None:
    assert POLICY.count(old) == 1
    text = POLICY.replace(old, new)
    if not words:                        # BatteryState has a stamp
        bind_policy(parse_policy(text))
        return
    with pytest.raises(ConfigError, match=r'^p\.yaml:[3-9]: ') as caught:
        bind_policy(parse_policy(text, 'p.yaml'))
    assert words in str(caught.value)
