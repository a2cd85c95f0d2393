# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads what a policy says of when a tool may act: preconditions, rates, trust.

Every fault is a ConfigError with its line. Knows no ROS.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ros.policy_file import ItemPath, PolicyFile, name_list
from gemma_thor_ros.ros.policy_types import Precondition, RateLimit, ToolPolicy


def read_preconditions(source: PolicyFile) -> dict[str, Precondition]:
    """Return the policy's preconditions by name."""
    return {name: _precondition(source, ('preconditions', name), name, data)
            for name, data in source.data.get('preconditions', {}).items()}


def read_rate(data: dict[str, Any]) -> RateLimit | None:
    """Return how often a tool may act."""
    rate = data.get('rate')
    return None if rate is None else RateLimit(rate['calls'], float(rate['period_s']))


def check_rules(source: PolicyFile, path: ItemPath, tool: ToolPolicy, tools: set[str],
                preconditions: dict[str, Precondition]) -> None:
    """Check what a tool says of when it may act."""
    for index, name in enumerate(tool.requires):
        if name not in preconditions:
            source.fail((*path, 'requires', index), f'there is no precondition {name!r}; '
                        + name_list('preconditions', preconditions))
    for index, name in enumerate(tool.trusts):
        if name not in tools:
            source.fail((*path, 'trusts', index),
                        f'there is no tool {name!r}; {name_list("tools", tools)}')
    for key in ('trusts', 'after_reading'):
        if key in source.data['tools'][tool.name] and not tool.motion:
            source.fail((*path, key), f'{key} goes with motion: true alone')


def _precondition(source: PolicyFile, path: ItemPath, name: str,
                  data: dict[str, Any]) -> Precondition:
    latched, stamp = data.get('latched', False), data.get('stamp', False)
    minimum, maximum, equals = data.get('min'), data.get('max'), data.get('equals')
    if 'max_age_s' not in data and (stamp or not latched):
        source.fail(path, f'{name} needs max_age_s: an old message says nothing')
    limits = [value for value in (minimum, maximum, equals) if value is not None]
    if bool(limits) != ('field' in data):
        source.fail(path, f'{name} needs a field and one of min, max and equals, or none of them')
    if equals is not None and len(limits) > 1:
        source.fail((*path, 'equals'), 'give either equals or min and max')
    return Precondition(
        name, data['topic'], data['type'], data.get('field', ''),
        None if minimum is None else float(minimum), None if maximum is None else float(maximum),
        equals, float(data.get('max_age_s', 0.0)), stamp, latched, data.get('otherwise', ''))
