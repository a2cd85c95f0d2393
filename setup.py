# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Build the wheel with the package's own CMakeLists.txt, against the ROS 2 wheels from PyPI.

colcon never reads this file (package.xml says ament_cmake). What CMake installs below
site-packages becomes the wheel's package; the type supports (lib/) and the data (share/)
become its `data` scheme, which pip lays into the environment as the ROS 2 wheels do with
theirs. C++ headers and CMake exports are left out: C++ nodes use the colcon build.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent
NAME = 'gemma_thor_ros'
# Parts of share/ that serve C++ builds and shells set up with a workspace's setup files.
SHARE_LEFT_OUT = ('*/share/gemma_thor_ros/cmake/*', '*/share/gemma_thor_ros/environment/*',
                  '*/local_setup.*', '*/package.dsv')


def wheels_prefix() -> pathlib.Path:
    """Return the folder that the ROS 2 wheels were laid into."""
    try:
        import rosidl_generator_py
    except ImportError:
        raise SystemExit('the ROS 2 wheels are not installed for '
                         f'{sys.executable}; the list is in pyproject.toml') from None
    for folder in pathlib.Path(rosidl_generator_py.__file__).resolve().parents:
        if (folder / 'share' / 'ament_index').is_dir():
            return folder
    raise SystemExit(f'{rosidl_generator_py.__file__} does not lie in an install prefix')


def cmake_commands(source: pathlib.Path, build: pathlib.Path, prefix: pathlib.Path,
                   options: Sequence[str] = ()) -> list[list[str]]:
    """Return the commands that configure, build and install `source` into `prefix`."""
    configure = ['cmake', '-S', str(source), '-B', str(build), '-G', 'Ninja',
                 '--log-level=WARNING',
                 '-DCMAKE_BUILD_TYPE=Release', '-DBUILD_TESTING=OFF',
                 '-DGEMMA_THOR_CPP_INTERFACES=OFF',
                 '-DGEMMA_THOR_PYTHON=/bin/sh',
                 f'-DCMAKE_INSTALL_PREFIX={prefix}',
                 f'-DPython3_EXECUTABLE={sys.executable}',
                 f'-DGEMMA_THOR_WHEELS_PREFIX={wheels_prefix()}',
                 f'-DCMAKE_PROJECT_{NAME}_INCLUDE={source}/cmake/ros_wheels.cmake', *options]
    return [configure, ['cmake', '--build', str(build)], ['cmake', '--install', str(build)]]


class CMakeBuild(build_ext):
    """The build step: everything that the wheel holds comes out of CMake."""

    def run(self) -> None:
        build = self.build_folder()
        prefix = build / 'install'
        shutil.rmtree(prefix, ignore_errors=True)  # else a deleted module would live on
        # The generators run as child processes of CMake and find their modules as this one does.
        environment = {**os.environ,
                       'PYTHONPATH': os.pathsep.join(path for path in sys.path if path)}
        for command in cmake_commands(HERE, build, prefix):
            subprocess.run(command, check=True, env=environment)
        site = next(prefix.glob(f'lib/python*/*-packages/{NAME}'))
        target = pathlib.Path(self.build_lib) / NAME
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(site, target, ignore=shutil.ignore_patterns('__pycache__'))
        self.distribution.data_files = data_files(prefix)

    def build_folder(self) -> pathlib.Path:
        """Return a folder that no other interpreter or set of ROS 2 wheels has used."""
        if wheels_prefix() == pathlib.Path(sys.prefix).resolve():
            tag = f'{pathlib.Path(sys.prefix).name}-{sys.implementation.cache_tag}'
            return HERE / 'build' / f'cmake-{sysconfig.get_platform()}-{tag}'
        return pathlib.Path(self.build_temp).resolve() / 'cmake-isolated'

    def get_outputs(self) -> list[str]:
        return [str(path) for path in (pathlib.Path(self.build_lib) / NAME).rglob('*')
                if path.is_file()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        return []


def data_files(prefix: pathlib.Path) -> list[tuple[str, list[str]]]:
    """Return the type supports, the programs and share/ as (folder, files) pairs."""
    files: dict[str, list[str]] = {}
    for path in sorted(prefix.rglob('*')):
        parts = path.relative_to(prefix).parts
        if not path.is_file() or '__pycache__' in parts:
            continue
        if parts[0] == 'lib' and not parts[1].startswith('python'):
            keep = True
        else:
            keep = parts[0] == 'share' and not any(path.match(p) for p in SHARE_LEFT_OUT)
        if keep:
            files.setdefault(str(pathlib.Path(*parts[:-1])), []).append(str(path))
    return sorted(files.items())


class BinaryDistribution(Distribution):
    """Marks the wheel as one for this platform and this Python."""

    def has_ext_modules(self) -> bool:
        return True


if __name__ == '__main__':
    setup(packages=[], distclass=BinaryDistribution, cmdclass={'build_ext': CMakeBuild})
