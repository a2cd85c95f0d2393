# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`ros2 gemma VERB`, for ros2cli: the verbs of robot.py and tools.py under one command.

ros2cli finds the class by the entry point `gemma` of the group `ros2cli.command`, which pip and
CMakeLists.txt install. Only ros2cli imports this file.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ros2cli.command import CommandExtension

from gemma_thor_ros.cli import robot, tools
from gemma_thor_ros.schema import ConfigError, RequestError


class GemmaCommand(CommandExtension):  # type: ignore[misc]  # ros2cli has no types
    """Look at a language model node and check tool policies."""

    def add_arguments(self, parser: argparse.ArgumentParser, cli_name: str) -> None:
        """Declare the verbs on the parser of `ros2 gemma`."""
        verbs = parser.add_subparsers(dest='robot_verb', metavar='VERB', required=True)
        robot.add_verbs(verbs)
        tools.add_parser(verbs)

    def main(self, *, parser: argparse.ArgumentParser, args: Any) -> int:
        """Run a verb; the exit codes are those of gemma-thor."""
        verb = tools if args.robot_verb == 'tools' else robot
        try:
            return int(verb.run(args))
        except (ConfigError, RequestError) as error:
            print(f'ros2 gemma {args.robot_verb}: {error}', file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
