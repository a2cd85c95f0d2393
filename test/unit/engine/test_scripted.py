# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The scripted model's own promises, above all that wrong pages are found out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.scripted import PEAK, PageFault, ScriptedKVCache, ScriptedModel

PAGES = [0, 1, 2, 3]


def batch(token_ids: Sequence[int], start: int, *, role: Role = Role.PREFILL,
          sliding: Sequence[int] = PAGES, full: Sequence[int] = PAGES) -> Batch:
    count = len(token_ids)
    span = Span(role, 0, count, start, np.array(sliding, np.int32), np.array(full, np.int32))
    return Batch(np.array(token_ids, np.int32), np.arange(start, start + count, dtype=np.int32),
                 (span,), np.array([count - 1], np.int32))


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(lambda prompt: [sum(prompt), 9], 64, sliding_window=5)


@pytest.fixture
def cache(model: ScriptedModel) -> ScriptedKVCache:
    return model.new_kv_cache(8, 8, 4)


def test_it_reads_its_history_back(model: ScriptedModel, cache: ScriptedKVCache) -> None:
    logits = model.forward(batch([1, 2, 3, 4, 5], 0), cache)
    assert logits.shape == (1, 64) and logits.dtype == np.float32
    assert np.flatnonzero(logits[0]).tolist() == [15] and logits[0, 15] == PEAK
    assert model.forward(batch([15], 5, role=Role.DECODE), cache)[0].argmax() == 9


def test_the_end_id_follows_the_script() -> None:
    model = ScriptedModel(lambda prompt: [9], 64, end_id=3)
    cache = model.new_kv_cache(8, 8, 4)
    model.forward(batch([1], 0), cache)
    assert model.forward(batch([9], 1, role=Role.DECODE), cache)[0].argmax() == 3
    assert (model.num_steps, model.num_rows) == (2, 2)


def test_verify_rows_and_a_rollback(model: ScriptedModel, cache: ScriptedKVCache) -> None:
    """Several decode rows in one step; later rows over the same positions replace them."""
    model.forward(batch([1, 2], 0), cache)
    rows = batch([3, 9, 40], 2, role=Role.DECODE)
    rows = Batch(rows.token_ids, rows.positions, rows.spans, np.array([0, 1, 2], np.int32))
    model.end_id = 60
    assert model.forward(rows, cache).argmax(1).tolist() == [9, 60, 60]
    assert model.forward(batch([41], 4, role=Role.DECODE), cache)[0].argmax() == 60


def test_a_freed_page_in_the_window(model: ScriptedModel, cache: ScriptedKVCache) -> None:
    model.forward(batch(range(1, 9), 0), cache)
    good = [-1, 1, 2, 3]
    model.forward(batch([9], 8, role=Role.DECODE, sliding=good), cache)    # sees 4 .. 8
    with pytest.raises(PageFault, match='sliding pages 1 to 2'):
        model.forward(batch([9], 8, role=Role.DECODE, sliding=[-1, -1, 2, 3]), cache)
    with pytest.raises(PageFault, match='full pages 0 to 2'):
        model.forward(batch([9], 8, role=Role.DECODE, full=good), cache)


def test_a_poisoned_page(model: ScriptedModel, cache: ScriptedKVCache) -> None:
    model.forward(batch(range(1, 9), 0), cache)
    cache.poison('sliding', [0])
    model.forward(batch([9], 8, role=Role.DECODE), cache)
    cache.poison('sliding', [1])
    with pytest.raises(PageFault, match='position 5 are not'):
        model.forward(batch([9], 9, role=Role.DECODE), cache)
    cache.poison('full', [0])
    with pytest.raises(PageFault, match='position 0 are not'):
        model.forward(batch([9], 8, role=Role.DECODE), cache)


def test_a_page_of_another_sequence_with_the_same_window(model: ScriptedModel,
                                                         cache: ScriptedKVCache) -> None:
    """The same tokens in the window, another history before it: not the same K and V."""
    model.forward(batch([1, 2, 3, 4, 5, 6, 7, 8], 0), cache)
    other = [4, 5, 6, 7]
    model.forward(batch([2, 2, 3, 4, 5, 6, 7, 8], 0, sliding=other, full=other), cache)
    with pytest.raises(PageFault, match='sliding page contents at position 4'):
        model.forward(batch([9], 8, role=Role.DECODE, sliding=[0, 5, 2, 3]), cache)


def test_a_lost_chunk(model: ScriptedModel, cache: ScriptedKVCache) -> None:
    model.forward(batch([1, 2, 3], 0), cache)
    with pytest.raises(PageFault, match='not of this sequence'):
        model.forward(batch([5, 6], 4), cache)


def test_a_short_table(model: ScriptedModel, cache: ScriptedKVCache) -> None:
    with pytest.raises(PageFault, match='pages 0 to 1'):
        model.forward(batch([1, 2, 3, 4, 5], 0, full=[0]), cache)


def test_a_prompt_row_after_a_generated_one(model: ScriptedModel, cache: ScriptedKVCache) -> None:
    model.forward(batch([1], 0), cache)
    model.forward(batch([1], 1, role=Role.DECODE), cache)
    with pytest.raises(PageFault, match='prompt row'):
        model.forward(batch([1], 2), cache)


def test_wrong_positions(model: ScriptedModel, cache: ScriptedKVCache) -> None:
    wrong = batch([1, 2], 0)
    wrong = Batch(wrong.token_ids, wrong.positions + 1, wrong.spans, wrong.logit_rows)
    with pytest.raises(PageFault, match='positions 0 to 1'):
        model.forward(wrong, cache)


def test_many_prompts_do_not_fill_the_memory() -> None:
    model = ScriptedModel(lambda prompt: [prompt[0] % 7], 64)
    cache = model.new_kv_cache(8, 8, 4)
    for i in range(600):
        assert model.forward(batch([i % 64, i // 64], 0), cache)[0].argmax() == i % 64 % 7
    assert len(model._answers) <= 256
