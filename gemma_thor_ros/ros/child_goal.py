# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One child goal of goal_guard, owned from the first word to the server until its confirmed end.

Drives rclpy's ActionClient by callbacks and a tick, never waits. Everything runs in the guard's
one thread. Knows nothing of stops, heartbeats or the node: the guard calls `cancel`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from action_msgs.msg import GoalStatus
from action_msgs.srv import CancelGoal
from rclpy.action.client import ActionClient
from rclpy.serialization import serialize_message
from rclpy.task import Future
from unique_identifier_msgs.msg import UUID

FEEDBACK_PERIOD_S = 0.1          # a server that floods feedback is heard at 10 Hz
MAX_CANCEL_PERIOD_S = 5.0
# A server that has not answered by then holds no place any more (DDS forgets a killed one after
# 20 s); should the acknowledgement still come, it is cancelled all the same.
MAX_SILENCE_S = 30.0
SERVER_CHECK_S = 0.2
# A server that has been off the graph and silent for so long is gone. DDS misses one that leaves
# in good order at once, one that was killed after 20 s.
SERVER_GONE_S = 1.0

_ENDS = {GoalStatus.STATUS_SUCCEEDED: 'succeeded', GoalStatus.STATUS_ABORTED: 'aborted',
         GoalStatus.STATUS_CANCELED: 'canceled'}


@dataclass(frozen=True)
class Limits:
    """Times in seconds."""

    cancel_ack: float = 0.5          # from a cancel to its acknowledgement
    cancel_end: float = 2.0          # from the acknowledgement to the goal's end


@dataclass(frozen=True)
class Order:
    """What to send where. `goal_id` is 16 bytes; times in seconds."""

    goal_id: bytes
    request_id: str
    call_id: str
    tool_name: str
    target: str
    motion: bool
    goal: Any
    server_timeout: float
    timeout: float                   # 0 = none


@dataclass(frozen=True)
class ChildEnd:
    """What the node is told: the fields of RunChild's result."""

    status: str
    reason: str = ''
    payload: bytes = b''


class ChildGoal:
    """A goal on another node's action server.

    `report` is called once, with what the node is to be told. `ended` turns true when nothing of
    the goal is left to own; both may happen in either order. `escalated` is a text while a cancel
    was rejected, not acknowledged or not followed by the end in time.

    Args:
        order: what to send.
        client: of the order's target.
        now: seconds on the steady clock at the start.
        check: asked at the moment of sending; its text refuses.
        report: takes the end.
        feedback: takes (status, serialized feedback).
        log: takes a line for the guard's log.
        servers: gives the ids of the target's servers on the graph.
    """

    def __init__(self, order: Order, client: ActionClient[Any, Any, Any], limits: Limits,
                 now: float, *, check: Callable[[], str], report: Callable[[ChildEnd], None],
                 feedback: Callable[[str, bytes], None], log: Callable[[str], object],
                 clock: Callable[[], float], servers: Callable[[], frozenset[bytes]]) -> None:
        self.order = order
        self.started = now
        self.status = 'sending'
        self.ended = False
        self.reported = False
        self.escalated = ''
        self._client = client
        self._limits = limits
        self._check = check
        self._report = report
        self._feedback = feedback
        self._log = log
        self._clock = clock
        self._servers = servers
        self._server_gids: frozenset[bytes] = frozenset()
        self._sent_at: float | None = None
        self._handle: Any = None
        self._accepted_at = 0.0
        self._cancel_status = ''         # why it is cancelled: what the node will be told
        self._cancel_reason = ''
        self._cancel_at: float | None = None
        self._cancel_period = limits.cancel_ack
        self._acknowledged_at: float | None = None
        self._terminated = False         # the server says that the goal has ended
        self._last_feedback = -1e9
        self._server_seen_at = 0.0
        self._server_check_at = 0.0

    def tick(self, now: float) -> None:
        """Do what time asks for."""
        if self.ended:
            return
        if self._sent_at is None:
            self._try_to_send(now)
        elif self._handle is None:
            if now - self._sent_at > self.order.server_timeout:
                self._tell('unavailable', 'the server did not acknowledge the goal within '
                                          f'{self.order.server_timeout:g} s')
                self._want_cancel('unavailable', 'not acknowledged in time')
                if not self._client.server_is_ready() or self._server_is_another():
                    self._finish('unknown', 'the server went away without an answer')
                elif now - self._sent_at > MAX_SILENCE_S:
                    self._log(f'{self.order.target} has not acknowledged a goal for '
                              f'{MAX_SILENCE_S:g} s; it is cancelled if that still comes')
                    self._finish('unknown', 'never acknowledged')
        elif not self._cancel_status:
            if self.order.timeout and now - self._accepted_at > self.order.timeout:
                self._feedback('timeout', b'')
                self.cancel('timeout_canceled',
                            f'not finished within {self.order.timeout:g} s')
            elif now >= self._server_check_at:
                self._check_server(now)
        else:
            self._watch_cancel(now)

    def cancel(self, status: str, reason: str) -> None:
        """End the goal; `status` and `reason` are what the node is told. The first call counts."""
        if self.ended or self._cancel_status:
            return
        self._want_cancel(status, reason)
        if self._sent_at is None:
            self._finish('refused' if status == 'stopped' else status, reason)
        elif self._handle is not None:
            self._send_cancel(self._clock())
        # Else the goal is between sending and acknowledgement: the cancel follows the latter.

    def abandon(self) -> None:
        """Stop owning a goal whose end can't be had: an operator has taken over."""
        if not self.ended:
            self._finish('unknown', 'given up by an operator')

    def _want_cancel(self, status: str, reason: str) -> None:
        if not self._cancel_status:
            self._cancel_status, self._cancel_reason = status, reason

    def _try_to_send(self, now: float) -> None:
        if not self._client.server_is_ready():
            if now - self.started > self.order.server_timeout:
                self._finish('unavailable', f'there is no server of {self.order.target}')
            return
        refusal = self._check()
        if refusal:
            self._finish('refused', refusal)
            return
        self._sent_at = now
        self._server_gids = self._servers()
        future = self._client.send_goal_async(
            self.order.goal, feedback_callback=self._on_feedback,
            goal_uuid=UUID(uuid=list(self.order.goal_id)))
        self._feedback('sending', b'')
        future.add_done_callback(self._on_acknowledged)

    def _on_acknowledged(self, future: Future[Any]) -> None:
        handle = future.result()
        if handle is None:
            return
        if self.ended:                   # long given up: still ours to cancel
            if handle.accepted:
                handle.cancel_goal_async()
            return
        if not handle.accepted:
            self._finish('rejected', 'the server rejected the goal')
            return
        self._handle = handle
        self._accepted_at = self._server_seen_at = self._clock()
        self.status = 'executing'
        handle.get_result_async().add_done_callback(self._on_result)
        if self._cancel_status:
            self._log(f'{self.order.target} acknowledged a goal that had been given up '
                      f'({self._cancel_reason}); it is cancelled')
            self._feedback('late_acknowledgement', b'')
            self._send_cancel(self._accepted_at)
        else:
            self._feedback('accepted', b'')

    def _check_server(self, now: float) -> None:
        """Give up a running goal whose server has left the graph."""
        self._server_check_at = now + SERVER_CHECK_S
        another = self._server_is_another()
        if self._client.server_is_ready() and not another:
            self._server_seen_at = now
        if now - max(self._server_seen_at, self._last_feedback) < SERVER_GONE_S:
            return
        self._want_cancel('unknown', 'the server left the graph in the middle of the goal')
        if another and self._client.server_is_ready():
            self._finish(self._cancel_status, self._cancel_reason)
            return
        self._escalate('it can not be asked to cancel')
        self._send_cancel(now)           # again and again, until a server answers

    def _server_is_another(self) -> bool:
        """Whether the server that got the goal has left the graph; another may have its name."""
        return bool(self._server_gids) and not self._server_gids & self._servers()

    def _on_feedback(self, message: Any) -> None:
        now = self._clock()
        if self.ended or now - self._last_feedback < FEEDBACK_PERIOD_S:
            return
        self._last_feedback = now
        self._feedback(self.status, serialize_message(message.feedback))

    def _on_result(self, future: Future[Any]) -> None:
        if self.ended:
            return
        response = future.result()
        if response is None:
            self._finish('unknown', 'the result was lost')
            return
        status = _ENDS.get(response.status, 'unknown')
        reason = ''
        if self._cancel_status and status != 'succeeded':
            status, reason = self._cancel_status, self._cancel_reason
        self._finish(status, reason, serialize_message(response.result))

    def _send_cancel(self, now: float) -> None:
        self._cancel_at = now
        self.status = 'canceling'
        self._feedback('canceling', b'')
        self._handle.cancel_goal_async().add_done_callback(self._on_cancel_answer)

    def _on_cancel_answer(self, future: Future[Any]) -> None:
        answer = future.result()
        if self.ended or answer is None:
            return
        if any(bytes(info.goal_id.uuid) == self.order.goal_id for info in answer.goals_canceling):
            self._acknowledged_at = self._clock()
            self._feedback('cancel_acknowledged', b'')
        elif answer.return_code == CancelGoal.Response.ERROR_UNKNOWN_GOAL_ID:
            self._finish('unknown', 'the server no longer knows the goal')
        elif answer.return_code == CancelGoal.Response.ERROR_GOAL_TERMINATED:
            self._acknowledged_at, self._terminated = self._clock(), True
        else:
            self._feedback('cancel_rejected', b'')
            self._escalate('the server rejected the cancel')

    def _watch_cancel(self, now: float) -> None:
        assert self._cancel_at is not None, 'an accepted goal with a cancel status was cancelled'
        if self._acknowledged_at is not None:
            if now - self._acknowledged_at <= self._limits.cancel_end:
                return
            if self._terminated:
                self._finish(self._cancel_status, f'{self._cancel_reason}; the result was lost')
            else:
                self._escalate(f'not ended within {self._limits.cancel_end:g} s after the cancel')
            return
        if now - self._cancel_at > self._cancel_period:
            self._escalate('the cancel was not acknowledged within '
                           f'{self._limits.cancel_ack:g} s')
            self._cancel_period = min(2 * self._cancel_period, MAX_CANCEL_PERIOD_S)
            self._send_cancel(now)

    def _escalate(self, what: str) -> None:
        """Say loudly that the goal may still run; the node is told, the goal stays owned."""
        if not self.escalated:
            self._log(f'{self.order.tool_name} goal on {self.order.target}: {what}')
        self.escalated = what
        self._tell(self._cancel_status,
                   f'{self._cancel_reason}; {what}, so the goal may still run')

    def _finish(self, status: str, reason: str, payload: bytes = b'') -> None:
        self.ended = True
        self.escalated = ''
        self.status = status
        self._tell(status, reason, payload)

    def _tell(self, status: str, reason: str, payload: bytes = b'') -> None:
        if not self.reported:
            self.reported = True
            self._report(ChildEnd(status, reason, payload))
