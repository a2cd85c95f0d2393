# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""CMakeLists.txt, built for real over one small message of each kind.

The complete set takes a minute and is built by the set-up; what is installed where, with which
options, does not depend on how many interfaces there are.
"""
from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
INTERFACES = {
    'msg/Beat.msg': 'uint32 sequence\n',
    'srv/Ask.srv': 'string text\n---\nstring answer\n',
    'action/Drive.action': 'float64 distance\n---\nfloat64 driven\n---\nfloat64 x\n',
}
MODULES = {
    '__init__.py': '',
    'client.py': 'from gemma_thor_ros.msg import Beat\n',
    'goal_client.py': '',
    'chat.py': '',
    'text/__init__.py': '',
    'demo/model/config.json': '{}',
    'demo/model/model.safetensors': '',
}


@pytest.fixture(scope='module')
def setup_py() -> types.ModuleType:
    pytest.importorskip('rosidl_generator_py', reason='the ROS 2 wheels are not installed')
    spec = importlib.util.spec_from_file_location('own_setup', ROOT / 'setup.py')
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def tree(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A source tree with the real build files and little to build."""
    folder = tmp_path_factory.mktemp('source')
    for name in ('CMakeLists.txt', 'package.xml', 'LICENSE'):
        shutil.copy(ROOT / name, folder / name)
    for name in ('cmake', 'config', 'kernels', 'launch'):
        shutil.copytree(ROOT / name, folder / name)
    files = {**INTERFACES, **{f'gemma_thor_ros/{name}': text for name, text in MODULES.items()},
             'gemma_thor_ros/__pycache__/chat.pyc': ''}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding='utf-8')
    return folder


def build(setup_py: types.ModuleType, tree: pathlib.Path, prefix: pathlib.Path,
          *options: str) -> pathlib.Path:
    """Build and install with the same commands as the wheel; return the Python package."""
    environment = {**os.environ, 'PATH': f'{pathlib.Path(sys.executable).parent}:'
                                         f'{os.environ["PATH"]}'}
    folder = tree / 'build'
    for command in setup_py.cmake_commands(tree, folder, prefix, options):
        done = subprocess.run(command, env=environment, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout[-3000:]
    return next(prefix.glob('lib/python*/*-packages/gemma_thor_ros'))


def hand_written(package: pathlib.Path) -> set[str]:
    """The files of the installed package that were not generated."""
    files = {path.relative_to(package).as_posix() for path in package.rglob('*')
             if path.is_file() and '__pycache__' not in path.parts}
    return {name for name in files if name.split('/')[0] not in ('msg', 'srv', 'action')
            and not name.startswith(('_gemma_thor_ros_s', 'gemma_thor_ros_s__'))}


def test_both_builds(setup_py: types.ModuleType, tree: pathlib.Path,
                     tmp_path: pathlib.Path) -> None:
    whole = tmp_path / 'whole'
    package = build(setup_py, tree, whole)
    assert hand_written(package) == set(MODULES)
    for kind, name in (('msg', '_beat.py'), ('srv', '_ask.py'), ('action', '_drive.py')):
        assert (package / kind / name).is_file()
    share = whole / 'share' / 'gemma_thor_ros'
    for name in ('config/llm.yaml', 'kernels/README.md', 'launch/llm.launch.py', 'package.xml',
                 'msg/Beat.msg'):
        assert (share / name).is_file(), name
    for name in ('lib/gemma_thor_ros/llm_node', 'lib/gemma_thor_ros/goal_guard',
                 'lib/gemma_thor_ros/demo_robot', 'bin/gemma-thor'):
        assert os.access(whole / name, os.X_OK), name
        assert '@PROGRAM' not in (whole / name).read_text(encoding='utf-8')
    assert not list(whole.rglob('chat.pyc'))
    commands = [point for found in importlib.metadata.distributions(path=[str(package.parent)])
                for point in found.entry_points if point.group == 'ros2cli.command']
    assert [(point.name, point.value) for point in commands] == [
        ('gemma', 'gemma_thor_ros.cli.ros2_gemma:GemmaCommand')]
    assert commands[0].dist is not None and commands[0].dist.version == '0.1.0'
    # Two with one name would hide each other.
    names = [found.name.replace('-', '_') for found in
             importlib.metadata.distributions(path=[str(package.parent)])]
    assert len(names) == len(set(names)), names

    # What the wheel takes of it: pip writes its own gemma-thor, C++ exports stay behind.
    taken = [f'{folder}/{pathlib.Path(file).name}' for folder, files in
             setup_py.data_files(whole) for file in files]
    assert 'lib/gemma_thor_ros/llm_node' in taken
    assert 'share/gemma_thor_ros/config/llm.yaml' in taken
    assert 'share/ament_index/resource_index/packages/gemma_thor_ros' in taken
    assert any(name.startswith('lib/libgemma_thor_ros__') for name in taken)
    assert not [name for name in taken if 'cmake' in name or 'local_setup' in name
                or name.startswith(('bin/', 'include/', 'lib/python'))]

    # The same tree, for the robot's other machines.
    small = tmp_path / 'small'
    package = build(setup_py, tree, small, '-DGEMMA_THOR_INTERFACES_ONLY=ON')
    assert hand_written(package) == {'__init__.py', 'client.py', 'goal_client.py'}
    assert (package / 'msg' / '_beat.py').is_file()
    assert not (small / 'lib' / 'gemma_thor_ros').exists() and not (small / 'bin').exists()
    program = ('import json, sys; sys.path.insert(0, sys.argv[1]); import gemma_thor_ros.client;'
               'print(gemma_thor_ros.client.Beat(sequence=7).sequence)')
    done = subprocess.run([sys.executable, '-P', '-c', program, package.parent], text=True,
                          check=True, stdout=subprocess.PIPE, cwd='/')
    assert done.stdout == '7\n'
