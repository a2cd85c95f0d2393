# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The whole stack on this machine for a first look: three processes and a client of them.

Starts goal_guard, the demo robot and the language model node as children, waits until all of them
are ready, and ends them. Knows no terminal: cli/run.py shows what happens here.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import rclpy
from geometry_msgs.msg import PoseStamped
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.signals import SignalHandlerOptions

from gemma_thor_ros import resources
from gemma_thor_ros.client import ChatClient
from gemma_thor_ros.msg import EngineState, GuardState, Heartbeat
from gemma_thor_ros.schema import ConfigError

START_LIMIT_S = 60.0
_END_LIMIT_S = 4.0
_POSE_LIMIT_S = 2.0
_ADVICE = 'set ROS_DOMAIN_ID to another number, or end that one'
_DISCOVERY_S = 0.5
_PREFIX = 'gemma-thor-'
_PR_SET_PDEATHSIG = 1
_LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
# In this order: the node refuses motion until it hears the guard.
_MODULES = {
    'goal_guard': 'gemma_thor_ros.ros.goal_guard',
    'demo_robot': 'gemma_thor_ros.demo.robot',
    'llm_node': 'gemma_thor_ros.ros.node',
}


@dataclass(frozen=True)
class Pose:
    """Where the robot is: metres and radians in the frame odom."""

    x: float
    y: float
    yaw: float

    def as_dict(self) -> dict[str, float]:
        """Return the numbers, rounded to 0.1 mm."""
        return {'x': round(self.x, 4), 'y': round(self.y, 4), 'yaw': round(self.yaw, 4)}


class Reservations:
    """Names that this process holds against others on this machine, until it ends, however."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []

    def take(self, name: str) -> bool:
        """Reserve a name; False when another process has it."""
        path = Path(tempfile.gettempdir()) / f'{_PREFIX}{name}.lock'
        file = open(path, 'ab')  # noqa: SIM115 (held until the end)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._files.append(file)
        return True

    def __enter__(self) -> Reservations:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()


class DemoSession:
    """`start` it, talk to it through `client`, `close` it.

    Raises:
        ConfigError: a process ended or did not get ready in time; with its last words.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        report: Callable[[str, float], None],
        reservations: Reservations,
    ) -> None:
        self._settings = dict(settings)
        self._report = report
        self._reservations = reservations
        _remove_old_folders()
        self._folder = Path(tempfile.mkdtemp(prefix=f'{_PREFIX}{os.getpid()}-'))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._context = rclpy.Context()
        self._connected = False
        self._changed = threading.Condition()
        self._pose: Pose | None = None
        self._pose_count = 0
        self._engine: Any = None
        self._node_active = False
        self._guard_clear = False

    def start(self) -> None:
        """Start everything and wait until all of it is ready."""
        try:
            self._reserve_domain()
            self._connect()
            self._refuse_company()
            for name in _MODULES:
                self._children[name] = self._start(name)
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    def pose(self) -> Pose:
        """Return a pose that was published after this call.

        Raises:
            ConfigError: the robot has not published for 2 s.
        """
        with self._changed:
            wanted = self._pose_count + 2  # the first one may have been on its way
            self._changed.wait_for(lambda: self._pose_count >= wanted, _POSE_LIMIT_S)
            if self._pose_count < wanted or self._pose is None:
                raise ConfigError(f'the demo robot is silent. {self._last_words("demo_robot")}')
            return self._pose

    def fault(self) -> str:
        """Return which process has ended, with its last words; '' = all are there."""
        for name, child in self._children.items():
            if child.poll() is not None:
                return f'{name} ended with {child.returncode}. {self._last_words(name)}'
        return ''

    def close(self) -> None:
        """End the client and the children; each gets a few seconds, then it is killed."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._connected and self._context.ok():
            self._executor.shutdown()
            self._thread.join(2.0)
            self._node.destroy_node()
        rclpy.try_shutdown(context=self._context)
        for child in reversed(self._children.values()):
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        limit = time.monotonic() + _END_LIMIT_S
        for child in self._children.values():
            try:
                child.wait(max(0.05, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, '-P', '-m', _MODULES[name]]
        command += ['--ros-args', '-r', f'__node:={name}']
        command += ['--params-file', str(resources.folder('config') / 'llm.yaml')]
        if name == 'goal_guard':
            command += ['-p', 'state_file:=none']  # a stop of the demo ends with the demo
        if name == 'llm_node':
            for setting, value in self._settings.items():
                command += ['-p', f'{setting}:={json.dumps(value)}']
        with open(self._folder / f'{name}.log', 'wb') as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the terminal chat alone
                preexec_fn=_die_with_parent,
            )

    def _reserve_domain(self) -> None:
        # Before there is a node: a DDS participant that comes and goes while those of another run
        # find each other has kept them apart for good.
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        domain = self._context.get_domain_id()
        if not self._reservations.take(f'domain-{domain}'):
            raise ConfigError(f'another gemma-thor run uses ROS domain {domain}: {_ADVICE}')

    def _connect(self) -> None:
        self._node = Node('gemma_thor_run', context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self.client = ChatClient(self._node)
        node = self._node
        node.create_subscription(PoseStamped, 'demo_robot/pose', self._on_pose, 10)
        node.create_subscription(EngineState, 'llm_node/engine_state', self._on_engine, _LATCHED)
        node.create_subscription(Heartbeat, 'llm_node/heartbeat', self._on_heartbeat, 10)
        node.create_subscription(GuardState, 'goal_guard/state', self._on_guard, 10)
        self._thread = threading.Thread(target=self._spin, name='spin', daemon=True)
        self._thread.start()
        self._connected = True

    def _refuse_company(self) -> None:
        """Two robots under one name would share their topics, and their stops."""
        time.sleep(_DISCOVERY_S)
        there = sorted(set(_MODULES) & set(self._node.get_node_names()))
        if there:
            domain = self._context.get_domain_id()
            raise ConfigError(f'{", ".join(there)} is on ROS domain {domain} already: {_ADVICE}')

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin()

    def _wait_ready(self) -> None:
        limit = time.monotonic() + START_LIMIT_S
        while True:
            with self._changed:
                engine = self._engine
                if self._ready():
                    break
                self._changed.wait(0.1)
            if engine is not None and engine.state == EngineState.FAILED:
                raise ConfigError(engine.error_msg)
            self._report(*self._stage())
            if fault := self.fault():
                raise ConfigError(fault)
            if time.monotonic() > limit:
                missing = ', '.join(self._missing())
                raise ConfigError(
                    f'not ready after {START_LIMIT_S:.0f} s: {missing}. '
                    + ' '.join(self._last_words(name) for name in _MODULES)
                )
        if not self.client.wait_for_node(max(0.1, limit - time.monotonic())):
            raise ConfigError('the language model node is not on the ROS graph')

    def _ready(self) -> bool:
        return not self._missing()

    def _missing(self) -> list[str]:
        """Return what is not there yet."""
        parts = {
            'the language model': self._engine is not None
            and self._engine.state == EngineState.READY,
            'the node': self._node_active,
            'the goal guard': self._guard_clear,
            'the demo robot': self._pose is not None,
        }
        return [name for name, there in parts.items() if not there]

    def _stage(self) -> tuple[str, float]:
        if self._engine is not None and self._engine.state == EngineState.LOADING:
            return self._engine.stage, float(self._engine.progress)
        return 'waiting for ' + ', '.join(self._missing()), 0.0

    def _last_words(self, name: str, lines: int = 6) -> str:
        try:
            text = (self._folder / f'{name}.log').read_text('utf-8', 'replace').strip()
        except OSError:
            return ''
        return f'Last words of {name}:\n' + '\n'.join(text.splitlines()[-lines:])

    def _on_pose(self, message: Any) -> None:
        position, rotation = message.pose.position, message.pose.orientation
        yaw = 2.0 * math.atan2(rotation.z, rotation.w)
        with self._changed:
            self._pose = Pose(position.x, position.y, math.remainder(yaw, 2.0 * math.pi))
            self._pose_count += 1
            self._changed.notify_all()

    def _on_engine(self, message: Any) -> None:
        with self._changed:
            self._engine = message
            self._changed.notify_all()

    def _on_heartbeat(self, message: Any) -> None:
        with self._changed:
            self._node_active = message.active
            self._changed.notify_all()

    def _on_guard(self, message: Any) -> None:
        with self._changed:
            self._guard_clear = bool(message.node_instance_id) and not message.stopped
            self._changed.notify_all()


def _remove_old_folders() -> None:
    """Remove the folders of runs that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f'{_PREFIX}*-*'):
        pid = folder.name.removeprefix(_PREFIX).partition('-')[0]
        if pid.isdigit() and not Path(f'/proc/{pid}').exists():
            shutil.rmtree(folder, ignore_errors=True)


def _die_with_parent() -> None:
    """Let the kernel end this child when its parent dies, however it dies (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def call_text(name: str, arguments_json: str) -> str:
    """Return a tool call as a person would read it: drive(distance=2, unit=m)."""
    try:
        arguments = json.loads(arguments_json)
    except ValueError:
        return f'{name}({arguments_json})'
    parts: Sequence[str] = [f'{key}={value}' for key, value in arguments.items()]
    return f'{name}({", ".join(parts)})'
