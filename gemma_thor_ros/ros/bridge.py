# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the model's tool calls: checks them against the policy, and has them carried out.

`ToolBridge.run` blocks the calling thread (never call it from the executor thread that serves the
bridge's callback group) and every wait in it is bounded. goal_guard sends and owns the goals and
publishes (guarded.py); what moves nothing the node does itself (direct.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rclpy.callback_groups import CallbackGroup, MutuallyExclusiveCallbackGroup
from rclpy.node import Node

from gemma_thor_ros.ros.binding import bind_policy
from gemma_thor_ros.ros.checks import CheckedCall, TurnContext, check_call, check_duplicate
from gemma_thor_ros.ros.confirmations import Answer, Approvals, Confirmations, Question
from gemma_thor_ros.ros.direct import DirectCalls
from gemma_thor_ros.ros.frames import FrameSource
from gemma_thor_ros.ros.guard_link import GuardLink, new_goal_id
from gemma_thor_ros.ros.guarded import POLL_S, GuardedCalls
from gemma_thor_ros.ros.places import Places
from gemma_thor_ros.ros.policy_types import Policy
from gemma_thor_ros.ros.preconditions import Preconditions
from gemma_thor_ros.ros.rates import RateLimits
from gemma_thor_ros.ros.summary import summary
from gemma_thor_ros.ros.targets import resolve_targets
from gemma_thor_ros.ros.tf_frames import TfFrames, make_frame_source
from gemma_thor_ros.ros.tool_run import CancelFlag, ToolRun
from gemma_thor_ros.ros.topic_watch import TopicWatch
from gemma_thor_ros.ros.verdict import CallEvent, CallRefusedError, Outcome, Step, Verdict
from gemma_thor_ros.schema import ToolCall

MAX_TOGETHER = 16                # calls of a turn at a time
# Ends that leave the robot where it should be.
_NO_FAILURE = (Outcome.DRY_RUN, Outcome.REFUSED_DUPLICATE)
_REFUSED_STATUS = {Outcome.UNAVAILABLE: 'unavailable', Outcome.DENIED: 'denied',
                   Outcome.DENIED_TIMEOUT: 'denied'}


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
        confirmations: where operators are asked; None: made here.
        frames: where coordinate frames come from; None: tf or the policy (frames.source).
        approval_ttl_s: an approval for a session lapses when it is unused for so long; 0 = never.

    Raises:
        ConfigError: 'file:line: message' when the policy does not fit the ROS types or names.
    """

    def __init__(self, node: Node, policy: Policy, *, instance_id: str, guard: str = 'auto',
                 dry_run: bool = False, callback_group: CallbackGroup | None = None,
                 confirmations: Confirmations | None = None,
                 frames: FrameSource | None = None, approval_ttl_s: float = 0.0) -> None:
        self.policy = policy
        self._dry_run = dry_run
        self._bound = bind_policy(policy)
        guard_name = node.resolve_service_name('goal_guard' if guard == 'auto' else guard)
        # Topics and the rest are resolved, and remapped, by the node's own rules.
        self._targets = resolve_targets(
            policy, node.resolve_topic_name, node.resolve_service_name,
            (node.get_fully_qualified_name(), guard_name))
        self.guard = GuardLink(node, guard_name, instance_id, callback_group)
        self._guarded = GuardedCalls(self.guard)
        for name, target in self._targets.items():
            kind = policy.tools[name].target.kind
            if kind == 'action':
                self.guard.watch_target(target)
            elif kind == 'publish':
                self.guard.watch_topic(target, self._bound[name].interface)
        self._frames = frames or make_frame_source(node, policy)
        self._places = Places(policy, self._frames)
        group = callback_group or MutuallyExclusiveCallbackGroup()
        self._topics = TopicWatch(node, group)
        direct = {name: (bound, self._targets[name]) for name, bound in self._bound.items()
                  if not bound.tool.target.guarded}
        self._direct = DirectCalls(node, direct, self._topics, group)
        self._preconditions = Preconditions(node, policy, self._topics)
        self._rates = RateLimits()
        self._own_confirmations = confirmations is None
        self._confirmations = confirmations or Confirmations(node, callback_group)
        self._approvals = Approvals(approval_ttl_s)
        self.guard.add_stop_listener(lambda reason: self._approvals.forget())

    def tools(self) -> list[dict[str, Any]]:
        """Return the policy's tools in the OpenAI form, in the order of the file."""
        return self.policy.openai_tools()

    def target(self, tool_name: str) -> str:
        """Return the resolved name that a tool reaches, '' for one that is not in the policy."""
        return self._targets.get(tool_name, '')

    def add_stop_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener(reason)` in a ROS thread whenever the robot becomes stopped."""
        self.guard.add_stop_listener(listener)

    def forget_session(self, session_id: str) -> None:
        """Drop what an operator has approved for a session ('*' = for all)."""
        self._approvals.forget(session_id)

    def close(self) -> None:
        """Destroy what was made on the node; cancel the calls first, or they end as lost."""
        self.guard.close()
        self._topics.close()
        self._direct.close()
        if self._own_confirmations:
            self._confirmations.close()
        if isinstance(self._frames, TfFrames):
            self._frames.close()

    def run(self, call: ToolCall, *, request_id: str, turn: TurnContext,
            on_event: Callable[[CallEvent], None] | None = None,
            cancel: CancelFlag | None = None, dry_run: bool = False) -> Verdict:
        """Check a call, act if it may, and wait for its end.

        Returns within the policy's time limits (that of a confirmation included) and some
        seconds, 0.2 s after `cancel` is set.
        `on_event` is called in this thread. All faults are in the verdict; nothing is raised.
        """
        run = ToolRun(call, request_id, on_event or _ignore, cancel, time.monotonic(),
                      bytes(new_goal_id().uuid), self._is_motion(call), self.target(call.name))
        run.tell(Step.PROPOSED)
        try:
            if turn.failed:              # a stop may be why, and is the better reason
                self._check_stop(run)
            checked = check_call(self.policy, call, turn)
            check_duplicate(checked, turn)
            self._check_goal(checked)
            why = self._confirmation_reason(checked, turn)
            if dry_run or self._dry_run:
                note = 'nothing was sent' + (f'; a person would be asked first: {why}' * bool(why))
                run.tell(Step.DRY_RUN, 'dry_run', note)
                return run.verdict(Outcome.DRY_RUN, 'dry_run', note)
            self._await_other_side(run)
            if why:
                self._confirm(run, checked, turn, why)
            follow = self._send(run, turn)
        except CallRefusedError as refusal:
            status = _REFUSED_STATUS.get(refusal.outcome, 'refused')
            run.tell(Step.DENIED if status == 'denied' else Step.REFUSED, status, refusal.reason)
            return run.verdict(refusal.outcome, status, refusal.reason, for_model=refusal.told)
        return follow()

    def run_turn(self, calls: Sequence[ToolCall], *, request_id: str, turn: TurnContext,
                 on_event: Callable[[CallEvent], None] | None = None,
                 cancel: CancelFlag | None = None, dry_run: bool = False) -> list[Verdict]:
        """Run all calls of a turn, in order or together as the policy says.

        In order, a motion that did not succeed keeps the motions after it from being sent
        (after_failure). Together, `on_event` is called from several threads, one at a time.
        """
        lock = threading.Lock()

        def tell(event: CallEvent) -> None:
            with lock:
                (on_event or _ignore)(event)

        def run(call: ToolCall) -> Verdict:
            return self.run(call, request_id=request_id, turn=turn, on_event=tell, cancel=cancel,
                            dry_run=dry_run)

        if self.policy.calls == 'together' and len(calls) > 1:
            with ThreadPoolExecutor(min(len(calls), MAX_TOGETHER)) as pool:
                return list(pool.map(run, calls))
        verdicts = []
        for call in calls:
            verdict = run(call)
            verdicts.append(verdict)
            if verdict.motion and not verdict.succeeded and verdict.outcome not in _NO_FAILURE:
                turn.failed = turn.failed or call.name
        return verdicts

    def _is_motion(self, call: ToolCall) -> bool:
        tool = self.policy.tools.get(call.name)
        return tool is not None and tool.motion

    def _await_other_side(self, run: ToolRun) -> None:
        """Refuse unless the guard is there, hears us and allows what the tool does.

        For what needs no guard: unless the service, node or topic is there.
        """
        bound = self._bound[run.call.name]
        if not bound.tool.target.guarded:
            self._direct.await_server(run, bound)
        while (bound.tool.target.guarded and self.guard.fault() and self.guard.starting()
               and not run.canceled):
            time.sleep(POLL_S)
        self._check_now(run)

    def _check_now(self, run: ToolRun) -> None:
        guarded = self.policy.tools[run.call.name].target.guarded
        fault = (self.guard.fault() or self.guard.target_fault(run.target)) if guarded else ''
        if fault:
            raise CallRefusedError(Outcome.UNAVAILABLE, fault)
        self._check_stop(run)            # first, since a stop cancels the request as well
        if run.canceled:
            raise CallRefusedError(Outcome.REFUSED_PRECONDITION, 'the request was canceled')

    def _check_goal(self, checked: CheckedCall) -> Any:
        """Return the goal of a checked call, when it may be sent as far as the goal tells."""
        bound = self._bound[checked.tool.name]
        goal = bound.make_message(checked.fields)
        self._preconditions.check(bound.tool)
        self._places.check(bound, goal)
        self._rates.check(bound.tool)
        return goal

    def _confirmation_reason(self, checked: CheckedCall, turn: TurnContext) -> str:
        """Return why a person has to be asked, or ''."""
        tool = checked.tool
        reasons = []
        approved = tool.confirm == 'once_per_session' and self._approvals.holds(
            turn.session_id, tool.name)
        if tool.confirm != 'never' and not approved:
            reasons.append(f'the policy wants it for {tool.name} '
                           f'({tool.confirm.replace("_", " ")})')
        read = turn.reads.untrusted(tool.trusts)
        if tool.motion and read and tool.after_reading == 'confirm':
            reasons.append(f"the model has read {read} since the user's last words")
        return '; '.join(reasons)

    def _confirm(self, run: ToolRun, checked: CheckedCall, turn: TurnContext, why: str) -> None:
        """Ask a person; refuse unless the answer is yes."""
        tool = checked.tool
        limit_s = tool.confirm_timeout_s
        run.tell(Step.CONFIRMATION_REQUESTED, 'waiting', f'{why}; within {limit_s:g} s')
        question = Question(
            run.request_id, turn.session_id, turn.front_end, tool.name, run.arguments_json,
            run.target, why, summary(checked, run.target))

        def withdrawn() -> bool:
            return run.canceled or bool(run.motion and self.guard.stop_reason())

        reply = self._confirmations.ask(question, limit_s, withdrawn)
        who = reply.operator or 'the operator'
        words = f': {reply.reason}' if reply.reason else ''
        if reply.answer is Answer.DENIED:
            raise CallRefusedError(Outcome.DENIED, f'{who} said no{words}')
        if reply.answer is Answer.TIMEOUT:
            raise CallRefusedError(Outcome.DENIED_TIMEOUT,
                                   f'nobody confirmed it within {limit_s:g} s')
        if reply.answer is Answer.APPROVED:
            run.tell(Step.CONFIRMED, 'confirmed', f'{who} said yes{words}')
            if tool.confirm == 'once_per_session':
                self._approvals.add(turn.session_id, tool.name)
        self._check_now(run)             # says why a question was withdrawn

    def _check_stop(self, run: ToolRun) -> None:
        stop = self.guard.motion_fault() if run.motion else ''
        if stop:
            raise CallRefusedError(Outcome.REFUSED_STOPPED, f'motion is stopped: {stop}',
                                   self.guard.motion_fault_in_short())

    def _send(self, run: ToolRun, turn: TurnContext) -> Callable[[], Verdict]:
        """Check everything again, at the moment of sending, and send; return what follows it."""
        bound = self._bound[run.call.name]
        checked = check_call(self.policy, run.call, turn)
        message = self._check_goal(checked)
        self._check_now(run)
        self._rates.take(bound.tool)
        if not bound.tool.target.guarded:
            return lambda: self._direct.run(run, bound, checked.fields, message)
        link = self._guarded.send(run, bound, message, checked.duration_s)
        return lambda: self._guarded.follow(run, bound, link)


def _ignore(_: CallEvent) -> None:
    """Stand for an absent on_event."""
