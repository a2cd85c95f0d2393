# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Rules that hold for every source file, as functions from a file's text to its faults."""
from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = 'gemma_thor_ros'
MAX_LINES = 500
FOLDERS = (PACKAGE, 'bench', 'cmake', 'demo_model', 'kernels', 'launch', 'scripts', 'test')
SUFFIXES = {'.py', '.cu', '.cuh', '.cmake', '.sh'}
HEADER = ('Copyright 2026 The gemma_thor_ros developers', 'SPDX-License-Identifier: Apache-2.0')
# The kernel cache's folder is the one thing that the environment may decide.
ENVIRONMENT_READER = f'{PACKAGE}/ops/compile.py'
# External package -> where it may be imported; a name ending in / stands for a folder.
ALLOWED_AT = {
    'cupy': (f'{PACKAGE}/ops/',),
    'rclpy': (f'{PACKAGE}/ros/', f'{PACKAGE}/demo/', f'{PACKAGE}/client.py',
              f'{PACKAGE}/goal_client.py'),
}
# Modules whose imports of ours are limited to these.
OWN_IMPORTS = {
    f'{PACKAGE}/__init__.py': (),
    f'{PACKAGE}/schema.py': (),
    f'{PACKAGE}/resources.py': (),
    f'{PACKAGE}/config.py': (f'{PACKAGE}.schema',),
    # Built alone with -DGEMMA_THOR_INTERFACES_ONLY=ON, beside the interfaces.
    f'{PACKAGE}/client.py': (f'{PACKAGE}.msg', f'{PACKAGE}.srv', f'{PACKAGE}.action',
                             f'{PACKAGE}.goal_client'),
    f'{PACKAGE}/goal_client.py': (),
}


def source_files() -> Iterator[pathlib.Path]:
    """Every hand-written source file."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob('*')):
            if path.suffix in SUFFIXES and path.is_file() and '__pycache__' not in path.parts:
                yield path
    yield ROOT / 'setup.py'


def faults(name: str, text: str) -> list[str]:
    """Return what is wrong with the file `name` (relative, with /) that holds `text`."""
    found = too_long(text) + without_header(text)
    if name.startswith(PACKAGE) and name.endswith('.py'):
        tree = ast.parse(text)
        found += forbidden_imports(name, tree)
        if name != ENVIRONMENT_READER:
            found += environment_reads(tree)
    return [f'{name}: {fault}' for fault in found]


def too_long(text: str) -> list[str]:
    lines = text.count('\n')
    return [f'{lines} lines, at most {MAX_LINES} are allowed'] if lines > MAX_LINES else []


def without_header(text: str) -> list[str]:
    head = text.split('\n')[:4]
    return [f'{line!r} is not among the first lines' for line in HEADER
            if not any(line in first for first in head)]


def environment_reads(tree: ast.AST) -> list[str]:
    """Uses of os.environ, os.environb and os.getenv, however they were imported."""
    names = {'environ', 'environb', 'getenv', 'getenvb'}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = node.attr in names and node.value.id == 'os'
        elif isinstance(node, ast.ImportFrom):
            used = node.module == 'os' and any(alias.name in names for alias in node.names)
        else:
            used = False
        if used:
            found.append(f'line {node.lineno} reads the environment')  # type: ignore[attr-defined]
    return found


def forbidden_imports(name: str, tree: ast.AST) -> list[str]:
    """Imports, also inside functions, that only other files may have."""
    found = []
    for line, module in imported(name, tree):
        places = ALLOWED_AT.get(module.split('.')[0])
        if places is not None and not name.startswith(places):
            found.append(f'line {line} imports {module}, allowed only in {", ".join(places)}')
        own = OWN_IMPORTS.get(name)
        if own is not None and module.split('.')[0] == PACKAGE and module not in own:
            found.append(f'line {line} imports {module}')
    return found


def imported(name: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module name) for each import statement."""
    parents = name.split('/')[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = parents[:len(parents) - node.level + 1] if node.level else []
            module = '.'.join([*base, *([node.module] if node.module else [])])
            if module == PACKAGE:
                for alias in node.names:
                    yield node.lineno, f'{PACKAGE}.{alias.name}'
            else:
                yield node.lineno, module
