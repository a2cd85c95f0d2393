# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The few classes of ROS 2's launch API that the launch file uses, as plain records.

No package registry has `launch` and `launch_ros`, so that elsewhere than on a ROS machine the
launch file is held to its contract with these. test_launch.py checks them against the real
classes wherever those can be imported.
"""
from __future__ import annotations

import sys
import types
from typing import Any


class Record:
    """Keeps what it was made with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs


class DeclareLaunchArgument(Record):
    """DeclareLaunchArgument(name, default_value=, description=)."""


class LogInfo(Record):
    """LogInfo(msg=)."""


class OpaqueFunction(Record):
    """OpaqueFunction(function=): the function gets the context, returns actions or None."""


class RegisterEventHandler(Record):
    """RegisterEventHandler(handler)."""


class TimerAction(Record):
    """TimerAction(period=, actions=)."""


class OnProcessExit(Record):
    """OnProcessExit(target_action=, on_exit=): on_exit gets the event and the context."""


class LaunchDescription(Record):
    """LaunchDescription(entities)."""


class ParameterValue(Record):
    """ParameterValue(value, value_type=)."""


class Node(Record):
    """launch_ros.actions.Node."""


class LaunchConfiguration(Record):
    """LaunchConfiguration(name).perform(context)."""

    def perform(self, context: Any) -> str:
        return str(context.launch_configurations[self.args[0]])


MODULES: dict[str, tuple[type, ...]] = {
    'launch': (LaunchDescription,),
    'launch.actions': (DeclareLaunchArgument, LogInfo, OpaqueFunction, RegisterEventHandler,
                       TimerAction),
    'launch.event_handlers': (OnProcessExit,),
    'launch.substitutions': (LaunchConfiguration,),
    'launch_ros': (),
    'launch_ros.actions': (Node,),
    'launch_ros.parameter_descriptions': (ParameterValue,),
}


def install(monkeypatch: Any) -> None:
    """Put the fake modules into sys.modules for one test."""
    for name, classes in MODULES.items():
        module = types.ModuleType(name)
        for cls in classes:
            setattr(module, cls.__name__, cls)
        monkeypatch.setitem(sys.modules, name, module)
