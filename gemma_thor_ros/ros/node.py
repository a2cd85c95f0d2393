# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The node's process: packages checked, node and endpoint started, signals obeyed, a clean end.

Imports nothing heavy at the top, so that a missing package is named and not a traceback. Exit
codes: 0 a wanted end, 1 the engine failed for good, 2 a wrong setting or environment, 130 a second
signal.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from gemma_thor_ros.ros import packages
from gemma_thor_ros.ros.machine import share_heaps
from gemma_thor_ros.schema import ConfigError

# A signal ends the process within 2 s: this for an orderly end, the rest for the interpreter.
CLOSE_TIMEOUT_S = 1.5
EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
EXIT_SECOND_SIGNAL = 130


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM and return the exit code.

    `args` are those of rclpy.init: the program's name, then what follows; None takes sys.argv.
    """
    end = threading.Event()
    _take_signals(end)
    share_heaps()
    faults = packages.faults()
    if faults:
        for sentence in faults:
            _complain(sentence)
        return EXIT_USAGE
    return _run(list(sys.argv if args is None else args), end)


def _run(args: list[str], end: threading.Event) -> int:
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from gemma_thor_ros.ros.llm_node import LlmNode
    from gemma_thor_ros.ros.logs import forward_to, stop_forwarding

    failed = threading.Event()

    def on_engine_failed() -> None:
        failed.set()
        end.set()

    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:  # a parameter file that is not there, an option without value
        reason = str(error).partition(', at ')[0]
        _complain(f'the ROS arguments are of no use: {reason}')
        return EXIT_USAGE
    try:
        node = LlmNode(on_engine_failed=on_engine_failed)
    except ConfigError as error:
        _complain(str(error))
        rclpy.try_shutdown()
        return EXIT_USAGE
    handler = forward_to(node.get_logger())
    node.start()
    end.wait()
    node.get_logger().info('ending')
    code = EXIT_FAILED if failed.is_set() else EXIT_OK
    ended = node.close(CLOSE_TIMEOUT_S)
    stop_forwarding(handler)
    if not ended:
        # A thread is stuck in a step or a read: waiting for it would outlast the caller's
        # patience, and destroying the node under it would crash.
        _leave(code)
    node.destroy_node()
    rclpy.try_shutdown()
    return code


def _take_signals(end: threading.Event) -> None:
    def on_signal(number: int, frame: FrameType | None) -> None:
        if end.is_set():
            _leave(EXIT_SECOND_SIGNAL)
        end.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def _leave(code: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _complain(sentence: str) -> None:
    sys.stderr.write(f'llm_node: {sentence}\n')


if __name__ == '__main__':
    sys.exit(main())
