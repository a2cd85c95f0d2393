# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The action ~/chat: goals to requests, chunks and tool steps to feedback, cancels at any moment.

Every goal is accepted, so that a refusal reaches the client as a result with code and sentence.
Goals and cancels are taken in the control thread, each goal runs in a thread of the data pool.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.callback_groups import CallbackGroup
from rclpy.lifecycle import LifecycleNode

import gemma_thor_ros.msg as msg
from gemma_thor_ros.action import Chat
from gemma_thor_ros.ros.agent import Answer
from gemma_thor_ros.ros.answers import chat_result_to_ros, error_to_ros, verdict_to_ros
from gemma_thor_ros.ros.conversions import chat_request_from_ros, message_to_ros
from gemma_thor_ros.ros.executors import SERVICES_QOS
from gemma_thor_ros.ros.request_runner import Acts, Listener, RequestRunner
from gemma_thor_ros.ros.running import Running
from gemma_thor_ros.ros.token_topic import TOKENS_QOS
from gemma_thor_ros.schema import ErrorCode, QueuePosition, RequestError

_log = logging.getLogger(__name__)

# The goal's status follows the cancel callback within moments; this only bounds the wait.
_CANCEL_STATUS_S = 1.0
RESULT_TIMEOUT_S = 60  # a result is kept so long for a client that asks late


class ChatActionServer:
    """Serves ~/chat on a node."""

    def __init__(self, node: LifecycleNode, runner: RequestRunner, group: CallbackGroup) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        self._running: dict[bytes, Running] = {}
        self._cancelled: set[bytes] = set()
        self._server = ActionServer(
            node,
            Chat,
            '~/chat',
            execute_callback=self._execute,
            goal_callback=lambda goal: GoalResponse.ACCEPT,
            cancel_callback=self._cancel,
            callback_group=group,
            goal_service_qos_profile=SERVICES_QOS,
            result_service_qos_profile=SERVICES_QOS,
            cancel_service_qos_profile=SERVICES_QOS,
            feedback_pub_qos_profile=TOKENS_QOS,
            result_timeout=RESULT_TIMEOUT_S,
        )

    def destroy(self) -> None:
        """Take the action off the graph."""
        self._server.destroy()

    def _cancel(self, goal_handle: ServerGoalHandle[Any, Any, Any]) -> CancelResponse:
        """Pass a cancel on at once; a goal that has not begun yet finds it when it does."""
        key = bytes(goal_handle.goal_id.uuid)
        with self._lock:
            self._cancelled.add(key)
            running = self._running.get(key)
        if running is not None:
            running.cancel('the goal was cancelled')
        return CancelResponse.ACCEPT

    def _execute(self, goal_handle: ServerGoalHandle[Any, Any, Any]) -> Chat.Result:
        key = bytes(goal_handle.goal_id.uuid)
        goal: Chat.Goal = goal_handle.request
        listener = Listener(
            on_begin=lambda running: self._begun(key, running),
            on_chunk=lambda chunk: goal_handle.publish_feedback(
                Chat.Feedback(kind=Chat.Feedback.TOKENS, chunk=chunk)
            ),
            on_tool_event=lambda event: goal_handle.publish_feedback(_tool_feedback(event)),
            on_queued=lambda position: goal_handle.publish_feedback(_queue_feedback(position)),
        )
        result = Chat.Result(request_id=goal.request_id, session_id=goal.session_id)
        try:
            request = chat_request_from_ros(goal, self._runner.image_parts)
            acts = None
            if goal.execute_tools and goal.tool_choice != 'none':
                acts = Acts(goal.max_rounds, goal.dry_run)
            answer = self._runner.run(request, acts=acts, listener=listener)
            fill_result(result, answer)
        except RequestError as error:
            error_to_ros(error, result)
        except Exception as error:  # noqa: BLE001 (else the client would get an empty result)
            _log.exception('goal %s failed', goal.request_id)
            fault = f'internal error: {type(error).__name__}: {error}'
            error_to_ros(RequestError(ErrorCode.ENGINE, fault), result)
        finally:
            with self._lock:
                self._running.pop(key, None)
                cancelled = key in self._cancelled
                self._cancelled.discard(key)
        _end(goal_handle, result, cancelled)
        return result

    def _begun(self, key: bytes, running: Running) -> None:
        with self._lock:
            self._running[key] = running
            cancelled = key in self._cancelled
        if cancelled:
            running.cancel('the goal was cancelled')


def fill_result(result: Chat.Result, answer: Answer) -> None:
    """Fill an action result from an answer."""
    chat_result_to_ros(answer.result, result, answer.logprobs)
    result.rounds = answer.rounds
    result.tool_verdicts = [verdict_to_ros(verdict) for verdict in answer.verdicts]
    result.new_messages = [message_to_ros(message) for message in answer.new_messages]


def _tool_feedback(event: msg.ToolEvent) -> Chat.Feedback:
    return Chat.Feedback(kind=Chat.Feedback.TOOL_EVENT, tool_event=event)


def _queue_feedback(position: QueuePosition) -> Chat.Feedback:
    return Chat.Feedback(
        kind=Chat.Feedback.QUEUED,
        queue_position=position.position,
        expected_wait_s=float(position.expected_wait_s),
    )


def _end(
    goal_handle: ServerGoalHandle[Any, Any, Any], result: Chat.Result, cancelled: bool
) -> None:
    """Give the goal its final status: CANCELED only for a goal whose cancel was accepted."""
    if cancelled:
        # The cancel callback has answered ACCEPT, but rclpy sets the status after it returns.
        limit = time.monotonic() + _CANCEL_STATUS_S
        while not goal_handle.is_cancel_requested and time.monotonic() < limit:
            time.sleep(0.001)
    if goal_handle.is_cancel_requested:
        if result.error_code == ErrorCode.NONE:
            goal_handle.succeed()  # the answer was whole before the cancel arrived
        else:
            goal_handle.canceled()
    elif result.error_code == ErrorCode.NONE:
        goal_handle.succeed()
    else:
        goal_handle.abort()
