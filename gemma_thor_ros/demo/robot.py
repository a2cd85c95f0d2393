# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A small simulated robot: drives, turns, docks and speaks through ROS actions.

It stands for a real robot in `make run` and in the tests, runs in its own process, and knows
nothing of language models. One motion at a time; a goal that can't be had is aborted at once with
a reason in the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from geometry_msgs.msg import PoseStamped
from rclpy.action.server import ActionServer, CancelResponse, ServerGoalHandle
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.task import Future
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from gemma_thor_ros.action import Dock, Drive, Say, Turn
from gemma_thor_ros.demo.motion import Arena, Path, dock_path, drive_path, turn_path
from gemma_thor_ros.demo.robot_parameters import RobotParameters, declare_parameters
from gemma_thor_ros.ros.spinning import run_node

STEP_S = 0.02
POSE_PERIOD_S = 0.05
STOP_PERIOD_S = 0.1
FEEDBACK_PERIOD_S = 0.1
MAX_STEP_S = 0.2                 # a process that was held up does not jump ahead

DONE, CANCELED, STOPPED = 'done', 'canceled', 'stopped'


@dataclass
class Activity:
    """A motion or a sentence that is going on. `end` becomes DONE, CANCELED or STOPPED."""

    name: str
    handle: ServerGoalHandle[Any, Any, Any]
    duration: float
    feedback: Callable[[float], Any]     # time -> feedback message
    path: Path | None = None
    elapsed: float = 0.0
    reported: float = 0.0
    end: Future[str] = field(default_factory=Future)


class DemoRobot(Node):
    """The robot's node. All callbacks run in one thread; goals wait as coroutines."""

    def __init__(self, **options: Any) -> None:
        super().__init__('demo_robot', **options)
        self.settings: RobotParameters = declare_parameters(self)
        self.pose = self.settings.start_pose
        self.stopped = False
        self._arena = Arena(*self.settings.arena)
        self._motion: Activity | None = None
        self._speech: Activity | None = None
        self._stepped_at = time.monotonic()
        self._group = ReentrantCallbackGroup()
        self._pose_publisher = self.create_publisher(PoseStamped, '~/pose', QoSProfile(depth=10))
        self._stop_publisher = self.create_publisher(Bool, '~/stop', QoSProfile(depth=1))
        self.create_service(SetBool, '~/press_stop', self._on_press_stop)
        self._action_servers = [
            ActionServer(self, action, f'~/{name}', execute, callback_group=self._group,
                         cancel_callback=self._on_cancel)
            for action, name, execute in (
                (Drive, 'drive', self._drive), (Turn, 'turn', self._turn),
                (Dock, 'dock', self._dock), (Say, 'say', self._say))]
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(STEP_S, self._step, clock=steady)
        self.create_timer(POSE_PERIOD_S, self._publish_pose, clock=steady)
        self.create_timer(STOP_PERIOD_S, self._publish_stop, clock=steady)

    # Actions

    async def _drive(self, handle: ServerGoalHandle[Any, Any, Any]) -> Drive.Result:
        goal: Drive.Goal = handle.request
        result = Drive.Result()
        speed = goal.speed or self.settings.speed
        fault = self._motion_fault(result, 'drive', goal.distance, speed)
        if fault:
            return self._refuse(handle, result, *fault)
        path = drive_path(self.pose, goal.distance, speed, self._arena)

        def feedback(elapsed: float) -> Drive.Feedback:
            done = path.done(elapsed)
            return Drive.Feedback(distance_driven=done, remaining=path.done(math.inf) - done)

        motion = Activity('drive', handle, path.duration, feedback, path)
        await self._move(motion, result)
        result.distance_driven = path.done(motion.elapsed)
        return result

    async def _turn(self, handle: ServerGoalHandle[Any, Any, Any]) -> Turn.Result:
        goal: Turn.Goal = handle.request
        result = Turn.Result()
        speed = goal.speed or self.settings.turn_speed
        fault = self._motion_fault(result, 'turn', goal.angle, speed)
        if fault:
            return self._refuse(handle, result, *fault)
        path = turn_path(self.pose, goal.angle, speed)

        def feedback(elapsed: float) -> Turn.Feedback:
            done = path.done(elapsed)
            return Turn.Feedback(angle_turned=done, remaining=path.done(math.inf) - done)

        motion = Activity('turn', handle, path.duration, feedback, path)
        await self._move(motion, result)
        result.angle_turned = path.done(motion.elapsed)
        return result

    async def _dock(self, handle: ServerGoalHandle[Any, Any, Any]) -> Dock.Result:
        result = Dock.Result()
        dock = self.settings.dock_pose
        fault = self._motion_fault(result, 'dock', 0.0, self.settings.speed)
        if fault:
            return self._refuse(handle, result, *fault)
        path = dock_path(self.pose, dock, self.settings.speed, self.settings.turn_speed)
        motion = Activity('dock', handle, path.duration, lambda elapsed: Dock.Feedback(
            distance_to_dock=path.pose(elapsed).distance_to(dock)), path)
        await self._move(motion, result)
        result.docked = motion.end.result() == DONE
        return result

    async def _say(self, handle: ServerGoalHandle[Any, Any, Any]) -> Say.Result:
        text = handle.request.text
        result = Say.Result()
        if not text.strip():
            return self._refuse(handle, result, Say.Result.INVALID_GOAL, 'there is no text')
        if self._speech is not None:
            return self._refuse(handle, result, Say.Result.BUSY, 'already speaking')
        rate = self.settings.characters_per_s
        speech = self._speech = Activity('say', handle, len(text) / rate, lambda elapsed: (
            Say.Feedback(characters_spoken=min(int(elapsed * rate), len(text)))))
        self.get_logger().info(f'says: {text}')
        if await speech.end == CANCELED:
            result.error_msg = 'canceled'
            handle.canceled()
        else:
            handle.succeed()
        result.seconds = speech.elapsed
        return result

    def _motion_fault(self, result: Any, name: str, amount: float,
                      speed: float) -> tuple[int, str] | None:
        """Return (error_code, reason) when a motion can't begin."""
        if not math.isfinite(amount) or not math.isfinite(speed) or speed <= 0.0:
            return result.INVALID_GOAL, f'{name} needs finite numbers and a speed above 0'
        if self.stopped:
            return result.STOPPED, 'the stop is pressed'
        if self._motion is not None:
            return result.BUSY, f'busy: {self._motion.name} is running'
        return None

    def _refuse(self, handle: ServerGoalHandle[Any, Any, Any], result: Any, code: int,
                reason: str) -> Any:
        result.error_code, result.error_msg = code, reason
        if not isinstance(result, Say.Result):
            self._fill_pose(result)
        if handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.abort()
        return result

    async def _move(self, motion: Activity, result: Any) -> None:
        """Run a motion to its end, set the goal's state and fill in where the robot is."""
        assert motion.path is not None, 'a motion has a path'
        self._motion = motion
        end = await motion.end
        if end == CANCELED:
            result.error_msg = 'canceled'
            motion.handle.canceled()
        elif end == STOPPED:
            self._refuse(motion.handle, result, result.STOPPED, 'the stop was pressed')
        elif motion.path.blocked:
            self._refuse(motion.handle, result, result.BLOCKED, 'path blocked')
        else:
            motion.handle.succeed()
        self._fill_pose(result)

    def _fill_pose(self, result: Any) -> None:
        result.x, result.y, result.yaw = self.pose.x, self.pose.y, self.pose.yaw

    def _on_cancel(self, handle: ServerGoalHandle[Any, Any, Any]) -> CancelResponse:
        for activity in (self._motion, self._speech):
            if activity is not None and activity.handle == handle:
                self._finish(activity, CANCELED)
        return CancelResponse.ACCEPT

    # Time

    def _step(self) -> None:
        now = time.monotonic()
        step = min(now - self._stepped_at, MAX_STEP_S) * self.settings.time_factor
        self._stepped_at = now
        for activity in (self._motion, self._speech):
            if activity is None:
                continue
            activity.elapsed = min(activity.elapsed + step, activity.duration)
            if activity.path is not None:
                self.pose = activity.path.pose(activity.elapsed)
            if now - activity.reported >= FEEDBACK_PERIOD_S and activity.handle.is_active:
                activity.reported = now
                activity.handle.publish_feedback(activity.feedback(activity.elapsed))
            if activity.elapsed >= activity.duration:
                self._finish(activity, DONE)

    def _finish(self, activity: Activity, end: str) -> None:
        if activity is self._motion:
            self._motion = None
        if activity is self._speech:
            self._speech = None
        self._publish_pose()  # before the result, so that who has the result knows the pose
        activity.end.set_result(end)

    def _publish_pose(self) -> None:
        message = PoseStamped()
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = 'odom'
        message.pose.position.x, message.pose.position.y = self.pose.x, self.pose.y
        message.pose.orientation.z = math.sin(self.pose.yaw / 2)
        message.pose.orientation.w = math.cos(self.pose.yaw / 2)
        self._pose_publisher.publish(message)

    def _publish_stop(self) -> None:
        self._stop_publisher.publish(Bool(data=self.stopped))

    def _on_press_stop(self, request: SetBool.Request,
                       response: SetBool.Response) -> SetBool.Response:
        self.stopped = request.data
        self._publish_stop()
        if self.stopped and self._motion is not None:
            self._finish(self._motion, STOPPED)
        response.success = True
        response.message = 'stop pressed' if self.stopped else 'stop let go'
        self.get_logger().info(response.message)
        return response


def main(args: Sequence[str] | None = None) -> int:
    """Run the robot until SIGINT or SIGTERM; exit code 0."""
    return run_node(DemoRobot, args)


if __name__ == '__main__':
    raise SystemExit(main())
