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
from queue import SimpleQueue
from types import FrameType

from gemma_thor_ros.ros import packages
from gemma_thor_ros.ros.machine import share_heaps
from gemma_thor_ros.schema import ConfigError

# A signal ends the process within 2 s: this for an orderly end, the rest for the interpreter.
CLOSE_TIMEOUT_S = 1.5
EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
EXIT_SECOND_SIGNAL = 130


class End:
    """The wish to end, told by signals and by the engine, waited for by the main thread.

    Not an Event: it has a lock, and a handler that runs in the thread which is on its way into
    wait() would wait for itself. SimpleQueue.put takes none.
    """

    def __init__(self) -> None:
        self.told = False
        self._wishes: SimpleQueue[None] = SimpleQueue()

    def tell(self) -> None:
        """Let wait() return; also from a signal's handler."""
        self.told = True
        self._wishes.put(None)

    def wait(self) -> None:
        """Until the first wish, which may have come before."""
        self._wishes.get()


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM and return the exit code.

    `args` are those of rclpy.init: the program's name, then what follows; None takes sys.argv.
    """
    end = End()
    take_signals(end)
    share_heaps()
    faults = packages.faults()
    if faults:
        for sentence in faults:
            _complain(sentence)
        return EXIT_USAGE
    return _run(list(sys.argv if args is None else args), end)


def _run(args: list[str], end: End) -> int:
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from gemma_thor_ros.ros.llm_node import LlmNode
    from gemma_thor_ros.ros.logs import forward_to, stop_forwarding

    failed = threading.Event()

    def on_engine_failed() -> None:
        failed.set()
        end.tell()

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


def take_signals(end: End) -> None:
    """SIGINT and SIGTERM tell the end; a second one leaves at once, with EXIT_SECOND_SIGNAL."""
    def on_signal(number: int, frame: FrameType | None) -> None:
        if end.told:
            _leave(EXIT_SECOND_SIGNAL)
        end.tell()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def _leave(code: int) -> None:
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:                             # a handler may have come into the middle of a write
        os._exit(code)


def _complain(sentence: str) -> None:
    sys.stderr.write(f'llm_node: {sentence}\n')


if __name__ == '__main__':
    sys.exit(main())
