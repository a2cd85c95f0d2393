# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers for the text tests: the real one, and a tiny one that needs no download."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from gemma_thor_ros.text.controls import CORE
from gemma_thor_ros.text.tokenizer import Tokenizer

DATA = Path(__file__).resolve().parents[2] / 'data' / 'vectors'
# Merges that make pieces cross the borders that a text-based reader would look at.
WORDS = ['thought', 'call', '\n\n', ' {', ':{', '},', '":', '<|', '|>', 'tool', ',\n', '▁the']


def build_tiny(path: Path, media: dict[str, int] | None = None,
               change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """Write a tokenizer of about 700 entries with the released ids below 494."""
    by_id = {token_id: text for text, token_id in CORE.values()}
    by_id[5] = '[multimodal]'
    by_id.update((106 + count, '\n' * count) for count in range(1, 32))
    by_id.update((238 + value, f'<0x{value:02X}>') for value in range(256))
    by_id.update((token_id, f'<unused{token_id}>') for token_id in range(494)
                 if token_id not in by_id)
    by_id.update((token_id, text) for text, token_id in (media or {}).items())
    vocab = {text: token_id for token_id, text in sorted(by_id.items())}
    merges: list[tuple[str, str]] = []

    def add(text: str) -> None:
        vocab.setdefault(text, max(vocab.values()) + 1)

    for char in [chr(code) for code in range(33, 127)] + ['▁', 'é', 'ü', '日', '\t']:
        add(char)
    for word in WORDS:
        word = word.replace(' ', '▁')
        for end in range(2, len(word) + 1):
            add(word[:end])
            merges.append((word[:end - 1], word[end - 1]))
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token='<unk>', fuse_unk=True,
                                 byte_fallback=True))
    backend.normalizer = normalizers.Replace(' ', '▁')
    backend.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(),
                                         decoders.Fuse()])
    document = json.loads(backend.to_str())
    if change:
        change(document)
    path.write_text(json.dumps(document), encoding='utf-8')
    return path


@pytest.fixture(scope='session')
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('tiny')
    media = {'<|image|>': 200, '<|image>': 201, '<image|>': 202, '<|audio|>': 203,
             '<|video|>': 204}
    (folder / 'config.json').write_text('{"image_token_id": 200, "boi_token_id": 201}')
    return build_tiny(folder / 'tokenizer.json', media)


@pytest.fixture(scope='session')
def tiny(tiny_file: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny_file.parent)


@pytest.fixture(scope='session')
def real(vocab_file: Path) -> Tokenizer:
    return Tokenizer.from_file(vocab_file)


@pytest.fixture(scope='session', params=['tiny', 'real'])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Both tokenizers, one after the other."""
    chosen: Tokenizer = request.getfixturevalue(request.param)
    return chosen


def load_lines(name: str) -> list[dict[str, Any]]:
    """The lines of a vector file."""
    with open(DATA / f'{name}.jsonl', encoding='utf-8') as lines:
        return [json.loads(line) for line in lines]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked `vectors(file, ...)` runs once for each line, as argument `case`."""
    marker = metafunc.definition.get_closest_marker('vectors')
    if marker:
        cases = [case for name in marker.args for case in load_lines(name)
                 if marker.kwargs.get('key', 'id') in case
                 and case['id'] not in marker.kwargs.get('without', ())]
        metafunc.parametrize('case', cases, ids=[case['id'] for case in cases])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line('markers', 'vectors(file, ..., key, without): run for each line')
