# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Settings: types, limits, and the table in the docs that is made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.config import BY_NAME, SETTINGS, EngineConfig, check, settings_table
from gemma_thor_ros.schema import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(('name', 'value', 'words'), [
    ('engine.page_size', 0, 'engine.page_size is 0, allowed are 1 to 256 tokens'),
    ('engine.page_size', 16.5, 'engine.page_size must be of type int'),
    ('engine.page_size', True, 'engine.page_size must be of type int'),
    ('sampling.temperature', float('nan'), 'sampling.temperature must be finite'),
    ('engine.device', 'tpu', 'engine.device must be one of auto, cpu'),
    ('engine.pages', 1, "unknown setting 'engine.pages'"),
    ('http.port', 70000, 'http.port is 70000, allowed are 0 to 65535'),
])
def test_wrong_values_name_setting_value_and_limits(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(name, value)


def test_nothing_is_set_when_one_value_is_wrong() -> None:
    config = EngineConfig()
    with pytest.raises(ConfigError):
        config.update({'http.port': 1234, 'engine.page_size': -1})
    assert config['http.port'] == 8000


def test_whole_numbers_fit_float_settings_and_lists_are_copied() -> None:
    config = EngineConfig.from_mapping({'sampling.temperature': 1, 'model.script': ['a', '']})
    assert config['sampling.temperature'] == 1.0
    config.as_dict()['model.script'].append('b')  # type: ignore[union-attr]
    assert config['model.script'] == ['a']


def test_every_default_passes_its_own_check() -> None:
    for setting in SETTINGS:
        assert check(setting.name, setting.default) == setting.default
    assert len(BY_NAME) == len(SETTINGS)


def test_docs_hold_the_current_table() -> None:
    """Made by: python -m gemma_thor_ros.config > docs/settings.md"""
    text = (ROOT / 'docs' / 'settings.md').read_text(encoding='utf-8')
    assert settings_table() in text
