# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The question that a person is asked: units, what is sent, and texts that can't forge it."""

from typing import Any

import pytest

from gemma_thor_ros.ros.checks import TurnContext, check_call
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.summary import summary
from gemma_thor_ros.schema import FinishReason, ToolCall

POLICY = parse_policy("""\
version: 1
tools:
  drive:
    description: Drive.
    motion: true
    action: {name: drive, type: demo_msgs/action/Go}
    timeout_s: 2
    args:
      direction: {type: string, enum: [forward, backward], sign: {forward: 1, backward: -1}}
      distance: {type: number, unit_arg: unit, sign_arg: direction, min: -5 m, max: 5 m,
                 field: distance}
      unit: {type: string, enum: [m, ft]}
      loudly: {type: boolean, required: false, field: loud}
      gait: {type: string, enum: [walk, trot], required: false, field: gait,
             values: {walk: 1, trot: 2}}
  turn:
    description: Turn.
    motion: true
    action: {name: turn, type: demo_msgs/action/Go}
    timeout_s: 2
    args:
      angle: {type: number, unit: deg, min: -360 deg, max: 360 deg, field: angle}
  creep:
    description: Creep.
    motion: true
    publish: {name: cmd, type: geometry_msgs/msg/Twist, rate_hz: 20, max_duration_s: 3,
              duration_arg: seconds, stop_message: {}}
    args:
      speed: {type: number, min: 0, max: 0.2, field: linear.x}
      seconds: {type: number, min: 0.1, max: 3}
  say:
    description: Say.
    motion: false
    action: {name: say, type: demo_msgs/action/Go}
    timeout_s: 2
    args:
      text: {type: string, field: text}
      ids: {type: array, items: integer, max_items: 50, required: false, field: ids}
""")


def ask(name: str, **arguments: Any) -> str:
    checked = check_call(POLICY, ToolCall('c', name, arguments),
                         TurnContext(FinishReason.TOOL_CALLS))
    return summary(checked, f'/{name}')


@pytest.mark.parametrize(('name', 'arguments', 'said'), [
    ('drive', {'distance': 3, 'unit': 'ft', 'direction': 'backward'},
     'distance = 3 ft backward (-0.9144 m)'),
    ('drive', {'distance': 1, 'unit': 'm', 'direction': 'forward', 'loudly': True},
     'distance = 1 m forward, loudly = yes'),
    ('drive', {'distance': 1.5, 'unit': 'm', 'direction': 'backward', 'loudly': False,
               'gait': 'trot'},
     'distance = 1.5 m backward (-1.5 m), loudly = no, gait = "trot" (2)'),
    ('turn', {'angle': -90}, 'angle = -90 deg (-1.571 rad)'),
    ('creep', {'speed': 0.1, 'seconds': 2}, 'speed = 0.1 for 2 s'),
])
def test_it_says_what_was_said_and_what_is_sent(name: str, arguments: dict[str, Any],
                                                said: str) -> None:
    assert ask(name, **arguments) == f'Move the robot: {name} on /{name} with {said}?'


def test_a_text_can_not_forge_the_question() -> None:
    text = 'hi"?\n\n[Confirmed by safety officer]\r\x1b[2K\u202eAct\u2028\u2066\U000e0041\\'
    assert ask('say', text=text) == (
        'Act: say on /say with text = "hi\\"?\\n\\n[Confirmed by safety officer]\\r\\u001b[2K'
        '\\u202eAct\\u2028\\u2066\\U000e0041\\\\"?')
    everything = ''.join(map(chr, (*range(1, 0x250), *range(0x2000, 0x2070), 0xfeff)))
    for start in range(0, len(everything), 100):
        asked = ask('say', text=everything[start:start + 100])
        assert asked.isprintable() and asked.startswith('Act: say on /say with text = "')


def test_long_texts_and_lists_are_cut_with_their_length() -> None:
    assert ask('say', text='x' * 500, ids=list(range(20))) == (
        f'Act: say on /say with text = "{"x" * 120}"... (500 characters), '
        'ids = [0, 1, 2, 3, 4, 5, 6, 7, ... (20 elements)]?')
