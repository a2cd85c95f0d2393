# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""EngineConfig as declared ROS parameters: descriptions, ranges, read-only flags, refusals.

Everything is made from config.SETTINGS; no setting is named here. Knows nothing of the engine.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    ParameterType,
    SetParametersResult,
)
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from gemma_thor_ros.config import BY_NAME, SETTINGS, EngineConfig, Setting, Value, check
from gemma_thor_ros.ros.guard_parameters import ROS_PARAMETERS
from gemma_thor_ros.schema import ConfigError

# What a person decides about safety and access is fixed when the process starts.
FIXED_PREFIXES = ('tools.', 'http.', 'audit.')
_TYPES = {
    'bool': ParameterType.PARAMETER_BOOL,
    'int': ParameterType.PARAMETER_INTEGER,
    'float': ParameterType.PARAMETER_DOUBLE,
    'str': ParameterType.PARAMETER_STRING,
    'list': ParameterType.PARAMETER_STRING_ARRAY,
}


class NodeParameters:
    """The node's parameters and the EngineConfig that follows them.

    `config` always holds the present values; settings that may change while active are read from
    it at each request. `freeze(True)` refuses changes of all others, from configure to cleanup.

    Raises:
        ConfigError: a value in the parameter file or on the command line is unfit.
    """

    def __init__(self, node: Node) -> None:
        self.config = EngineConfig()
        self._frozen = False
        for setting in SETTINGS:
            try:
                parameter = node.declare_parameter(
                    setting.name, _declared(setting.default), descriptor(setting)
                )
            except (InvalidParameterTypeException, InvalidParameterValueException) as error:
                raise ConfigError(_reason(node, setting, error)) from error
            self.config.update({setting.name: parameter.value})
        node.add_on_set_parameters_callback(self._on_set)
        node.add_post_set_parameters_callback(self._after_set)

    def freeze(self, frozen: bool) -> None:
        """Refuse (or allow again) changes of the settings that a running engine has taken over."""
        self._frozen = frozen

    def _on_set(self, parameters: Sequence[Parameter[Any]]) -> SetParametersResult:
        for parameter in parameters:
            setting = BY_NAME.get(parameter.name)
            if setting is None:
                continue
            if self._frozen and setting.read_only:
                return SetParametersResult(
                    successful=False,
                    reason=f'{setting.name} is fixed once the node is configured; '
                    'clean the node up first',
                )
            try:
                check(setting.name, parameter.value)
            except ConfigError as error:
                return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _after_set(self, parameters: Sequence[Parameter[Any]]) -> None:
        self.config.update({p.name: p.value for p in parameters if p.name in BY_NAME})


def descriptor(setting: Setting) -> ParameterDescriptor:
    """Return the ROS descriptor of a setting: type, description, range, who may change it when."""
    unit = f' Unit: {setting.unit}.' if setting.unit else ''
    result = ParameterDescriptor(
        name=setting.name,
        type=_TYPES[setting.type_name],
        description=setting.doc + unit,
        read_only=setting.name.startswith(FIXED_PREFIXES),
        # `temperature: 0` is an integer to YAML; config.check makes the number a float.
        dynamic_typing=setting.type_name == 'float',
    )
    constraints = []
    if setting.choices:
        constraints.append('one of: ' + ', '.join(setting.choices))
    if setting.read_only and not result.read_only:
        constraints.append('fixed from configure to cleanup')
    result.additional_constraints = '; '.join(constraints)
    if setting.minimum is not None and setting.maximum is not None:
        if setting.type_name == 'int':
            result.integer_range = [
                IntegerRange(from_value=int(setting.minimum), to_value=int(setting.maximum))
            ]
        else:
            result.floating_point_range = [
                FloatingPointRange(
                    from_value=float(setting.minimum), to_value=float(setting.maximum)
                )
            ]
    return result


def unknown_parameters(names: Sequence[str]) -> list[str]:
    """Return a sentence for each name that is no setting, with the nearest one."""
    sentences = []
    for name in names:
        if name in BY_NAME or name.split('.')[0] in ROS_PARAMETERS:
            continue
        close = difflib.get_close_matches(name, list(BY_NAME), 1)
        hint = f'; did you mean {close[0]}?' if close else ''
        sentences.append(f'parameter {name} does not exist and is ignored{hint}')
    return sentences


def to_parameters(values: dict[str, Value]) -> list[Parameter[Any]]:
    """Return ROS parameters for dotted names, as `--ros-args -p` would give them."""
    return [Parameter(name, value=_declared(check(name, v))) for name, v in values.items()]


def _declared(value: Any) -> Any:
    # An empty list has no element type in ROS (it would become a byte array); config.check drops
    # empty texts again.
    return (list(value) or ['']) if isinstance(value, list) else value


def _reason(node: Node, setting: Setting, error: Exception) -> str:
    """Return our own sentence for a value that rclpy refused, else rclpy's."""
    overrides = getattr(node, '_parameter_overrides', {})
    if setting.name in overrides:
        try:
            check(setting.name, overrides[setting.name].value)
        except ConfigError as ours:
            return str(ours)
    return str(error)
