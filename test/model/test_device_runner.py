# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A model that chooses tokens itself gives the answers that the host would draw."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from engine_gates import HashModel, Job, make_request, run

from gemma_thor_ros.engine.admission import Limits
from gemma_thor_ros.engine.device_runner import DeviceRunner, make_runner
from gemma_thor_ros.models.batch import Batch, Role
from gemma_thor_ros.ops.sample import SampleError, SampleRow, sample_row
from gemma_thor_ros.schema import FinishReason

VOCAB_SIZE = 96
request = partial(make_request, vocab_size=VOCAB_SIZE, max_tokens=8)


@dataclass(frozen=True)
class Step:
    tokens: np.ndarray
    logits: dict[int, np.ndarray]


class Choosing(HashModel):
    """Draws with the twin, keeps the flags of its calls."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ahead: list[bool] = []
        self.roles: list[set[Role]] = []
        self.late = False                # planted: settings of one step too late

    def choose(self, batch: Batch, kv_cache: Any, rows: Sequence[SampleRow], *, run_ahead: bool,
               logits_of: Collection[int]) -> Step:
        logits = self.forward(batch, kv_cache)
        tokens = []
        for row, values in zip(rows, logits, strict=True):
            if self.late:
                row = SampleRow(row.settings, row.position, row.suppress_ids)
            try:
                tokens.append(sample_row(values, row))
            except SampleError as error:
                tokens.append(-1 if 'NaN' in str(error) else -2)
        self.ahead.append(run_ahead)
        self.roles.append({span.role for span in batch.spans})
        return Step(np.array(tokens, np.int32), {index: logits[index] for index in logits_of})


class Guide:
    """Allows multiples of 3; breaks after `breaks` tokens; ends after 5."""

    banned = ()

    def __init__(self, breaks: int = 99) -> None:
        self.seen: list[int] = []
        self.breaks = breaks

    def allowed(self) -> bytes | None:
        if len(self.seen) == self.breaks:
            raise RuntimeError('no rule')
        return np.packbits(np.arange(VOCAB_SIZE) % 3 == 0, bitorder='little').tobytes()

    def accept(self, token_id: int) -> None:
        assert token_id % 3 == 0
        self.seen.append(token_id)

    @property
    def finished(self) -> bool:
        return len(self.seen) == 5


def jobs(temperature: float) -> list[Job]:
    make = partial(request, temperature=temperature)
    return [Job(make('long', 40, 1, max_tokens=20)), Job(make('late', 33, 3), 4),
            Job(make('repeated', 9, 4, repetition_penalty=1.7, max_tokens=14)),
            Job(make('counted', 9, 5, frequency_penalty=0.9, presence_penalty=0.4)),
            Job(make('told', 9, 6, logprobs=3)), Job(make('least', 9, 7, min_tokens=6), 2),
            Job(make('gone', 20, 8, max_tokens=30), 1, 9)]


def guided(breaks: int) -> list[Job]:
    return [Job(_with_guide(request('guided', 9, 2), Guide())),
            Job(_with_guide(request('broken', 9, 3), Guide(breaks)))]


def _with_guide(plain: Any, guide: Guide) -> Any:
    return replace(plain, guide=guide)


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_answers_are_those_of_the_host(temperature: float) -> None:
    chooser = Choosing(VOCAB_SIZE)
    chosen = run(chooser, jobs(temperature), stop_ids=())
    drawn = run(HashModel(VOCAB_SIZE), jobs(temperature), stop_ids=())
    assert chooser.ahead and chosen.keys() == drawn.keys()
    for name, answer in chosen.items():
        if name != 'gone':               # cancelled at a step that depends on the threads
            assert not answer.differs(drawn[name], False), name


def test_guides_rule_and_fail_alone() -> None:
    chosen = run(Choosing(VOCAB_SIZE), guided(3), stop_ids=())
    drawn = run(HashModel(VOCAB_SIZE), guided(3), stop_ids=())
    assert {name: (a.token_ids, a.reason, a.message) for name, a in chosen.items()} == {
        name: (a.token_ids, a.reason, a.message) for name, a in drawn.items()}
    assert chosen['guided'].reason is FinishReason.STOP and len(chosen['guided'].token_ids) == 5
    assert 'no rule' in chosen['broken'].message


def test_no_step_starts_early_where_it_may_not() -> None:
    plain, penalised = Choosing(VOCAB_SIZE), Choosing(VOCAB_SIZE)
    run(plain, [Job(request('a', 9, 1, max_tokens=6))], stop_ids=())
    assert plain.ahead == [True] * 5 + [False]           # the last one has no next
    run(penalised, [Job(request('a', 9, 1, repetition_penalty=1.1))], stop_ids=())
    told = Choosing(VOCAB_SIZE)
    run(told, guided(99)[:1], stop_ids=())
    waiting = Choosing(VOCAB_SIZE)
    run(waiting, [Job(request('a', 9, 1, max_tokens=9)), Job(request('b', 9, 2))],
        max_sequences=1, stop_ids=())
    assert not any(penalised.ahead) and not any(told.ahead) and not any(waiting.ahead[:8])


def test_a_planted_error_shows() -> None:
    """Histories that do not reach the model."""
    wrong = Choosing(VOCAB_SIZE)
    wrong.late = True
    chosen, drawn = (run(model, jobs(0.0)[2:3], stop_ids=())
                     for model in (wrong, HashModel(VOCAB_SIZE)))
    assert chosen['repeated'].differs(drawn['repeated'], False)


def test_the_engine_takes_the_runner() -> None:
    limits = Limits(VOCAB_SIZE, 100, (), ())
    assert type(make_runner(Choosing(VOCAB_SIZE), None, limits, None)) is DeviceRunner
    assert type(make_runner(HashModel(VOCAB_SIZE), None, limits, None)) is not DeviceRunner
