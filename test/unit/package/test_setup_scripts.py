# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The set-up scripts: which Python they take, and that links never lose a source file."""
from __future__ import annotations

import importlib.util
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
WORKING = '#!/bin/sh\nexit 0\n'
SHIM = '#!/bin/sh\necho "python: command not found" >&2\nexit 127\n'


def picked(folder: pathlib.Path, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run pick_python.sh where exactly these Pythons are on the PATH."""
    for name, text in programs.items():
        (folder / name).write_text(text, encoding='utf-8')
        (folder / name).chmod(0o755)
    return subprocess.run(['/bin/bash', ROOT / 'scripts' / 'pick_python.sh'], text=True,
                          env={'PATH': str(folder)}, capture_output=True, check=False)


@pytest.mark.parametrize(('programs', 'wanted'), [
    ({'python3.12': WORKING, 'python3.11': WORKING}, 'python3.12'),
    ({'python3.12': SHIM, 'python3.13': SHIM, 'python3.11': WORKING}, 'python3.11'),
    ({'python3.13': WORKING, 'python3.11': WORKING}, 'python3.13'),
    ({'python3': WORKING}, 'python3'),
])
def test_takes_the_first_python_that_runs(
        tmp_path: pathlib.Path, programs: dict[str, str], wanted: str) -> None:
    assert picked(tmp_path, programs).stdout == wanted + '\n'


def test_says_what_to_install_where_none_runs(tmp_path: pathlib.Path) -> None:
    done = picked(tmp_path, {'python3.12': SHIM, 'python3': SHIM})
    assert done.returncode == 1
    assert 'apt install python3-venv' in done.stderr


def test_links_are_live_and_unlinking_keeps_the_sources(tmp_path: pathlib.Path) -> None:
    spec = importlib.util.spec_from_file_location('links', ROOT / 'scripts' / 'link_sources.py')
    assert spec is not None and spec.loader is not None
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    source, installed = tmp_path / 'source', tmp_path / 'installed'
    for folder, text in ((source, 'new'), (installed, 'old')):
        (folder / 'text').mkdir(parents=True)
        (folder / 'text' / 'a.py').write_text(text, encoding='utf-8')
        (folder / 'chat.py').write_text(text, encoding='utf-8')
    (installed / 'msg').mkdir()

    assert links.link(installed, source) == ['chat.py', 'text']
    links.unlink(installed)
    links.link(installed, source)
    assert (installed / 'text' / 'a.py').read_text('utf-8') == 'new'
    assert (installed / 'msg').is_dir() and not (installed / 'msg').is_symlink()

    links.unlink(installed)
    assert sorted(path.name for path in installed.iterdir()) == ['msg']
    assert (source / 'text' / 'a.py').read_text('utf-8') == 'new'
    assert (source / 'chat.py').is_file()
