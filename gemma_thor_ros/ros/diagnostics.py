# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""~/engine_state (on every change and at 1 Hz) and /diagnostics (1 Hz): engine, machine, tools.

Reads figures, decides nothing. Knows the runtime's public state and the engine's statistics.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.callback_groups import CallbackGroup
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import Header

import gemma_thor_ros.msg as msg
from gemma_thor_ros.load import Runtime, State
from gemma_thor_ros.ros.conversions import ros_text
from gemma_thor_ros.ros.machine import read_health
from gemma_thor_ros.ros.verdict import Outcome, Verdict
from gemma_thor_ros.schema import ChatResult, ErrorCode

PERIOD_S = 1.0
POLL_S = 0.1  # how soon a change that nobody announced is seen
STATE_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
_STATES = {
    State.UNLOADED: msg.EngineState.UNLOADED,
    State.LOADING: msg.EngineState.LOADING,
    State.READY: msg.EngineState.READY,
    State.FAILED: msg.EngineState.FAILED,
    State.STOPPED: msg.EngineState.STOPPED,
}
_RECENT = 32
ENGINE_FAILED = 'failed'  # EngineStats.state of an engine that will never answer again


@dataclass(frozen=True)
class Counters:
    """Outcomes of ROS requests since the start; a refused one never reached the engine."""

    answered: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    last_refusal: str = ''
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class GuardView(Protocol):
    """What is told of goal_guard, which holds the robot's goals and its stops."""

    def fault(self) -> str:
        """Return why the guard can take no goal of ours, or ''."""

    def motion_fault(self) -> str:
        """Return why motion is not allowed now, or ''."""

    def stop_reason(self) -> str:
        """Return why the robot is stopped, or ''."""


class RequestCounters:
    """Counts outcomes and remembers the latest times to first token; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = Counters()
        self._first_token_ms: deque[float] = deque(maxlen=_RECENT)
        self._outcomes: Counter[Outcome] = Counter()

    def acted(self, verdicts: Sequence[Verdict]) -> None:
        """Count what became of tool calls."""
        with self._lock:
            self._outcomes.update(verdict.outcome for verdict in verdicts)

    def outcomes(self) -> dict[str, int]:
        """Return how many tool calls had which outcome, those that occurred."""
        with self._lock:
            return {kind.name.lower(): count for kind, count in sorted(self._outcomes.items())}

    def refused(self, reason: str) -> None:
        """Count a request that was refused before any work."""
        with self._lock:
            self._counters = replace(
                self._counters, refused=self._counters.refused + 1, last_refusal=reason
            )

    def ended(self, result: ChatResult) -> None:
        """Count a request that the engine has ended."""
        with self._lock:
            counters = self._counters
            if result.code is ErrorCode.NONE:
                counters = replace(counters, answered=counters.answered + 1)
            elif result.code is ErrorCode.CANCELLED:
                counters = replace(counters, cancelled=counters.cancelled + 1)
            else:
                counters = replace(counters, failed=counters.failed + 1)
            self._counters = replace(
                counters,
                drafted_tokens=counters.drafted_tokens + result.usage.drafted_tokens,
                accepted_tokens=counters.accepted_tokens + result.usage.accepted_tokens,
            )
            if result.timings.time_to_first_token_ms > 0.0:
                self._first_token_ms.append(result.timings.time_to_first_token_ms)

    def snapshot(self) -> tuple[Counters, float]:
        """Return the counters and the median of recent times to first token in ms (0 = none)."""
        with self._lock:
            recent = sorted(self._first_token_ms)
            return self._counters, recent[len(recent) // 2] if recent else 0.0


class StatePublisher:
    """Publishes what the engine is doing.

    Args:
        node: the lifecycle node.
        runtime: gives the present runtime; None while unconfigured.
        fault: why the last configure failed; '' = it did not.
        counters: outcomes of ROS requests.
        missing: optional packages that are not there, one sentence each.
        guard: gives the link to goal_guard; None without a tool policy.
        misfits: how many subscriptions could not hear our topics, and a sentence about the last.
        group: callback group of the timer; its callbacks never block.
    """

    def __init__(
        self,
        node: LifecycleNode,
        runtime: Callable[[], Runtime | None],
        fault: Callable[[], str],
        counters: RequestCounters,
        missing: Sequence[str],
        guard: Callable[[], GuardView | None],
        misfits: Callable[[], tuple[int, str]],
        group: CallbackGroup,
    ) -> None:
        self._node = node
        self._runtime = runtime
        self._fault = fault
        self._counters = counters
        self._missing = tuple(missing)
        self._guard = guard
        self._misfits = misfits
        self._lock = threading.Lock()
        self._next_s = 0.0
        self._last_key: tuple[object, ...] = ()
        self._states = node.create_publisher(msg.EngineState, '~/engine_state', STATE_QOS)
        self._diagnostics = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        node.create_timer(POLL_S, self._tick, callback_group=group)

    def changed(self) -> None:
        """Publish now if the state, the stage or the fault differ from what was published last."""
        with self._lock:
            state = self.engine_state()
            if _key(state) != self._last_key:
                self._last_key = _key(state)
                self._states.publish(state)

    def engine_state(self) -> msg.EngineState:
        """Return the present state as a message."""
        runtime = self._runtime()
        state = msg.EngineState(stamp=self._node.get_clock().now().to_msg())
        if runtime is None:
            fault = self._fault()
            if fault:
                state.state = msg.EngineState.FAILED
                state.error_code = int(ErrorCode.NOT_READY)
                state.error_msg = ros_text(fault)
            return state
        state.state = _STATES[runtime.state]
        state.progress = float(runtime.progress)
        state.stage = runtime.stage
        if runtime.error:
            state.error_code = int(ErrorCode.NOT_READY)
            state.error_msg = ros_text(runtime.error)
        chat = runtime.chat
        if chat is None:
            return state
        info, stats = chat.model_info(), chat.stats()
        if stats.state == ENGINE_FAILED:
            state.state = msg.EngineState.FAILED
            state.error_code = int(ErrorCode.ENGINE)
            state.error_msg = 'the engine failed; the log has the reason'
        state.model_name = info.name
        state.device = info.device
        state.context_length = info.context_length
        state.running = stats.running
        state.waiting = stats.waiting
        state.max_waiting = self._node.get_parameter('engine.max_waiting').value
        state.pages_used = stats.sliding_pages_used + stats.full_pages_used
        state.pages_total = stats.sliding_pages_total + stats.full_pages_total
        state.tokens_per_s = float(stats.decode_tokens_per_s)
        state.requests_total = stats.requests_finished + stats.running + stats.waiting
        state.requests_failed = stats.requests_failed
        state.tokens_total = stats.decode_tokens
        return state

    def _tick(self) -> None:
        self.changed()
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = max(self._next_s + PERIOD_S, now)
        state = self.engine_state()
        with self._lock:
            self._last_key = _key(state)
            self._states.publish(state)
        self._diagnostics.publish(
            DiagnosticArray(
                header=Header(stamp=state.stamp),
                status=[
                    self._engine_status(state),
                    self._tool_status(),
                    _machine_status(self._name()),
                    self._package_status(),
                ],
            )
        )

    def _engine_status(self, state: msg.EngineState) -> DiagnosticStatus:
        counters, first_token_ms = self._counters.snapshot()
        level, summary = _judgement(state)
        values = {
            'state': _state_name(state),
            'progress': f'{state.progress:.0%}',
            'stage': state.stage,
            'error': state.error_msg,
            'model': state.model_name,
            'device': state.device,
            'context_length': state.context_length,
            'tokens_per_s': f'{state.tokens_per_s:.1f}',
            'time_to_first_token_ms': f'{first_token_ms:.0f}',
            'running': state.running,
            'waiting': state.waiting,
            'max_waiting': state.max_waiting,
            'pages_used': state.pages_used,
            'pages_total': state.pages_total,
            'requests_answered': counters.answered,
            'requests_failed': counters.failed,
            'requests_cancelled': counters.cancelled,
            'requests_refused': counters.refused,
            'last_refusal': counters.last_refusal,
            'draft_acceptance': _share(counters.accepted_tokens, counters.drafted_tokens),
            **self._engine_figures(),
        }
        misfits, sentence = self._misfits()
        values.update(incompatible_qos=misfits, last_incompatible_qos=sentence)
        return self._status('engine', level, summary, values)

    def _engine_figures(self) -> dict[str, object]:
        runtime = self._runtime()
        chat = runtime.chat if runtime is not None else None
        if chat is None:
            return {}
        stats = chat.stats()
        used = stats.sliding_pages_used + stats.full_pages_used
        total = stats.sliding_pages_total + stats.full_pages_total
        return {
            'kv_used': _share(used, total),
            'kv_cached_pages': stats.sliding_pages_cached + stats.full_pages_cached,
            'prefill_tokens_per_s': f'{stats.prefill_tokens_per_s:.1f}',
            'prompt_tokens_from_cache': _share(stats.cached_prompt_tokens, stats.prompt_tokens),
            'preemptions': stats.preemptions,
            'drafter': stats.drafter or 'none',
            'draft_failure': stats.draft_failure,
            'drafted_rounds': _share(stats.draft_rounds, stats.draft_rounds + stats.plain_rounds),
            'tokens_per_draft_round': f'{1 + stats.accepted_tokens / stats.draft_rounds:.2f}'
            if stats.draft_rounds
            else '',
            'step_overdue_s': f'{stats.step_overdue_s:.1f}',
        }

    def _tool_status(self) -> DiagnosticStatus:
        guard = self._guard()
        values: dict[str, object] = {f'calls_{k}': n for k, n in self._counters.outcomes().items()}
        if guard is None:
            return self._status('tools', DiagnosticStatus.OK, 'no tools are configured', values)
        fault, stop, motion = guard.fault(), guard.stop_reason(), guard.motion_fault()
        values.update(
            guard=fault or 'ok',
            stopped=bool(stop),
            stop_reason=stop,
            motion_inhibited=bool(motion),
        )
        if fault:
            return self._status('tools', DiagnosticStatus.ERROR, fault, values)
        if stop or motion:
            summary = f'stopped: {stop or motion}'
            return self._status('tools', DiagnosticStatus.WARN, summary, values)
        return self._status('tools', DiagnosticStatus.OK, 'tools may act', values)

    def _package_status(self) -> DiagnosticStatus:
        level = DiagnosticStatus.WARN if self._missing else DiagnosticStatus.OK
        summary = self._missing[0] if self._missing else 'all packages are there'
        values = {f'package_{i}': sentence for i, sentence in enumerate(self._missing)}
        return self._status('packages', level, summary, values)

    def _status(
        self, part: str, level: bytes, summary: str, values: Mapping[str, object]
    ) -> DiagnosticStatus:
        return _status(f'{self._name()}: {part}', level, summary, values)

    def _name(self) -> str:
        return self._node.get_fully_qualified_name().lstrip('/')


def _machine_status(node: str) -> DiagnosticStatus:
    health = read_health()
    values: dict[str, object] = {
        f'temperature_{name}': f'{degrees:.1f}' for name, degrees in health.temperatures.items()
    }
    for name in ('memory_total', 'memory_available', 'process_memory'):
        if getattr(health, name):
            values[f'{name}_mib'] = getattr(health, name) // 2**20
    level = DiagnosticStatus.WARN if health.warning else DiagnosticStatus.OK
    summary = health.warning or f'{len(health.temperatures)} temperatures can be read'
    return _status(f'{node}: machine', level, summary, values)


def _status(
    name: str, level: bytes, summary: str, values: Mapping[str, object]
) -> DiagnosticStatus:
    return DiagnosticStatus(
        level=level,
        name=name,
        message=ros_text(summary),
        hardware_id='',
        values=[KeyValue(key=key, value=ros_text(str(v))) for key, v in values.items()],
    )


def _share(part: int, whole: int) -> str:
    return f'{part / whole:.0%}' if whole else ''


def _key(state: msg.EngineState) -> tuple[object, ...]:
    return (state.state, state.stage, round(state.progress, 2), state.error_msg, state.model_name)


def _state_name(state: msg.EngineState) -> str:
    return next(ours.value for ours, number in _STATES.items() if number == state.state)


def _judgement(state: msg.EngineState) -> tuple[bytes, str]:
    if state.state == msg.EngineState.FAILED:
        return DiagnosticStatus.ERROR, state.error_msg
    if state.state == msg.EngineState.LOADING:
        return DiagnosticStatus.WARN, f'loading: {state.stage}, {state.progress:.0%} done'
    if state.state != msg.EngineState.READY:
        return DiagnosticStatus.WARN, 'no model is loaded'
    if state.max_waiting and state.waiting >= state.max_waiting:
        return DiagnosticStatus.WARN, f'the queue is full: {state.waiting} requests wait'
    return DiagnosticStatus.OK, f'{state.model_name} is ready on {state.device}'
