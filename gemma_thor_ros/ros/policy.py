# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The tool policy: which calls of the model may do what in ROS, argument by argument.

A policy is plain data (policy_types.py) after `load_policy`; interfaces.py holds it against the
ROS types, checks.py holds calls against it. Knows no ROS and no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemma_thor_ros.ros.policy_args import check_links, read_argument
from gemma_thor_ros.ros.policy_file import (
    ItemPath,
    PolicyFile,
    parse_policy_text,
    read_policy_file,
)
from gemma_thor_ros.ros.policy_places import check_place, read_areas, read_frames, read_pose
from gemma_thor_ros.ros.policy_rules import check_rules, read_preconditions, read_rate
from gemma_thor_ros.ros.policy_targets import check_target, read_target
from gemma_thor_ros.ros.policy_types import (
    DEFAULT_CONFIRM_TIMEOUT_S,
    DEFAULT_RESULT_DIGITS,
    DEFAULT_RESULT_LENGTH,
    DEFAULT_SERVER_TIMEOUT_S,
    DEFAULT_TIMEOUT_S,
    Policy,
    ResultField,
    ToolPolicy,
)
from gemma_thor_ros.ros.policy_values import check_preconditions, check_values

RESERVED_RESULT_NAMES = ('status', 'reason', 'age_s')


def load_policy(path: Path | str) -> Policy:
    """Read and check a policy file.

    Raises:
        ConfigError: 'file:line: message' for the first fault.
    """
    return _policy(read_policy_file(path))


def parse_policy(text: str, name: str = 'policy') -> Policy:
    """Check policy text as `load_policy` does; `name` stands for the file in messages."""
    return _policy(parse_policy_text(text, name))


def _policy(source: PolicyFile) -> Policy:
    tools = {name: _tool(source, name, data) for name, data in source.data['tools'].items()}
    areas, preconditions = read_areas(source), read_preconditions(source)
    check_preconditions(source, preconditions)
    for name, tool in tools.items():
        check_place(source, ('tools', name), tool, areas)
        check_rules(source, ('tools', name), tool, set(tools), preconditions)
    return Policy(source, tools, read_frames(source), areas, preconditions,
                  source.data.get('calls', 'in_order'),
                  source.data.get('after_failure', 'refuse'))


def _tool(source: PolicyFile, name: str, data: dict[str, Any]) -> ToolPolicy:
    path: ItemPath = ('tools', name)
    args = tuple(read_argument(source, (*path, 'args', arg_name), arg_name, arg_data)
                 for arg_name, arg_data in data.get('args', {}).items())
    result = tuple(
        ResultField(key, item['field'], item.get('unit', ''),
                    item.get('round', DEFAULT_RESULT_DIGITS),
                    item.get('max_length', DEFAULT_RESULT_LENGTH))
        for key, item in data.get('result', {}).items())
    tool = ToolPolicy(
        name, data['description'], data['motion'], read_target(source, path, data),
        args, dict(data.get('constants', {})), float(data.get('timeout_s', DEFAULT_TIMEOUT_S)),
        float(data.get('server_timeout_s', DEFAULT_SERVER_TIMEOUT_S)), result,
        data.get('reason', ''), data.get('confirm', 'never'),
        float(data.get('confirm_timeout_s', DEFAULT_CONFIRM_TIMEOUT_S)), read_pose(data),
        data.get('area', ''), tuple(data.get('requires', ())), read_rate(data),
        data.get('after_reading', 'confirm'), tuple(data.get('trusts', ())))
    for item in result:
        if item.name in RESERVED_RESULT_NAMES:
            source.fail((*path, 'result', item.name), f'the result name {item.name!r} is reserved')
    for arg in args:
        check_links(source, (*path, 'args', arg.name), tool, arg)
    check_target(source, path, tool)
    check_values(source, path, tool)
    _check_targets(source, path, tool)
    return tool


def _check_targets(source: PolicyFile, path: ItemPath, tool: ToolPolicy) -> None:
    """Refuse two writers of one field of the goal, whole or in part."""
    seen: dict[str, str] = {}
    for key, target, writer in _writers(tool):
        for other, other_writer in seen.items():
            if f'{target}.'.startswith(f'{other}.') or f'{other}.'.startswith(f'{target}.'):
                source.fail((*path, *key),
                            f'{writer} writes {target}, which {other_writer} writes')
        seen[target] = writer


def _writers(tool: ToolPolicy) -> Iterator[tuple[ItemPath, str, str]]:
    for arg in tool.args:
        if arg.field:
            yield ('args', arg.name, 'field'), arg.field, f'argument {arg.name}'
    for name in tool.constants:
        yield ('constants', name), name, f'constant {name}'
