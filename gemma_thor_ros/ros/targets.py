# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which ROS names no tool may reach, whatever a policy says.

Works on resolved names (absolute, after remapping). The bridge asks at start, goal_guard asks
again for every goal. Knows no rclpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:                        # the guard loads no policy
    from gemma_thor_ros.ros.policy_types import Policy

# Whole names, in any namespace or at the root.
_SYSTEM_NAMES = ('tf', 'tf_static', 'clock', 'rosout', 'parameter_events', 'diagnostics')
# Services that every node or lifecycle node has.
_NODE_SERVICES = (
    'change_state', 'get_state', 'get_available_states', 'get_available_transitions',
    'get_transition_graph', 'set_parameters', 'set_parameters_atomically', 'get_parameters',
    'list_parameters', 'describe_parameters', 'get_parameter_types', 'get_type_description',
    'set_logger_levels', 'get_logger_levels')


def forbidden_target(target: str, own_nodes: Iterable[str], stop_topics: Iterable[str]) -> str:
    """Return why no tool may use the resolved name `target`, or ''.

    Args:
        target: resolved name of an action, service or topic.
        own_nodes: full names of the language model node and the guard.
        stop_topics: resolved names of the stop topics and the motion inhibit.
    """
    if not target.startswith('/') or target.endswith('/') or '//' in target:
        return f'{target!r} is not a resolved ROS name'
    parts = target[1:].split('/')
    for node in own_nodes:
        if target == node or target.startswith(f'{node}/'):
            return f'{target} belongs to {node}, which tools may not reach'
    for topic in stop_topics:
        if target == topic or target.startswith(f'{topic}/'):
            return f'{target} is a stop topic, which tools may not reach'
    if '_action' in parts:
        return f'{target} lies inside an action'
    if parts[-1] in _NODE_SERVICES or parts[0] in _SYSTEM_NAMES or parts[-1] in _SYSTEM_NAMES:
        return f'{target} is a name of the ROS system, which tools may not reach'
    return ''


def resolve_targets(policy: Policy, topic: Callable[[str], str], other: Callable[[str], str],
                    own_nodes: Sequence[str]) -> dict[str, str]:
    """Return the resolved name of each tool's target; refuse those that no tool may reach.

    `topic` resolves names of topics, `other` those of actions, services and nodes. Stop topics are
    the guard's and not known here.

    Raises:
        ConfigError: 'file:line: message' for the first fault.
    """
    targets: dict[str, str] = {}
    for name, tool in policy.tools.items():
        kind = tool.target.kind
        resolve = topic if kind in ('publish', 'read') else other
        targets[name] = resolve(tool.target.name)
        # Reading is harmless: the robot's clock, or whether the stop is pressed.
        fault = '' if kind == 'read' else forbidden_target(targets[name], own_nodes, ())
        if fault:
            key = 'node' if kind == 'parameter' else 'name'
            policy.source.fail(('tools', name, kind, key), fault)
    return targets


def expand_name(name: str, node: str) -> str:
    """Return the absolute form of a name in the root namespace, '~' being `node`; no remaps."""
    if name.startswith('~'):
        return f'{node}{name[1:]}' if name[1:2] == '/' else f'{node}/{name[1:]}'.rstrip('/')
    return name if name.startswith('/') else f'/{name}'
