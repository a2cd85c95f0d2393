# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Values of a policy that no call could ever pass with are named, and no others."""

import pytest

from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.schema import ConfigError

POLICY = """\
version: 1
tools:
  go:
    description: Go.
    motion: true
    action: {{name: go, type: demo_msgs/action/Go}}
    timeout_s: 1
    args:
      x: {{{x}}}
      unit: {{type: string, enum: [cm, ft], default: cm}}
      way: {{type: string, enum: [ahead, back], sign: {{ahead: 1, back: -1}}, default: ahead}}
      y: {{type: number, unit_arg: unit, sign_arg: way, min: 0 m, max: 1 m, field: y}}
"""


@pytest.mark.parametrize(('x', 'words'), [
    ('type: number, unit: deg, min: 0 deg, max: 90 deg, default: 91, field: x',
     'default 91 of x lies outside 0 to 1.5708 rad'),
    ('type: number, unit_arg: unit, min: 0 m, max: 1 m, enum: [3, 101], field: x',
     'enum value 101 of x lies outside 0 to 1 m'),
    ('type: number, unit_arg: unit, sign_arg: way, min: 0 m, max: 1 m, default: -3, field: x',
     'default -3 of x is not above 0'),
    ('type: string, enum: [a, abcd], max_length: 3, field: x',
     'has 4 characters, max_length is 3'),
    ('type: array, items: integer, enum: [1, 9], min: 0, max: 5, max_items: 2, field: x',
     'enum value 9 of x lies outside 0 to 5')])
def test_a_value_that_never_passes_is_named_with_its_line(x: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(POLICY.format(x=x), 'p.yaml')
    assert str(caught.value).startswith('p.yaml:9: ') and words in str(caught.value)


@pytest.mark.parametrize('x', [
    'type: number, unit_arg: unit, min: 0 m, max: 1 m, enum: [3, 100], field: x',   # 100 cm
    'type: number, unit_arg: unit, sign_arg: way, min: -1 m, max: -0.5 m, default: 2, field: x',
    'type: number, unit: deg, min: -90 deg, max: 90 deg, default: -90, field: x',
    'type: string, enum: [abc], max_length: 3, default: abc, field: x'])
def test_a_value_that_may_pass_is_let_through(x: str) -> None:
    assert parse_policy(POLICY.format(x=x)).tools['go'].argument('x') is not None
