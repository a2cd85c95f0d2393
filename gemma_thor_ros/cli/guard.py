# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Verb `guard`: goal_guard in this process, for machines without `ros2 run`."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the verb; whatever is not ours goes to ROS."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'guard',
        help='start goal_guard',
        description='Start goal_guard, which holds every goal of the node. ROS arguments follow '
        'as they are: --ros-args -p "stop_topics:=[/safety/stop]"; see docs/safety.md.',
    )
    parser.set_defaults(takes_rest=True)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run until a signal; 0 after a clean end."""
    from gemma_thor_ros.ros.goal_guard import main  # imports rclpy

    return main(['gemma-thor', *options.rest])
