# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The installed package: every interface is built, and importing them loads nothing else."""
from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
GENERATED = ('msg', 'srv', 'action')


@pytest.mark.parametrize('kind', GENERATED)
def test_every_interface_file_is_built(kind: str) -> None:
    module = importlib.import_module(f'gemma_thor_ros.{kind}')
    files = {path.stem for path in (ROOT / kind).iterdir()}
    assert files and files == {path.stem for path in (ROOT / kind).glob(f'*.{kind}')}
    built = {name for name in vars(module) if name[0].isupper() and '_' not in name}
    assert built == files, 'the interfaces have changed: run `make dev` or `make setup`'


def test_importing_the_interfaces_loads_nothing_else_of_ours() -> None:
    program = (
        'import sys, json, gemma_thor_ros.msg, gemma_thor_ros.srv, gemma_thor_ros.action\n'
        'print(json.dumps(sorted(sys.modules)))')
    done = subprocess.run([sys.executable, '-P', '-c', program], check=True, text=True,
                          stdout=subprocess.PIPE, cwd='/')
    modules = json.loads(done.stdout)
    ours = {name.split('.')[1] for name in modules if name.startswith('gemma_thor_ros.')}
    assert ours == set(GENERATED)
    assert not {'rclpy', 'fastapi', 'tokenizers', 'yaml'} & set(modules)


def test_constants_reach_python() -> None:
    from gemma_thor_ros.msg import ErrorCode

    names = [name for name in dir(ErrorCode) if name.isupper()]
    text = (ROOT / 'msg' / 'ErrorCode.msg').read_text(encoding='utf-8')
    values = {line.split('=')[0].split()[1]: int(line.split('=')[1].split('#')[0])
              for line in text.splitlines() if '=' in line.split('#')[0]}
    assert values and {name: getattr(ErrorCode, name) for name in values} == values
    assert set(values) <= set(names)
