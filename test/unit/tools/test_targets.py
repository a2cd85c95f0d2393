# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from gemma_thor_ros.ros.targets import forbidden_target

OWN = ('/robot/llm_node', '/robot/goal_guard')
STOPS = ('/robot/stop',)


@pytest.mark.parametrize('target', [
    '/robot/llm_node', '/robot/llm_node/chat', '/robot/goal_guard/run_child', '/robot/stop',
    '/robot/stop/x', '/tf', '/robot/tf_static', '/clock', '/arm/change_state',
    '/arm/set_parameters', '/arm/set_parameters_atomically', '/a/_action/send_goal',
    'relative/name', '', '/', '//x', '/x/', '/rosout',
])
def test_forbidden(target: str) -> None:
    assert forbidden_target(target, OWN, STOPS)


@pytest.mark.parametrize('target', [
    '/robot/llm_node_2/drive', '/robot/stopwatch', '/demo_robot/drive', '/transform/tf_drive',
])
def test_allowed(target: str) -> None:
    assert forbidden_target(target, OWN, STOPS) == ''
