# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Two executors for one node, so that work that blocks never holds up what must answer at once.

rclpy gives a node to one executor. Here the node's callback groups are dealt out: groups listed as
`control` (lifecycle services, action goals and cancels, parameters) run in a thread of their own,
all others in a pool, where a callback may block for as long as a request runs.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Collection
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.context import Context
from rclpy.executors import (
    Executor,
    ExternalShutdownException,
    MultiThreadedExecutor,
    ShutdownException,
    SingleThreadedExecutor,
)
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

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


class _DataExecutor(MultiThreadedExecutor):
    """Runs everything else of the node."""

    def __init__(self, groups: Collection[CallbackGroup], threads: int, context: Context) -> None:
        super().__init__(threads, context=context)
        self._foreign = groups

    def can_execute(self, entity: Any) -> bool:
        return entity.callback_group not in self._foreign and super().can_execute(entity)

    def shutdown(self, timeout_sec: float | None = None, **_: Any) -> bool:
        # The pool is left to end by itself: its shutdown would wait for callbacks without a limit.
        return Executor.shutdown(self, timeout_sec)


class NodeExecutors:
    """Spins one node in two executors, each in a thread of its own.

    Entities of the control groups must exist before `start()`: it does not hear of new ones.

    Args:
        node: the node; it is added to the data executor.
        control_groups: its callback groups that never block.
        data_threads: callbacks that may block at the same time.
    """

    def __init__(
        self, node: Node, control_groups: Collection[CallbackGroup], data_threads: int
    ) -> None:
        groups = frozenset(control_groups)
        self._data = _DataExecutor(groups, data_threads, node.context)
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
