# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A tool bridge in the test's process, with goal_guard and action servers in two others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rclpy.qos import QoSProfile
from std_msgs.msg import Bool

from gemma_thor_ros.ros.bridge import ToolBridge
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.heartbeat import Heartbeat
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.verdict import CallEvent, Step, Verdict
from gemma_thor_ros.schema import FinishReason, ToolCall

TOOL = """\
  drive_NAME:
    description: Drive.
    motion: true
    action: {name: base/NAME, type: gemma_thor_ros/action/Drive}
    timeout_s: 1
    server_timeout_s: 1.2
    args:
      distance: {type: number, unit: m, min: -5 m, max: 5 m, field: distance}
    result:
      distance_m: {field: distance_driven}
      x: {field: x}
"""
POLICY = 'version: 1\ntools:\n' + TOOL.replace('NAME', 'succeed')
SAY = """\
  say:
    description: Say.
    motion: false
    action: {name: voice/say, type: gemma_thor_ros/action/Say}
    timeout_s: 2
    server_timeout_s: 0.3
    args:
      text: {type: string, field: text}
"""


class Rig:
    """A bridge with its heartbeat in this process, the guard and action servers in two others.

    `policy` is its text; without one there is a tool drive_NAME for each server, and say.
    """

    def __init__(self, client: Any, processes: Any, servers: dict[str, float], policy: str = '',
                 guard_parameters: tuple[str, ...] = (), **bridge_options: Any) -> None:
        self.client = client
        self.processes = processes
        arguments = ['--ros-args']
        for parameter in ('node:=test_client', 'state_file:=none', 'cancel_end_timeout:=0.8',
                          *guard_parameters):
            arguments += ['-p', parameter]
        self.guard = processes.module('gemma_thor_ros.ros.goal_guard', *arguments)
        self.active = True
        self.heartbeat = Heartbeat(client.node, lambda: self.active)
        text = policy or 'version: 1\ntools:\n' + ''.join(
            TOOL.replace('NAME', name) for name in servers) + SAY
        self.bridge = ToolBridge(client.node, parse_policy(text, 'p.yaml'),
                                 instance_id=self.heartbeat.instance_id, **bridge_options)
        self.heartbeat.start()
        self.events: list[CallEvent] = []
        self.server = self.start_server(servers)
        client.wait_until(lambda: not self.bridge.guard.fault(), 20.0, 'the guard')

    def start_server(self, servers: dict[str, float]) -> Any:
        self.server = self.processes.script(
            'motion_server.py', *(f'{name}={seconds}' for name, seconds in servers.items()))
        self.server.wait_for('ready')
        return self.server

    def run(self, behaviour: str = 'succeed', distance: float = 1.0, **options: Any) -> Verdict:
        """Run a drive call, again while the guard has not yet discovered a new server."""
        deadline = time.monotonic() + 15.0
        while True:
            call = ToolCall('c1', f'drive_{behaviour}', {'distance': distance})
            verdict = self.run_call(call, **options)
            undiscovered = verdict.reason.startswith('there is no server of /base')
            if not undiscovered or time.monotonic() > deadline:
                return verdict

    def run_call(self, call: ToolCall, **options: Any) -> Verdict:
        self.events.clear()
        turn = options.pop('turn', None) or TurnContext(FinishReason.TOOL_CALLS)
        options.setdefault('on_event', self.events.append)
        return self.bridge.run(call, request_id='r1', turn=turn, **options)

    def start(self, behaviour: str, **options: Any) -> tuple[threading.Thread, list[Verdict]]:
        """Run a drive call in a thread."""
        return in_thread(lambda: self.run(behaviour, **options))

    def steps(self) -> list[Step]:
        return [event.step for event in self.events if event.step is not Step.FEEDBACK]

    def children(self) -> list[Any]:
        state = self.bridge.guard.state
        return [] if state is None else list(state.child_goals)

    def times_of(self, behaviour: str, event: str) -> list[float]:
        """Return when a server printed `event`, in seconds on the steady clock."""
        found = []
        for line in self.server.lines():
            parts = line.split()
            if len(parts) > 2 and parts[1] == behaviour and parts[2].split('(')[0] == event:
                found.append(float(parts[0]))
        return found

    def wait_for(self, behaviour: str, event: str, count: int = 1,
                 timeout_s: float = 20.0) -> None:
        """Wait until a server has printed `event` so many times."""
        self.client.wait_until(lambda: len(self.times_of(behaviour, event)) >= count, timeout_s,
                               f'{event} of {behaviour}')

    def wait_allowed(self, timeout_s: float = 10.0) -> None:
        self.client.wait_until(lambda: not self.bridge.guard.motion_fault(), timeout_s,
                               'the end of the inhibit')

    def close(self) -> None:
        self.heartbeat.stop()
        self.client.do(self.bridge.close)


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run a function in a thread; what it returns comes into the list."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results


class StopButton:
    """A stop heartbeat of this process."""

    def __init__(self, client: Any, topic: str, value: bool = False,
                 qos: QoSProfile | None = None) -> None:
        self.value = value
        self.silent = False
        self._node = client.node
        self._publisher = client.node.create_publisher(Bool, topic, qos or QoSProfile(depth=1))
        self._timer = client.node.create_timer(0.05, self.publish)

    def publish(self) -> None:
        if not self.silent:
            self._publisher.publish(Bool(data=self.value))

    def press(self) -> float:
        """Say stop now; returns the time on the steady clock."""
        self.value = True
        at = time.monotonic()
        self.publish()
        return at

    def remove(self) -> None:
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)
