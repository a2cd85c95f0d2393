# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Runs a node in the main thread until a signal, so that it ends cleanly and with exit code 0.

For the small processes (goal_guard, demo robot). Signals are ours, not rclpy's: rclpy's handlers
shut the context down, after which no cancel could be sent any more.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeVar

import rclpy
from rclpy.exceptions import NameValidationException, ParameterException
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.logging import get_logger
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

EXIT_OK = 0
EXIT_WRONG_USE = 2

_WAKE_S = 0.1

NodeT = TypeVar('NodeT', bound=Node)


def run_node(make: Callable[[], NodeT], args: Sequence[str] | None,
             at_end: Callable[[NodeT, Spinner], None] | None = None) -> int:
    """Make a node, spin it until SIGINT or SIGTERM, and return the exit code.

    Args:
        make: makes the node; a wrong parameter, name or ROS argument ends with code 2 and a line.
        args: the command line with the program's name, or None for this process's.
        at_end: called after the signal, while the node still works.
    """
    try:
        rclpy.init(args=None if args is None else list(args),
                   signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:        # a parameter file that is not there, say
        reason = str(error).partition(', at ')[0]
        sys.stderr.write(f'{make.__name__}: the ROS arguments are of no use: {reason}\n')
        return EXIT_WRONG_USE
    try:
        try:
            node = make()
        except (ParameterException, NameValidationException, RuntimeError, ValueError) as error:
            get_logger(make.__name__).fatal(f'cannot start: {error}')
            return EXIT_WRONG_USE
        spinner = Spinner(node)
        try:
            spinner.spin()
            if at_end is not None:
                at_end(node, spinner)
        finally:
            spinner.close()
    finally:
        rclpy.try_shutdown()
    return EXIT_OK


class Spinner:
    """A single-threaded executor and a stop flag that SIGINT and SIGTERM set."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._signalled = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def spin(self) -> None:
        """Run callbacks until a signal or the end of the context."""
        self._spin_while(lambda: not self._signalled)

    def spin_until(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Run callbacks until `done()`, at most `timeout_s` seconds; signals are not heeded."""
        deadline = time.monotonic() + timeout_s
        self._spin_while(lambda: not done() and time.monotonic() < deadline)

    def close(self) -> None:
        """End the executor and destroy the node."""
        self._executor.shutdown()
        self._node.destroy_node()

    def _spin_while(self, go_on: Callable[[], bool]) -> None:
        while go_on() and self._node.context.ok():
            try:
                self._executor.spin_once(timeout_sec=_WAKE_S)
            except (ExternalShutdownException, ShutdownException):
                return
            except RuntimeError as error:
                # rclpy raises on odd answers, such as two servers that accept one goal; that must
                # not end the process that holds the other goals.
                self._node.get_logger().error(f'callback failed: {error}')

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
