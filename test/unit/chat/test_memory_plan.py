# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The memory plan: inside the budget, and never too little for what admission would promise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.engine.page_pool import plan_pages
from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.load_memory import Pages, kv_bytes, plan_memory
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.schema import ConfigError

MODEL = ModelConfig.from_dict(json.loads((DEMO_FOLDER / 'config.json').read_text()))
CONTEXT, GIB = 4096, 2 ** 30


def plan(budget_gib: float, image_tokens: int = 0) -> tuple[Pages, int]:
    """The pages for a budget, and their bytes."""
    config = EngineConfig.from_mapping({'engine.kv_memory': budget_gib})
    pages = plan_memory(config, MODEL, CONTEXT, None, 'float32', 'cpu', image_tokens)
    return pages, kv_bytes(config, MODEL, pages, 'float32', 'cpu', None)


@pytest.mark.parametrize('image_tokens', [0, 1120])
def test_any_budget_holds_one_whole_sequence_and_is_kept(image_tokens: int) -> None:
    sliding, full = plan_pages(CONTEXT, 1, page_size=16, window=MODEL.sliding_window,
                               prefill_chunk=max(256, image_tokens))
    # with rounding that may leave less than nothing for the next ones
    for budget in np.geomspace(0.05, 0.35, 301).tolist():
        pages, size = plan(budget, image_tokens)
        assert pages.sliding >= sliding and pages.full >= full, budget
        assert size <= budget * GIB, budget


def test_all_short_sequences_come_before_a_second_long_one() -> None:
    """A sequence needs its sliding pages at any length; shares of whole ones had 2 and 5 here."""
    pages, _ = plan(0.08)
    assert 3 * 50 <= pages.sliding < 4 * 50 and pages.full >= 256 + 2 * 32
    pages, _ = plan(0.16)
    assert 8 * 50 <= pages.sliding < 9 * 50 and pages.full >= 256 + 7 * 32


def test_what_is_left_goes_to_long_sequences_and_checkpoints() -> None:
    most, _ = plan(4.0)
    window = most.checkpoints // EngineConfig.from_mapping({})['engine.max_checkpoints']
    assert most == Pages(8 * 50 + most.checkpoints, 8 * 256, 16 * 32) and window == 32
    before = plan(0.16)[0]
    for budget in (0.2, 0.25, 0.3):
        after = plan(budget)[0]
        assert before.sliding < after.sliding < most.sliding
        assert before.full < after.full < most.full
        before = after


def test_too_little_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r'one sequence of 4,096 tokens needs 0\.0\d\d GiB of KV '
                                          r'pages, engine\.kv_memory is 0\.01 GiB'):
        plan(0.01)
