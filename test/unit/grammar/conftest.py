# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model's vocabulary and its grammars."""

from __future__ import annotations

from pathlib import Path

import pytest

import gemma_thor_ros
from gemma_thor_ros.text.grammar import Grammars
from gemma_thor_ros.text.tokenizer import Tokenizer

STOP_IDS = (1, 50, 106)


@pytest.fixture(scope='session')
def tokenizer() -> Tokenizer:
    folder = Path(gemma_thor_ros.__file__).parent / 'demo' / 'model'
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope='session')
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, STOP_IDS)


@pytest.fixture(scope='session')
def real_tokenizer(vocab_file: Path) -> Tokenizer:
    return Tokenizer.from_file(vocab_file)


@pytest.fixture(scope='session')
def real_grammars(real_tokenizer: Tokenizer) -> Grammars:
    return Grammars(real_tokenizer, STOP_IDS)
