# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""rclpy's action client without the races between the thread that sends and the one that spins.

An answer that came before its request was entered in the client's books was dropped, and the
future never done. Stands beside client.py on machines without the engine: imports rclpy alone.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from rclpy.action.client import ActionClient

if TYPE_CHECKING:
    _Client = ActionClient[Any, Any, Any]
else:
    _Client = ActionClient  # no generic class in Jazzy


class GoalClient(_Client):
    """An ActionClient that may send from any thread while another one spins its node.

    No answer is taken while something is being sent: what is taken has been entered before.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._sending = threading.RLock()  # first: the node may spin before the end of the next
        super().__init__(*args, **options)

    def send_goal_async(
        self, goal: Any, feedback_callback: Any = None, goal_uuid: Any = None
    ) -> Any:
        """Send a goal; see ActionClient."""
        with self._sending:
            sent = super().send_goal_async(goal, feedback_callback, goal_uuid)
            self._drop_forgotten()
            return sent

    def take_data(self) -> Any:
        """Take what has come; see Waitable."""
        with self._sending:
            return super().take_data()

    def _cancel_goal_async(self, goal_handle: Any) -> Any:
        with self._sending:
            return super()._cancel_goal_async(goal_handle)

    def _get_result_async(self, goal_handle: Any) -> Any:
        with self._sending:
            return super()._get_result_async(goal_handle)

    def _drop_forgotten(self) -> None:
        """Drop futures that wait for nothing: rclpy 9.1 makes two for a goal and keeps both."""
        tables = (
            self._pending_goal_requests,
            self._pending_cancel_requests,
            self._pending_result_requests,
        )
        waiting = {id(future) for table in tables for future in list(table.values())}
        for future in list(self._futures):
            if id(future) not in waiting and not future.done():
                self.remove_future(future)
