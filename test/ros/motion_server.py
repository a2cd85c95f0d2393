# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""An action server of type Drive whose behaviour the command line decides.

    motion_server.py NAME BEHAVIOUR [SECONDS]

Prints one line for each thing that happens: `<monotonic seconds> <event> <goal id>`.
"""

from __future__ import annotations

import os
import sys
import time

import rclpy
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor

from gemma_thor_ros.action import Drive

BEHAVIOURS = (
    'succeed',        # after SECONDS
    'abort',          # after SECONDS, with a reason
    'reject',         # the goal
    'late',           # acknowledges after SECONDS, then runs until cancelled
    'silent',         # never acknowledges the goal
    'never',          # runs until cancelled
    'reject_cancel',  # runs for SECONDS whatever is asked
    'deaf',           # never answers a cancel, runs for SECONDS
    'stubborn',       # accepts a cancel and runs on for SECONDS
    'flood',          # feedback as fast as it can for SECONDS
    'die',            # ends its process after SECONDS
)


def say(event: str, goal_id: bytes = b'') -> None:
    print(f'{time.monotonic():.4f} {event} {goal_id.hex()}', flush=True)


class Server:
    def __init__(self, node: rclpy.node.Node, name: str, behaviour: str, seconds: float) -> None:
        assert behaviour in BEHAVIOURS
        self.behaviour = behaviour
        self.seconds = seconds
        self.server = ActionServer(
            node, Drive, name, self.execute, goal_callback=self.on_goal,
            cancel_callback=self.on_cancel, callback_group=ReentrantCallbackGroup())

    def on_goal(self, goal: Drive.Goal) -> GoalResponse:
        say(f'goal({goal.distance:g})')
        if self.behaviour == 'late':
            time.sleep(self.seconds)
        elif self.behaviour == 'silent':
            time.sleep(3600.0)
        say('answered')
        return GoalResponse.REJECT if self.behaviour == 'reject' else GoalResponse.ACCEPT

    def on_cancel(self, handle: object) -> CancelResponse:
        say('cancel', bytes(handle.goal_id.uuid))
        if self.behaviour == 'deaf':
            time.sleep(3600.0)
        reject = self.behaviour == 'reject_cancel'
        return CancelResponse.REJECT if reject else CancelResponse.ACCEPT

    def execute(self, handle: object) -> Drive.Result:
        goal_id = bytes(handle.goal_id.uuid)
        say('executing', goal_id)
        started = time.monotonic()
        ends = self.behaviour not in ('never', 'late')
        result = Drive.Result(distance_driven=abs(handle.request.distance), x=1.0)
        while not ends or time.monotonic() - started < self.seconds:
            if handle.is_cancel_requested and self.behaviour != 'stubborn':
                handle.canceled()
                say('canceled', goal_id)
                return result
            if self.behaviour == 'flood':
                handle.publish_feedback(Drive.Feedback(distance_driven=0.5, remaining=0.5))
            else:
                time.sleep(0.005)
        if self.behaviour == 'die':
            say('dies')
            os._exit(1)
        if self.behaviour == 'abort':
            result.error_code, result.error_msg = Drive.Result.BLOCKED, 'path blocked'
            handle.abort()
        elif handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.succeed()
        say('ended', goal_id)
        return result


def main() -> None:
    name, behaviour, seconds = (*sys.argv[1:], '0.2')[:3]
    rclpy.init()
    node = rclpy.create_node('motion_server')
    executor = MultiThreadedExecutor(8)
    executor.add_node(node)
    Server(node, name, behaviour, float(seconds))
    say('ready')
    executor.spin()


if __name__ == '__main__':
    main()
