# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Every preset in config/ gives the node known settings with fit values. Needs no ROS."""

from __future__ import annotations

import pytest
import yaml

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.resources import folder
from gemma_thor_ros.ros.checks import TurnContext, check_call
from gemma_thor_ros.ros.policy import load_policy
from gemma_thor_ros.schema import ChatRequest, ErrorCode

PRESETS = sorted(folder('config').glob('*.yaml'))


def flat(tree, prefix=''):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f'{prefix}{key}.')
        else:
            yield f'{prefix}{key}', value


@pytest.mark.parametrize('path', PRESETS, ids=lambda path: path.name)
def test_preset(path):
    node = yaml.safe_load(path.read_text())['/**/llm_node']
    assert list(node) == ['ros__parameters']
    values = dict(flat(node['ros__parameters']))
    config = EngineConfig.from_mapping(values)
    assert values and {key: config[key] for key in values} == values


def test_there_are_presets():
    assert {'llm.yaml', 'checkpoint.yaml', 'scripted.yaml', '26b-a4b.yaml', '31b.yaml', '12b.yaml',
            } <= {path.name for path in PRESETS}


def scripted_answers(values, num_answers):
    """What the scripted model answers, its calls guided as the node does it."""
    runtime = Runtime(EngineConfig.from_mapping({**values, 'model.script_delay': 0.0}))
    policy = load_policy(folder('config') / 'tools' / f'{values["tools.policy_file"]}.yaml')
    runtime.start()
    try:
        assert runtime.wait_ready(30.0), runtime.error
        results = [runtime.require_chat().submit(ChatRequest(
            ({'role': 'user', 'content': f'go {number}'},), tuple(policy.openai_tools()),
            {'seed': 1},
        )).result(30.0) for number in range(num_answers)]
    finally:
        runtime.stop()
    return policy, results


def scripted_values():
    path = folder('config') / 'scripted.yaml'
    return dict(flat(yaml.safe_load(path.read_text())['/**/llm_node']['ros__parameters']))


def test_the_scripted_preset_does_what_its_script_says():
    policy, (drive, words) = scripted_answers(scripted_values(), 2)
    assert (drive.code, words.code, words.tool_calls) == (0, 0, ()), (drive.message, words.message)
    (call,) = drive.tool_calls
    assert call.arguments == {'distance': 1, 'unit': 'm', 'direction': 'forward'}
    checked = check_call(policy, call, TurnContext(drive.finish_reason))
    assert checked.fields == {'distance': 1.0}
    assert words.text == 'I have driven one metre.'


@pytest.mark.parametrize(('call', 'refused'), [
    ('drive{distance:1,unit:<|"|>m<|"|>,direction:<|"|>forward<|"|>}', "'distance' behind"),
    ('turn{angle:90,direction:<|"|>left<|"|>,unit:<|"|>miles<|"|>}', 'unit:'),
])
def test_arguments_that_a_guide_refuses_fail_the_request(call, refused):
    """Nothing that the script does not say reaches a robot."""
    script = [f'<|tool_call>call:{call}<tool_call|><|tool_response>']
    _, (result,) = scripted_answers({**scripted_values(), 'model.script': script}, 1)
    assert result.code == ErrorCode.ENGINE and not result.tool_calls
    assert 'the script can not be followed at its token' in result.message
    assert refused in result.message and 'alphabetical' in result.message
