# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One version everywhere; requirements that agree between pip's, Jazzy's and the lock's lists."""
from __future__ import annotations

import ast
import importlib.util
import pathlib
import re
import sys
import tomllib
import types
import xml.etree.ElementTree as ElementTree

import pytest

import gemma_thor_ros

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Name of the import -> name at the registry, where they differ.
IMPORT_NAMES = {'yaml': 'pyyaml', 'PIL': 'pillow', 'prometheus_client': 'prometheus-client',
                'pydantic_core': 'pydantic'}     # each pydantic pins the one that it comes with
ROS_ENDINGS = ('_msgs', '_srvs', '_interfaces', 'rosidl_parser')
OPTIONAL = {'cupy', 'ros2cli', 'tf2_ros'}
# Loaded by rclpy itself, or used by our interfaces.
NEVER_IMPORTED = {'ros-rmw-fastrtps-cpp', 'ros-rcl-logging-spdlog', 'ros-lifecycle-msgs'}
PIN = re.compile(r'([A-Za-z0-9._-]+)==([^; ]+)')


def pins(lines: list[str]) -> dict[str, set[str]]:
    """Pinned versions by normalised name; a name with markers may have several."""
    found: dict[str, set[str]] = {}
    for line in lines:
        if match := PIN.match(line):
            name = re.sub('[-_.]+', '-', match[1]).lower()
            found.setdefault(name, set()).add(match[2])
    return found


def lines_of(name: str) -> list[str]:
    return (ROOT / name).read_text(encoding='utf-8').splitlines()


@pytest.fixture(scope='module')
def requirements() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location('req', ROOT / 'scripts' / 'requirements.py')
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_version_is_the_same_everywhere() -> None:
    version = gemma_thor_ros.__version__
    assert re.fullmatch(r'\d+\.\d+\.\d+', version)
    package = ElementTree.parse(ROOT / 'package.xml').getroot()
    assert package.findtext('version') == version
    changelog = (ROOT / 'CHANGELOG.rst').read_text(encoding='utf-8')
    headings = re.findall(r'^(\d+\.\d+\.\d+) \(.*\)\n-+$', changelog, re.MULTILINE)
    assert headings and headings[0] == version
    # setup.py and pyproject.toml name none of their own.
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
    assert project['project']['dynamic'] == ['version']
    assert project['tool']['setuptools']['dynamic']['version'] == {
        'attr': 'gemma_thor_ros.__version__'}
    assert 'version=' not in (ROOT / 'setup.py').read_text(encoding='utf-8')


def test_licence_is_named_and_there() -> None:
    package = ElementTree.parse(ROOT / 'package.xml').getroot()
    assert package.findtext('license') == 'Apache-2.0'
    assert 'Apache License' in (ROOT / 'LICENSE').read_text(encoding='utf-8')


def test_every_requirement_is_pinned(requirements: types.ModuleType) -> None:
    for line in requirements.requirements(['build', 'run', 'test', 'dev', 'cuda']):
        assert PIN.match(line), line


def test_groups_agree_on_versions(requirements: types.ModuleType) -> None:
    everything = pins(requirements.requirements(['build', 'run', 'test']))
    assert {name for name, versions in everything.items() if len(versions) > 1} == {'numpy'}


def test_lock_leaves_out_what_pyproject_pins(requirements: types.ModuleType) -> None:
    own = pins(requirements.requirements(['build', 'run', 'test']))
    locked = pins(lines_of('constraints.txt'))
    assert len(locked) > 50
    assert not set(own) & set(locked)


def test_jazzy_differs_in_numpy_and_ros_alone() -> None:
    table = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
    here = {name: versions for name, versions in pins(table['project']['dependencies']).items()
            if not name.startswith('ros-')}
    jazzy = pins(lines_of('requirements-jazzy.txt'))
    assert jazzy.pop('numpy') == {'1.26.4'}
    here.pop('numpy')
    assert jazzy == here


def imported_packages() -> set[str]:
    """Top-level names that the package imports, without the standard library and our own."""
    names = set()
    for path in (ROOT / 'gemma_thor_ros').rglob('*.py'):
        tree = ast.parse(path.read_text(encoding='utf-8'))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.split('.')[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split('.')[0])
    return names - set(sys.stdlib_module_names) - {'gemma_thor_ros'}


def test_what_is_imported_is_required_and_nothing_else() -> None:
    table = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))
    required = set(pins(table['project']['dependencies']))
    imported = {IMPORT_NAMES.get(name, name) for name in imported_packages()} - OPTIONAL
    ros = {name for name in imported if name == 'rclpy' or name.endswith(ROS_ENDINGS)}
    wanted = {f'ros-{name.replace("_", "-")}' if name in ros else name for name in imported}
    assert required == wanted | NEVER_IMPORTED
    assert not wanted & NEVER_IMPORTED


def test_package_xml_names_what_is_imported() -> None:
    package = ElementTree.parse(ROOT / 'package.xml').getroot()
    named = {element.text for tag in ('depend', 'exec_depend') for element in package.iter(tag)}
    ros = {name for name in imported_packages() if name == 'rclpy' or name.endswith(ROS_ENDINGS)}
    assert ros <= named


def test_package_xml_names_what_the_interfaces_use() -> None:
    package = ElementTree.parse(ROOT / 'package.xml').getroot()
    named = {element.text for element in package.iter('depend')}
    used = {match for folder in ('msg', 'srv', 'action') for path in (ROOT / folder).iterdir()
            for match in re.findall(r'^([a-z_]+)/[A-Z]', path.read_text('utf-8'), re.MULTILINE)}
    assert used <= named
    # rosidl adds these two to every package with actions and services.
    assert named - used == {'action_msgs', 'service_msgs'}
    cmake = (ROOT / 'CMakeLists.txt').read_text(encoding='utf-8')
    listed = re.search(r'set\(interface_dependencies\s+([a-z_\s]+)\)', cmake)
    assert listed is not None
    assert set(listed[1].split()) == used | {'action_msgs'}
