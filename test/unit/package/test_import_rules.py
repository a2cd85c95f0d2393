# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The import contracts in pyproject.toml catch an import in the wrong direction."""
from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PLANTED = [
    ('models/batch.py', 'gemma_thor_ros.engine'),
    ('ops/sample.py', 'gemma_thor_ros.models'),
    ('engine/scheduler.py', 'gemma_thor_ros.chat'),
    ('engine/outbox.py', 'gemma_thor_ros.text'),
    ('engine/runner.py', 'gemma_thor_ros.weights'),
    ('chat.py', 'gemma_thor_ros.server'),
    ('load.py', 'gemma_thor_ros.ros'),
    ('text/tokenizer.py', 'gemma_thor_ros.ops'),
    ('weights/canonical.py', 'gemma_thor_ros.models'),
]


def lint(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    program = pathlib.Path(sys.executable).parent / 'lint-imports'
    return subprocess.run([program, '--no-logo', '--no-cache'], cwd=folder, text=True,
                          capture_output=True, check=False)


def test_planted_imports_are_caught(tmp_path: pathlib.Path) -> None:
    shutil.copy(ROOT / 'pyproject.toml', tmp_path / 'pyproject.toml')
    shutil.copytree(ROOT / 'gemma_thor_ros', tmp_path / 'gemma_thor_ros',
                    ignore=shutil.ignore_patterns('__pycache__', 'model'))
    clean = lint(tmp_path)
    assert clean.returncode == 0, clean.stdout
    for name, module in PLANTED:
        with (tmp_path / 'gemma_thor_ros' / name).open('a', encoding='utf-8') as file:
            file.write(f'\n\ndef planted() -> None:\n    import {module}\n')
    caught = lint(tmp_path)
    assert caught.returncode == 1
    for name, module in PLANTED:
        importer = 'gemma_thor_ros.' + name.removesuffix('.py').replace('/', '.')
        assert f'{importer} -> {module}' in caught.stdout.replace('\n', ' '), caught.stdout


@pytest.mark.parametrize('name', sorted({name for name, _ in PLANTED}))
def test_the_planted_files_exist(name: str) -> None:
    assert (ROOT / 'gemma_thor_ros' / name).is_file()
