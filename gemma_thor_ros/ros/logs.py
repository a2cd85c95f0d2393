# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Python `logging` of everything below the ROS side -> the node's logger."""

from __future__ import annotations

import logging

from rclpy.impl.rcutils_logger import RcutilsLogger

NAMES = ('gemma_thor_ros', 'uvicorn.error')


class NodeLogHandler(logging.Handler):
    """Forwards records to a node's logger; the logger's name becomes part of the text."""

    def __init__(self, logger: RcutilsLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        text = self.format(record)
        # rclpy binds a severity to the line that logs, so each has its own.
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        elif record.levelno >= logging.INFO:
            self._logger.info(text)
        else:
            self._logger.debug(text)


def forward_to(logger: RcutilsLogger) -> logging.Handler:
    """Send the package's log records to `logger` and return the handler, for `stop_forwarding`."""
    handler = NodeLogHandler(logger)
    for name in NAMES:
        source = logging.getLogger(name)
        source.addHandler(handler)
        source.setLevel(logging.INFO if name == NAMES[0] else logging.WARNING)
        source.propagate = False
    return handler


def stop_forwarding(handler: logging.Handler) -> None:
    """Take the handler off again: the node is about to go."""
    for name in NAMES:
        logging.getLogger(name).removeHandler(handler)
