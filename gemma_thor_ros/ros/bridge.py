# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the model's tool calls: checks them against the policy and has goal_guard send the goals.

`ToolBridge.run` blocks the calling thread (never call it from the executor thread that serves the
bridge's callback group) and every wait in it is bounded. The guard owns the goals; what the node
may say about them is decided in checks.py and in the guard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node

from gemma_thor_ros.ros.binding import bind_policy
from gemma_thor_ros.ros.checks import TurnContext, check_call, check_duplicate
from gemma_thor_ros.ros.guard_link import ChildLink, GuardLink, new_goal_id
from gemma_thor_ros.ros.guarded import POLL_S, GuardedCalls
from gemma_thor_ros.ros.policy_types import Policy
from gemma_thor_ros.ros.targets import forbidden_target
from gemma_thor_ros.ros.tool_run import CancelFlag, ToolRun
from gemma_thor_ros.ros.verdict import CallEvent, CallRefusedError, Outcome, Step, Verdict
from gemma_thor_ros.schema import ToolCall


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
        self._dry_run = dry_run
        self._bound = bind_policy(policy)
        guard_name = node.resolve_service_name('goal_guard' if guard == 'auto' else guard)
        self._targets = _resolve_targets(node, policy, guard_name)
        self.guard = GuardLink(node, guard_name, instance_id, callback_group)
        self._guarded = GuardedCalls(self.guard)
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
        run = ToolRun(call, request_id, on_event or _ignore, cancel, time.monotonic(),
                      bytes(new_goal_id().uuid), self._is_motion(call), self.target(call.name))
        run.tell(Step.PROPOSED)
        try:
            checked = check_call(self.policy, call, turn)
            check_duplicate(checked, turn)
            self._bound[call.name].make_goal(checked.fields)
            if dry_run or self._dry_run:
                run.tell(Step.DRY_RUN, 'dry_run')
                return run.verdict(Outcome.DRY_RUN, 'dry_run', 'nothing was sent')
            self._await_guard(run)
            link = self._send(run, turn)
        except CallRefusedError as refusal:
            status = 'unavailable' if refusal.outcome is Outcome.UNAVAILABLE else 'refused'
            run.tell(Step.REFUSED, status, refusal.reason)
            return run.verdict(refusal.outcome, status, refusal.reason)
        return self._guarded.follow(run, self._bound[call.name], link)

    def _is_motion(self, call: ToolCall) -> bool:
        tool = self.policy.tools.get(call.name)
        return tool is not None and tool.motion

    def _await_guard(self, run: ToolRun) -> None:
        """Refuse unless the guard is there, hears us and allows what the tool does."""
        while self.guard.fault() and self.guard.starting() and not run.canceled:
            time.sleep(POLL_S)
        self._check_now(run)

    def _check_now(self, run: ToolRun) -> None:
        fault = self.guard.fault()
        if fault:
            raise CallRefusedError(Outcome.UNAVAILABLE, fault)
        # First, since a stop cancels the request as well.
        stop = self.guard.motion_fault() if run.motion else ''
        if stop:
            raise CallRefusedError(Outcome.REFUSED_STOPPED, f'motion is stopped: {stop}')
        if run.canceled:
            raise CallRefusedError(Outcome.REFUSED_PRECONDITION, 'the request was canceled')

    def _send(self, run: ToolRun, turn: TurnContext) -> ChildLink:
        """Check everything again, at the moment of sending, and send."""
        bound = self._bound[run.call.name]
        goal = bound.make_goal(check_call(self.policy, run.call, turn).fields)
        self._check_now(run)
        return self._guarded.send(run, bound, goal)


def _resolve_targets(node: Node, policy: Policy, guard: str) -> dict[str, str]:
    """Resolve (and remap) all action names; refuse those that no tool may reach."""
    own: Sequence[str] = (node.get_fully_qualified_name(), guard)
    targets: dict[str, str] = {}
    for name, tool in policy.tools.items():
        targets[name] = node.resolve_service_name(tool.target.name)
        fault = forbidden_target(targets[name], own, ())
        if fault:
            policy.source.fail(('tools', name, 'action', 'name'), fault)
    return targets


def _ignore(_: CallEvent) -> None:
    """Stand for an absent on_event."""
