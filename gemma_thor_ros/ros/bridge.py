# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the model's tool calls: checks them against the policy and has goal_guard send the goals.

`ToolBridge.run` blocks the calling thread (never call it from the executor thread that serves the
bridge's callback group) and every wait in it is bounded. The guard owns the goals; what the node
may say about them is decided in checks.py and in the guard.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from builtin_interfaces.msg import Duration
from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message

from gemma_thor_ros.action import RunChild
from gemma_thor_ros.ros.binding import bind_policy
from gemma_thor_ros.ros.checks import CheckedCall, TurnContext, check_call, check_duplicate
from gemma_thor_ros.ros.guard_link import ChildLink, GuardLink, new_goal_id
from gemma_thor_ros.ros.interfaces import message_text
from gemma_thor_ros.ros.policy import Policy
from gemma_thor_ros.ros.targets import forbidden_target
from gemma_thor_ros.ros.verdict import (
    CallEvent,
    CallRefusedError,
    Outcome,
    Step,
    Verdict,
    result_text,
)
from gemma_thor_ros.schema import ToolCall

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
# What the model is told where its word differs from the verdict's.
_TOLD_STATUS = {'lost': 'unavailable', 'unknown': 'unavailable'}


class CancelFlag(Protocol):
    """A threading.Event, or anything like it."""

    def is_set(self) -> bool:
        """Whether the request was cancelled."""


@dataclass(frozen=True)
class _Run:
    """One call on its way through `ToolBridge.run`."""

    call: ToolCall
    request_id: str
    on_event: Callable[[CallEvent], None]
    cancel: CancelFlag | None
    started: float
    arguments_json: str
    goal_id: bytes
    motion: bool = False
    target: str = ''

    @property
    def canceled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()

    def tell(self, step: Step, status: str = '', detail: str = '') -> None:
        self.on_event(CallEvent(step, self.call.call_id, self.call.name, self.arguments_json,
                                self.motion, self.target, self.goal_id, status, detail))


class ToolBridge:
    """The tools of one policy on one node. Thread-safe.

    Args:
        node: the node that acts; relative action names are resolved (and remapped) as its own.
        policy: what is allowed.
        instance_id: of the node's heartbeat; the guard takes goals of that instance alone.
        guard: name of the guard's node; 'auto' = goal_guard in the node's namespace.
        dry_run: check and report, send nothing.
        callback_group: of all ROS entities made here; their callbacks are short and never wait.
            None: a group of its own. With a given one the bridge must be made in the thread that
            spins it, or before it spins.

    Raises:
        ConfigError: 'file:line: message' when the policy does not fit the ROS types or names.
    """

    def __init__(self, node: Node, policy: Policy, *, instance_id: str, guard: str = 'auto',
                 dry_run: bool = False, callback_group: CallbackGroup | None = None) -> None:
        self.policy = policy
        self._node = node
        self._dry_run = dry_run
        self._bound = bind_policy(policy)
        guard_name = node.resolve_service_name('goal_guard' if guard == 'auto' else guard)
        self._targets = _resolve_targets(node, policy, guard_name)
        self.guard = GuardLink(node, guard_name, instance_id, callback_group)
        for target in self._targets.values():
            self.guard.watch_target(target)

    def tools(self) -> list[dict[str, Any]]:
        """Return the policy's tools in the OpenAI form, in the order of the file."""
        return self.policy.openai_tools()

    def target(self, tool_name: str) -> str:
        """Return the resolved action name of a tool, '' for a tool that is not in the policy."""
        return self._targets.get(tool_name, '')

    def add_stop_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener(reason)` in a ROS thread whenever the robot becomes stopped."""
        self.guard.add_stop_listener(listener)

    def close(self) -> None:
        """Destroy what was made on the node; cancel the calls first, or they end as lost."""
        self.guard.close()

    def run(self, call: ToolCall, *, request_id: str, turn: TurnContext,
            on_event: Callable[[CallEvent], None] | None = None,
            cancel: CancelFlag | None = None, dry_run: bool = False) -> Verdict:
        """Check a call, act if it may, and wait for its end.

        Returns within the policy's time limits and some seconds, 0.2 s after `cancel` is set.
        `on_event` is called in this thread. All faults are in the verdict; nothing is raised.
        """
        run = _Run(call, request_id, on_event or _ignore, cancel, time.monotonic(),
                   _arguments_text(call),
                   bytes(new_goal_id().uuid), self._is_motion(call), self.target(call.name))
        run.tell(Step.PROPOSED)
        try:
            checked = check_call(self.policy, call, turn)
            check_duplicate(checked, turn)
            self._bound[call.name].make_goal(checked.fields)
            if dry_run or self._dry_run:
                run.tell(Step.DRY_RUN, 'dry_run')
                return self._verdict(run, Outcome.DRY_RUN, 'dry_run', 'nothing was sent')
            self._await_guard(run)
            # Everything again, at the moment of sending.
            link = self._send(run, check_call(self.policy, call, turn))
        except CallRefusedError as refusal:
            status = 'unavailable' if refusal.outcome is Outcome.UNAVAILABLE else 'refused'
            run.tell(Step.REFUSED, status, refusal.reason)
            return self._verdict(run, refusal.outcome, status, refusal.reason)
        verdict = None
        try:
            verdict = self._follow(run, link)
        finally:
            if verdict is None:          # the caller's on_event raised
                link.cancel()
        return verdict

    def _is_motion(self, call: ToolCall) -> bool:
        tool = self.policy.tools.get(call.name)
        return tool is not None and tool.motion

    def _await_guard(self, run: _Run) -> None:
        """Refuse unless the guard is there, hears us and allows what the tool does."""
        while self.guard.fault() and self.guard.starting() and not run.canceled:
            time.sleep(POLL_S)
        self._check_now(run)

    def _check_now(self, run: _Run) -> None:
        fault = self.guard.fault()
        if fault:
            raise CallRefusedError(Outcome.UNAVAILABLE, fault)
        # First, since a stop cancels the request as well.
        stop = self.guard.motion_fault() if run.motion else ''
        if stop:
            raise CallRefusedError(Outcome.REFUSED_STOPPED, f'motion is stopped: {stop}')
        if run.canceled:
            raise CallRefusedError(Outcome.REFUSED_PRECONDITION, 'the request was canceled')

    def _send(self, run: _Run, checked: CheckedCall) -> ChildLink:
        tool = checked.tool
        goal = self._bound[tool.name].make_goal(checked.fields)
        order = RunChild.Goal(
            node_instance_id=self.guard.instance_id, request_id=run.request_id,
            call_id=run.call.call_id, tool_name=tool.name, kind=RunChild.Goal.KIND_ACTION,
            motion=tool.motion, target=run.target, type=tool.action_type,
            payload=serialize_message(goal), server_timeout=_duration(tool.server_timeout_s),
            timeout=_duration(tool.timeout_s))
        order.goal_id.uuid = list(run.goal_id)
        self._check_now(run)
        return self.guard.send(order)

    def _follow(self, run: _Run, link: ChildLink) -> Verdict:
        """Wait for the end of a child goal, telling its steps."""
        tool = self.policy.tools[run.call.name]
        begun = seen = time.monotonic()
        end_at = (begun + 2 * tool.server_timeout_s + tool.timeout_s + GUARD_CANCEL_S
                  + GUARD_ANSWER_S)
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
                self._tell_feedback(run, message)
            elif kind == 'refused' or (kind == 'result' and message is None):
                return self._lost(run, 'the goal guard did not take the goal')
            elif kind == 'result':
                return self._finished(run, message)
            if run.canceled and not cancel_until:
                cancel_until = now + CANCEL_RESULT_S
                link.cancel()
            if cancel_until and now > cancel_until:
                return self._given_up(run)
            fault = self.guard.lost(link) if now > patience else ''
            if not link.acknowledged and now - begun > GUARD_ANSWER_S:
                fault = 'the goal guard does not answer'
            if now > end_at:
                fault = 'the goal guard did not report the end of the goal'
            if fault:
                link.cancel()
                return self._lost(run, fault)

    def _given_up(self, run: _Run) -> Verdict:
        """The request has been cancelled; the guard sees to the goal's end."""
        stop = self.guard.stop_reason() if run.motion else ''
        status, reason = ('stopped', stop) if stop else ('canceled', 'the request was canceled')
        if stop:
            run.tell(Step.STOPPED, status, reason)
        run.tell(Step.FINISHED, status)
        return self._verdict(run, Outcome.EXECUTED, status, reason)

    def _lost(self, run: _Run, fault: str) -> Verdict:
        """The guard does not hold the goal (any more): cancel it ourselves, and say so."""
        run.tell(Step.CANCEL_SENT, 'lost', fault)
        if self.guard.cancel_directly(run.target, run.goal_id):
            run.tell(Step.CANCEL_ACKNOWLEDGED, 'lost')
            reason = f'{fault}; the action server was asked to stop and agreed'
        else:
            reason = f'{fault}; the action server did not confirm a cancel, it may still run'
        run.tell(Step.FINISHED, 'lost', reason)
        return self._verdict(run, Outcome.EXECUTED, 'lost', reason)

    def _tell_feedback(self, run: _Run, feedback: RunChild.Feedback) -> None:
        step = _STEPS.get(feedback.status)
        if step is None:
            return
        detail = ''
        if feedback.payload:
            kind = self._bound[run.call.name].action_class.Feedback
            detail = message_text(deserialize_message(bytes(feedback.payload), kind))
            step = Step.FEEDBACK
        run.tell(step, feedback.status, detail)

    def _finished(self, run: _Run, result: RunChild.Result) -> Verdict:
        status, reason = result.status, result.reason
        if status in ('refused', 'unavailable'):
            outcome = Outcome.UNAVAILABLE
            if status == 'refused' and run.motion and self.guard.motion_fault():
                outcome = Outcome.REFUSED_STOPPED
            run.tell(Step.REFUSED, status, reason)
            return self._verdict(run, outcome, status, reason)
        bound = self._bound[run.call.name]
        values: dict[str, Any] = {}
        if result.payload:
            message = deserialize_message(bytes(result.payload), bound.action_class.Result)
            if status == 'succeeded':
                values = bound.result_values(message)
            else:
                reason = reason or bound.reason(message)
        if status == 'stopped':
            run.tell(Step.STOPPED, status, reason)
        told = result_text(_TOLD_STATUS.get(status, status), reason, values)
        run.tell(Step.FINISHED, status, told)
        return self._verdict(run, Outcome.EXECUTED, status, reason, values)

    def _verdict(self, run: _Run, outcome: Outcome, status: str, reason: str = '',
                 values: dict[str, Any] | None = None) -> Verdict:
        told = result_text(_TOLD_STATUS.get(status, status), reason, values)
        return Verdict(run.call.call_id, run.call.name, run.arguments_json, run.call.repaired,
                       run.motion, outcome, status, reason, told, run.target,
                       run.goal_id if outcome is Outcome.EXECUTED else b'',
                       (time.monotonic() - run.started) * 1e3)


def _resolve_targets(node: Node, policy: Policy, guard: str) -> dict[str, str]:
    """Resolve (and remap) all action names; refuse those that no tool may reach."""
    own: Sequence[str] = (node.get_fully_qualified_name(), guard)
    targets: dict[str, str] = {}
    for name, tool in policy.tools.items():
        targets[name] = node.resolve_service_name(tool.action_name)
        fault = forbidden_target(targets[name], own, ())
        if fault:
            policy.source.fail(('tools', name, 'action', 'name'), fault)
    return targets


def _duration(seconds: float) -> Duration:
    return Duration(sec=int(seconds), nanosec=int(seconds % 1 * 1e9))


def _arguments_text(call: ToolCall) -> str:
    """Return the arguments as the parser read them, else as JSON, else '{}'."""
    try:
        return call.arguments_json or json.dumps(call.arguments, default=str)
    except (RecursionError, TypeError, ValueError):
        return '{}'


def _ignore(_: CallEvent) -> None:
    """Stand for an absent on_event."""
