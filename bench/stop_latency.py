# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times stops, cancels and dead nodes while the demo model decodes on the CPU.

    python bench/stop_latency.py [--trials N] [--kills N] [--json FILE]

From the first word (a stop message published, a cancel sent, a signal sent) to its effect: the
cancel at the robot's action server, or the end of the request at its client. Exit code 1 when a
figure misses its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.task import Future
from robot_stack import STOP_TOPIC, Stack, own_domain

from gemma_thor_ros.action import Drive
from gemma_thor_ros.client import ChatError
from gemma_thor_ros.msg import SamplingParams

ORDER = 'drive two metres forward'
# metric -> limit of its 99th percentile, ms
LIMITS = {'stop_to_cancel_ms': 100.0, 'stop_to_request_end_ms': None, 'chat_cancel_ms': 200.0,
          'dead_node_to_cancel_ms': 1000.0}
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGABRT)


class EndlessDrive:
    """The robot's drive: runs until it is cancelled, and notes when."""

    def __init__(self, node: Any) -> None:
        self.canceled_at = 0.0
        self.executing = 0
        self._end: Future[None] = Future()
        self._server = ActionServer(
            node, Drive, 'demo_robot/drive', self._execute,
            goal_callback=lambda goal: GoalResponse.ACCEPT, cancel_callback=self._cancel,
            callback_group=ReentrantCallbackGroup())

    def _cancel(self, handle: Any) -> CancelResponse:
        self.canceled_at = time.monotonic()
        self._end.set_result(None)
        return CancelResponse.ACCEPT

    async def _execute(self, handle: Any) -> Drive.Result:
        self._end = Future()
        self.executing += 1
        await self._end
        handle.canceled()
        return Drive.Result()


class Talk:
    """Keeps the engine decoding for others."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._ended = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sampling = SamplingParams(max_tokens=600, ignore_eos=True)
        while not self._ended.is_set():
            self._call = self._stack.client.start('Tell me a long story.', sampling=sampling)
            try:
                self._call.result(60.0)
            except (ChatError, TimeoutError):
                self._ended.wait(0.2)

    def end(self) -> None:
        self._ended.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join(10.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--trials', type=int, default=50, help='stops and cancels (%(default)s)')
    parser.add_argument('--kills', type=int, default=9, help='dead nodes (%(default)s)')
    parser.add_argument('--json', type=Path, help='write the records to this file too')
    options = parser.parse_args()
    own_domain()
    stack = Stack({
        'goal_guard': {'stop_topics': [STOP_TOPIC], 'state_file': 'none'},
        'llm_node': {'model.path': 'demo', 'tools.policy_file': 'demo', 'http.enabled': False,
                     'sampling.temperature': 0.0}})
    drive = EndlessDrive(stack.node)
    stack.spin()
    times: dict[str, list[float]] = {name: [] for name in LIMITS}
    try:
        for name in ('goal_guard', 'llm_node'):
            stack.start(name)
        stack.wait_ready()
        talk = Talk(stack)
        for _ in range(options.trials):
            stop_in_motion(stack, drive, times)
            cancel_in_motion(stack, drive, times)
        talk.end()
        for trial in range(options.kills):
            dead_node(stack, drive, times, SIGNALS[trial % len(SIGNALS)])
    finally:
        stack.close()
    records = [record(name, values) for name, values in times.items() if values]
    missed = False
    for entry in records:
        limit = LIMITS[entry['metric']]
        missed = missed or (limit is not None and entry['value'] > limit)
        print(f'{entry["metric"]:<26} p99 {entry["value"]:>7.1f} ms  median '
              f'{entry["context"]["median"]:>6.1f}  n {entry["context"]["n"]:>4}'
              f'{"" if limit is None else f"  (limit {limit:g})"}')
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + '\n', encoding='utf-8')
    return int(missed)


def start_motion(stack: Stack, drive: EndlessDrive) -> Any:
    before = drive.executing
    call = stack.client.start(ORDER, execute_tools=True)
    stack.wait(lambda: drive.executing > before or call.future.done(), 'the goal')
    if drive.executing == before:
        raise RuntimeError(f'no goal was sent: {call.future.result()}')
    time.sleep(0.05)
    return call


def end_of(call: Any) -> float:
    """Return when a request had ended, on the steady clock."""
    try:
        call.result(10.0)
    except ChatError:
        return time.monotonic()
    raise RuntimeError('the request went on')


def stop_in_motion(stack: Stack, drive: EndlessDrive, times: dict[str, list[float]]) -> None:
    call = start_motion(stack, drive)
    at = stack.press()
    times['stop_to_request_end_ms'].append((end_of(call) - at) * 1e3)
    stack.wait(lambda: drive.canceled_at > at, 'the cancel')
    times['stop_to_cancel_ms'].append((drive.canceled_at - at) * 1e3)
    stack.let_go()


def cancel_in_motion(stack: Stack, drive: EndlessDrive, times: dict[str, list[float]]) -> None:
    call = start_motion(stack, drive)
    at = time.monotonic()
    call.cancel()
    times['chat_cancel_ms'].append((end_of(call) - at) * 1e3)
    stack.wait(lambda: not stack.guard_state.child_goals, 'the end of the goal')


def dead_node(stack: Stack, drive: EndlessDrive, times: dict[str, list[float]],
              number: int) -> None:
    start_motion(stack, drive)
    at = time.monotonic()
    stack.kill('llm_node', number)
    stack.wait(lambda: drive.canceled_at > at, 'the cancel')
    times['dead_node_to_cancel_ms'].append((drive.canceled_at - at) * 1e3)
    if number == signal.SIGSTOP:
        stack.kill('llm_node')
    stack.active = False
    stack.start('llm_node')
    stack.wait_ready()


def record(name: str, values: list[float]) -> dict[str, Any]:
    commit = subprocess.run(['git', 'rev-parse', 'HEAD'], capture_output=True, text=True,
                            cwd=Path(__file__).parent, check=False).stdout.strip()
    return {
        'metric': name, 'value': float(np.percentile(values, 99)), 'unit': 'ms',
        'context': {'n': len(values), 'median': float(np.median(values)), 'percentile': 99,
                    'model': 'demo', 'path': 'ros', 'cores': os.cpu_count(),
                    'load': os.getloadavg()[0]},
        'fraction_of_limit': None, 'card': platform.processor() or platform.machine(),
        'driver': '', 'commit': commit, 'date': time.strftime('%Y-%m-%d'),
        'command': 'python bench/stop_latency.py', 'spread': [min(values), max(values)]}


if __name__ == '__main__':
    raise SystemExit(main())
