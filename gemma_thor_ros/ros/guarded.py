# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Calls that go through goal_guard: handed over, followed to their end, given up when it is gone.

Blocks the calling thread; every wait is bounded. The guard owns the goals. Knows no policy but the
tool's own times.
"""

from __future__ import annotations

import queue
import time
from typing import Any

from builtin_interfaces.msg import Duration
from rclpy.serialization import deserialize_message, serialize_message

from gemma_thor_ros.action import RunChild
from gemma_thor_ros.ros.binding import BoundTool
from gemma_thor_ros.ros.guard_link import ChildLink, GuardLink
from gemma_thor_ros.ros.interfaces import message_text
from gemma_thor_ros.ros.tool_run import ToolRun, told
from gemma_thor_ros.ros.verdict import Outcome, Step, Verdict

HELD_UP_S = 0.5                  # a wait that took so long says that this process was stopped
PATIENCE_S = 1.0                 # to hear the guard again after that
POLL_S = 0.02                    # how late a cancel of the request may be noticed
GUARD_ANSWER_S = 2.0             # for the guard to take a goal, and to report beyond its limits
GUARD_CANCEL_S = 3.0             # the guard's own limits after a cancel, with some room
CANCEL_RESULT_S = 0.15           # after a cancel, before the caller is told

_STEPS = {
    'sending': Step.SENT, 'accepted': Step.ACCEPTED, 'executing': Step.FEEDBACK,
    'timeout': Step.TIMEOUT, 'canceling': Step.CANCEL_SENT,
    'cancel_acknowledged': Step.CANCEL_ACKNOWLEDGED, 'cancel_rejected': Step.CANCEL_REJECTED,
    'late_acknowledgement': Step.LATE_ACKNOWLEDGEMENT}


class GuardedCalls:
    """Sends checked calls to the guard and brings back their ends."""

    def __init__(self, guard: GuardLink) -> None:
        self._guard = guard

    def send(self, run: ToolRun, bound: BoundTool, message: Any,
             duration_s: float = 0.0) -> ChildLink:
        """Hand a goal, or a message to be published for `duration_s`, to the guard."""
        tool, target = bound.tool, bound.tool.target
        order = RunChild.Goal(
            node_instance_id=self._guard.instance_id, request_id=run.request_id,
            call_id=run.call.call_id, tool_name=tool.name, kind=RunChild.Goal.KIND_ACTION,
            motion=tool.motion, target=run.target, type=target.type,
            payload=serialize_message(message), server_timeout=_duration(tool.server_timeout_s),
            timeout=_duration(tool.timeout_s))
        if target.kind == 'publish':
            order.kind = RunChild.Goal.KIND_TOPIC
            order.rate_hz, order.duration_s = target.rate_hz, duration_s
            if bound.stop_message is not None:
                order.stop_message = serialize_message(bound.stop_message)
        order.goal_id.uuid = list(run.goal_id)
        return self._guard.send(order)

    def follow(self, run: ToolRun, bound: BoundTool, link: ChildLink) -> Verdict:
        """Wait for the end of a goal, telling its steps."""
        verdict = None
        try:
            verdict = self._follow(run, bound, link)
        finally:
            if verdict is None:          # the caller's on_event raised
                link.cancel()
        return verdict

    def _follow(self, run: ToolRun, bound: BoundTool, link: ChildLink) -> Verdict:
        tool = bound.tool
        begun = seen = time.monotonic()
        end_at = (begun + 2 * tool.server_timeout_s + GUARD_CANCEL_S + GUARD_ANSWER_S
                  + max(tool.timeout_s, tool.target.max_duration_s))
        cancel_until = 0.0
        patience = 0.0                   # until when a silent guard is forgiven
        while True:
            try:
                kind, message = link.items.get(timeout=POLL_S)
            except queue.Empty:
                kind, message = '', None
            now = time.monotonic()
            if now - seen > HELD_UP_S:
                patience = now + PATIENCE_S
            seen = now
            if kind == 'feedback':
                _tell_feedback(run, bound, message)
            elif kind == 'refused' or (kind == 'result' and message is None):
                return self._lost(run, bound, 'the goal guard did not take the goal')
            elif kind == 'result':
                return self._finished(run, bound, message)
            if run.canceled and not cancel_until:
                cancel_until = now + CANCEL_RESULT_S
                link.cancel()
            if cancel_until and now > cancel_until:
                return self._given_up(run)
            fault = self._guard.lost(link) if now > patience else ''
            if not link.acknowledged and now - begun > GUARD_ANSWER_S:
                fault = 'the goal guard does not answer'
            if now > end_at:
                fault = 'the goal guard did not report the end of the goal'
            if fault:
                link.cancel()
                return self._lost(run, bound, fault)

    def _given_up(self, run: ToolRun) -> Verdict:
        """The request has been cancelled; the guard sees to the goal's end."""
        stop = self._guard.stop_reason() if run.motion else ''
        status, reason = ('stopped', stop) if stop else ('canceled', 'the request was canceled')
        if stop:
            run.tell(Step.STOPPED, status, reason)
        run.tell(Step.FINISHED, status)
        short = self._guard.motion_fault_in_short() if stop else ''
        return run.verdict(Outcome.EXECUTED, status, reason, for_model=short)

    def _lost(self, run: ToolRun, bound: BoundTool, fault: str) -> Verdict:
        """The guard does not hold the goal (any more): cancel it ourselves, and say so."""
        run.tell(Step.CANCEL_SENT, 'lost', fault)
        if bound.tool.target.kind == 'publish':
            stop = bound.stop_message
            heard = stop is not None and self._guard.publish_directly(run.target, stop)
            reason = f'{fault}; ' + ('the message that stops it was published' if heard else
                                     'nobody heard a message that stops it')
        elif self._guard.cancel_directly(run.target, run.goal_id):
            run.tell(Step.CANCEL_ACKNOWLEDGED, 'lost')
            reason = f'{fault}; the action server was asked to stop and agreed'
        else:
            reason = f'{fault}; the action server did not confirm a cancel, it may still run'
        run.tell(Step.FINISHED, 'lost', reason)
        return run.verdict(Outcome.EXECUTED, 'lost', reason)

    def _finished(self, run: ToolRun, bound: BoundTool, result: RunChild.Result) -> Verdict:
        status, reason = result.status, result.reason
        if status in ('refused', 'unavailable'):
            outcome, short = Outcome.UNAVAILABLE, ''
            if status == 'refused' and run.motion and self._guard.motion_fault():
                outcome, short = Outcome.REFUSED_STOPPED, self._guard.motion_fault_in_short()
            run.tell(Step.REFUSED, status, reason)
            return run.verdict(outcome, status, reason, for_model=short)
        values: dict[str, Any] = {}
        if result.payload:
            message = deserialize_message(bytes(result.payload), bound.result_class)
            if status == 'succeeded':
                values = bound.result_values(message)
            else:
                reason = reason or bound.reason(message)
        short = ''
        if status == 'stopped':
            run.tell(Step.STOPPED, status, reason)
            short = self._guard.motion_fault_in_short()
        run.tell(Step.FINISHED, status, told(status, reason, values))
        return run.verdict(Outcome.EXECUTED, status, reason, values, short)


def _tell_feedback(run: ToolRun, bound: BoundTool, feedback: RunChild.Feedback) -> None:
    step = _STEPS.get(feedback.status)
    if step is None:
        return
    detail = ''
    if feedback.payload:
        kind = bound.interface.Feedback
        detail = message_text(deserialize_message(bytes(feedback.payload), kind))
        step = Step.FEEDBACK
    run.tell(step, feedback.status, detail)


def _duration(seconds: float) -> Duration:
    return Duration(sec=int(seconds), nanosec=int(seconds % 1 * 1e9))
