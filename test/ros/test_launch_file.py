# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the launch file starts really starts: its programs, node names, parameters.

launch_ros is in no registry, so each Node that the launch file describes is turned into the
command line that launch_ros would make of it: the installed program, the remapped name and
namespace, the parameter file, then the single parameters, which win.
"""
from __future__ import annotations

import json
import socket
import sysconfig
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from ..unit.package.test_launch import launch_file, nodes, settings, started

__all__ = ['launch_file']  # a fixture

# What command_line turns into arguments, and what concerns launch alone.
TRANSLATED = {'executable', 'name', 'namespace', 'parameters', 'ros_arguments'}
OF_LAUNCH = {'package', 'output', 'emulate_tty', 'respawn', 'respawn_delay'}
PROGRAMS = Path(sysconfig.get_path('data')) / 'lib' / 'gemma_thor_ros'


def command_line(node: dict[str, Any]) -> list[str]:
    """The command that launch_ros runs for a Node."""
    assert set(node) <= TRANSLATED | OF_LAUNCH
    command = [str(PROGRAMS / node['executable']), '--ros-args', *node['ros_arguments'],
               '-r', f'__node:={node["name"]}']
    if node['namespace']:
        command += ['-r', f'__ns:=/{node["namespace"]}']
    for item in node['parameters']:
        if isinstance(item, str):
            command += ['--params-file', item]
    for name, value in settings(node).items():
        command += ['-p', f'{name}:={json.dumps(value)}']
    return command


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return int(listener.getsockname()[1])


def health(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f'http://127.0.0.1:{port}/health', timeout=5) as answer:
        value: dict[str, Any] = json.loads(answer.read())
        return value


@pytest.mark.parametrize('namespace', ['', 'robot1'])
def test_launched_programs_come_up_and_end_cleanly(
        launch_file: Any, processes: Any, namespace: str) -> None:
    port = free_port()
    actions = started(launch_file, model='scripted', http_port=str(port), namespace=namespace)
    programs = {name: processes.start(*command_line(node))
                for name, node in nodes(actions).items()}
    assert set(programs) == {'llm_node', 'goal_guard', 'demo_robot'}

    # The node takes goals: its settings from the file and from the arguments were accepted.
    prefix = f'/{namespace}' if namespace else ''
    programs['llm_node'].wait_for(f'active: {prefix}/llm_node/chat takes goals', 60.0)
    assert health(port)['status'] == 'ok'
    # The guard found its stop topics in the parameter file, relative to the namespace.
    assert 'no stop topic is configured' not in programs['goal_guard'].output()

    assert {name: program.stop() for name, program in programs.items()} == {
        'llm_node': 0, 'goal_guard': 0, 'demo_robot': 0}


def test_wrong_setting_ends_the_node_with_the_code_that_is_not_restarted(
        launch_file: Any, processes: Any) -> None:
    node = nodes(started(launch_file, model='scripted', http_port='70000'))['llm_node']
    program = processes.start(*command_line(node))
    assert program.wait() in launch_file.FINAL_EXIT_CODES
    assert 'http.port is 70000' in program.output()
