# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Tools that publish, call services, set parameters and read topics, against real ones."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from bridge_rig import Rig, StopButton, in_thread
from geometry_msgs.msg import Twist, TwistStamped
from rcl_interfaces.msg import SetParametersResult
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import BatteryState
from std_msgs.msg import String
from std_srvs.srv import SetBool

from gemma_thor_ros.ros.bridge import ToolBridge
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.verdict import Outcome, Step, Verdict
from gemma_thor_ros.schema import ConfigError, FinishReason, ToolCall
from gemma_thor_ros.srv import ReleaseStop

POLICY = """\
version: 1
tools:
  creep:
    description: Creep ahead.
    motion: true
    publish: {name: cmd_vel, type: geometry_msgs/msg/Twist, rate_hz: 20, max_duration_s: 5,
              duration_arg: seconds, stop_message: {}}
    server_timeout_s: 1
    args: &creep
      speed: {type: number, min: 0, max: 0.2, field: linear.x}
      seconds: {type: number, min: 0.1, max: 5, default: 0.5}
  stamped:
    description: Creep ahead.
    motion: true
    publish: {name: stamped_vel, type: geometry_msgs/msg/TwistStamped, rate_hz: 20,
              max_duration_s: 0.2, stop_message: {header.frame_id: base}}
    constants: {header.frame_id: base, twist.linear.x: 0.1}
  unheard:
    description: Creep ahead.
    motion: true
    publish: {name: no_wheels, type: geometry_msgs/msg/Twist, rate_hz: 20, max_duration_s: 1,
              stop_message: {}}
    server_timeout_s: 0.3
  show:
    description: Show a text.
    motion: false
    publish: {name: display, type: std_msgs/msg/String}
    args:
      text: {type: string, field: data}
  halt:
    description: Publish on a stop topic, which nobody may.
    motion: false
    publish: {name: stop, type: std_msgs/msg/Bool}
  lamp:
    description: Switch the lamp.
    motion: false
    service: {name: lamp, type: std_srvs/srv/SetBool}
    timeout_s: 0.5
    server_timeout_s: 5
    args:
      enabled: {type: boolean, field: data}
    result:
      said: {field: message}
  slow_lamp:
    description: Switch a lamp that never answers.
    motion: false
    service: {name: slow_lamp, type: std_srvs/srv/SetBool}
    timeout_s: 0.4
    server_timeout_s: 5
  no_lamp:
    description: Switch a lamp that is not there.
    motion: false
    service: {name: no_lamp, type: std_srvs/srv/SetBool}
    timeout_s: 0.5
    server_timeout_s: 0.2
  battery:
    description: Read the battery.
    motion: false
    read: {name: battery, type: sensor_msgs/msg/BatteryState, max_age_s: 0.5}
    server_timeout_s: 0.3
    result:
      percent: {field: percentage, round: 2}
      cell: {field: 'cell_voltage[0]'}
  set_gain:
    description: Set the gain.
    motion: false
    parameter: {node: camera, name: gain}
    server_timeout_s: 5
    args:
      gain: {type: number, min: 0, max: 100, field: value}
  get_gain:
    description: Read the gain.
    motion: false
    parameter: {node: camera, name: gain}
  get_other:
    description: Read a parameter that is not there.
    motion: false
    parameter: {node: camera, name: other}
"""


class Robot:
    """A rig, and a robot of the test's own node and of a node for its parameters."""

    def __init__(self, client: Any, processes: Any) -> None:
        from rclpy.node import Node

        self.client = client
        node = client.node
        self.button = StopButton(client, '/stop')
        self.twists: list[tuple[float, float]] = []      # (when, speed)
        self.stamped: list[TwistStamped] = []
        self.texts: list[str] = []
        self.calls: list[bool] = []
        node.create_subscription(
            Twist, 'cmd_vel', lambda m: self.twists.append((time.monotonic(), m.linear.x)), 100)
        # Best effort, as many base controllers are.
        node.create_subscription(TwistStamped, 'stamped_vel', self.stamped.append, QoSProfile(
            depth=100, reliability=ReliabilityPolicy.BEST_EFFORT))
        node.create_subscription(String, 'display', lambda m: self.texts.append(m.data), 10)
        node.create_service(SetBool, 'lamp', self.on_lamp)
        self.battery = node.create_publisher(BatteryState, 'battery', 1)
        self.camera = Node('camera', context=client.context)
        self.camera.declare_parameter('gain', 1.0)
        self.camera.add_on_set_parameters_callback(lambda parameters: SetParametersResult(
            successful=all(p.value <= 50 for p in parameters), reason='above 50'))
        self.release = threading.Event()
        self.camera.create_service(SetBool, 'slow_lamp', self.on_slow_lamp,
                                   callback_group=ReentrantCallbackGroup())
        from rclpy.executors import MultiThreadedExecutor

        self.executor = MultiThreadedExecutor(4, context=client.context)
        self.executor.add_node(self.camera)
        self.thread = threading.Thread(target=self.executor.spin, daemon=True)
        self.thread.start()
        self.rig = Rig(client, processes, {}, POLICY, ('stop_topics:=[stop]',))
        self.rig.wait_allowed()
        client.wait_until(lambda: self.run('show', text='ready').succeeded, 20.0, 'the display')
        client.wait_until(lambda: 'ready' in self.texts, 5.0)
        client.wait_until(lambda: self.run('creep', speed=0, seconds=0.1).succeeded, 20.0)
        client.wait_until(lambda: self.run('stamped').succeeded, 20.0)

    def on_lamp(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self.calls.append(request.data)
        response.success, response.message = request.data, 'it is daytime'
        return response

    def on_slow_lamp(self, request: Any, response: Any) -> Any:
        self.release.wait(10.0)
        return response

    def run(self, tool: str, options: dict[str, Any] | None = None, **arguments: Any) -> Verdict:
        return self.rig.run_call(ToolCall('c', tool, arguments), **(options or {}))

    def creep(self, seconds: float = 5.0,
              **options: Any) -> tuple[threading.Thread, list[Verdict]]:
        """Start to creep; return when the wheels turn."""
        self.twists.clear()
        started = in_thread(lambda: self.run('creep', options, speed=0.1, seconds=seconds))
        self.client.wait_until(lambda: len(self.twists) >= 3, 5.0, 'motion')
        return started

    def stopped_at(self) -> float:
        """Wait for the stop message and return when it came; nothing may follow but stops."""
        self.client.wait_until(lambda: self.twists[-1][1] == 0.0, 3.0, 'the stop')
        time.sleep(0.2)
        first = next(at for at, speed in self.twists if speed == 0.0)
        assert all(speed == 0.0 for at, speed in self.twists if at >= first)
        return first

    def close(self) -> None:
        self.release.set()
        self.rig.close()
        self.executor.shutdown()
        self.thread.join(5.0)
        self.camera.destroy_node()


@pytest.fixture(scope='module')
def robot(module_client: Any, module_processes: Any) -> Iterator[Robot]:
    made = Robot(module_client, module_processes)
    yield made
    made.close()


# Publishes that move

def test_a_publish_goes_on_for_its_time_and_ends_with_the_stop_message(robot: Robot) -> None:
    robot.twists.clear()
    started = time.monotonic()
    verdict = robot.run('creep', speed=0.1, seconds=0.6)
    assert verdict.succeeded and verdict.target == '/cmd_vel'
    assert 0.6 <= time.monotonic() - started < 1.5
    assert robot.rig.steps() == [Step.PROPOSED, Step.SENT, Step.ACCEPTED, Step.FINISHED]
    stopped = robot.stopped_at()
    moving = [at for at, speed in robot.twists if speed == 0.1]
    assert 8 <= len(moving) <= 14, len(moving)
    assert 0.55 < stopped - moving[0] < 1.0
    assert len([1 for _, speed in robot.twists if speed == 0.0]) == 3


def test_a_cancel_stops_at_once(robot: Robot) -> None:
    cancel = threading.Event()
    thread, verdicts = robot.creep(cancel=cancel)
    at = time.monotonic()
    cancel.set()
    thread.join(2.0)
    assert verdicts[0].status == 'canceled'
    assert robot.stopped_at() - at < 0.5


def test_a_stop_stops_at_once_and_refuses_more(robot: Robot) -> None:
    thread, verdicts = robot.creep()
    at = robot.button.press()
    thread.join(2.0)
    assert verdicts[0].status == 'stopped' and '/stop: true received' in verdicts[0].reason
    assert robot.stopped_at() - at < 0.5
    robot.twists.clear()
    assert robot.run('creep', speed=0.1).outcome is Outcome.REFUSED_STOPPED
    assert robot.run('show', text='still here').succeeded
    robot.button.value = False
    release = robot.client.node.create_client(ReleaseStop, '/test_client/release_stop')
    assert release.wait_for_service(5.0)
    robot.client.wait_until(lambda: robot.client.wait(release.call_async(ReleaseStop.Request(
        operator_name='Ann', reason='test'))).released, 5.0)
    robot.rig.wait_allowed()
    assert not robot.twists


def test_a_tool_on_a_stop_topic_is_refused_and_is_no_second_publisher(robot: Robot) -> None:
    """The bridge can't know the stop topics before the guard has told them."""
    assert robot.client.node.count_publishers('/stop') == 1
    assert not robot.rig.bridge.guard.motion_fault()
    verdict = robot.run('halt')
    assert verdict.outcome is Outcome.UNAVAILABLE
    assert verdict.reason == '/stop is a stop topic, which tools may not reach'


def test_an_inactive_node_stops(robot: Robot) -> None:
    thread, verdicts = robot.creep()
    robot.rig.active = False
    try:
        thread.join(3.0)
    finally:
        robot.rig.active = True
    assert verdicts[0].status == 'canceled' and verdicts[0].reason == 'the node is not active'
    robot.stopped_at()
    robot.client.wait_until(lambda: not robot.rig.bridge.guard.fault() and robot.run(
        'creep', speed=0, seconds=0.1).succeeded, 5.0)


def test_two_publishes_on_one_topic_do_not_take_turns(robot: Robot) -> None:
    thread, verdicts = robot.creep(0.8)
    second = robot.run('creep', speed=0.2, seconds=0.1)
    assert second.outcome is Outcome.UNAVAILABLE
    assert second.reason == 'a publish on /cmd_vel is going on'
    thread.join(3.0)
    assert verdicts[0].succeeded and all(speed != 0.2 for _, speed in robot.twists)


def test_messages_with_a_header_are_stamped_anew(robot: Robot) -> None:
    time.sleep(0.2)
    robot.stamped.clear()
    before = robot.client.node.get_clock().now().nanoseconds
    assert robot.run('stamped').succeeded
    robot.client.wait_until(lambda: robot.stamped[-1].twist.linear.x == 0.0, 2.0)
    stamps = [m.header.stamp.sec * 10**9 + m.header.stamp.nanosec for m in robot.stamped]
    assert stamps == sorted(stamps) and stamps[0] >= before and len(set(stamps)) == len(stamps)
    assert {m.header.frame_id for m in robot.stamped} == {'base'}


def test_without_a_subscriber_nothing_is_published(robot: Robot) -> None:
    verdict = robot.run('unheard')
    assert verdict.outcome is Outcome.UNAVAILABLE
    assert verdict.reason == 'nobody listens on /no_wheels'


def test_a_single_message_is_sent_once(robot: Robot) -> None:
    robot.texts.clear()
    assert robot.run('show', text='hello').succeeded
    robot.client.wait_until(lambda: robot.texts, 2.0)
    time.sleep(0.1)
    assert robot.texts == ['hello']


# Services, parameters, reads

def test_a_service_is_called_and_its_answer_told(robot: Robot) -> None:
    verdict = robot.run('lamp', enabled=True)
    assert verdict.succeeded and verdict.target == '/lamp'
    assert json.loads(verdict.result_json) == {'status': 'succeeded', 'said': 'it is daytime'}
    assert robot.rig.steps() == [Step.PROPOSED, Step.SENT, Step.FINISHED]
    failed = robot.run('lamp', enabled=False)
    assert (failed.status, failed.reason) == ('aborted', 'it is daytime')
    assert robot.calls[-2:] == [True, False]


def test_a_service_that_is_missing_or_silent(robot: Robot) -> None:
    missing = robot.run('no_lamp')
    assert (missing.outcome, missing.reason) == (
        Outcome.UNAVAILABLE, 'there is no service /no_lamp')
    silent = robot.run('slow_lamp')
    assert silent.status == 'unknown' and 'did not answer within 0.4 s' in silent.reason
    assert json.loads(silent.result_json)['status'] == 'unavailable'
    cancel = threading.Event()
    thread, verdicts = in_thread(lambda: robot.run('slow_lamp', {'cancel': cancel}))
    robot.client.wait_until(lambda: Step.SENT in robot.rig.steps(), 2.0)
    cancel.set()
    thread.join(1.0)
    assert verdicts[0].status == 'canceled' and 'may still act' in verdicts[0].reason


def test_parameters_are_set_and_read(robot: Robot) -> None:
    assert robot.run('set_gain', gain=2.5).succeeded
    assert robot.camera.get_parameter('gain').value == 2.5
    told = json.loads(robot.run('get_gain').result_json)
    assert told == {'status': 'succeeded', 'value': 2.5}
    refused = robot.run('set_gain', gain=60)
    assert (refused.status, refused.reason) == ('aborted', 'above 50')
    assert robot.run('set_gain', gain=101).outcome is Outcome.REFUSED_RANGE
    assert robot.camera.get_parameter('gain').value == 2.5
    other = robot.run('get_other')
    assert (other.status, other.reason) == ('aborted', '/camera has no parameter other')


def test_a_topic_is_read_with_its_age(robot: Robot) -> None:
    unheard = robot.run('battery')
    assert (unheard.outcome, unheard.reason) == (
        Outcome.UNAVAILABLE, 'nothing has been heard on /battery')
    robot.battery.publish(BatteryState(percentage=0.456, cell_voltage=[3.5]))
    time.sleep(0.1)
    told = json.loads(robot.run('battery').result_json)
    assert told == {'status': 'succeeded', 'percent': 0.46, 'cell': 3.5, 'age_s': 0.1}
    time.sleep(0.5)
    old = robot.run('battery')
    assert old.status == 'aborted' and 'the limit is 0.5 s' in old.reason


@pytest.mark.parametrize(('tool', 'arguments'), [
    ('creep', {'speed': 0.1}), ('show', {'text': 'x'}), ('lamp', {'enabled': True}),
    ('set_gain', {'gain': 3}), ('battery', {})])
def test_a_dry_run_does_nothing_of_any_kind(
        robot: Robot, tool: str, arguments: dict[str, Any]) -> None:
    robot.twists.clear()
    robot.texts.clear()
    before = len(robot.calls), robot.camera.get_parameter('gain').value
    assert robot.run(tool, {'dry_run': True}, **arguments).outcome is Outcome.DRY_RUN
    wrong = {**arguments, 'more': 1}
    assert robot.run(tool, {'dry_run': True}, **wrong).outcome is Outcome.REFUSED_SCHEMA
    time.sleep(0.05)
    assert not robot.twists and not robot.texts
    assert (len(robot.calls), robot.camera.get_parameter('gain').value) == before


@pytest.mark.parametrize(('old', 'new', 'words'), [
    ('publish: {name: display', 'publish: {name: /tf', 'ROS system'),
    ('publish: {name: display', 'publish: {name: test_client/motion_inhibit', 'belongs to'),
    ('service: {name: lamp', 'service: {name: arm/set_parameters', 'ROS system'),
    ('service: {name: lamp', 'service: {name: ~/release_stop', 'belongs to'),
    ('service: {name: lamp', 'service: {name: ~/confirm', 'belongs to'),
    ('parameter: {node: camera, name: gain}\n    server', 'parameter: {node: goal_guard, '
     'name: gain}\n    server', 'belongs to'),
    ('parameter: {node: camera, name: gain}\n    server', 'parameter: {node: test_client, '
     'name: gain}\n    server', 'belongs to'),
    ('type: std_srvs/srv/SetBool}\n    timeout_s: 0.5\n    server_timeout_s: 5',
     'type: std_srvs/srv/SetBool, success: message}\n    timeout_s: 0.5', 'message of'),
    ('stop_message: {header.frame_id: base}', 'stop_message: {header.frame: base}',
     'has no field frame'),
    ('stop_message: {}}\n    server_timeout_s: 1\n', 'stop_message: {linear.x: a}}\n', 'constant'),
])
def test_targets_that_no_tool_may_reach(client: Any, old: str, new: str, words: str) -> None:
    assert POLICY.count(old) == 1, POLICY.count(old)
    policy = parse_policy(POLICY.replace(old, new), 'p.yaml')
    with pytest.raises(ConfigError, match=r'^p\.yaml:[0-9]+: ') as caught:
        ToolBridge(client.node, policy, instance_id='i')
    assert words in str(caught.value)


def test_without_the_guard_the_node_publishes_the_stop_itself(robot: Robot) -> None:
    """The last test of this file: it kills the guard."""
    thread, verdicts = robot.creep()
    at = time.monotonic()
    robot.rig.guard.send(signal.SIGKILL)
    thread.join(5.0)
    assert verdicts[0].status == 'lost'
    assert 'the message that stops it was published' in verdicts[0].reason
    robot.client.wait_until(lambda: robot.twists[-1][1] == 0.0, 3.0, 'the stop')
    assert robot.stopped_at() - at < 2.5
    assert robot.run('creep', speed=0.1).outcome is Outcome.UNAVAILABLE
    assert robot.run('lamp', enabled=True).succeeded, 'what moves nothing needs no guard'
    turn = TurnContext(FinishReason.LENGTH)
    cut = robot.run('lamp', {'turn': turn}, enabled=True)
    assert cut.outcome is Outcome.REFUSED_REPAIRED
