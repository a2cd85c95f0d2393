# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Guard, node and demo robot as child processes of a measurement, and a client of them.

Each child can be killed, stopped and started anew on its own. A ROS domain on this host alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import Bool

from gemma_thor_ros.client import ChatClient
from gemma_thor_ros.msg import GuardState, Heartbeat, ToolEvent
from gemma_thor_ros.srv import ReleaseStop

MODULES = {'goal_guard': 'gemma_thor_ros.ros.goal_guard',
           'demo_robot': 'gemma_thor_ros.demo.robot',
           'llm_node': 'gemma_thor_ros.ros.node'}
STOP_TOPIC = 'bench/stop'
STOP_PERIOD_S = 0.05


def own_domain() -> None:
    """Keep this process and its children apart from every other robot. Before any rclpy call."""
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    # 1 to 101: above it the ports reach into Linux's ephemeral range.
    os.environ.setdefault('ROS_DOMAIN_ID', str(random.SystemRandom().randint(1, 101)))
    os.environ.setdefault('ROS_LOG_DIR', tempfile.mkdtemp(prefix='bench-log-'))


class Stack:
    """The processes by name, a node of this process that spins, and the stop button.

    Args:
        settings: parameters by process name.
    """

    def __init__(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self.settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix='bench-'))
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.pressed = False
        self.guard_state: Any = None
        self.active = False
        self.events: list[Any] = []
        rclpy.init(signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
        self.node = Node('bench')
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self.client = ChatClient(self.node)
        self.node.create_subscription(GuardState, 'goal_guard/state', self._on_guard, 10)
        self.node.create_subscription(Heartbeat, 'llm_node/heartbeat', self._on_heartbeat, 10)
        self.node.create_subscription(ToolEvent, 'llm_node/tool_events', self.events.append, 1000)
        self._stop = self.node.create_publisher(Bool, STOP_TOPIC, 1)
        self.node.create_timer(STOP_PERIOD_S, self._publish_stop)
        self._release = self.node.create_client(ReleaseStop, 'llm_node/release_stop')
        self._spinning = threading.Thread(target=self._spin, daemon=True)

    def spin(self) -> None:
        """Begin to spin; action servers of this process have to be made before."""
        self._spinning.start()

    def start(self, name: str) -> None:
        """Start a process, again if it has ended."""
        command = [sys.executable, '-P', '-m', MODULES[name], '--ros-args']
        for key, value in self.settings.get(name, {}).items():
            command += ['-p', f'{key}:={json.dumps(value)}']
        with (self.folder / f'{name}.log').open('ab') as log:
            self.children[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                cwd=self.folder, start_new_session=True)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process; wait for its end unless it only pauses."""
        self.children[name].send_signal(number)
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            self.children[name].wait(10.0)

    def rss_mb(self, name: str) -> float:
        """Return the resident memory of a process in MB."""
        status = Path(f'/proc/{self.children[name].pid}/status').read_text(encoding='ascii')
        line = next(line for line in status.splitlines() if line.startswith('VmRSS'))
        return int(line.split()[1]) / 1024

    def log(self, name: str) -> str:
        """Return what a process has written so far."""
        return (self.folder / f'{name}.log').read_text(encoding='utf-8', errors='replace')

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> None:
        """Wait for a condition, or end with what did not come true and the logs' last words."""
        limit = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > limit:
                words = '\n'.join(f'{name}: {self.log(name)[-800:]}' for name in self.children)
                raise RuntimeError(f'{what}: not within {timeout_s:g} s\n{words}')
            time.sleep(0.002)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the node is active and motion is allowed."""
        self.wait(lambda: self.active and self.guard_state is not None
                  and self.guard_state.node_instance_id and not self.guard_state.motion_inhibit,
                  'the node and the guard', timeout_s)

    def press(self) -> float:
        """Press the stop; return the time on the steady clock."""
        self.pressed = True
        at = time.monotonic()
        self._publish_stop()
        return at

    def let_go(self, timeout_s: float = 10.0) -> None:
        """Let the stop go and open the latch, again and again until the robot may move."""
        self.pressed = False
        limit = time.monotonic() + timeout_s
        while time.monotonic() < limit:
            done = threading.Event()
            future = self._release.call_async(
                ReleaseStop.Request(operator_name='bench', reason='next trial'))
            future.add_done_callback(lambda _, done=done: done.set())
            if done.wait(1.0) and future.result().released:
                break
            time.sleep(0.02)
        self.wait(lambda: not self.guard_state.stopped, 'the end of the stop', timeout_s)

    def close(self) -> None:
        """End all children by their ids, then this process's node."""
        for child in self.children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.send_signal(signal.SIGINT)
        for child in self.children.values():
            try:
                child.wait(5.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._executor.shutdown()
        if self._spinning.is_alive():
            self._spinning.join(5.0)
        self.node.destroy_node()
        rclpy.try_shutdown()

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException, ShutdownException):
            self._executor.spin()

    def _publish_stop(self) -> None:
        self._stop.publish(Bool(data=self.pressed))

    def _on_guard(self, state: Any) -> None:
        self.guard_state = state

    def _on_heartbeat(self, beat: Any) -> None:
        self.active = beat.active
