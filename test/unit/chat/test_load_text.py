# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The text part of a load: when it begins, and what becomes of a file that is wrong."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gemma_thor_ros import load_text
from gemma_thor_ros.load_text import TextBeside
from gemma_thor_ros.schema import ConfigError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_text, 'Grammars', lambda tokenizer, stop_ids: (tokenizer, stop_ids))


def test_it_begins_with_the_first_check_and_once() -> None:
    begun: list[str] = []
    gate = threading.Event()

    def read() -> Any:
        begun.append(threading.current_thread().name)
        assert gate.wait(10.0)
        return 'tokenizer'

    text = TextBeside(read, (1,))
    assert not begun
    text.check()
    text.check()                         # it is under way: nothing is waited for
    gate.set()
    assert text.result() == ('tokenizer', ('tokenizer', (1,)))
    text.close()
    assert [name.rpartition('_')[0] for name in begun] == ['gemma_thor_text']


def test_a_wrong_file_shows_at_a_later_check() -> None:
    def read() -> Any:
        raise ConfigError('tokenizer.json: wrong')

    text = TextBeside(read, ())
    with pytest.raises(ConfigError, match='wrong'):
        for _ in range(1000):
            text.check()
            threading.Event().wait(0.01)
    with pytest.raises(ConfigError, match='wrong'):
        text.result()
    text.close()
