# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Soaks node, guard and robot: goals, cancels, stops, restarts, lifecycle transitions at once.

    python bench/robot_soak.py [--seconds 3600] [--seed 1] [--json FILE]

Exit code 0 when no goal was leaked, nothing moved while it was stopped, no request was left
without an end, no process died that was not killed, and the memory is flat; 1 otherwise. The model
is scripted (calls of all kinds, in and out of the policy), the stop topic is this process's.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import platform
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from geometry_msgs.msg import PoseStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rich.console import Console
from rich.progress import Progress
from robot_stack import STOP_TOPIC, Stack, own_domain

from gemma_thor_ros.client import ChatError
from gemma_thor_ros.msg import ErrorCode, ToolEvent

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / 'bench' / 'reports'
CLIENTS = 4
ROUND_S = 30.0                   # then all is let come to rest, and counted
REST_S = 40.0                    # for everything to end; the graph forgets the dead after 20 s
REQUEST_S = 10.0                 # the time limit of a request
STOP_S = 0.5                     # after a stop the robot must stand still
FLAT_MB = 10.0                   # growth from the second third of the run to the last
# What owns goals, stops and requests, and runs their callbacks. A change in one of these makes the
# kept report stale; policies, images, audit, speech and the like have tests of their own.
SOAKED = (
    *(f'ros/{name}' for name in (
        'bridge', 'child_goal', 'child_topic', 'executors', 'goal_guard', 'guard_link', 'guarded',
        'heartbeat', 'running', 'spinning', 'stop_latch', 'tool_run')),
    'demo/motion', 'demo/robot', 'goal_client')


def call(name: str, **arguments: Any) -> str:
    parts = [f'{key}:<|"|>{value}<|"|>' if isinstance(value, str) else f'{key}:{value}'
             for key, value in arguments.items()]
    return f'<|tool_call>call:{name}{{{",".join(parts)}}}<tool_call|>'


def drive(distance: float, direction: str = 'forward') -> str:
    return call('drive', distance=distance, unit='m', direction=direction)


END = '<|tool_response>'
# Answers in turn, a request each; a number of them that is prime, so that they mix.
SCRIPT = [
    drive(0.4) + END, 'I drove.<turn|>', drive(4, 'backward') + END, 'word ' * 60 + '<turn|>',
    call('turn', angle=90, unit='deg', direction='left') + END, 'Turned.<turn|>',
    drive(1) + call('turn', angle=30, unit='deg', direction='right') + drive(1) + END,
    call('say', text='On my way.') + END, 'Said.<turn|>', drive(500) + END, 'Too far.<turn|>',
    call('dock') + END, 'Docked.<turn|>', call('fly', height=3) + END, 'I cannot fly.<turn|>',
    '<|tool_call>call:drive{distance:1,unit:m,direction:forward}<tool_call|>' + END,
    'It was refused.<turn|>', drive(2) + drive(2) + END, 'Once is enough.<turn|>']


@dataclasses.dataclass
class Report:
    """What a run did and what went wrong."""

    requests: int = 0
    ends: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    actions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    steps: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    problems: list[str] = dataclasses.field(default_factory=list)
    rss_mb: dict[str, list[float]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list))
    seconds: float = 0.0


class Soak:
    """One run on a stack; its threads do things at random until the time is over."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.report = Report()
        self._random = random.Random(seed)
        self._seed = seed
        self._lock = threading.Lock()
        self._go = threading.Event()             # cleared: everybody comes to rest
        self._over = threading.Event()
        self._busy = 0
        self._started = 0.0
        self._moved_at = 0.0             # seconds since 1970, as _begun_at
        self._begun_at = 0.0
        self._pose: tuple[float, ...] = ()
        self._lifecycle = stack.node.create_client(ChangeState, 'llm_node/change_state')
        stack.node.create_subscription(PoseStamped, 'demo_robot/pose', self._on_pose, 10)

    def run(self, seconds: float, on_progress: Any) -> Report:
        """Run for so long, rounds of ROUND_S and a rest each.

        `on_progress(seconds)` is called after each round, when `report` is up to date.
        """
        started = self._started = time.monotonic()
        threads = [threading.Thread(target=self._client, args=(index,), daemon=True)
                   for index in range(CLIENTS)]
        threads += [threading.Thread(target=self._repeat, args=item, daemon=True) for item in (
            (self._stop_and_release, 2.0, 5.0), (self._restart_robot, 6.0, 12.0),
            (self._pause_node, 5.0, 10.0))]
        for thread in threads:
            thread.start()
        round_number = 0
        while (passed := time.monotonic() - started) < seconds:
            self._go.set()
            time.sleep(min(ROUND_S, max(seconds - passed, 1.0)))
            with self._lock:
                self._go.clear()
            self._come_to_rest()
            round_number += 1
            if round_number % 3 == 0:
                self._clean_up_node()
            if round_number % 5 == 0:
                self._restart('goal_guard', signal.SIGKILL)
            self.report.seconds = time.monotonic() - started
            on_progress(self.report.seconds)
        self._over.set()
        self._go.set()
        for thread in threads:
            thread.join(REQUEST_S + 5.0)
            if thread.is_alive():
                self.report.problems.append(f'{thread.name} did not end')
        self.report.seconds = time.monotonic() - started
        self.report.steps.update(
            _STEPS.get(event.event, str(event.event)) for event in self.stack.events)
        self._check_memory()
        return self.report

    # What goes on

    def _client(self, index: int) -> None:
        """Send requests one after the other; cancel every third in the middle."""
        draw = random.Random(self._seed * 100 + index)
        number = 0
        while self._wait_turn():
            number += 1
            try:
                self._request(index, number, draw)
            finally:
                self._end_turn()

    def _request(self, index: int, number: int, draw: random.Random) -> None:
        request = self.stack.client.start(
            f'client {index}, request {number}', execute_tools=draw.random() < 0.85,
            session_id=f's{index}' if draw.random() < 0.5 else '', timeout_s=REQUEST_S,
            max_rounds=3)
        if draw.random() < 0.33:
            time.sleep(draw.expovariate(1 / 0.3))
            request.cancel()
        try:
            request.result(REQUEST_S + 5.0)
            end = 'succeeded'
        except ChatError as error:
            end = _CODES.get(error.code, str(error.code)).lower()
        except TimeoutError:
            end = 'no end'
            self._complain(f'request {index}.{number} had no end')
        with self._lock:
            self.report.requests += 1
            self.report.ends[end] += 1
        if end == 'not_ready':
            time.sleep(0.1)                      # inactive for a moment

    def _stop_and_release(self) -> None:
        self.stack.press()
        at = time.time()
        time.sleep(STOP_S + self._draw(0.0, 0.5))
        if self._moved_at > at + STOP_S:
            self._complain(f'the robot moved {self._moved_at - at:.2f} s after the stop')
        self.stack.let_go(30.0)

    def _restart_robot(self) -> None:
        self._restart('demo_robot', signal.SIGKILL if self._draw(0, 1) < 0.5 else signal.SIGINT)

    def _restart(self, name: str, number: int) -> None:
        self.stack.kill(name, number)
        time.sleep(self._draw(0.0, 0.5))
        self._pose, self._begun_at = (), time.time()     # it begins anew at the origin
        self.stack.start(name)

    def _pause_node(self) -> None:
        self._change_state(Transition.TRANSITION_DEACTIVATE)
        time.sleep(self._draw(0.0, 0.3))
        self._change_state(Transition.TRANSITION_ACTIVATE)

    def _clean_up_node(self) -> None:
        """Free the engine and load it again; nothing else goes on."""
        for transition in (Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP,
                           Transition.TRANSITION_CONFIGURE):
            self._change_state(transition)
        limit = time.monotonic() + 30.0
        while not self._change_state(Transition.TRANSITION_ACTIVATE, complain=False):
            if time.monotonic() > limit:
                self.report.problems.append('the node did not become active again')
                return
            time.sleep(0.1)
        self.report.actions['cleanup'] += 1

    # Rest

    def _come_to_rest(self) -> None:
        """Wait until all requests have ended, then no goal may be left."""
        self._wait(lambda: not self._busy, 'the end of all requests')
        if self.stack.pressed or self.stack.guard_state.stopped:
            self.stack.let_go(30.0)
        self._wait(lambda: not self.stack.guard_state.child_goals, 'the end of all goals')
        self._wait(lambda: not self.stack.guard_state.motion_inhibit, 'the end of the inhibit')
        for name, child in self.stack.children.items():
            if child.poll() is not None:
                self._complain(f'{name} ended with {child.returncode}: '
                                            f'{self.stack.log(name)[-400:]}')
            self.report.rss_mb[name].append(round(self.stack.rss_mb(name), 1))
        begun = time.time()
        time.sleep(0.3)
        if self._moved_at > begun:
            self._complain('the robot moves without a goal')

    def _wait(self, condition: Any, what: str) -> None:
        limit = time.monotonic() + REST_S
        while not condition():
            if time.monotonic() > limit:
                state = self.stack.guard_state
                self._complain(
                    f'{what} did not come in {REST_S:g} s: {state.reason!r}, '
                    f'{[(c.tool_name, c.status) for c in state.child_goals]}')
                return
            time.sleep(0.01)

    def _check_memory(self) -> None:
        for name in ('llm_node', 'goal_guard'):
            series = self.report.rss_mb[name]
            third = len(series) // 3
            if third and name == 'llm_node':     # the guard is restarted on the way
                # Not the first third: the node's pool of request threads fills in the meantime.
                growth = (sum(series[-third:]) - sum(series[third:2 * third])) / third
                if growth > FLAT_MB:
                    self.report.problems.append(f'{name} grew by {growth:.1f} MB')

    # Helpers

    def _complain(self, problem: str) -> None:
        self.report.problems.append(f'{time.monotonic() - self._started:.0f} s: {problem}')

    def _repeat(self, action: Any, least_s: float, most_s: float) -> None:
        while not self._over.wait(self._draw(least_s, most_s)):
            if not self._wait_turn():
                return
            try:
                action()
                self.report.actions[action.__name__.strip('_')] += 1
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                self._complain(f'{action.__name__}: {str(error)[:300]}')
            finally:
                self._end_turn()

    def _wait_turn(self) -> bool:
        """Wait until things may be done, and count as busy; False at the end."""
        while not self._over.is_set():
            self._go.wait()
            with self._lock:             # nobody may begin after the others have come to rest
                if self._go.is_set() and not self._over.is_set():
                    self._busy += 1
                    return True
        return False

    def _end_turn(self) -> None:
        with self._lock:
            self._busy -= 1

    def _draw(self, low: float, high: float) -> float:
        with self._lock:
            return self._random.uniform(low, high)

    def _change_state(self, transition: int, complain: bool = True) -> bool:
        request = ChangeState.Request()
        request.transition.id = transition
        done = threading.Event()
        future = self._lifecycle.call_async(request)
        future.add_done_callback(lambda _: done.set())
        success = done.wait(15.0) and bool(future.result().success)
        if not success and complain:
            self._complain(f'transition {transition} failed')
        return success

    def _on_pose(self, message: Any) -> None:
        stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
        if stamp < self._begun_at:               # a last word of the robot that was killed
            return
        position, rotation = message.pose.position, message.pose.orientation
        pose = (position.x, position.y, rotation.z, rotation.w)
        if self._pose and pose != self._pose:
            # The robot's own time, on this host: how late this process hears of it is not judged.
            self._moved_at = stamp
        self._pose = pose


def _names(kind: Any) -> dict[int, str]:
    return {getattr(kind, name): name for name in dir(kind)
            if name.isupper() and '__' not in name and isinstance(getattr(kind, name), int)}


_CODES, _STEPS = _names(ErrorCode), _names(ToolEvent)


def source_hash(root: Path = ROOT) -> str:
    """Return a hash of what the soak is about: SOAKED, and the soak itself."""
    files = [*(root / 'gemma_thor_ros' / f'{name}.py' for name in SOAKED),
             *(root / 'bench' / f'{name}.py' for name in ('robot_soak', 'robot_stack'))]
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seconds', type=float, default=3600.0, help='default %(default)s')
    parser.add_argument('--seed', type=int, default=1, help='default %(default)s')
    parser.add_argument('--json', type=Path, help='write the report there instead of '
                        f'{REPORTS.relative_to(ROOT)}/')
    options = parser.parse_args()
    own_domain()
    stack = Stack({
        'goal_guard': {'stop_topics': [STOP_TOPIC], 'state_file': 'none'},
        'demo_robot': {'time_factor': 3.0, 'arena': [-1000.0, -1000.0, 1000.0, 1000.0]},
        'llm_node': {'model.path': 'scripted', 'model.script': SCRIPT,
                     'model.script_delay': 0.002, 'tools.policy_file': 'demo',
                     'tools.constrain_calls': False, 'http.enabled': False}})
    soak = Soak(stack, options.seed)
    sources = source_hash()          # before anybody can change them
    path = options.json or REPORTS / f'robot_soak-{time.strftime("%Y-%m-%d")}.json'
    path.parent.mkdir(parents=True, exist_ok=True)

    def write() -> dict[str, Any]:
        entry = record(soak.report, options, sources)
        path.write_text(json.dumps([entry], indent=1) + '\n', encoding='utf-8')
        return entry

    stack.spin()
    try:
        for name in ('goal_guard', 'demo_robot', 'llm_node'):
            stack.start(name)
        stack.wait_ready()
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task('soak', total=options.seconds)

            def on_progress(passed: float) -> None:
                progress.update(task, completed=passed)
                write()              # what an interrupted run had seen is not lost

            report = soak.run(options.seconds, on_progress)
    finally:
        stack.close()
    for name, child in stack.children.items():
        if child.returncode != 0:
            report.problems.append(f'{name} ended with {child.returncode} at the end')
    sys.stdout.write(json.dumps(write(), indent=1) + '\n')
    return 1 if report.problems else 0


def record(report: Report, options: argparse.Namespace, sources: str) -> dict[str, Any]:
    """Return the run as a receipt's record; its value is the number of problems."""
    commit = subprocess.run(['git', 'rev-parse', 'HEAD'], capture_output=True, text=True,
                            cwd=ROOT, check=False).stdout.strip()
    return {
        'metric': 'robot_soak_problems', 'value': len(report.problems), 'unit': 'problems',
        'context': {
            'model': 'scripted', 'path': 'ros', 'seconds': round(report.seconds, 1),
            'seed': options.seed, 'clients': CLIENTS, 'requests': report.requests,
            'ends': dict(report.ends.most_common()), 'steps': dict(report.steps.most_common()),
            'actions': dict(report.actions.most_common()), 'rss_mb': dict(report.rss_mb)},
        'problems': report.problems[:50], 'card': 'CPU',
        'processor': platform.processor() or platform.machine(), 'commit': commit,
        'source_hash': sources, 'date': time.strftime('%Y-%m-%d'),
        'command': f'python bench/robot_soak.py --seconds {options.seconds:g}'}


if __name__ == '__main__':
    raise SystemExit(main())
