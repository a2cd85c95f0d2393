# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The exactness gates with guides: a mask is a function of the sequence's own tokens, whatever
runs beside it, however its prompt is cut, whether it is dropped or others are cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from engine_gates import TEMPERATURES, HashModel, Job, differences, make_request, run, solo

from gemma_thor_ros.engine.runner import Runner
from gemma_thor_ros.engine.scheduler import Scheduler
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.guide import AnswerGuide, Contents
from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.schema import FinishReason, Priority
from gemma_thor_ros.text.grammar import Grammars, Tool
from gemma_thor_ros.text.parser import OutputParser
from gemma_thor_ros.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_folder(DEMO_FOLDER)
GRAMMARS = Grammars(TOKENIZER, (1, 50, 106))
SCHEMA = {'type': 'object', 'properties': {
    'distance': {'type': 'number', 'minimum': 0, 'maximum': 20},
    'unit': {'enum': ['m', 'cm', 'ft']}, 'note': {'type': 'string', 'maxLength': 12},
    'steps': {'type': 'array', 'items': {'type': 'integer'}, 'maxItems': 3},
    'extra': {'type': 'object'}}, 'required': ['distance', 'unit']}
CALLS = GRAMMARS.calls([Tool('drive', SCHEMA), Tool('get_battery', None)])
ANSWER = GRAMMARS.answer(SCHEMA, 'schema')
CONTENTS = {
    'required': Contents(CALLS, None, True), 'single': Contents(CALLS, None, True, True),
    'json': Contents(None, ANSWER), 'either': Contents(CALLS, ANSWER, may_think=True),
    'auto': Contents(CALLS), 'thought': Contents(CALLS, None, True, in_thought=True)}
SMALL = {'page_size': 8, 'num_sliding_pages': 60, 'num_full_pages': 60, 'prefill_chunk': 16}


def model() -> HashModel:
    return HashModel(TOKENIZER.vocab_size, sliding_window=24)


def jobs(temperature: float = 0.7, *, guided: bool = True) -> list[Job]:
    """One request of each kind and some without a guide, with guides at their start."""
    made = []
    for index, (name, contents) in enumerate([*CONTENTS.items(), *CONTENTS.items()]):
        request = make_request(f'{name}{index}', 5 + 9 * index, index, max_tokens=40,
                               vocab_size=TOKENIZER.vocab_size, temperature=temperature, top_k=0,
                               top_p=1.0, min_tokens=3 * (index % 3))
        if guided:
            request = replace(request, guide=AnswerGuide(GRAMMARS, contents))
        made.append(Job(request, 2 * index, 2 * index + 7 if index == 8 else -1))
    made.append(Job(make_request('free', 20, 99, vocab_size=TOKENIZER.vocab_size), 3))
    return made


@pytest.mark.parametrize('temperature', TEMPERATURES)
def test_concurrent_is_solo_and_every_call_is_whole(temperature: float) -> None:
    found = run(model(), jobs(temperature), prefill_chunk=16)
    whole = solo(model(), jobs(temperature))
    assert not differences(found, whole, jobs(temperature))
    free = run(model(), jobs(temperature, guided=False), prefill_chunk=16)
    assert free['required0'].token_ids != found['required0'].token_ids
    for name, answer in found.items():
        parser = OutputParser(TOKENIZER, {'drive': SCHEMA, 'get_battery': {}},
                              in_thought=name.startswith('thought'))
        parser.push(answer.token_ids)
        output = parser.finish(answer.reason)
        for call in output.tool_calls if name != 'free' else ():
            assert not call.repaired
            assert call.name in ('drive', 'get_battery')
        if name.startswith(('required', 'single')) and answer.reason is FinishReason.STOP:
            assert output.tool_calls


@pytest.mark.parametrize('chunk', [1, 15, 16, 17])
def test_chunked_is_one_prefill(chunk: int) -> None:
    found = run(model(), jobs(), prefill_chunk=chunk)
    assert not differences(found, solo(model(), jobs()), jobs())


def test_a_dropped_sequence_draws_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for two: the later, higher classes take it from the lower ones, which come back."""
    dropped: list[int] = []
    drop = Scheduler.drop

    def counting(self: Scheduler, sequence: Sequence) -> None:
        if sequence.request.guide is not None:
            dropped.append(sequence.num_generated)
        drop(self, sequence)

    monkeypatch.setattr(Scheduler, 'drop', counting)

    def ranked() -> list[Job]:
        return [replace(job, request=replace(job.request, priority=Priority(index % 4)),
                        cancel_step=-1) for index, job in enumerate(jobs())]

    found = run(model(), ranked(), max_sequences=3, **{**SMALL, 'num_full_pages': 40})
    assert max(dropped, default=0) > 2
    assert not differences(found, solo(model(), ranked()), ranked())


def planted(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[[], list[Job]]:
    if name == 'one guide for all':
        shared = AnswerGuide(GRAMMARS, CONTENTS['json'])
        return lambda: [replace(job, request=replace(job.request, guide=shared))
                        for job in jobs()]
    original = Runner._guided
    if name == 'no mask':
        monkeypatch.setattr(Runner, '_guided', lambda self, row, guide: row)
        return jobs
    last: list[Any] = []

    def mask_of_the_row_before(self: Runner, row: Any, guide: Any) -> Any:
        made = original(self, row, guide)
        last.append(made.allowed)
        before = last[-2] if len(last) > 1 else None
        return replace(made, allowed=before if made.allowed is not None else None)

    monkeypatch.setattr(Runner, '_guided', mask_of_the_row_before)
    return jobs


@pytest.mark.parametrize('name', ['one guide for all', 'no mask', 'mask of the row before'])
def test_the_gate_catches_planted_errors(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    whole = solo(model(), jobs())
    wrong = planted(monkeypatch, name)
    assert differences(run(model(), wrong(), prefill_chunk=16), whole, jobs())
