# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""An answer that comes while its goal is still being sent is not lost."""

from __future__ import annotations

import time
from typing import Any

from rclpy.action import ActionServer
from rclpy.action.client import ActionClient
from rclpy.callback_groups import ReentrantCallbackGroup

from gemma_thor_ros.action import Drive
from gemma_thor_ros.goal_client import GoalClient


class SlowBooks(dict[int, Any]):
    """The client's table of pending goals, on a machine that is busy in the wrong moment."""

    def __setitem__(self, number: int, future: Any) -> None:
        if number in self:               # rclpy 9.1 enters a goal twice
            time.sleep(0.3)
        super().__setitem__(number, future)


def send(client: Any, made_by: Any) -> tuple[Any, Any]:
    """Send a goal from this thread, while another spins; return the client and the future."""
    def execute(handle: Any) -> Drive.Result:
        handle.succeed()
        return Drive.Result()

    client.do(lambda: ActionServer(client.node, Drive, 'drive', execute,
                                   callback_group=ReentrantCallbackGroup()))
    sender = client.do(lambda: made_by(client.node, Drive, 'drive'))
    assert sender.wait_for_server(10.0)
    sender._pending_goal_requests = SlowBooks()
    return sender, sender.send_goal_async(Drive.Goal(distance=1.0))


def test_the_answer_is_taken_after_the_goal_is_in_the_books(client: Any) -> None:
    sender, future = send(client, GoalClient)
    goal = client.wait(future, 5.0)
    assert goal.accepted
    client.wait(goal.get_result_async(), 5.0)
    client.wait_until(lambda: not sender._futures, 2.0, 'the end of all futures')


def test_the_client_of_rclpy_loses_it(client: Any) -> None:
    """What the test above catches; when this fails, rclpy has been mended."""
    sender, future = send(client, ActionClient)
    time.sleep(1.0)
    assert not future.done() and sender._futures
