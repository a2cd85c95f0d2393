# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Settings as ROS parameters: types, descriptors, ranges, refusals; in one process."""

from __future__ import annotations

import pytest

pytest.importorskip('rclpy')

from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter

from gemma_thor_ros.config import BY_NAME, SETTINGS
from gemma_thor_ros.ros.guard_parameters import declare_parameters
from gemma_thor_ros.ros.parameters import NodeParameters, to_parameters, unknown_parameters
from gemma_thor_ros.schema import ConfigError


@pytest.fixture
def make_node(tmp_path, monkeypatch):
    monkeypatch.setenv('ROS_LOG_DIR', str(tmp_path))
    context = Context()
    context.init(args=[])
    nodes = []

    def make(overrides=()):
        node = Node('llm', context=context, parameter_overrides=list(overrides),
                    use_global_arguments=False, start_parameter_services=False)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.destroy_node()
    context.try_shutdown()


def change(node, name, value):
    return node.set_parameters([Parameter(name, value=value)])[0]


def test_every_setting_is_a_parameter_with_its_description(make_node):
    node = make_node()
    parameters = NodeParameters(node)
    for setting in SETTINGS:
        described = node.describe_parameter(setting.name)
        assert setting.doc in described.description
        assert parameters.config[setting.name] == setting.default
        if setting.type_name == 'int':
            limits = described.integer_range[0]
            assert (limits.from_value, limits.to_value) == (setting.minimum, setting.maximum)
        if setting.type_name == 'float':
            limits = described.floating_point_range[0]
            assert (limits.from_value, limits.to_value) == (setting.minimum, setting.maximum)
        if setting.choices:
            assert ', '.join(setting.choices) in described.additional_constraints


def test_overrides_are_taken(make_node):
    values = {'engine.max_sequences': 3, 'sampling.temperature': 0.5, 'model.script': ['a', 'b'],
              'ros.autostart': False, 'model.path': 'scripted'}
    config = NodeParameters(make_node(to_parameters(values))).config
    assert {name: config[name] for name in values} == values


def test_an_integer_is_taken_for_a_number(make_node):
    config = NodeParameters(make_node([Parameter('sampling.temperature', value=1)])).config
    assert config['sampling.temperature'] == 1.0
    assert isinstance(config['sampling.temperature'], float)


@pytest.mark.parametrize(
    ('name', 'value', 'words'),
    [
        ('engine.max_sequences', 65, ['engine.max_sequences', '65', '64']),
        ('sampling.temperature', -0.5, ['sampling.temperature', '-0.5', '10']),
        ('sampling.temperature', 11, ['sampling.temperature', '11', '10']),
        ('sampling.temperature', float('nan'), ['sampling.temperature']),
        ('http.port', 'x', ['http.port']),
        ('engine.device', 'tpu', ['engine.device', 'tpu', 'cpu']),
    ],
)
def test_a_wrong_value_at_the_start_names_setting_value_and_limits(make_node, name, value, words):
    with pytest.raises(ConfigError) as caught:
        NodeParameters(make_node([Parameter(name, value=value)]))
    for word in words:
        assert word in str(caught.value)


def test_a_wrong_value_later_is_refused_with_the_limits_and_changes_nothing(make_node):
    node = make_node()
    parameters = NodeParameters(node)
    for name, value, words in [
        ('engine.max_sequences', 100, ['100', '64']),
        ('sampling.top_p', 1.5, ['1.5', '1']),
        ('engine.device', 'tpu', ['tpu', 'auto, cpu']),
        ('sampling.temperature', 'hot', ['sampling.temperature', 'hot']),
    ]:
        result = change(node, name, value)
        assert not result.successful
        for word in words:
            assert word in result.reason
        assert parameters.config[name] == BY_NAME[name].default


def test_live_settings_change_while_frozen_and_others_do_not(make_node):
    node = make_node()
    parameters = NodeParameters(node)
    assert change(node, 'engine.max_sequences', 4).successful
    parameters.freeze(True)
    assert change(node, 'sampling.temperature', 0.25).successful
    refused = change(node, 'engine.max_sequences', 5)
    assert not refused.successful and 'clean the node up first' in refused.reason
    assert parameters.config['sampling.temperature'] == 0.25
    assert parameters.config['engine.max_sequences'] == 4
    parameters.freeze(False)
    assert change(node, 'engine.max_sequences', 5).successful
    assert parameters.config['engine.max_sequences'] == 5


def test_safety_and_access_settings_are_read_only_from_the_start(make_node):
    node = make_node()
    NodeParameters(node)
    for name in ('tools.policy_file', 'tools.dry_run', 'http.host', 'http.api_key_file'):
        assert node.describe_parameter(name).read_only
        assert not change(node, name, 'x').successful
    assert not node.describe_parameter('sampling.temperature').read_only


def test_unknown_names_are_pointed_out():
    assert unknown_parameters(['engine.contxt_length', 'use_sim_time', 'sampling.top_k']) == [
        'parameter engine.contxt_length does not exist and is ignored; '
        'did you mean engine.context_length?'
    ]
    assert unknown_parameters(['toolz.policy_file', 'qos_overrides./tf.publisher.depth']) == [
        'parameter toolz.policy_file does not exist and is ignored; '
        'did you mean tools.policy_file?'
    ]
    assert unknown_parameters(['zzz']) == ['parameter zzz does not exist and is ignored']


def test_a_guard_parameter_that_does_not_exist_is_refused_with_the_nearest(make_node):
    for name, words in (('stop_topic', 'did you mean stop_topics?'),
                        ('zzz', 'there are node, stop_topics,')):
        node = make_node([Parameter(name, value=['/safety/stop'])])
        with pytest.raises(ValueError, match=f'parameter {name} does not exist; ') as caught:
            declare_parameters(node)
        assert words in str(caught.value)
    fine = make_node([Parameter('use_sim_time', value=True),
                      Parameter('stop_topics', value=['/safety/stop'])])
    assert declare_parameters(fine).stop_topics == ('/safety/stop',)


def test_an_empty_stop_topic_is_refused(make_node):
    for value in ([''], ['/safety/stop', ' ']):
        with pytest.raises(ValueError, match='stop_topics holds an empty name'):
            declare_parameters(make_node([Parameter('stop_topics', value=value)]))


def test_a_guard_that_cannot_see_its_parameters_does_not_start(make_node):
    node = make_node()
    del node._parameter_overrides        # as in an rclpy that names it otherwise
    with pytest.raises(ValueError, match='does not tell which parameters were given'):
        declare_parameters(node)
