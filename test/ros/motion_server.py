# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Action servers of type Drive, one for each way in which a server may behave.

    motion_server.py BEHAVIOUR=SECONDS ...

Each is named base/BEHAVIOUR. Prints a line for each thing that happens:
`<monotonic seconds> <behaviour> <event> <goal id>`.
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
    'later',          # the same
    'never',          # runs until cancelled
    'reject_cancel',  # runs for SECONDS whatever is asked
    'deaf',           # never answers a cancel, runs for SECONDS
    'stubborn',       # accepts a cancel and runs on for SECONDS
    'flood',          # feedback as fast as it can for SECONDS
    'die',            # ends its process after SECONDS
    'leave',          # takes itself off the graph after SECONDS
)


class Server:
    def __init__(self, node: rclpy.node.Node, behaviour: str, seconds: float) -> None:
        assert behaviour in BEHAVIOURS
        self.behaviour = behaviour
        self.seconds = seconds
        self.server = ActionServer(
            node, Drive, f'base/{behaviour}', self.execute, goal_callback=self.on_goal,
            cancel_callback=self.on_cancel, callback_group=ReentrantCallbackGroup())

    def say(self, event: str, goal_id: bytes = b'') -> None:
        # One write for a line: the threads of the executor print at the same time.
        line = f'{time.monotonic():.4f} {self.behaviour} {event} {goal_id.hex()}\n'
        os.write(1, line.encode())

    def on_goal(self, goal: Drive.Goal) -> GoalResponse:
        self.say(f'goal({goal.distance:g})')
        if self.behaviour in ('late', 'later'):
            time.sleep(self.seconds)
        self.say('answered')
        return GoalResponse.REJECT if self.behaviour == 'reject' else GoalResponse.ACCEPT

    def on_cancel(self, handle: object) -> CancelResponse:
        self.say('cancel', bytes(handle.goal_id.uuid))
        if self.behaviour == 'deaf':
            time.sleep(3600.0)
        reject = self.behaviour == 'reject_cancel'
        return CancelResponse.REJECT if reject else CancelResponse.ACCEPT

    def execute(self, handle: object) -> Drive.Result:
        goal_id = bytes(handle.goal_id.uuid)
        self.say('executing', goal_id)
        started = time.monotonic()
        endless = self.behaviour in ('never', 'late', 'later')
        result = Drive.Result(distance_driven=abs(handle.request.distance), x=1.0)
        while endless or time.monotonic() - started < self.seconds:
            if handle.is_cancel_requested and self.behaviour != 'stubborn':
                handle.canceled()
                self.say('canceled', goal_id)
                return result
            if self.behaviour == 'flood':
                handle.publish_feedback(Drive.Feedback(distance_driven=0.5, remaining=0.5))
            else:
                time.sleep(0.005)
        if self.behaviour == 'die':
            self.say('dies')
            os._exit(1)
        if self.behaviour == 'leave':
            self.server.destroy()
            self.say('left')
            time.sleep(3600.0)
        if self.behaviour == 'abort':
            result.error_code, result.error_msg = Drive.Result.BLOCKED, 'path blocked'
            handle.abort()
        elif handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.succeed()
        self.say('ended', goal_id)
        return result


def main() -> None:
    rclpy.init()
    node = rclpy.create_node('motion_server')
    executor = MultiThreadedExecutor(16)
    executor.add_node(node)
    servers = []
    for argument in sys.argv[1:]:
        behaviour, seconds = argument.split('=')
        servers.append(Server(node, behaviour, float(seconds)))
    os.write(1, b'ready\n')
    executor.spin()


if __name__ == '__main__':
    main()
