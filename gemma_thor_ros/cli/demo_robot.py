# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Verb `demo-robot`: the simulated robot, in this process."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the verb; whatever is not ours goes to ROS."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'demo-robot',
        help='start the simulated robot',
        description='Start the demo robot. ROS arguments follow as they are: --ros-args '
        '-r __ns:=/robot1 ' '-p speed:=0.5',
    )
    parser.add_argument('--json', action='store_true', help='end with one line of JSON')
    parser.set_defaults(takes_rest=True)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run until a signal; 0 after a clean end."""
    from gemma_thor_ros.demo.robot import main

    started = time.monotonic()
    code = int(main(['gemma-thor', *options.rest]) or 0)
    if options.json:
        seconds = round(time.monotonic() - started, 3)
        report = {'verb': options.verb, 'exit_code': code, 'seconds': seconds}
        print(json.dumps(report), flush=True)
    return code
