# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the ROS tests share: a domain, child processes with time limits, a client node.

Every test (or file of tests) has its own ROS_DOMAIN_ID, hears this host alone, and ends the
processes that it started.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.node import Node

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))       # the shared helpers lie beside the tests
# 1 to 101: above it the ports reach into Linux's ephemeral range.
_DOMAINS = random.SystemRandom().sample(range(1, 102), 101)


class Process:
    """A child process with its output in a file. Ended by its id, never by name."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        self._file = log.open('wb')
        self.popen = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL,
                                      stdout=self._file, stderr=subprocess.STDOUT, cwd=log.parent)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def output(self) -> str:
        return self.log.read_text(encoding='utf-8', errors='replace')

    def lines(self) -> list[str]:
        return self.output().splitlines()

    def wait_for(self, text: str, timeout_s: float = 20.0) -> str:
        """Wait until the output holds `text` and return the output."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output():
            assert self.popen.poll() is None, (
                f'the process ended with {self.popen.returncode} before {text!r}:\n'
                f'{self.output()}')
            assert time.monotonic() < deadline, f'no {text!r} in time:\n{self.output()}'
            time.sleep(0.02)
        return self.output()

    def send(self, number: int) -> None:
        self.popen.send_signal(number)

    def stop(self, number: int = signal.SIGINT, timeout_s: float = 5.0) -> int:
        """Send a signal and return the exit code; the time limit is part of the test."""
        self.send(number)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 10.0) -> int:
        return self.popen.wait(timeout_s)

    def end(self) -> None:
        """Make sure that it is gone."""
        if self.popen.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
            self.popen.wait(5.0)
        self._file.close()


class Processes:
    """Starts child processes in the test's ROS environment."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env = env
        self.folder = folder
        self.started: list[Process] = []

    def start(self, *command: str) -> Process:
        """Start a program."""
        log = self.folder / f'process_{len(self.started)}.log'
        process = Process(list(command), self.env, log)
        self.started.append(process)
        return process

    def module(self, name: str, *arguments: str) -> Process:
        """Start a Python module of the installed package."""
        return self.start(sys.executable, '-u', '-m', name, *arguments)

    def script(self, name: str, *arguments: str) -> Process:
        """Start a script of this folder."""
        return self.start(sys.executable, '-u', str(HERE / name), *arguments)


class Client:
    """A node in this process that spins in a thread, with its own context."""

    def __init__(self, node: Node, context: Context) -> None:
        self.node = node
        self.context = context
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def do(self, function: Callable[[], Any]) -> Any:
        """Run `function` in the spinning thread, where action clients and servers must be made.

        They join the node before they are complete, and a spin that meets such a one ends.
        """
        return self.wait(self._executor.create_task(function))

    def wait(self, future: Any, timeout_s: float = 10.0) -> Any:
        """Wait for a future and return its result."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        assert future.done() or done.wait(timeout_s), 'no answer in time'
        return future.result()

    def wait_until(self, condition: Callable[[], Any], timeout_s: float = 10.0,
                   what: str = 'the condition') -> Any:
        """Poll until `condition()` is true and return what it gave."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f'{what} did not come true in {timeout_s} s'
            time.sleep(0.005)
        return value

    def close(self) -> None:
        self._executor.shutdown()
        self._thread.join(5.0)
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException, ShutdownException):
            self._executor.spin()


def _environment(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set a ROS environment of its own in this process and return it for others."""
    _DOMAINS.append(domain := _DOMAINS.pop(0))
    log_dir = folder / 'ros_log'
    log_dir.mkdir()
    values = {'ROS_DOMAIN_ID': str(domain), 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
              'ROS_LOG_DIR': str(log_dir), 'PYTHONUNBUFFERED': '1'}
    for name, value in values.items():
        patch.setenv(name, value)
    for name in ('ROS_STATIC_PEERS', 'RMW_IMPLEMENTATION', 'PYTHONPATH'):
        patch.delenv(name, raising=False)
    return dict(os.environ)


def _processes(env: dict[str, str], folder: Path) -> Iterator[Processes]:
    started = Processes(env, folder)
    yield started
    for process in started.started:
        process.end()
    for process in started.started:      # shown by pytest when the test failed
        sys.stdout.write(f'--- {process.popen.args}\n{process.output()}\n')


def _client() -> Iterator[Client]:
    context = Context()
    rclpy.init(context=context)
    made = Client(Node('test_client', context=context), context)
    yield made
    made.close()


@pytest.fixture
def ros_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of this test's ROS processes; set in this process too."""
    return _environment(tmp_path, monkeypatch)


@pytest.fixture
def processes(ros_env: dict[str, str], tmp_path: Path) -> Iterator[Processes]:
    """Child processes; those still running at the end of the test are killed."""
    yield from _processes(ros_env, tmp_path)


@pytest.fixture
def client(ros_env: dict[str, str]) -> Iterator[Client]:
    """A spinning node in this process."""
    yield from _client()


@pytest.fixture(scope='session')
def nav2_env() -> dict[str, str]:
    """nav2_msgs, real or built for the tests; the environment for child processes that need it."""
    from overlay_build import provide_nav2_msgs

    return provide_nav2_msgs()


# The same for all tests of a file, where starting the processes would take most of the time.

@pytest.fixture(scope='module')
def module_ros_env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        yield _environment(tmp_path_factory.mktemp('ros'), patch)


@pytest.fixture(scope='module')
def module_processes(module_ros_env: dict[str, str],
                     tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    yield from _processes(module_ros_env, tmp_path_factory.mktemp('processes'))


@pytest.fixture(scope='module')
def module_client(module_ros_env: dict[str, str]) -> Iterator[Client]:
    yield from _client()
