# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor guard`, `robot tools`, and what `robot chat` shows of calls under way."""

from __future__ import annotations

import types

import pytest

pytest.importorskip('gemma_thor_ros.msg')

from gemma_thor_ros.cli import robot
from gemma_thor_ros.cli.main import main


def test_tools_check_is_a_verb_of_robot_too(capsys):
    assert main(['robot', 'tools', 'check', 'demo', '--file-only']) == 0
    assert capsys.readouterr().out
    assert main(['robot', 'tools', 'check', 'nowhere.yaml', '--file-only']) == 1


def test_the_guard_has_a_verb_and_takes_ros_arguments(monkeypatch):
    from gemma_thor_ros.ros import goal_guard

    given = []
    monkeypatch.setattr(goal_guard, 'main', lambda args: given.append(args) or 0)
    assert main(['guard', '--ros-args', '-p', 'stop_topics:=[/stop]']) == 0
    assert given == [['gemma-thor', '--ros-args', '-p', 'stop_topics:=[/stop]']]


def test_feedback_is_shown_with_its_numbers_and_not_at_every_message(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(robot.time, 'monotonic', lambda: now[0])
    lines = robot._EventLines()
    for step in range(28):
        now[0] = step * 0.1
        lines.show(types.SimpleNamespace(call_id='c', name='dock', status='executing',
                                         detail=f'{{"left": {28 - step}}}\n'))
    lines.show(types.SimpleNamespace(call_id='c', name='dock', status='succeeded', detail=''))
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == '[dock: executing: {"left": 28} ]' and shown[-1] == '[dock: succeeded]'
    assert len(shown) == 4
