# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The launch file's contract: its arguments, the programs, their parameters, the restarts."""
from __future__ import annotations

import importlib.util
import inspect
import pathlib
import types
from typing import Any

import pytest
import yaml

from gemma_thor_ros.config import check

from . import launch_api as api

ROOT = pathlib.Path(__file__).resolve().parents[3]
LAUNCH_FILE = ROOT / 'launch' / 'llm.launch.py'
PROGRAMS = {'llm_node', 'goal_guard', 'demo_robot'}


@pytest.fixture
def launch_file(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The launch file, loaded as `ros2 launch` loads it, over the fake API."""
    api.install(monkeypatch)
    spec = importlib.util.spec_from_file_location('llm_launch', LAUNCH_FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def defaults(launch_file: types.ModuleType) -> dict[str, str]:
    description = launch_file.generate_launch_description()
    return {entity.args[0]: entity.kwargs['default_value'] for entity in description.args[0]
            if isinstance(entity, api.DeclareLaunchArgument)}


def started(launch_file: types.ModuleType, **given: str) -> list[Any]:
    """The actions that the description comes to when launched with these arguments."""
    description = launch_file.generate_launch_description()
    values = {**defaults(launch_file), **given}
    context = types.SimpleNamespace(launch_configurations=values, is_shutdown=False)
    actions: list[Any] = []
    for entity in description.args[0]:
        if isinstance(entity, api.OpaqueFunction):
            actions += entity.kwargs['function'](context) or []
    return actions


def nodes(actions: list[Any]) -> dict[str, dict[str, Any]]:
    return {action.kwargs['executable']: action.kwargs for action in actions
            if isinstance(action, api.Node)}


def settings(node: dict[str, Any]) -> dict[str, Any]:
    """The settings that a node gets beyond its parameter file."""
    return {name: value.args[0] if isinstance(value, api.ParameterValue) else value
            for name, value in node['parameters'][-1].items()}


def test_arguments(launch_file: types.ModuleType) -> None:
    assert set(defaults(launch_file)) == {
        'params_file', 'model', 'namespace', 'autostart', 'http_port', 'tools_policy',
        'demo_robot', 'use_sim_time', 'log_level'}


def test_every_argument_is_explained(launch_file: types.ModuleType) -> None:
    description = launch_file.generate_launch_description()
    for entity in description.args[0]:
        if isinstance(entity, api.DeclareLaunchArgument):
            assert len(entity.kwargs['description']) > 10, entity.args[0]


def test_programs_are_those_that_are_installed(launch_file: types.ModuleType) -> None:
    programs = nodes(started(launch_file))
    assert set(programs) == PROGRAMS
    cmake = (ROOT / 'CMakeLists.txt').read_text(encoding='utf-8')
    for name in programs:
        assert f'"{name}=gemma_thor_ros.' in cmake
        assert programs[name]['package'] == 'gemma_thor_ros'


def test_default_parameter_file_holds_settings_only(launch_file: types.ModuleType) -> None:
    path = pathlib.Path(defaults(launch_file)['params_file'])
    tree = yaml.safe_load(path.read_text(encoding='utf-8'))
    groups = tree['/**/llm_node']['ros__parameters']
    values = {f'{group}.{name}': value for group, entries in groups.items()
              for name, value in entries.items()}
    assert values['model.path'] == 'demo'
    for name, value in values.items():
        check(name, value)  # raises ConfigError for a name or value that the node would refuse


def test_nothing_given_leaves_everything_to_the_file(launch_file: types.ModuleType) -> None:
    for node in nodes(started(launch_file)).values():
        assert node['parameters'][0] == defaults(launch_file)['params_file']
        assert settings(node) == {'use_sim_time': False}
        assert node['namespace'] == ''


def test_arguments_become_typed_settings(launch_file: types.ModuleType) -> None:
    actions = started(launch_file, model='26', http_port='8123', tools_policy='robot.yaml',
                      autostart='False', namespace='robot1', log_level='debug',
                      use_sim_time='true', params_file='/etc/robot.yaml')
    node = nodes(actions)['llm_node']
    assert node['parameters'][0] == '/etc/robot.yaml'
    wanted = {'model.path': '26', 'http.port': 8123, 'tools.policy_file': 'robot.yaml',
              'ros.autostart': False, 'use_sim_time': True}
    assert settings(node) == wanted
    for name in set(wanted) - {'use_sim_time'}:
        check(name, wanted[name])
    assert settings(nodes(actions)['goal_guard']) == {'use_sim_time': True}
    # YAML would make a number of it, which the node refuses.
    assert node['parameters'][-1]['model.path'].kwargs == {'value_type': str}
    assert node['namespace'] == 'robot1'
    assert node['ros_arguments'] == ['--log-level', 'debug']


@pytest.mark.parametrize(('given', 'wanted'), [
    ({}, True),
    ({'tools_policy': 'demo'}, True),
    ({'tools_policy': 'robot.yaml'}, False),
    ({'params_file': '/etc/robot.yaml'}, False),
    ({'params_file': '/etc/robot.yaml', 'demo_robot': 'true'}, True),
    ({'demo_robot': 'false'}, False),
])
def test_demo_robot_never_joins_a_real_one_unasked(
        launch_file: types.ModuleType, given: dict[str, str], wanted: bool) -> None:
    assert ('demo_robot' in nodes(started(launch_file, **given))) is wanted


@pytest.mark.parametrize(('name', 'value'), [
    ('autostart', 'maybe'), ('http_port', '80a'), ('http_port', '-1'), ('demo_robot', 'no'),
    ('use_sim_time', '')])
def test_wrong_argument_is_named(launch_file: types.ModuleType, name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        started(launch_file, **{name: value})


def test_guard_comes_back_at_once(launch_file: types.ModuleType) -> None:
    guard = nodes(started(launch_file))['goal_guard']
    assert guard['respawn'] is True
    assert guard['respawn_delay'] <= 1.0


class Process:
    """Plays the node's process: it ends with given codes after given times."""

    def __init__(self, launch_file: types.ModuleType) -> None:
        self.now = 0.0
        self.launched = 0
        restarts = launch_file.Restarts(self.launch, lambda: self.now)
        self.actions = restarts.start()

    def launch(self) -> Any:
        self.launched += 1
        return api.Node(executable='llm_node')

    def end(self, code: int, ran_s: float, *, is_shutdown: bool = False) -> float | None:
        """End the process and follow the launch file; return the pause, None for no restart."""
        self.now += ran_s
        handler = self.actions[0].args[0]
        assert handler.kwargs['target_action'] is self.actions[1]
        event = types.SimpleNamespace(returncode=code, process_name='llm_node-1')
        context = types.SimpleNamespace(is_shutdown=is_shutdown)
        actions = handler.kwargs['on_exit'](event, context)
        timers = [action for action in actions if isinstance(action, api.TimerAction)]
        if not timers:
            return None
        self.now += timers[0].kwargs['period']
        again = timers[0].kwargs['actions'][0]
        self.actions = again.kwargs['function'](context)
        return float(timers[0].kwargs['period'])


def test_node_is_restarted_with_back_off(launch_file: types.ModuleType) -> None:
    process = Process(launch_file)
    pauses = [process.end(code, 1.0) for code in (1, -9, -6, 1, 1, 1, 1, 1)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert process.launched == 9
    assert process.end(1, 600.0) == 1.0  # it ran well: the count begins anew


@pytest.mark.parametrize('code', [0, 2])
def test_wanted_ends_and_wrong_settings_are_final(
        launch_file: types.ModuleType, code: int) -> None:
    process = Process(launch_file)
    assert process.end(code, 1.0) is None
    assert process.launched == 1


def test_no_restart_while_the_launch_ends(launch_file: types.ModuleType) -> None:
    assert Process(launch_file).end(-2, 5.0, is_shutdown=True) is None


def test_real_launch_api_takes_what_the_file_passes() -> None:
    """Where launch is installed: every keyword of the file is one of the real classes'."""
    pytest.importorskip('launch_ros', reason='ROS 2 launch is in no package registry')
    for name, classes in api.MODULES.items():
        module = importlib.import_module(name)
        for cls in classes:
            assert inspect.isclass(getattr(module, cls.__name__)), cls.__name__
    spec = importlib.util.spec_from_file_location('llm_launch', LAUNCH_FILE)
    assert spec is not None and spec.loader is not None
    launch_file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(launch_file)
    from launch import LaunchContext

    context = LaunchContext()
    for name, value, _ in launch_file.ARGUMENTS:
        context.launch_configurations[name] = value
    assert len(launch_file.start(context)) >= len(PROGRAMS)
