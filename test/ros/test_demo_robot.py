# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo robot as its own process."""

import math
import signal
import time
from typing import Any

import pytest
from action_msgs.msg import GoalStatus
from geometry_msgs.msg import PoseStamped
from rclpy.action import ActionClient
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from gemma_thor_ros.action import Dock, Drive, Say, Turn

MODULE = 'gemma_thor_ros.demo.robot'


class Robot:
    """A started robot and clients for it."""

    def __init__(self, client: Any, processes: Any, *parameters: str) -> None:
        self.client = client
        arguments = [part for parameter in parameters for part in ('-p', parameter)]
        self.process = processes.module(MODULE, '--ros-args', *arguments)
        self.poses: list[PoseStamped] = []
        self.stops: list[tuple[float, bool]] = []
        node = client.node
        node.create_subscription(PoseStamped, '/demo_robot/pose', self.poses.append, 100)
        node.create_subscription(Bool, '/demo_robot/stop', lambda message: self.stops.append(
            (time.monotonic(), message.data)), 100)
        self.clients = client.do(lambda: {
            action: ActionClient(node, action, f'/demo_robot/{name}') for action, name
            in ((Drive, 'drive'), (Turn, 'turn'), (Dock, 'dock'), (Say, 'say'))})
        self.press = node.create_client(SetBool, '/demo_robot/press_stop')
        for action_client in self.clients.values():
            assert action_client.wait_for_server(20.0), self.process.output()
        assert self.press.wait_for_service(10.0)
        client.wait_until(lambda: self.poses and self.stops)

    def send(self, goal: Any, action: Any, feedback: Any = None) -> Any:
        handle = self.client.wait(self.clients[action].send_goal_async(goal, feedback))
        assert handle.accepted
        return handle

    def result(self, handle: Any, timeout_s: float = 10.0) -> Any:
        return self.client.wait(handle.get_result_async(), timeout_s)

    def run(self, goal: Any, action: Any) -> Any:
        return self.result(self.send(goal, action))


PARAMETERS = ('speed:=2.0', 'turn_speed:=3.0', 'time_factor:=10.0', 'characters_per_s:=20.0',
              'dock_pose:=[0.0, 0.0, 0.0]')


@pytest.fixture(scope='module')
def shared_robot(module_client: Any, module_processes: Any) -> Robot:
    return Robot(module_client, module_processes, *PARAMETERS)


@pytest.fixture
def robot(shared_robot: Robot) -> Robot:
    """The robot of this file, back where it started."""
    assert shared_robot.run(Dock.Goal(), Dock).result.docked
    return shared_robot


def test_it_drives_turns_and_docks_exactly(robot: Robot) -> None:
    feedback: list[Any] = []
    handle = robot.send(Drive.Goal(distance=2.0), Drive,
                        lambda message: feedback.append(message.feedback))
    response = robot.result(handle)
    assert response.status == GoalStatus.STATUS_SUCCEEDED
    result = response.result
    assert (result.distance_driven, result.y, result.yaw) == (2.0, 0.0, 0.0)
    assert result.x == 2.0
    assert result.error_code == Drive.Result.NONE
    # Who has the result has, within a moment, the pose too.
    robot.client.wait_until(lambda: robot.poses[-1].pose.position.x == 2.0, 1.0)
    assert robot.poses[-1].header.frame_id == 'odom'
    assert feedback and feedback[0].distance_driven + feedback[0].remaining == pytest.approx(2.0)

    turned = robot.run(Turn.Goal(angle=math.pi / 2), Turn).result
    assert turned.yaw == math.pi / 2 and turned.angle_turned == math.pi / 2
    back = robot.run(Drive.Goal(distance=-0.5), Drive).result
    assert back.distance_driven == 0.5
    assert (back.x, back.y) == (pytest.approx(2.0), pytest.approx(-0.5))
    docked = robot.run(Dock.Goal(), Dock).result
    assert docked.docked
    assert (docked.x, docked.y) == (pytest.approx(0.0), pytest.approx(0.0))
    spoken = robot.run(Say.Goal(text='Hello there'), Say)
    assert spoken.status == GoalStatus.STATUS_SUCCEEDED
    assert spoken.result.seconds == pytest.approx(11 / 20.0)


def test_a_cancel_stops_it_at_once(robot: Robot) -> None:
    handle = robot.send(Drive.Goal(distance=15.0, speed=0.3), Drive)
    robot.client.wait_until(lambda: robot.poses[-1].pose.position.x > 0.5)
    answer = robot.client.wait(handle.cancel_goal_async())
    assert len(answer.goals_canceling) == 1
    response = robot.result(handle, 1.0)
    assert response.status == GoalStatus.STATUS_CANCELED
    assert 0.5 < response.result.x < 14.0
    assert response.result.x == pytest.approx(response.result.distance_driven, abs=1e-9)
    time.sleep(0.2)
    assert robot.poses[-1].pose.position.x == response.result.x
    assert robot.run(Drive.Goal(distance=0.1), Drive).status == GoalStatus.STATUS_SUCCEEDED


def test_one_motion_at_a_time_and_speech_beside_it(robot: Robot) -> None:
    first = robot.send(Drive.Goal(distance=15.0), Drive)
    second = robot.run(Turn.Goal(angle=1.0), Turn)
    assert second.status == GoalStatus.STATUS_ABORTED
    assert second.result.error_code == Turn.Result.BUSY
    assert second.result.error_msg == 'busy: drive is running'
    assert robot.run(Say.Goal(text='a'), Say).status == GoalStatus.STATUS_SUCCEEDED
    assert robot.result(first).status == GoalStatus.STATUS_SUCCEEDED


@pytest.mark.parametrize(('goal', 'action', 'code'), [
    (Drive.Goal(distance=math.nan), Drive, Drive.Result.INVALID_GOAL),
    (Drive.Goal(distance=math.inf), Drive, Drive.Result.INVALID_GOAL),
    (Drive.Goal(distance=1.0, speed=-1.0), Drive, Drive.Result.INVALID_GOAL),
    (Turn.Goal(angle=math.nan), Turn, Turn.Result.INVALID_GOAL),
    (Say.Goal(text='  '), Say, Say.Result.INVALID_GOAL),
    (Drive.Goal(distance=100.0, speed=500.0), Drive, Drive.Result.BLOCKED),
])
def test_what_cannot_be_had_is_aborted_with_a_reason(
        robot: Robot, goal: Any, action: Any, code: int) -> None:
    response = robot.run(goal, action)
    assert response.status == GoalStatus.STATUS_ABORTED
    assert response.result.error_code == code and response.result.error_msg
    if code == Drive.Result.BLOCKED:
        assert response.result.error_msg == 'path blocked' and response.result.x == 20.0


def test_the_pressed_stop_ends_motion_and_is_heard(robot: Robot) -> None:
    robot.client.wait_until(lambda: len(robot.stops) >= 12)
    times = [at for at, _ in robot.stops]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(0.1, abs=0.05)
    assert not any(value for _, value in robot.stops)

    handle = robot.send(Drive.Goal(distance=15.0, speed=0.3), Drive)
    robot.client.wait_until(lambda: robot.poses[-1].pose.position.x > 0.2)
    robot.client.wait(robot.press.call_async(SetBool.Request(data=True)))
    response = robot.result(handle, 1.0)
    assert response.status == GoalStatus.STATUS_ABORTED
    assert response.result.error_code == Drive.Result.STOPPED
    robot.client.wait_until(lambda: robot.stops[-1][1])
    assert robot.run(Turn.Goal(angle=1.0), Turn).result.error_code == Turn.Result.STOPPED
    robot.client.wait(robot.press.call_async(SetBool.Request(data=False)))
    assert robot.run(Turn.Goal(angle=1.0), Turn).status == GoalStatus.STATUS_SUCCEEDED


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly_also_in_mid_motion(client: Any, processes: Any, number: int) -> None:
    robot = Robot(client, processes, *PARAMETERS)
    robot.send(Drive.Goal(distance=15.0, speed=0.5), Drive)
    assert robot.process.stop(number, 2.0) == 0, robot.process.output()


def test_a_wrong_parameter_is_named(processes: Any) -> None:
    process = processes.module(MODULE, '--ros-args', '-p', 'start_pose:=[0.0, 1.0]')
    assert process.wait(10.0) == 2
    assert 'start_pose has 2 values, not 3' in process.output()
    assert 'Traceback' not in process.output()
