# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model's evaluation: its files are whole, its judge catches wrong answers."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gemma_thor_ros.cli import eval_demo
from gemma_thor_ros.cli.main import main
from gemma_thor_ros.demo.evaluation.cases import LIMITS, Case, load_cases
from gemma_thor_ros.demo.evaluation.judge import (
    RowResult,
    breaks_declarations,
    count,
    is_right,
    is_withheld,
    missed,
)
from gemma_thor_ros.schema import ChatResult, FinishReason, Timings, ToolCall, Usage

CASES = load_cases()
DRIVE = ['drive', {'distance': 2, 'unit': 'm', 'direction': 'forward'}]
TOOLS = CASES['motion'][0].tools
MESSAGES = ({'role': 'user', 'content': 'drive two metres forward'},)


def answer(text: str = '', *calls: list[Any], repaired: bool = False,
           reasoning: str = '') -> ChatResult:
    made = tuple(ToolCall(f'c{index}', name, arguments, repaired)
                 for index, (name, arguments) in enumerate(calls))
    return ChatResult('r', text, reasoning, made, FinishReason.STOP, Usage(), Timings())


def test_every_row_has_its_dialogues() -> None:
    assert set(CASES) == set(LIMITS)
    for name, limit in LIMITS.items():
        least = {'by_hand': 300, 'plain': 150}.get(name, 500 if limit is not None else 100)
        assert len(CASES[name]) >= least, name
        keys = Counter(json.dumps([case.messages, case.tools]) for case in CASES[name])
        assert max(keys.values()) == 1


def test_expected_calls_fit_the_declarations() -> None:
    for name, cases in CASES.items():
        for case in cases[:150]:
            schemas = {tool['function']['name']: tool['function']['parameters']
                       for tool in case.tools}
            for called, arguments in case.expect.get('calls', ()):
                jsonschema.validate(arguments, {**schemas[called], 'additionalProperties': False})
            assert len(case.expect.get('calls', ())) <= 3, name


def test_rows_differ_in_what_they_ask() -> None:
    assert all(len(case.expect['calls']) == 2 for case in CASES['two_calls'])
    assert all(case.expect['text'].endswith('?') for case in CASES['missing'])
    assert all(case.messages[-1]['role'] == 'tool' for case in CASES['after_failure'])
    assert all(case.thinking for case in CASES['thinking'])


@pytest.mark.parametrize(('expect', 'right', 'wrong'), [
    ({'calls': [DRIVE]}, answer('', DRIVE), answer('', DRIVE, DRIVE)),
    ({'calls': [DRIVE]}, answer('', DRIVE), answer('', DRIVE, repaired=True)),
    ({'calls': [DRIVE]}, answer('', DRIVE), answer('Yes.', DRIVE)),
    ({'calls': [DRIVE]}, answer('', DRIVE), answer('', ['drive', {**DRIVE[1], 'distance': 3}])),
    ({'calls': [DRIVE, ['dock', {}]]}, answer('', DRIVE, ['dock', {}]),
     answer('', ['dock', {}], DRIVE)),
    ({'calls': []}, answer('Sorry.'), answer('', DRIVE)),
    ({'calls': []}, answer('Sorry.'), answer('')),
    ({'text': 'How far?'}, answer('How far?'), answer('Which way?')),
    ({'question': True}, answer('How far?'), answer('No.')),
    ({'reason': 'wall ahead', 'claim': 'I drove 2 metres forward'},
     answer('I could not drive 2 metres forward: wall ahead.'),
     answer('I drove 2 metres forward: wall ahead.')),
    ({'reason': 'wall ahead', 'claim': 'I drove'}, answer('I could not: wall ahead.'),
     answer('I could not: door ahead.')),
])
def test_the_judge(expect: dict[str, Any], right: ChatResult, wrong: ChatResult) -> None:
    case = Case('known', MESSAGES, TOOLS, expect)
    assert is_right(case, right)
    assert not is_right(case, wrong)


def test_a_thinking_case_needs_a_thought() -> None:
    case = Case('thinking', MESSAGES, TOOLS, {'calls': [DRIVE]}, thinking=True)
    assert is_right(case, answer('', DRIVE, reasoning='I drive.'))
    assert not is_right(case, answer('', DRIVE))


def test_broken_and_withheld_calls_are_counted() -> None:
    case = Case('known', MESSAGES, TOOLS, {'calls': [DRIVE]})
    assert not breaks_declarations(case, answer('', DRIVE))
    for call in (['fly', {}], ['drive', {'distance': 2}], ['dock', {'now': True}],
                 ['drive', {**DRIVE[1], 'unit': 'miles'}]):
        assert breaks_declarations(case, answer('', call))
    assert is_withheld(case, answer('No.'))
    assert not is_withheld(case, answer('', ['dock', {}]))
    row = RowResult()
    for given in (answer('', DRIVE), answer('No.'), answer('', ['fly', {}]), answer('', DRIVE)):
        count(row, case, given)
    assert (row.cases, row.right, row.withheld, row.invalid) == (4, 2, 1, 1)


def test_each_missed_figure_is_told() -> None:
    good = {name: RowResult(100, 100) for name in LIMITS}
    assert missed(good, RowResult(10, 9), 0.9) == []
    for name, limit in LIMITS.items():
        told = missed({**good, name: RowResult(1000, 0)})
        assert len(told) == (limit is not None), name
        if limit is not None:
            assert missed({**good, name: RowResult(1000, int(10 * limit))}) == []
            assert missed({**good, name: RowResult(1000, int(10 * limit) - 1)}) != []
    assert 'withheld' in missed({'known': RowResult(100, 97, withheld=4)})[0]
    assert missed(good, RowResult(10, 10, invalid=1)) != []
    assert missed(good, None, 1.1) != []


def test_wrong_use_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(['eval-demo', '--rows', 'nonsense']) == 2
    assert 'the rows are plain, motion' in capsys.readouterr().err
    assert main(['eval-demo', '--rows', ',']) == 2
    assert 'names no row' in capsys.readouterr().err
    assert main(['eval-demo', '--wrong', '/']) == 2
    assert '--wrong /: Is a directory' in capsys.readouterr().err
    old = tmp_path / 'wrong.json'
    old.write_text('[1]')
    assert main(['eval-demo', '--wrong', str(old), '--set', 'x']) == 2
    assert old.read_text() == '[1]'
    assert main(['eval-demo', '--count', '0']) == 2
    assert main(['eval-demo', '--set', 'x']) == 2
    assert main(['eval-demo', '--set', 'speculation.num_drafts=many']) == 2
    assert 'speculation.num_drafts' in capsys.readouterr().err


def test_settings_are_numbers_where_they_are_meant_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def measured(model: str, cases: Any, settings: dict[str, Any]) -> Any:
        seen.append(settings)
        return {name: RowResult(1, 1) for name in cases}, []

    monkeypatch.setattr(eval_demo, 'measure', measured)
    main(['eval-demo', '--rows', 'motion', '--set', 'speculation.num_drafts=7'])
    assert seen == [{'speculation.num_drafts': 7}]


def test_acceptance_is_per_round() -> None:
    usage = Usage(rounds=4, drafted_tokens=12, accepted_tokens=6, accepted_by_position=(4, 2))
    told = eval_demo.acceptance(usage)
    assert told == {'rounds': 4, 'tokens_per_round': 2.5, 'kept_by_position': [1.0, 0.5]}
    assert eval_demo.acceptance(dataclasses.replace(usage, rounds=0)) is None
