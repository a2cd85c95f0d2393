# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor tools check FILE`: whether a tool policy is sound, before a node starts with it.

Checks the file and, where the ROS packages of its types are installed, every field against them.
No node has to run.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from gemma_thor_ros import resources
from gemma_thor_ros.schema import ConfigError

# What no tool may reach is judged by the names that the two nodes have unless they are renamed.
NODE, GUARD = '/llm_node', '/goal_guard'


def add_parser(subparsers: Any, name: str = 'tools') -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help='check a tool policy')
    verbs = parser.add_subparsers(dest='tools_verb', metavar='VERB', required=True)
    check = verbs.add_parser(
        'check',
        help='read a policy file and hold it against the installed ROS types',
        description='Ends with 0 when a node would start with the policy, 1 when it would refuse '
        "it; the fault is named by file and line. 'demo' is the demo robot's policy.",
    )
    check.add_argument('file', metavar='FILE')
    check.add_argument('--file-only', action='store_true', help='do not look at the ROS types')
    check.add_argument('--schema', action='store_true', help='show what the model is shown')
    check.add_argument('--json', action='store_true', help='print as JSON')


def run(options: argparse.Namespace) -> int:
    """Gives 0: sound, 1: a node would refuse it."""
    report = check_policy(options.file, options.file_only)
    if options.json:
        print(json.dumps(report))
        return int(bool(report['fault']))
    if report['fault']:
        print(report['fault'])
        return 1
    for tool in report['tools']:
        print(f'{tool["name"]}: {"motion" if tool["motion"] else "no motion"}')
        if options.schema:
            print(json.dumps(tool['schema'], indent=2, ensure_ascii=False))
    checked = 'the file alone' if options.file_only else 'the file and the ROS types'
    print(f'{report["file"]} is sound: {len(report["tools"])} tools; checked: {checked}')
    return 0


def check_policy(file: str, file_only: bool = False) -> dict[str, Any]:
    """Return {file, fault, tools}; `fault` is '' or a sentence with file and line."""
    path = resources.folder('config') / 'tools' / 'demo.yaml' if file == 'demo' else Path(file)
    try:
        policy = importlib.import_module('gemma_thor_ros.ros.policy').load_policy(path)
        targets = importlib.import_module('gemma_thor_ros.ros.targets')

        def expand(name: str) -> str:
            return str(targets.expand_name(name, NODE))

        targets.resolve_targets(policy, expand, expand, (NODE, GUARD))
        if not file_only:
            importlib.import_module('gemma_thor_ros.ros.binding').bind_policy(policy)
    except ConfigError as error:
        return {'file': str(path), 'fault': str(error), 'tools': []}
    schemas = {tool['function']['name']: tool for tool in policy.openai_tools()}
    tools = [
        {'name': name, 'motion': tool.motion, 'schema': schemas[name]}
        for name, tool in policy.tools.items()
    ]
    return {'file': str(path), 'fault': '', 'tools': tools}
