# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which ROS names no tool may reach, whatever a policy says.

Works on resolved names (absolute, after remapping). The bridge asks at start, goal_guard asks
again for every goal. Knows no rclpy.
"""

from __future__ import annotations

from collections.abc import Iterable

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
