# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.resources import folder
from gemma_thor_ros.ros.checks import TurnContext, check_call, check_duplicate
from gemma_thor_ros.ros.policy import load_policy, parse_policy
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome
from gemma_thor_ros.schema import FinishReason, ToolCall

DEMO = load_policy(folder('config') / 'tools' / 'demo.yaml')

# The shapes of cases D02 and D03: a point in metres, a gear that is an int8.
OTHER = parse_policy("""\
version: 1
tools:
  move_to:
    description: Move.
    motion: true
    action: {name: move, type: demo_msgs/action/Move}
    timeout_s: 5
    args:
      x: {type: number, min: -10, max: 10, field: x}
      y: {type: number, min: -10, max: 10, field: y}
  set_gear:
    description: Gear.
    motion: false
    action: {name: gear, type: demo_msgs/action/Gear}
    timeout_s: 5
    args:
      level: {type: integer, field: level}
      quick: {type: boolean, default: false, field: quick}
      mode: {type: string, enum: [low, high], values: {low: 1, high: MODE_HIGH}, field: mode,
             required: false}
      angle: {type: number, unit: deg, field: angle, required: false}
""")


def turn(reason: FinishReason = FinishReason.TOOL_CALLS) -> TurnContext:
    return TurnContext(reason)


def fields(name: str, policy: Any = DEMO, **arguments: Any) -> dict[str, Any]:
    return check_call(policy, ToolCall('c1', name, arguments), turn()).fields


def refused(name: str, policy: Any = DEMO, **arguments: Any) -> tuple[Outcome, str]:
    with pytest.raises(CallRefusedError) as caught:
        check_call(policy, ToolCall('c1', name, arguments), turn())
    return caught.value.outcome, caught.value.reason


@pytest.mark.parametrize(('distance', 'unit', 'direction', 'metres'), [
    (2, 'm', 'forward', 2.0), (35, 'cm', 'forward', 0.35), (1.5, 'm', 'backward', -1.5),
    (250, 'mm', 'backward', -0.25), (3, 'ft', 'forward', 0.9144), (10, 'in', 'forward', 0.254),
    (20, 'm', 'forward', 20.0), (2000, 'cm', 'backward', -20.0),
])
def test_drive_is_converted_to_signed_metres(
        distance: float, unit: str, direction: str, metres: float) -> None:
    got = fields('drive', distance=distance, unit=unit, direction=direction)
    assert got == {'distance': metres}
    assert type(got['distance']) is float


def test_turn_is_converted_to_signed_radians() -> None:
    assert fields('turn', angle=90, unit='deg', direction='left') == {'angle': math.pi / 2}
    assert fields('turn', angle=90, unit='deg', direction='right') == {'angle': -math.pi / 2}
    assert fields('turn', angle=360, unit='deg', direction='left') == {'angle': 2 * math.pi}


def test_dock_and_say() -> None:
    assert fields('dock') == {}
    assert fields('say', text='Hello "there"') == {'text': 'Hello "there"'}


@pytest.mark.parametrize(('arguments', 'reason'), [
    ({'distance': 50, 'unit': 'm', 'direction': 'forward'},
     'distance 50 m is above the limit of 20 m'),
    ({'distance': 50, 'unit': 'm', 'direction': 'backward'},
     'distance 50 m is above the limit of 20 m'),
    ({'distance': 2100, 'unit': 'cm', 'direction': 'forward'},
     'distance 2100 cm (21 m) is above the limit of 20 m (2000 cm)'),
    ({'distance': 100, 'unit': 'ft', 'direction': 'forward'},
     'distance 100 ft (30.48 m) is above the limit of 20 m (65.6168 ft)'),
    ({'distance': 1e308, 'unit': 'm', 'direction': 'forward'},
     'distance 1e+308 m is above the limit of 20 m'),
    ({'distance': -1, 'unit': 'm', 'direction': 'forward'},
     'distance -1 m must be above 0; direction says which way'),
    ({'distance': 0, 'unit': 'm', 'direction': 'forward'},
     'distance 0 m must be above 0; direction says which way'),
])
def test_range_refusals_have_the_numbers(arguments: dict[str, Any], reason: str) -> None:
    assert refused('drive', **arguments) == (Outcome.REFUSED_RANGE, reason)


def test_turn_range_speaks_of_degrees_and_radians() -> None:
    assert refused('turn', angle=400, unit='deg', direction='left') == (
        Outcome.REFUSED_RANGE,
        'angle 400 deg (6.98132 rad) is above the limit of 6.28319 rad (360 deg)')


@pytest.mark.parametrize('change', [
    {'distance': 'nan'}, {'distance': '2'}, {'distance': True}, {'distance': None},
    {'distance': math.nan}, {'distance': math.inf}, {'distance': -math.inf},
    {'distance': 10**400}, {'distance': [2]}, {'distance': {}}, {'unit': 'miles'}, {'unit': 'M'},
    {'unit': 1}, {'unit': None}, {'unit': ['m']}, {'direction': 'up'}, {'direction': ''},
    {'speed': 1.0},
])
def test_wrong_arguments_are_refused_by_schema(change: dict[str, Any]) -> None:
    arguments = {'distance': 2, 'unit': 'm', 'direction': 'forward', **change}
    assert refused('drive', **arguments)[0] is Outcome.REFUSED_SCHEMA


@pytest.mark.parametrize('missing', ['distance', 'unit', 'direction'])
def test_missing_arguments_are_refused(missing: str) -> None:
    arguments = {'distance': 2, 'unit': 'm', 'direction': 'forward'}
    del arguments[missing]
    outcome, reason = refused('drive', **arguments)
    assert outcome is Outcome.REFUSED_SCHEMA and missing in reason


def test_a_wrong_value_cannot_flood_or_break_the_reason() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert refused('say', text=deep)[1] == 'text must be a string, not a list'
    assert refused('say', text={'a': 1})[1] == 'text must be a string, not an object'
    assert len(refused('dock', **{'x' * 10_000: 1})[1]) < 200
    assert len(refused('drive', distance='9' * 10_000, unit='m', direction='forward')[1]) < 200


def test_case_d02_a_text_is_no_number() -> None:
    assert refused('move_to', OTHER, x='nan', y=0)[0] is Outcome.REFUSED_SCHEMA


def test_case_d03_a_fraction_is_no_integer() -> None:
    for level in (1.9, 2.0, True, '2'):
        assert refused('set_gear', OTHER, level=level)[0] is Outcome.REFUSED_SCHEMA
    assert fields('set_gear', OTHER, level=2) == {'level': 2, 'quick': False}


def test_tables_defaults_and_fixed_units() -> None:
    got = fields('set_gear', OTHER, level=1, mode='high', angle=180, quick=True)
    assert got == {'level': 1, 'quick': True, 'mode': 'MODE_HIGH', 'angle': math.pi}


def test_texts_that_ros_cannot_carry_or_that_are_too_long() -> None:
    assert refused('say', text='a\0b')[0] is Outcome.REFUSED_SCHEMA
    assert refused('say', text='a\ud800')[0] is Outcome.REFUSED_SCHEMA
    assert refused('say', text='a' * 501) == (
        Outcome.REFUSED_RANGE, 'text has 501 characters, the limit is 500')


def test_an_unknown_tool_is_refused_and_the_known_ones_are_named() -> None:
    outcome, reason = refused('fly')
    assert outcome is Outcome.REFUSED_UNKNOWN_TOOL
    assert 'drive, turn, dock, say' in reason


@pytest.mark.parametrize('reason', [r for r in FinishReason if r is not FinishReason.TOOL_CALLS])
def test_the_calls_of_a_cut_turn_never_act(reason: FinishReason) -> None:
    with pytest.raises(CallRefusedError) as caught:
        check_call(DEMO, ToolCall('c1', 'dock', {}), turn(reason))
    assert caught.value.outcome is Outcome.REFUSED_REPAIRED


def test_a_repaired_call_never_acts() -> None:
    with pytest.raises(CallRefusedError) as caught:
        check_call(DEMO, ToolCall('c1', 'dock', {}, repaired=True), turn())
    assert caught.value.outcome is Outcome.REFUSED_REPAIRED


def test_the_same_call_twice_in_one_turn_is_refused() -> None:
    here = turn()

    def check(**arguments: Any) -> None:
        check_duplicate(check_call(DEMO, ToolCall('c', 'drive', arguments), here), here)

    check(distance=1, unit='m', direction='forward')
    check(distance=1, unit='m', direction='backward')
    with pytest.raises(CallRefusedError) as caught:
        check(distance=100.0, unit='cm', direction='forward')
    assert caught.value.outcome is Outcome.REFUSED_DUPLICATE
    other = turn()
    check_duplicate(check_call(
        DEMO, ToolCall('c', 'drive', {'distance': 1, 'unit': 'm', 'direction': 'forward'}), other),
        other)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(['m', 'cm', 'forward', 'backward', 'deg', 'left']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner,
                                                                max_size=3), max_leaves=6)
_NAMES = st.sampled_from(['distance', 'unit', 'direction', 'angle', 'text', 'x'])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(['drive', 'turn', 'dock', 'say', 'fly']),
       st.dictionaries(_NAMES, _JSON, max_size=4))
def test_nothing_outside_the_limits_passes(name: str, arguments: dict[str, Any]) -> None:
    try:
        got = fields(name, **arguments)
    except CallRefusedError as error:
        json.dumps(error.reason)
        assert len(error.reason) < 400
        return
    if name == 'drive':
        assert type(got['distance']) is float and 0 <= abs(got['distance']) <= 20.0
    elif name == 'turn':
        assert type(got['angle']) is float and 0 <= abs(got['angle']) <= 2 * math.pi
    elif name == 'say':
        assert type(got['text']) is str and len(got['text']) <= 500
    else:
        assert name == 'dock' and got == {}


@settings(max_examples=300, deadline=None)
@given(st.floats(min_value=-10, max_value=4e4) | st.integers(-5, 24000),
       st.sampled_from(['m', 'cm', 'mm', 'ft', 'in']), st.sampled_from(['forward', 'backward']))
def test_drive_passes_exactly_when_it_is_within_the_limits(
        distance: float, unit: str, direction: str) -> None:
    metres = {'m': 1.0, 'cm': 0.01, 'mm': 0.001, 'ft': 0.3048, 'in': 0.0254}[unit] * distance
    try:
        got = fields('drive', distance=distance, unit=unit, direction=direction)
    except CallRefusedError:
        assert metres <= 0 or metres > 20.0 * (1 - 1e-12)
    else:
        sign = 1 if direction == 'forward' else -1
        assert got['distance'] == pytest.approx(sign * metres, rel=1e-12)
        assert 0 <= metres <= 20.0 * (1 + 1e-12)
