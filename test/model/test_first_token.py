# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""An operator's request among background ones that decode: its first token comes within two steps
and its own prefill, whatever the slots, the memory and the chunks are.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from draft_gates import Oracle
from engine_gates import HashModel, Job, make_request, solo
from preempt_gates import with_priority

from gemma_thor_ros.engine import Engine, scheduler
from gemma_thor_ros.models.scripted_drafter import ScriptedDrafter
from gemma_thor_ros.schema import Priority, TokenEvent

MODEL = HashModel(96, sliding_window=40)
PAGE = 16
BACKGROUND = 8
SPARE_STEPS = 2


def steps_to_first_token(seed: int, drafted: bool = False) -> tuple[int, int]:
    """(steps that an operator waited for its token, those of its own prefill)."""
    rng = random.Random(seed)
    chunk = rng.choice((16, 23, 64))
    others = [with_priority(make_request(f'b{i}', rng.randint(5, 30), seed, vocab_size=96,
                                         max_tokens=90), Priority.BACKGROUND)
              for i in range(BACKGROUND)]
    operator = with_priority(make_request('operator', rng.randint(1, 120), seed, vocab_size=96,
                                          max_tokens=3), Priority.OPERATOR)
    options: dict[str, Any] = {}
    if drafted:                          # right guesses for some of them
        jobs = [Job(each) for each in others[:3]]
        options = {'drafter': ScriptedDrafter(Oracle(solo(MODEL, jobs, stop_ids=()), jobs), 96,
                                              window=40), 'num_drafts': 4}
    # memory for all, or for the background alone, so that some of it has to be dropped
    need = BACKGROUND * -(-120 // PAGE)
    engine = Engine(MODEL, page_size=PAGE, num_sliding_pages=400,
                    num_full_pages=need + rng.choice((0, 8)), max_waiting=20, prefill_chunk=chunk,
                    max_sequences=rng.choice((BACKGROUND, 2 * BACKGROUND)), context_length=512,
                    stop_ids=(), max_rows=16 if drafted else 1, **options)
    engine.start(threaded=False)
    boxes = [engine.submit(each) for each in others]
    while not all(any(isinstance(event, TokenEvent) for event in box.poll()) or box.finished
                  for box in boxes):
        engine.step()
    for _ in range(rng.randint(0, 12)):
        engine.step()
    begin = engine.stats().steps
    box = engine.submit(operator)
    while not box.poll():
        assert engine.step()
    found = engine.stats().steps - begin
    engine.stop()
    return found, -(-len(operator.prompt_ids) // chunk)


def late(seeds: range, drafted: bool = False) -> list[str]:
    """The seeds whose operator waited too long."""
    found = {seed: steps_to_first_token(seed, drafted) for seed in seeds}
    return [f'seed {seed}: {steps} steps, {own} of its own'
            for seed, (steps, own) in found.items() if steps > own + SPARE_STEPS]


@pytest.mark.parametrize('drafted', [False, True])
def test_an_operator_waits_for_its_own_prefill(drafted: bool, grid: bool) -> None:
    assert late(range(500 if grid else 2 if drafted else 6), drafted) == []


def no_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, '_below', lambda one, other: False)


def first_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    right = scheduler.choose_rows
    monkeypatch.setattr(scheduler, 'choose_rows', lambda running, chunk, max_rows: right(
        sorted(running, key=lambda each: each.arrival)[:BACKGROUND], chunk, max_rows))


@pytest.mark.parametrize('plant', [no_preemption, first_come_first])
def test_a_planted_error_shows(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert late(range(3)) != []
