# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo policy on the demo robot, with its stop heartbeat: what the demo model will be told."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from geometry_msgs.msg import PoseStamped
from std_srvs.srv import SetBool

from gemma_thor_ros.resources import folder
from gemma_thor_ros.ros.bridge import ToolBridge
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.heartbeat import Heartbeat
from gemma_thor_ros.ros.policy import load_policy
from gemma_thor_ros.ros.verdict import Outcome, Verdict
from gemma_thor_ros.schema import FinishReason, ToolCall


class Demo:
    def __init__(self, client: Any, processes: Any, time_factor: float) -> None:
        self.client = client
        config = str(folder('config') / 'llm.yaml')
        self.guard = processes.module(
            'gemma_thor_ros.ros.goal_guard', '--ros-args', '--params-file', config,
            '-p', 'node:=test_client', '-p', 'state_file:=none')
        self.robot = processes.module(
            'gemma_thor_ros.demo.robot', '--ros-args', '-p', f'time_factor:={time_factor}',
            '-p', 'arena:=[-4.0, -4.0, 4.0, 4.0]')
        self.poses: list[Any] = []
        client.node.create_subscription(
            PoseStamped, '/demo_robot/pose', lambda message: self.poses.append(message.pose), 10)
        self.press = client.node.create_client(SetBool, '/demo_robot/press_stop')
        self.heartbeat = Heartbeat(client.node, lambda: True)
        policy = load_policy(folder('config') / 'tools' / 'demo.yaml')
        self.bridge = ToolBridge(client.node, policy,
                                 instance_id=self.heartbeat.instance_id)
        self.heartbeat.start()
        client.wait_until(lambda: not self.bridge.guard.fault(), 20.0, 'the guard')
        client.wait_until(lambda: not self.bridge.guard.motion_fault(), 20.0, 'the stop heartbeat')
        client.wait_until(lambda: self.run('say', text='.').succeeded, 20.0, 'the robot')
        client.wait_until(lambda: self.poses, 10.0, 'the pose')
        assert self.press.wait_for_service(10.0)

    def run(self, tool: str, **arguments: Any) -> Verdict:
        return self.bridge.run(ToolCall('c', tool, arguments), request_id='r',
                               turn=TurnContext(FinishReason.TOOL_CALLS))


@pytest.fixture
def demo(client: Any, processes: Any, request: pytest.FixtureRequest) -> Iterator[Demo]:
    made = Demo(client, processes, request.param)
    yield made
    made.heartbeat.stop()
    client.do(made.bridge.close)


@pytest.mark.parametrize('demo', [10.0], indirect=True)
def test_the_demo_tools_do_and_tell_what_they_should(demo: Demo) -> None:
    def told(tool: str, **arguments: Any) -> str:
        return demo.run(tool, **arguments).result_json

    assert told('drive', distance=2, unit='m', direction='forward') == (
        '{"status":"succeeded","distance_m":2.0,"x":2.0,"y":0.0}')
    demo.client.wait_until(lambda: demo.poses[-1].position.x == 2.0, 1.0)
    assert told('drive', distance=50, unit='cm', direction='backward') == (
        '{"status":"succeeded","distance_m":0.5,"x":1.5,"y":0.0}')
    assert told('turn', angle=90, unit='deg', direction='left') == (
        '{"status":"succeeded","angle_deg":90.0}')
    assert told('drive', distance=1, unit='ft', direction='forward') == (
        '{"status":"succeeded","distance_m":0.305,"x":1.5,"y":0.305}')
    assert told('drive', distance=50, unit='m', direction='forward') == (
        '{"status":"refused","reason":"distance 50 m is above the limit of 20 m"}')
    assert told('drive', distance=4.5, unit='m', direction='forward') == (
        '{"status":"aborted","reason":"path blocked"}')
    assert told('dock') == '{"status":"succeeded"}'
    demo.client.wait_until(lambda: abs(demo.poses[-1].position.x + 1.0) < 1e-6, 1.0)
    assert told('say', text='Hello, "world".') == '{"status":"succeeded"}'
    assert 'says: Hello, "world".' in demo.robot.output()


@pytest.mark.parametrize('demo', [1.0], indirect=True)
def test_the_robots_stop_ends_a_motion_and_latches(demo: Demo) -> None:
    verdicts: list[Verdict] = []
    slow = threading.Thread(target=lambda: verdicts.append(
        demo.run('turn', angle=360, unit='deg', direction='right')))
    slow.start()
    demo.client.wait_until(lambda: abs(demo.poses[-1].orientation.z) > 0.01, 5.0)
    demo.client.wait(demo.press.call_async(SetBool.Request(data=True)))
    slow.join(5.0)
    # The robot itself may be quicker than the guard.
    assert verdicts[0].status in ('stopped', 'aborted') and 'stop' in verdicts[0].reason
    demo.client.wait_until(demo.bridge.guard.motion_fault, 1.0)
    assert demo.run('dock').outcome is Outcome.REFUSED_STOPPED
    demo.client.wait(demo.press.call_async(SetBool.Request(data=False)))
    demo.client.wait_until(lambda: demo.bridge.guard.motion_fault().startswith('latched'), 2.0)
    told = json.loads(demo.run('dock').result_json)
    assert told['status'] == 'refused' and 'release it' in told['reason']
