# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Asks operators whether a call may act: ~/confirmations out, ~/confirm in.

No answer in time is a no. A question is withdrawn when its request is cancelled or the robot is
stopped; an answer that comes later counts for nothing. Knows no policy.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from builtin_interfaces.msg import Duration
from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile

import gemma_thor_ros.msg as msg
import gemma_thor_ros.srv as srv
from gemma_thor_ros.ros.conversions import ros_text
from gemma_thor_ros.schema import ErrorCode

POLL_S = 0.02                    # how late a cancel or a stop is noticed
MAX_WAITING = 32                 # questions at a time; no person answers more
# Transient local: an operator's screen that starts late sees what waits, and what was withdrawn.
CONFIRMATIONS_QOS = QoSProfile(depth=2 * MAX_WAITING, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Answer(Enum):
    """How a question ended."""

    APPROVED = 'approved'
    DENIED = 'denied'
    TIMEOUT = 'timeout'
    WITHDRAWN = 'withdrawn'


@dataclass(frozen=True)
class Question:
    """Who wants what, why a person is asked, and `summary`, one sentence for that person."""

    request_id: str
    session_id: str
    front_end: str
    tool_name: str
    arguments_json: str
    target: str
    reason: str
    summary: str


@dataclass(frozen=True)
class Reply:
    """The end of a question, and who ended it with which words."""

    answer: Answer
    operator: str = ''
    reason: str = ''


@dataclass
class _Waiting:
    reply: Reply | None = None
    answered: threading.Event = field(default_factory=threading.Event)


class Confirmations:
    """The questions of one node. Thread-safe; `ask` blocks the calling thread.

    Args:
        node: offers ~/confirmations and ~/confirm.
        group: of the service, whose callback never waits.
    """

    def __init__(self, node: Node, group: CallbackGroup | None = None) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._publisher = node.create_publisher(
            msg.ConfirmationRequest, '~/confirmations', CONFIRMATIONS_QOS)
        self._service = node.create_service(
            srv.Confirm, '~/confirm', self._on_answer, callback_group=group)

    def ask(self, question: Question, limit_s: float, withdrawn: Callable[[], bool]) -> Reply:
        """Publish a question and wait for its end, at most `limit_s` seconds.

        `withdrawn` is asked again and again; when it says True no answer is wanted any more.
        """
        confirmation_id = uuid.uuid4().hex
        waiting = _Waiting()
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                return Reply(Answer.DENIED, reason=f'{MAX_WAITING} confirmations wait already')
            self._waiting[confirmation_id] = waiting
        message = _message(question, confirmation_id, limit_s)
        end = Reply(Answer.WITHDRAWN)        # also when the wait is left by an exception
        try:
            self._publish(message)
            end = self._wait(waiting, limit_s, withdrawn)
        finally:
            with self._lock:
                del self._waiting[confirmation_id]
            # An answer that was taken in the last moment counts, since its giver was told so.
            end = waiting.reply or end
            message.withdrawn = True
            self._publish(message)
        who = f' by {end.operator}' if end.operator else ''
        why = f': {end.reason}' if end.reason else ''
        self._node.get_logger().info(
            f'confirmation {confirmation_id} of {question.summary!r} {end.answer.value}{who}{why}')
        return end

    def close(self) -> None:
        """Destroy what was made on the node."""
        self._node.destroy_service(self._service)
        self._node.destroy_publisher(self._publisher)

    def _wait(self, waiting: _Waiting, limit_s: float, withdrawn: Callable[[], bool]) -> Reply:
        limit = time.monotonic() + limit_s
        while not waiting.answered.wait(POLL_S):
            if withdrawn():
                return Reply(Answer.WITHDRAWN)
            if time.monotonic() > limit:
                return Reply(Answer.TIMEOUT)
        assert waiting.reply is not None, 'an answered question has a reply'
        return waiting.reply

    def _publish(self, message: msg.ConfirmationRequest) -> None:
        message.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)

    def _on_answer(self, request: srv.Confirm.Request,
                   response: srv.Confirm.Response) -> srv.Confirm.Response:
        if not request.operator_name.strip():
            response.error_code = int(ErrorCode.INVALID_REQUEST)
            response.error_msg = 'operator_name is required: who answers is logged'
            return response
        with self._lock:
            waiting = self._waiting.get(request.confirmation_id)
            response.taken = waiting is not None and waiting.reply is None
            if waiting is not None and response.taken:
                answer = Answer.APPROVED if request.approve else Answer.DENIED
                waiting.reply = Reply(answer, request.operator_name, request.reason)
                waiting.answered.set()
        if not response.taken:
            response.error_code = int(ErrorCode.UNKNOWN_REQUEST)
            response.error_msg = (f'no confirmation {request.confirmation_id[:64]!r} waits for an '
                                  'answer: it was answered, withdrawn or too late')
        return response


class Approvals:
    """Which tools an operator has approved for which sessions.

    An approval lapses when its session has not been used for `ttl_s` seconds (0 = never), as the
    session itself does, and with every stop.
    """

    def __init__(self, ttl_s: float = 0.0,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._used: dict[tuple[str, str], float] = {}

    def add(self, session_id: str, tool_name: str) -> None:
        """Remember an approval; without a session there is nothing to remember it for."""
        if session_id:
            with self._lock:
                self._used[session_id, tool_name] = self._clock()

    def holds(self, session_id: str, tool_name: str) -> bool:
        """Whether the tool is approved for the session, which is used now."""
        now = self._clock()
        with self._lock:
            if self._ttl_s:
                self._used = {key: used for key, used in self._used.items()
                              if now - used <= self._ttl_s}
            if (session_id, tool_name) not in self._used:
                return False
            for key in self._used:
                if key[0] == session_id:
                    self._used[key] = now
            return True

    def forget(self, session_id: str = '*') -> None:
        """Drop the approvals of a session ('*' = of all)."""
        with self._lock:
            self._used = {key: used for key, used in self._used.items()
                          if session_id not in ('*', key[0])}


def _message(question: Question, confirmation_id: str,
             limit_s: float) -> msg.ConfirmationRequest:
    return msg.ConfirmationRequest(
        confirmation_id=confirmation_id,
        limit=Duration(sec=int(limit_s), nanosec=int(limit_s % 1 * 1e9)),
        **{name: ros_text(value) for name, value in vars(question).items()})
