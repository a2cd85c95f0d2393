# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which Python packages the node needs, and a sentence for each that is missing or unfit.

Asked before anything else is imported, so that a robot whose environment is incomplete gets a list
instead of the first traceback. Imports none of the packages.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """A package: registered name, lowest version that fits, first that does not ('' = any)."""

    name: str
    lowest: str
    below: str
    purpose: str


# The lower bounds are those of the oldest platform, Ubuntu 24.04 with NumPy 1.26.
NEEDS = (
    Need('numpy', '1.26', '3', 'all arithmetic'),
    Need('tokenizers', '0.20', '', 'text to token ids'),
    Need('jsonschema', '4.10', '', 'checking tools'),
    Need('pillow', '9.1', '', 'reading images'),
    Need('PyYAML', '6.0', '', 'reading the tool policy'),
    Need('threadpoolctl', '3.1', '', 'bounding the threads of matrix products'),
)
HTTP_NEEDS = (
    Need('fastapi', '0.110', '', 'the HTTP endpoint'),
    Need('pydantic', '2.5', '3', 'the HTTP endpoint'),
    Need('uvicorn', '0.27', '', 'the HTTP endpoint'),
)
# ROS packages come without registry metadata on a robot: importable is all that can be asked.
MODULES = {
    'rclpy': 'ROS 2',
    'diagnostic_msgs': 'ROS 2 message package',
    'lifecycle_msgs': 'ROS 2 message package',
    'sensor_msgs': 'ROS 2 message package',
    'gemma_thor_ros.msg': "this package's own interfaces, built by colcon or pip",
}
CUPY_MODULES = ('cupy',)

Version = Callable[[str], str]


def faults(
    http: bool = True,
    version: Version = importlib.metadata.version,
    has_module: Callable[[str], bool] | None = None,
) -> list[str]:
    """Return one sentence for each package that is missing or unfit; empty when all is well."""
    has_module = has_module or _has_module
    sentences = [
        f'Python module {name} is missing ({purpose}).'
        for name, purpose in MODULES.items()
        if not has_module(name)
    ]
    for need in NEEDS + (HTTP_NEEDS if http else ()):
        try:
            found = version(need.name)
        except importlib.metadata.PackageNotFoundError:
            sentences.append(
                f'Python package {need.name} is missing (for {need.purpose}; {_range(need)}).'
            )
            continue
        if not fits(found, need.lowest, need.below):
            sentences.append(
                f'Python package {need.name} {found} does not fit (for {need.purpose}; '
                f'{_range(need)}).'
            )
    return sentences


def optional_faults(has_module: Callable[[str], bool] | None = None) -> list[str]:
    """Return one sentence for each optional package that is not there."""
    has_module = has_module or _has_module
    return [
        f'optional package {name} is not installed: the model runs on the CPU'
        for name in CUPY_MODULES
        if not has_module(name)
    ]


def fits(found: str, lowest: str, below: str) -> bool:
    """Return whether lowest <= found < below, by the numbers of a version alone."""
    number = _numbers(found)
    return number >= _numbers(lowest) and (not below or number < _numbers(below))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: '2.0.0rc1' -> (2, 0, 0)."""
    match = re.match(r'\d+(\.\d+)*', version)
    return tuple(int(part) for part in match.group().split('.')) if match else ()


def _range(need: Need) -> str:
    return f'needed is {need.lowest} or later' + (f', below {need.below}' if need.below else '')


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
