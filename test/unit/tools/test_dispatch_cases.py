# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The cases of dispatch_to_ros.jsonl that the policy alone decides; test/ros has the others."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.ros.checks import TurnContext, check_call
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.verdict import CallRefusedError
from gemma_thor_ros.schema import FinishReason, ToolCall

VECTORS = Path(__file__).resolve().parents[2] / 'data' / 'vectors' / 'dispatch_to_ros.jsonl'
CASES = {case['id']: case for case in map(json.loads, VECTORS.read_text().splitlines())}

POLICIES = {
    'D02': 'x: {type: number, field: x, min: -9, max: 9}, '
           'y: {type: number, field: y, min: -9, max: 9}',
    'D03': 'level: {type: integer, field: level, min: -128, max: 127}',
}


@pytest.mark.parametrize('case_id', POLICIES)
@pytest.mark.parametrize('kind', ['as in the case', 'mended'])
def test_case(case_id: str, kind: str) -> None:
    call: dict[str, Any] = CASES[case_id]['request']['tool_call']
    policy = parse_policy(
        f'version: 1\ntools: {{{call["name"]}: {{description: d, motion: true, timeout_s: 1, '
        f'action: {{name: a, type: demo_msgs/action/A}}, args: {{{POLICIES[case_id]}}}}}}}')
    arguments = dict(call['arguments'])
    if kind == 'mended':     # the same call with a value that is right must pass
        arguments = dict.fromkeys(arguments, 1)
    try:
        check_call(policy, ToolCall('c', call['name'], arguments),
                   TurnContext(FinishReason.TOOL_CALLS))
        outcome = 'sent'
    except CallRefusedError as error:
        outcome = error.outcome.name.lower()
    assert outcome == ('sent' if kind == 'mended' else CASES[case_id]['expected']['outcome'])


def test_every_case_has_a_test_with_servers_in_other_processes() -> None:
    """By its name: test/ros says `case_d05` in the test of case D05."""
    texts = [path.read_text() for path in (VECTORS.parents[2] / 'ros').rglob('test_*.py')]
    names = {name for text in texts for name in re.findall(r'def (test_\w*case_\w+)', text)}
    assert len(CASES) == 11
    assert [case for case in CASES if not any(f'case_{case.lower()}' in n for n in names)] == []
