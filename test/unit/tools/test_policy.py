# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.resources import folder
from gemma_thor_ros.ros.checks import TurnContext, check_call
from gemma_thor_ros.ros.policy import load_policy, parse_policy
from gemma_thor_ros.ros.policy_schema import (
    AREA_SCHEMA,
    ARGUMENT_SCHEMA,
    FRAMES_SCHEMA,
    POLICY_SCHEMA,
    PRECONDITION_SCHEMA,
    RESULT_SCHEMA,
    TOOL_SCHEMA,
)
from gemma_thor_ros.ros.policy_types import Policy
from gemma_thor_ros.ros.verdict import CallRefusedError
from gemma_thor_ros.schema import ConfigError, FinishReason, ToolCall

GOOD = """\
version: 1
tools:
  move:
    description: Move.
    motion: true
    action: {name: base/move, type: demo_msgs/action/Move}
    timeout_s: 5
    args:
      length:
        type: number
        unit_arg: unit
        sign_arg: way
        min: -2 m
        max: 3 m
        field: target.length
      unit: {type: string, enum: [m, cm], default: m}
      way: {type: string, enum: [ahead, back], sign: {ahead: 1, back: -1}}
      gait: {type: string, enum: [walk, trot], values: {walk: GAIT_WALK, trot: 2}, field: gait}
    constants:
      stamp.frame: base
    result:
      moved: {field: moved, unit: cm, round: 1}
"""


def fault(old: str, new: str) -> str:
    """Return the message that the good policy gives when `old` stands as `new` in it."""
    assert GOOD.count(old) == 1, f'{old!r} must stand once in the good policy'
    with pytest.raises(ConfigError) as caught:
        parse_policy(GOOD.replace(old, new), 'p.yaml')
    return str(caught.value)


def demo_policy() -> Policy:
    return load_policy(folder('config') / 'tools' / 'demo.yaml')


def test_a_good_policy_is_read_as_written() -> None:
    tool = parse_policy(GOOD).tools['move']
    assert (tool.motion, tool.target.name, tool.timeout_s) == (True, 'base/move', 5.0)
    assert tool.server_timeout_s == 2.0
    length = tool.argument('length')
    assert length is not None
    assert (length.minimum, length.maximum, length.field) == (-2.0, 3.0, 'target.length')
    assert tool.constants == {'stamp.frame': 'base'}
    assert tool.result[0].unit == 'cm'


def test_the_demo_tools_are_the_ones_the_demo_model_knows() -> None:
    distance = {'type': 'number', 'description': 'How far, a positive number'}
    length = {'type': 'string', 'enum': ['m', 'cm', 'mm', 'ft', 'in'],
              'description': 'Unit of distance'}
    angle = {'type': 'string', 'enum': ['deg', 'rad'], 'description': 'Unit of angle'}

    def tool(name: str, description: str, properties: dict[str, object]) -> dict[str, object]:
        parameters: dict[str, object] = {'type': 'object', 'properties': properties}
        if properties:
            parameters['required'] = list(properties)
        return {'type': 'function', 'function': {
            'name': name, 'description': description, 'parameters': parameters}}

    assert demo_policy().openai_tools() == [
        tool('drive', 'Drive straight ahead or back.', {
            'distance': distance, 'unit': length,
            'direction': {'type': 'string', 'enum': ['forward', 'backward']}}),
        tool('turn', 'Turn on the spot.', {
            'angle': distance, 'unit': angle,
            'direction': {'type': 'string', 'enum': ['left', 'right']}}),
        tool('dock', 'Drive to the charging dock.', {}),
        tool('say', 'Speak a sentence aloud.', {'text': {'type': 'string'}}),
    ]


def test_the_demo_limits() -> None:
    tools = demo_policy().tools
    distance, angle = tools['drive'].argument('distance'), tools['turn'].argument('angle')
    assert distance is not None and (distance.minimum, distance.maximum) == (-20.0, 20.0)
    assert angle is not None and angle.maximum == 2 * math.pi and angle.minimum == -2 * math.pi
    assert [tool.motion for tool in tools.values()] == [True, True, True, False]


def test_plain_limits_and_defaults_are_shown_to_the_model() -> None:
    text = GOOD.replace('        unit_arg: unit\n', '').replace('-2 m', '0').replace('3 m', '4')
    text = text.replace('      unit: {type: string, enum: [m, cm], default: m}\n', '')
    text = text.replace('{ahead: 1, back: -1}}', '{ahead: 1, back: -1}, default: ahead}')
    schema = parse_policy(text).openai_tools()[0]['function']['parameters']
    assert schema['properties']['length'] == {'type': 'number', 'minimum': 0.0, 'maximum': 4.0}
    assert schema['properties']['way']['default'] == 'ahead'
    assert schema['required'] == ['length', 'gait']


def test_limits_of_a_quantity_are_not_shown_without_their_unit() -> None:
    schema = parse_policy(GOOD).openai_tools()[0]['function']['parameters']
    assert schema['properties']['length'] == {'type': 'number'}


@pytest.mark.parametrize(('old', 'new', 'line', 'words'), [
    ('    motion: true\n', '', 3, 'lacks motion'),
    ('motion: true', 'motion: maybe', 5, 'must be of type boolean, not string'),
    ('timeout_s: 5', 'timeout_s: 0', 7, 'timeout_s'),
    ('timeout_s: 5', 'timeout_s: .inf', 7, 'not a finite number'),
    ('timeout_s: 5', 'timeout: 5', 7, "no key 'timeout'"),
    ('version: 1', 'version: 2', 1, 'must be 1, not 2'),
    ('demo_msgs/action/Move', 'demo_msgs/srv/Move', 6, 'demo_msgs/srv/Move'),
    ('action: {name', 'service: {name', 6, 'move.service.type'),
    ('type: number', 'type: float', 10, 'number, integer, string, boolean'),
    ('min: -2 m', 'min: -2', 13, 'a number and a unit'),
    ('min: -2 m', 'min: -2 deg', 13, 'the units in unit are m, cm'),
    ('min: -2 m', 'min: 9 m', 14, 'below its min'),
    ('        max: 3 m\n', '', 9, 'needs min and max'),
    ('field: target.length', 'field: Target', 15, 'Target'),
    ('        field: target.length\n', '', 9, 'goes nowhere'),
    ('enum: [m, cm]', 'enum: [m, deg]', 11, 'one dimension'),
    ('enum: [m, cm]', 'enum: [m, parsec]', 11, 'one dimension'),
    ('enum: [m, cm]', 'enum: [m, m]', 16, 'stands twice'),
    ('enum: [m, cm]', 'enum: [m, 2]', 16, 'not of type string'),
    ('enum: [m, cm], default: m', 'enum: [m, cm], default: km', 16, 'not in its enum'),
    ('enum: [m, cm], default: m', 'enum: [m, cm], required: false', 11,
     'must be required or have a default'),
    ('default: m}', 'default: m, required: true}', 16, 'has a default'),
    ('unit_arg: unit', 'unit_arg: none_such', 11, "'none_such' is no string argument"),
    ('sign_arg: way', 'sign_arg: gait', 12, 'gait has no sign table'),
    ('back: -1}', 'up: -1}', 17, 'exactly the enum values'),
    ('back: -1}', 'back: -2}', 17, 'must be 1, -1'),
    ('        sign_arg: way\n', '', 16, 'goes nowhere'),
    ('values: {walk: GAIT_WALK, trot: 2}', 'values: {walk: GAIT_WALK}', 18, 'exactly the enum'),
    ('stamp.frame: base', 'target: base', 20, 'which argument length writes'),
    ('stamp.frame: base', 'gait: base', 20, 'which argument gait writes'),
    ('moved: {', 'status: {', 22, 'reserved'),
    ('moved: {', '"a b": {', 22, "'a b' is no valid name"),
    ('round: 1}', 'round: -1}', 22, 'round'),
    ('  move:\n', '  "mo ve":\n', 3, "'mo ve' is no valid name"),
    ('description: Move.', 'description: Move.\n    description: M.', 5, 'stands here twice'),
    ('description: Move.', 'description: 2026-01-01', 4, 'put it in quotes'),
    ('{ahead: 1, back', '{yes: 1, back', 17, 'put it in quotes'),
    ('args:\n', 'args: [\n', 10, 'not valid YAML'),
])
def test_faults_name_file_line_and_item(old: str, new: str, line: int, words: str) -> None:
    message = fault(old, new)
    assert message.startswith(f'p.yaml:{line}: '), message
    assert words in message


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 6), st.sampled_from(
    ['', ':', '{', '}', '[', ']', '-', '"', "'", '#', '&a ', '*a', '!!x ', '\n', '  ', 'null', '1',
     '.nan', '1e999', '\t', '? ', '|', '0x_', '2026-01-01', '<<: ', '\x00', '\u2028'])),
    max_size=4))
def test_damaged_policies_give_one_message_with_a_line(edits: list[tuple[int, int, str]]) -> None:
    text = GOOD
    for start, length, new in edits:
        text = text[:start] + new + text[start + length:]
    try:
        parse_policy(text, 'p.yaml')
    except ConfigError as error:
        assert re.match(r'p\.yaml:[1-9][0-9]*: ', str(error)), str(error)


def test_an_integer_argument_with_a_unit_arg_and_both_units_is_refused() -> None:
    assert 'either unit or unit_arg' in fault('unit_arg: unit', 'unit: m\n        unit_arg: unit')


@pytest.mark.parametrize(('text', 'words'), [
    ('', 'empty'), ('- 1', 'must be of type object'), ('version: 1\ntools: {}', 'tools'),
    ('[' * 20000, 'nested too deeply'), ('&a [*a]', 'contains itself'), ('{1: 2}', 'quotes'),
    ('a: !!python/none x', 'cannot be read'),
])
def test_texts_that_are_no_policy(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_policy(text, 'p.yaml')


def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='cannot be read'):
        load_policy(tmp_path / 'none.yaml')
    bad = tmp_path / 'bad.yaml'
    bad.write_bytes(b'version: 1\n\xff')
    with pytest.raises(ConfigError, match=r'bad\.yaml:2: not UTF-8'):
        load_policy(bad)


PAGE = Path(__file__).resolve().parents[3] / 'docs' / 'tool_policy.md'


def documented() -> list[str]:
    """Return the YAML examples of the documentation."""
    return [part.split('```')[0] for part in
            PAGE.read_text(encoding='utf-8').split('```yaml\n')[1:]]


def test_the_other_examples_of_the_documentation_are_parts_of_a_policy() -> None:
    places, conditions = documented()[1:]
    policy = parse_policy(f"""version: 1
{places}
{conditions}
tools:
  go:
    description: Go.
    motion: true
    action: {{name: go, type: demo_msgs/action/Go}}
    timeout_s: 1
    pose: {{frame: base_link, x: distance}}
    area: lab
    requires: [charged, localized, door]
    rate: {{calls: 5, period_s: 60}}
""", 'docs/tool_policy.md')
    assert policy.areas['lab'].holds(5.0, 5.0) and not policy.areas['lab'].holds(0.5, 0.5)
    assert policy.frames.static[0].translation == (12.5, -3.0, 0.0)


@pytest.mark.parametrize('schema', [POLICY_SCHEMA, TOOL_SCHEMA, ARGUMENT_SCHEMA, RESULT_SCHEMA,
                                    PRECONDITION_SCHEMA, FRAMES_SCHEMA, AREA_SCHEMA])
def test_every_key_is_documented(schema: dict[str, Any]) -> None:
    text = PAGE.read_text(encoding='utf-8')
    for key, value in schema['properties'].items():
        assert re.search(rf'`{key}`|^ *(- \{{)?{key}: |[`{{ ]{key}[:,}}]', text, re.MULTILINE), key
        for inner in value.get('properties', {}):
            assert inner in text, (key, inner)


def test_the_example_of_the_documentation_is_a_policy() -> None:
    page, example = PAGE, documented()[0]
    policy = parse_policy(example, 'docs/tool_policy.md')
    turn = TurnContext(FinishReason.TOOL_CALLS)
    call = ToolCall('c', 'move', {'distance': 10, 'unit': 'ft', 'direction': 'backward'})
    assert check_call(policy, call, turn).fields == {'distance': -3.048, 'gait': 'GAIT_WALK'}
    call = ToolCall('c', 'move', {'distance': 20, 'unit': 'ft', 'direction': 'backward'})
    with pytest.raises(CallRefusedError) as caught:
        check_call(policy, call, turn)
    assert caught.value.reason in ' '.join(page.read_text(encoding='utf-8').split())
