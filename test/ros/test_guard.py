# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""goal_guard as its own process: dead nodes, a dead guard, stops, the latch, odd goals."""

import dataclasses
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from action_msgs.msg import GoalStatus
from bridge_rig import StopButton
from geometry_msgs.msg import Twist
from rclpy.action import ActionClient
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message, serialize_message
from std_msgs.msg import Bool

from gemma_thor_ros.action import Drive, RunChild
from gemma_thor_ros.msg import GuardState
from gemma_thor_ros.ros.bridge import ToolBridge
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.guard_link import new_goal_id
from gemma_thor_ros.ros.heartbeat import Heartbeat
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.policy_types import Policy
from gemma_thor_ros.ros.verdict import CallEvent, Outcome, Step, Verdict
from gemma_thor_ros.schema import FinishReason, ToolCall
from gemma_thor_ros.srv import ReleaseStop

GUARD = 'gemma_thor_ros.ros.goal_guard'
POLICY = """\
version: 1
tools:
  drive:
    description: Drive.
    motion: true
    action: {name: base/never, type: gemma_thor_ros/action/Drive}
    timeout_s: 30
    args:
      distance: {type: number, unit: m, min: -5 m, max: 5 m, field: distance}
  think:
    description: Not a motion, once parse() has said so.
    motion: true
    action: {name: base/succeed, type: gemma_thor_ros/action/Drive}
    timeout_s: 5
"""


def parse(text: str) -> Policy:
    """Return the policy; `think` moves nothing, though the servers here all speak Drive."""
    policy = parse_policy(text)
    policy.tools['think'] = dataclasses.replace(policy.tools['think'], motion=False)
    return policy


def server_times(server: Any, event: str, goal_id: str = '') -> list[float]:
    """Return when the motion server printed `event` (of one goal), on the steady clock."""
    found = []
    for line in server.lines():
        parts = line.split()
        if len(parts) > 2 and parts[2] == event and goal_id in line:
            found.append(float(parts[0]))
    return found


class Guarded:
    """The guard and motion servers in processes, and what this process knows of them."""

    def __init__(self, client: Any, processes: Any, *parameters: str,
                 node: str = 'test_client') -> None:
        self.client = client
        self.processes = processes
        self.arguments = ['--ros-args', '-p', f'node:={node}']
        for parameter in parameters or ('state_file:=none',):
            self.arguments += ['-p', parameter]
        self.node_name = node
        self.states: list[GuardState] = []
        client.node.create_subscription(GuardState, '/goal_guard/state', self.states.append, 10)
        self.server = processes.script('motion_server.py', 'never=0', 'succeed=0.1')
        self.guard = self.start_guard()
        self.server.wait_for('ready')
        self.bridge: ToolBridge | None = None
        self.heartbeat: Heartbeat | None = None

    def start_guard(self) -> Any:
        self.states.clear()
        self.guard = self.processes.module(GUARD, *self.arguments)
        self.client.wait_until(lambda: self.states, 20.0, 'the guard state')
        return self.guard

    def open_bridge(self) -> ToolBridge:
        """Make a bridge in this process; wait until the guard takes goals for the server."""
        self.heartbeat = Heartbeat(self.client.node, lambda: True)
        self.bridge = self.client.do(lambda: ToolBridge(
            self.client.node, parse(POLICY), instance_id=self.heartbeat.instance_id))
        self.heartbeat.start()
        self.client.wait_until(lambda: not self.bridge.guard.fault(), 20.0, 'the guard')
        self.client.wait_until(lambda: self.run('think').status != 'unavailable', 20.0,
                               'the discovery of the server')
        self.client.wait_until(lambda: self.bridge.guard.can_cancel('/base/never'), 20.0,
                               'the discovery of the server by the node')
        return self.bridge

    def run(self, tool: str = 'drive', events: list[CallEvent] | None = None) -> Verdict:
        assert self.bridge is not None
        arguments = {'distance': 1.0} if tool == 'drive' else {}
        return self.bridge.run(
            ToolCall('c1', tool, arguments), request_id='r1',
            turn=TurnContext(FinishReason.TOOL_CALLS),
            on_event=None if events is None else events.append)

    def start(self, events: list[CallEvent] | None = None,
              ) -> tuple[threading.Thread, list[Verdict]]:
        """Run a drive in a thread and wait until the server executes it."""
        before = len(server_times(self.server, 'executing'))
        verdicts: list[Verdict] = []
        thread = threading.Thread(target=lambda: verdicts.append(self.run('drive', events)))
        thread.start()
        self.client.wait_until(
            lambda: len(server_times(self.server, 'executing')) > before, 10.0, 'the goal')
        return thread, verdicts

    def stopped(self) -> str:
        """Return the guard's last reason when it says stopped, else ''."""
        return self.states[-1].reason if self.states and self.states[-1].stopped else ''

    def close(self) -> None:
        if self.heartbeat is not None and self.bridge is not None:
            self.heartbeat.stop()
            self.client.do(self.bridge.close)


@pytest.fixture
def guarded(client: Any, processes: Any) -> Iterator[Guarded]:
    made = Guarded(client, processes)
    yield made
    made.close()


# Dead and hung nodes

def test_when_the_node_dies_or_hangs_its_goals_are_canceled_within_a_second(
        client: Any, processes: Any, tmp_path: Path) -> None:
    guarded = Guarded(client, processes, 'state_file:=none', node='llm_node')
    policy = tmp_path / 'policy.yaml'
    policy.write_text(POLICY.replace('timeout_s: 30', 'timeout_s: 30\n    server_timeout_s: 10'))
    # A goal of somebody else on the same server: it must go on.
    other = client.do(lambda: ActionClient(client.node, Drive, '/base/never'))
    assert other.wait_for_server(20.0)
    other_goal = client.wait(other.send_goal_async(Drive.Goal(distance=3.0)))
    for count, number in enumerate((signal.SIGKILL, signal.SIGABRT, signal.SIGSTOP), start=1):
        node = processes.script('bridge_process.py', str(policy), 'drive', '{"distance": 2.0}')
        node.wait_for('event ACCEPTED')
        at = time.monotonic()
        node.send(number)
        client.wait_until(lambda wanted=count: len(
            server_times(guarded.server, 'canceled')) == wanted, 3.0, f'the cancel after {number}')
        assert server_times(guarded.server, 'cancel')[-1] - at < 1.0
    assert len(server_times(guarded.server, 'cancel')) == count
    assert other_goal.status != GoalStatus.STATUS_CANCELED
    # The hung node wakes up and learns what became of its goal.
    node.send(signal.SIGCONT)
    node.wait_for('verdict')
    verdict = json.loads(node.output().split('verdict ')[1].splitlines()[0])
    assert verdict['status'] == 'canceled' and 'heartbeat' in verdict['reason']


# A dead or hung guard

@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSTOP])
def test_without_the_guard_the_node_stops_its_goals_and_refuses_more(
        guarded: Guarded, number: int) -> None:
    guarded.open_bridge()
    events: list[CallEvent] = []
    thread, verdicts = guarded.start(events)
    at = time.monotonic()
    guarded.guard.send(number)
    thread.join(5.0)
    verdict = verdicts[0]
    assert verdict.status == 'lost' and verdict.outcome is Outcome.EXECUTED
    assert 'has been silent' in verdict.reason and 'agreed' in verdict.reason
    assert json.loads(verdict.result_json)['status'] == 'unavailable'
    assert server_times(guarded.server, 'cancel')[0] - at < 2.0
    assert [event.step for event in events][-3:] == [
        Step.CANCEL_SENT, Step.CANCEL_ACKNOWLEDGED, Step.FINISHED]
    sent = len(server_times(guarded.server, 'executing'))
    for tool in ('drive', 'think'):
        refused = guarded.run(tool)
        assert refused.outcome is Outcome.UNAVAILABLE and 'silent' in refused.reason
    assert len(server_times(guarded.server, 'executing')) == sent


def test_a_guard_that_was_started_anew_takes_new_goals_and_the_old_ones_are_lost(
        guarded: Guarded) -> None:
    guarded.open_bridge()
    thread, verdicts = guarded.start()
    guarded.guard.send(signal.SIGKILL)
    guarded.guard.wait()
    guarded.start_guard()
    thread.join(5.0)
    assert verdicts[0].status == 'lost' and 'agreed' in verdicts[0].reason
    guarded.client.wait_until(lambda: guarded.run('think').succeeded, 10.0)

    # A second one of a name beside it is told from one that was started anew, and named.
    client, link = guarded.client, guarded.bridge.guard
    twin = Heartbeat(client.node, lambda: True)
    twin.start()
    try:
        guarded.guard.wait_for('two nodes named /test_client are running')
        client.wait_until(lambda: 'two nodes of this name' in link.motion_fault(), 5.0)
        assert 'two nodes of this name' in guarded.run('think').reason
    finally:
        twin.stop()
    guarded.processes.module(GUARD, *guarded.arguments).wait_for('another guard of this name')
    guarded.guard.wait_for('another guard of this name is running')
    client.wait_until(lambda: 'two goal guards named /goal_guard' in link.fault(), 5.0)
    client.wait_until(lambda: all(state.motion_inhibit for state in guarded.states[-8:]), 5.0,
                      'two guards that do not contradict each other')
    assert guarded.run('drive').outcome is Outcome.UNAVAILABLE


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_the_guard_ends_cleanly_and_cancels_what_it_holds(guarded: Guarded, number: int) -> None:
    guarded.open_bridge()
    inhibited: list[bool] = []
    guarded.client.node.create_subscription(
        Bool, '/test_client/motion_inhibit', lambda message: inhibited.append(message.data),
        QoSProfile(depth=10))
    thread, verdicts = guarded.start()
    assert guarded.guard.stop(number, 2.0) == 0, guarded.guard.output()
    thread.join(5.0)
    assert server_times(guarded.server, 'canceled')
    assert verdicts[0].status in ('canceled', 'lost')
    assert inhibited[-1] is True


# Stops

def test_case_d11_a_stop_cancels_motion_and_latches(
        client: Any, processes: Any, tmp_path: Path) -> None:
    state_file = tmp_path / 'latch.json'
    guarded = Guarded(client, processes, 'stop_topics:=[stop]', f'state_file:={state_file}')
    assert guarded.stopped() == '/stop: no message yet'
    button = StopButton(client, '/stop')
    client.wait_until(lambda: not guarded.stopped(), 10.0)
    guarded.open_bridge()
    try:
        heard: list[str] = []
        guarded.bridge.add_stop_listener(heard.append)
        events: list[CallEvent] = []
        thread, verdicts = guarded.start(events)
        at = button.press()
        thread.join(5.0)
        assert verdicts[0].status == 'stopped'
        assert '/stop: true received' in verdicts[0].reason
        told = json.loads(verdicts[0].result_json)['reason']     # short, for the model
        assert told == 'the robot was stopped; a person has to release it'
        assert Step.STOPPED in [event.step for event in events]
        # A loaded machine is slower now and then; bench/stop_latency.py has the distribution.
        assert server_times(guarded.server, 'cancel')[0] - at < 0.5
        assert heard and '/stop: true received' in heard[0]

        sent = len(server_times(guarded.server, 'executing'))
        assert guarded.run('drive').outcome is Outcome.REFUSED_STOPPED
        assert len(server_times(guarded.server, 'executing')) == sent
        assert guarded.run('think').succeeded, 'what moves nothing may go on'

        release = client.node.create_client(ReleaseStop, '/test_client/release_stop')
        assert release.wait_for_service(5.0)

        def ask(operator: str, reason: str) -> ReleaseStop.Response:
            request = ReleaseStop.Request(operator_name=operator, reason=reason)
            answer: ReleaseStop.Response = client.wait(release.call_async(request))
            return answer

        pressed = ask('Ann', 'all clear')
        assert not pressed.released and pressed.active_sources[0].topic == '/stop'
        button.value = False
        client.wait_until(lambda: 'true received' not in guarded.stopped(), 5.0)
        assert guarded.states[-1].latched
        assert guarded.run('drive').outcome is Outcome.REFUSED_STOPPED

        # The latch survives a restart.
        guarded.guard.send(signal.SIGKILL)
        guarded.guard.wait()
        guarded.start_guard()
        client.wait_until(lambda: guarded.stopped().startswith('latched'), 10.0)
        assert guarded.states[-1].latched
        assert release.wait_for_service(5.0)
        client.wait_until(lambda: ask('', 'all clear').error_msg != '', 5.0)
        client.wait_until(lambda: ask('Ann', 'all clear').released, 10.0)
        client.wait_until(lambda: not guarded.stopped(), 5.0)
        assert json.loads(state_file.read_text())['released_by'] == 'Ann'
        guarded.guard.wait_for('stop released by Ann: all clear')
        client.wait_until(lambda: not guarded.bridge.guard.fault(), 10.0)
        client.wait_until(lambda: guarded.run('think').succeeded, 10.0)
    finally:
        guarded.close()


def test_silence_two_publishers_and_unheard_publishers_stop(client: Any, processes: Any) -> None:
    guarded = Guarded(client, processes, 'stop_topics:=[stop, /other/stop]', 'state_file:=none')
    first, other = StopButton(client, '/stop'), StopButton(client, '/other/stop')
    client.wait_until(lambda: not guarded.stopped(), 10.0)
    first.silent = True
    client.wait_until(lambda: guarded.stopped() == '/stop: older than 0.5 s', 2.0)
    first.silent = False
    client.wait_until(lambda: not guarded.stopped(), 2.0)
    second = StopButton(client, '/stop')
    client.wait_until(lambda: guarded.stopped() == '/stop: 2 publishers', 10.0)
    second.remove()
    client.wait_until(lambda: not guarded.stopped(), 10.0)
    other.remove()
    best_effort = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
    StopButton(client, '/other/stop', qos=best_effort)
    client.wait_until(lambda: 'incompatible QoS' in guarded.stopped(), 10.0)
    assert not guarded.states[-1].latched
    sources = {source.topic: source for source in guarded.states[-1].sources}
    assert not sources['/stop'].stopped and sources['/other/stop'].stopped
    assert 0.0 <= sources['/stop'].age_s < 0.5 and sources['/stop'].num_publishers == 1


def test_motion_inhibit_reaches_a_late_subscriber_ten_times_a_second(
        client: Any, processes: Any) -> None:
    guarded = Guarded(client, processes, 'stop_topics:=[stop]', 'state_file:=none')
    heard: list[tuple[float, bool]] = []
    client.node.create_subscription(
        Bool, '/test_client/motion_inhibit',
        lambda message: heard.append((time.monotonic(), message.data)),
        QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL))
    client.wait_until(lambda: len(heard) >= 11, 10.0)
    assert all(value for _, value in heard) and guarded.states[-1].motion_inhibit
    assert 0.8 < heard[10][0] - heard[0][0] < 1.5
    StopButton(client, '/stop')
    client.wait_until(lambda: not heard[-1][1], 10.0)


# Goals that the guard must not take

def test_odd_goals_are_refused_and_the_guard_lives(guarded: Guarded) -> None:
    bridge = guarded.open_bridge()
    run_child = guarded.client.do(
        lambda: ActionClient(guarded.client.node, RunChild, '/goal_guard/run_child'))
    assert run_child.wait_for_server(10.0)
    good: dict[str, Any] = {
        'node_instance_id': bridge.guard.instance_id, 'target': '/base/succeed',
        'type': 'gemma_thor_ros/action/Drive', 'payload': serialize_message(Drive.Goal())}

    topic = RunChild.Goal.KIND_TOPIC
    twist = serialize_message(Twist())
    stream = {'kind': topic, 'target': '/cmd_vel', 'type': 'geometry_msgs/msg/Twist',
              'payload': twist, 'stop_message': twist, 'rate_hz': 10.0, 'duration_s': 1.0}

    def send(**changes: Any) -> RunChild.Result:
        goal = RunChild.Goal(**{**good, 'goal_id': new_goal_id(), **changes})
        goal.server_timeout.sec = goal.timeout.sec = 2
        handle = guarded.client.wait(run_child.send_goal_async(goal))
        return guarded.client.wait(handle.get_result_async()).result

    sent = len(server_times(guarded.server, 'executing'))
    for changes, words in (
            ({'node_instance_id': 'other'}, 'another start'),
            ({'node_instance_id': ''}, 'another start'),
            ({'kind': 7}, 'kind 7 is not known'),
            ({'kind': topic}, 'needs a duration and a stop message'),
            ({'kind': topic, 'duration_s': 1.0}, 'needs a duration and a stop message'),
            ({**stream, 'rate_hz': 1000.0}, '1000 Hz for 1 s'),
            ({**stream, 'rate_hz': 0.0}, '0 Hz for 1 s'),
            ({**stream, 'rate_hz': float('nan')}, 'nan Hz'),
            ({**stream, 'duration_s': float('inf')}, 'inf s'),
            ({**stream, 'duration_s': -1.0}, '-1 s'),
            ({**stream, 'type': 'geometry_msgs/msg/Nothing'}, 'does not exist'),
            ({**stream, 'payload': b'\x00'}, 'geometry_msgs/msg/Twist'),
            ({**stream, 'stop_message': b'\x00'}, 'geometry_msgs/msg/Twist'),
            ({**stream, 'target': '/test_client/motion_inhibit'}, 'tools may not reach'),
            ({**stream, 'target': '/tf'}, 'ROS system'),
            ({'type': 'nothing/action/Drive'}, 'package nothing'),
            ({'type': 'gemma_thor_ros/action/Nothing'}, 'does not exist'),
            ({'type': 'gemma_thor_ros/msg/Usage'}, 'gemma_thor_ros/msg/Usage'),
            ({'type': ''}, 'not of the form'),
            ({'payload': b''}, 'gemma_thor_ros/action/Drive'),
            ({'payload': b'\x00\x01'}, 'gemma_thor_ros/action/Drive'),
            ({'target': '/goal_guard/run_child'}, 'belongs to'),
            ({'target': '/test_client/motion_inhibit'}, 'tools may not reach'),
            ({'target': '/arm/change_state'}, 'ROS system'),
            ({'target': '/not a name'}, 'not a name'),
            ({'target': ''}, 'not a resolved')):
        result = send(**changes)
        assert result.status == 'refused', changes
        assert words in result.reason, result.reason
    assert len(server_times(guarded.server, 'executing')) == sent
    result = send()
    assert result.status == 'succeeded'
    assert deserialize_message(bytes(result.payload), Drive.Result).x == 1.0


@pytest.mark.parametrize(('parameter', 'words'), [
    ('stop_topics:=5', 'stop_topics'), ('stop_max_age:=99.0', 'stop_max_age'),
    ('node:="a b"', 'topic name'), ('stop_topic:=[/stop]', 'did you mean stop_topics?'),
    ('state_file:=/proc/x/y.json', '/proc/x/y.json cannot be written')])
def test_a_wrong_parameter_is_named_and_ends_with_code_2(processes: Any, parameter: str,
                                                         words: str) -> None:
    process = processes.module(GUARD, '--ros-args', '-p', 'state_file:=none', '-p', parameter)
    assert process.wait(10.0) == 2, process.output()
    assert words in process.output()
    assert 'cannot start' in process.output() and 'Traceback' not in process.output()


@pytest.mark.parametrize('module', [GUARD, 'gemma_thor_ros.demo.robot'])
def test_ros_arguments_that_can_not_be_read_end_it_with_code_2(processes: Any,
                                                               module: str) -> None:
    process = processes.module(module, '--ros-args', '--params-file', '/nowhere.yaml')
    assert process.wait(10.0) == 2, process.output()
    assert '/nowhere.yaml' in process.output().splitlines()[-1]
    assert 'Traceback' not in process.output()


def test_the_guard_loads_nothing_of_the_engine(tmp_path: Path) -> None:
    code = ('import sys, gemma_thor_ros.ros.goal_guard\n'
            'print([name for name in sys.modules if name.startswith("gemma_thor_ros.")'
            ' and not name.startswith(("gemma_thor_ros.ros", "gemma_thor_ros.msg",'
            ' "gemma_thor_ros.srv", "gemma_thor_ros.action"))'
            ' or name.split(".")[0] in ("fastapi", "tokenizers", "cupy", "jsonschema")])')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                          timeout=30, check=True, cwd=tmp_path)
    assert done.stdout.strip() == '[]', done.stdout
