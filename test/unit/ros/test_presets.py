# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Every preset in config/ gives the node known settings with fit values. Needs no ROS."""

from __future__ import annotations

import pytest
import yaml

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.resources import folder

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
