# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads what a tool of a policy stands for: an action, a service, a topic or a parameter.

Holds the rule that motion goes through actions, or through publishes that end by themselves. Every
fault is a ConfigError with its line. Knows no ROS.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ros.motion_types import moves_robots
from gemma_thor_ros.ros.policy_file import ItemPath, PolicyFile
from gemma_thor_ros.ros.policy_types import Target, ToolPolicy

KINDS = ('action', 'service', 'publish', 'read', 'parameter')
PARAMETER_FIELD = 'value'            # where the argument of a parameter tool goes

_OWN_PARAMETERS = ('use_sim_time', 'start_type_description_service')


def read_target(source: PolicyFile, path: ItemPath, data: dict[str, Any]) -> Target:
    """Return what a tool stands for."""
    kinds = [kind for kind in KINDS if kind in data]
    if len(kinds) != 1:
        found = f', not {" and ".join(kinds)}' if kinds else ''
        source.fail(path, f'{path[-1]} needs one of {", ".join(KINDS)}{found}')
    kind = kinds[0]
    item = data[kind]
    if kind in ('action', 'service') and 'timeout_s' not in data:
        source.fail(path, f'{path[-1]} lacks timeout_s')
    if kind == 'parameter':
        return Target(kind, item['node'], parameter=item['name'])
    stop = item.get('stop_message')
    return Target(
        kind, item['name'], item['type'], float(item.get('rate_hz', 0.0)),
        float(item.get('max_duration_s', 0.0)), item.get('duration_arg', ''),
        None if stop is None else dict(stop), item.get('success', ''),
        float(item.get('max_age_s', 0.0)), item.get('latched', False))


def check_target(source: PolicyFile, path: ItemPath, tool: ToolPolicy) -> None:
    """Check what a tool's target needs of the rest of the tool."""
    target, here = tool.target, (*path, tool.target.kind)
    if tool.motion and not target.guarded:
        source.fail((*path, 'motion'), f'{tool.name} moves the robot, so it has to be an action '
                                       'or a publish: only those can be stopped')
    # Such a tool without motion: true would be no mapping but a hole.
    if target.kind != 'read' and moves_robots(target.type):
        if not target.guarded:
            source.fail((*here, 'type'), f'{target.type} moves robots, and nothing can stop a '
                                         'service: no tool may call it')
        if not tool.motion:
            source.fail((*here, 'type'), f'{target.type} moves robots: say motion: true')
    if target.kind == 'publish':
        _check_publish(source, here, tool)
    if target.kind == 'read':
        if tool.args or tool.constants:
            source.fail((*path, 'args' if tool.args else 'constants'),
                        'what is read takes no arguments')
        if not tool.result:
            source.fail(path, f'{tool.name} reads a topic, so it needs a result')
    if target.kind == 'parameter':
        _check_parameter(source, path, tool)
    if target.kind in ('publish', 'parameter') and tool.result:
        source.fail((*path, 'result'), f'a {target.kind} has no result fields')


def _check_publish(source: PolicyFile, path: ItemPath, tool: ToolPolicy) -> None:
    target = tool.target
    goes_on = bool(target.rate_hz)
    if goes_on != bool(target.max_duration_s):
        source.fail(path, 'a publish that goes on needs rate_hz and max_duration_s')
    if tool.motion and not (goes_on and target.stop_message is not None):
        source.fail(path, 'a publish that moves the robot needs rate_hz, max_duration_s and '
                          'stop_message')
    if target.stop_message is not None and not goes_on:
        source.fail((*path, 'stop_message'), 'a single message is not stopped')
    if not target.duration_arg:
        return
    arg = tool.argument(target.duration_arg)
    if arg is None or arg.type != 'number' or arg.has_unit or arg.field:
        source.fail((*path, 'duration_arg'), f'{target.duration_arg!r} is no number argument of '
                                             f'{tool.name} without unit and field')
    if arg.minimum is None or arg.minimum <= 0 or arg.maximum is None:
        source.fail((*path[:-1], 'args', arg.name), f'{arg.name} needs a min above 0 and a max')
    if not goes_on or arg.maximum > target.max_duration_s:
        source.fail((*path[:-1], 'args', arg.name, 'max'),
                    f'max of {arg.name} is above max_duration_s')
    if not arg.required and arg.default is None:
        source.fail((*path[:-1], 'args', arg.name), f'{arg.name} must be required or have a '
                                                    'default')


def _check_parameter(source: PolicyFile, path: ItemPath, tool: ToolPolicy) -> None:
    name = tool.target.parameter
    if name in _OWN_PARAMETERS or name.startswith('qos_overrides'):
        source.fail((*path, 'parameter', 'name'), f'{name} is no parameter for tools')
    if tool.constants:
        source.fail((*path, 'constants'), 'a parameter has no fields for constants')
    written = [arg for arg in tool.args if arg.field]
    if any(arg.field != PARAMETER_FIELD or arg.items or arg.convert for arg in written) or (
            len(written) > 1):
        source.fail((*path, 'args'), 'the argument that is set has field: value')
    if tool.args and not written:
        source.fail((*path, 'args'), 'one argument needs field: value')
    if written and not written[0].required and written[0].default is None:
        source.fail((*path, 'args', written[0].name),
                    f'{written[0].name} must be required or have a default')
