# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Two executors for one node, so that work that blocks never holds up what must answer at once.

rclpy gives a node to one executor. Here the node's callback groups are dealt out: groups listed as
`control` (lifecycle services, action goals and cancels, parameters) run in a thread of their own;
the others in a second one, except for those that may block for as long as a request runs: these
have a pool of threads. So neither a cancel nor a stop ever queues behind requests.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rclpy.action import ActionServer
from rclpy.callback_groups import CallbackGroup
from rclpy.context import Context
from rclpy.executors import (
    Executor,
    ExternalShutdownException,
    ShutdownException,
    SingleThreadedExecutor,
    TimeoutException,
)
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.task import Task

_log = logging.getLogger(__name__)

# A service of depth 10, the default, drops requests of a burst: of 100 goals sent at once 16 were
# answered, with this all of them.
SERVICES_QOS = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)

_FAULT_PAUSE_S = 0.01  # a fault that comes back at once must not fill the log at full speed


class _ControlExecutor(SingleThreadedExecutor):
    """Runs the control groups of a node that belongs to another executor."""

    def __init__(self, node: Node, groups: Collection[CallbackGroup], context: Context) -> None:
        super().__init__(context=context)
        self._served = node
        self._groups = groups

    def get_nodes(self) -> list[Node]:
        return [self._served]

    def can_execute(self, entity: Any) -> bool:
        return entity.callback_group in self._groups and super().can_execute(entity)


class _DataExecutor(SingleThreadedExecutor):
    """Runs everything else: short callbacks in the thread that spins, what may block in a pool.

    rclpy's MultiThreadedExecutor offers a callback that no thread has begun yet again with every
    turn of its loop, and each offer starts a thread: under load the pool fills to its limit,
    however few callbacks run. Here each is handed over once.
    """

    def __init__(
        self,
        foreign: Collection[CallbackGroup],
        blocking: Collection[CallbackGroup],
        threads: int,
        context: Context,
    ) -> None:
        super().__init__(context=context)
        self._foreign = foreign
        self._blocking = blocking
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix='ros-request')

    def can_execute(self, entity: Any) -> bool:
        return entity.callback_group not in self._foreign and super().can_execute(entity)

    def create_task(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Task[Any]:
        # The goals of action servers come this way, and answers to clients; only goals may block.
        if getattr(callback, '__func__', None) is not ActionServer._execute_goal:
            return super().create_task(callback, *args, **kwargs)
        task: Task[Any] = Task(callback, args, kwargs, executor=self)
        self._pool.submit(self._run_in_pool, task)
        return task

    def spin_once(self, timeout_sec: float | None = None) -> None:
        try:
            task, entity, _ = self.wait_for_ready_callbacks(timeout_sec)
        except TimeoutException:
            return
        if entity is None or entity.callback_group not in self._blocking:
            _run(task)
            return
        # Later versions of rclpy (10 on) have no such list, and offer a callback once.
        if hasattr(self, '_tasks'):
            with self._tasks_lock:
                self._tasks = [item for item in self._tasks if item[0] is not task]
        self._pool.submit(self._run_in_pool, task)

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        # Callbacks that run are left to end by themselves: to wait for them has no limit.
        self._pool.shutdown(wait=False)
        return super().shutdown(timeout_sec)

    def _run_in_pool(self, task: Task[Any]) -> None:
        if self._is_shutdown:
            task.cancel()  # it waited for a thread until the end
        else:
            _run(task)


def _run(task: Task[Any]) -> None:
    """Run a callback; whatever it raises must not end all others."""
    task()
    if task.done() and (error := task.exception()) is not None:
        _log.error('callback failed:\n%s', ''.join(traceback.format_exception(error)))


class NodeExecutors:
    """Spins one node in two executors, each in a thread of its own.

    Entities of the control groups must exist before `start()`: it does not hear of new ones.

    Args:
        node: the node; it is added to the data executor.
        control_groups: its callback groups that never block, and wait for nothing else.
        blocking_groups: those whose callbacks may block, as the goals of its action servers may.
        threads: how many of these callbacks may run at the same time; the others wait. Threads
            are started when they are needed, and kept.
    """

    def __init__(
        self,
        node: Node,
        control_groups: Collection[CallbackGroup],
        blocking_groups: Collection[CallbackGroup],
        threads: int,
    ) -> None:
        groups = frozenset(control_groups)
        self._data = _DataExecutor(groups, frozenset(blocking_groups), threads, node.context)
        self._control = _ControlExecutor(node, groups, node.context)
        self._data.add_node(node)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._spin, args=(executor,), name=name, daemon=True)
            for executor, name in ((self._control, 'ros-control'), (self._data, 'ros-data'))
        ]

    def start(self) -> None:
        """Begin to spin."""
        for thread in self._threads:
            thread.start()

    def run_in_control(self, callback: Callable[[], object]) -> None:
        """Run `callback` in the control thread, where lifecycle transitions happen."""
        self._control.create_task(callback)

    def stop(self, timeout_s: float) -> bool:
        """End both threads; False when a callback did not end in time."""
        self._stopping.set()
        deadline = time.monotonic() + timeout_s
        for executor in (self._control, self._data):
            executor.shutdown(0.0)
        for thread in self._threads:
            # Without the join the process would abort when the node goes in the middle of a wait.
            if thread.is_alive():
                thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _spin(self, executor: Executor) -> None:
        while not self._stopping.is_set() and executor.context.ok():
            try:
                executor.spin_once()
            except (ExternalShutdownException, ShutdownException):
                return
            except Exception:  # noqa: BLE001 (whatever a callback raises must not end all others)
                _log.error('callback failed:\n%s', traceback.format_exc())
                time.sleep(_FAULT_PAUSE_S)
