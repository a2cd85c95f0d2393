# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What --set NAME=VALUE means, for every verb that has it.

Values are YAML, as in a file of ROS parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from gemma_thor_ros.config import check
from gemma_thor_ros.schema import ConfigError


def read_settings(items: Iterable[str]) -> dict[str, Any]:
    """Setting -> checked value. Raises ConfigError for a form, a name or a value that can't be."""
    settings: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition('=')
        if not equals:
            raise ConfigError(f'--set {item}: expected NAME=VALUE')
        try:
            settings[name] = check(name, _parsed(value))
        except yaml.YAMLError as error:
            reason = str(error).replace('\n', ' ')
            raise ConfigError(f'--set {item}: the value is no YAML: {reason}') from error
    return settings


def _parsed(value: str) -> Any:
    """Return what YAML makes of a value without aliases, which can stand for billions of items."""
    for event in yaml.parse(value, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f'it has an alias, *{event.anchor}')
    return yaml.safe_load(value) if value else ''
