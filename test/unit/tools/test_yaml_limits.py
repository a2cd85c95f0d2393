# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Short YAML that stands for a great deal is refused at once; faults say what would be right."""

from __future__ import annotations

import time

import pytest

from gemma_thor_ros.cli.set_option import read_settings
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.policy_file import MAX_ITEMS, parse_policy_text
from gemma_thor_ros.schema import ConfigError

TOOL = """\
version: 1
areas:
  hall: {frame: map, inside: [{box: [0, 0, 1, 1]}]}
tools:
  move:
    description: Move.
    motion: true
    timeout_s: 5
    action: {name: base/move, type: demo_msgs/action/Move}
    args:
      length: {type: number, min: 0, max: 3, field: length}
"""


def bomb(levels: int, open_: str = '[', close: str = ']', key: str = '') -> str:
    """Return a mapping whose last item stands for 10 ** levels others."""
    lines = ['a0: &a0 x']
    for level in range(1, levels + 1):
        items = [f'{key and f"k{i}: "}*a{level - 1}' for i in range(10)]
        lines.append(f'a{level}: &a{level} {open_}{", ".join(items)}{close}')
    return '\n'.join(lines)


@pytest.mark.parametrize(('open_', 'close', 'key'), [('[', ']', ''), ('{', '}', 'k')])
def test_a_bomb_of_aliases_is_refused_within_a_second(open_: str, close: str, key: str) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError, match=f'p.yaml:.*more than {MAX_ITEMS} items') as caught:
        parse_policy_text(bomb(9, open_, close, key), 'p.yaml')
    assert time.process_time() - began < 2.0 and len(str(caught.value)) < 200


def test_aliases_that_stand_for_little_are_read() -> None:
    shared = TOOL.replace('min: 0, max: 3', 'min: &least 0, max: 3, default: *least')
    argument = parse_policy(shared, 'p.yaml').tools['move'].argument('length')
    assert argument is not None and argument.default == argument.minimum == 0


def test_a_message_does_not_repeat_a_long_value() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy_text(f'version: 1\ntools: {{move: {{description: {["x"] * 5000}}}}}')
    assert len(str(caught.value)) < 400


def test_a_setting_takes_no_alias() -> None:
    nested = ', '.join(['&a0 [x]', *(f'&a{i} [{", ".join([f"*a{i - 1}"] * 10)}]'
                                     for i in range(1, 8))])
    began = time.process_time()
    with pytest.raises(ConfigError, match=r'has an alias, \*a0') as caught:
        read_settings([f'model.path=[{nested}]'])
    assert time.process_time() - began < 1.0 and len(str(caught.value)) < 2000
    assert read_settings(['model.path=demo']) == {'model.path': 'demo'}


@pytest.mark.parametrize(('old', 'new', 'said'), [
    ('max: 3,', 'max: -1,', 'max of length, -1, is below its min, 0'),
    ('min: 0,', 'min: -1e308,', r'min is .* read.*as text, write -1\.0e\+308'),
    ('min: 0,', 'default: 1e5, min: 0,', r'as text, write 1\.0e\+05'),
    ('max: 3,', 'enum: [1e0, 2],', r'as text, write 1\.0e\+00'),
    ('    args:', '    area: lab\n    args:', "there is no area 'lab'; the areas are hall"),
    ('    args:', '    requires: [lit]\n    args:',
     "there is no precondition 'lit'; the policy has no preconditions"),
    ('    args:', '    trusts: [look]\n    args:',
     "there is no tool 'look'; the tools are move"),
    ('timeout_s: 5', 'timeout_s: 1e1',
     r'of type number, not string; YAML reads 1e1 as text, write 1\.0e\+01'),
])
def test_a_fault_says_the_numbers_and_what_there_is(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_policy(TOOL.replace(old, new, 1), 'p.yaml')
