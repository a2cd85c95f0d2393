# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Random calls through the whole bridge: what it hands on is within the policy, by another count.

The bridge is real; a recorder stands where goal_guard and the services begin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gemma_thor_ros.ros.bridge import ToolBridge
from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.frames import FrameError, Transform, quaternion
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.provenance import Reads
from gemma_thor_ros.ros.verdict import Outcome, Verdict
from gemma_thor_ros.schema import FinishReason, ToolCall

POLICY = """\
version: 1
areas:
  lab: {frame: map, inside: [{box: [-10, -10, 10, 10]}], outside: [{box: [2, 2, 4, 4]}]}
tools:
  navigate:
    description: Drive to a point.
    motion: true
    action: {name: nav, type: nav2_msgs/action/NavigateToPose}
    timeout_s: 10
    confirm_timeout_s: 0.001
    pose: pose
    area: lab
    trusts: [navigate]
    args:
      x: {type: number, unit_arg: unit, min: -30 m, max: 30 m, field: pose.pose.position.x}
      y: {type: number, unit_arg: unit, min: -30 m, max: 30 m, field: pose.pose.position.y}
      unit: {type: string, enum: [m, cm], default: m}
      heading: {type: number, unit: deg, min: -180 deg, max: 180 deg, required: false,
                field: pose.pose.orientation, convert: yaw_to_quaternion}
      frame: {type: string, default: map, field: pose.header.frame_id}
  creep:
    description: Creep.
    motion: true
    publish: {name: cmd_vel, type: geometry_msgs/msg/Twist, rate_hz: 20, max_duration_s: 3,
              duration_arg: seconds, stop_message: {}}
    confirm_timeout_s: 0.001
    args:
      speed: {type: number, min: 0, max: 0.2, sign_arg: way, field: linear.x}
      way: {type: string, enum: [ahead, back], sign: {ahead: 1, back: -1}}
      seconds: {type: number, min: 0.1, max: 3}
  weigh:
    description: Set weights.
    motion: false
    action: {name: chat, type: gemma_thor_ros/action/Chat}
    timeout_s: 5
    args:
      ids: {type: array, items: integer, min: 0, max: 99, max_items: 3,
            field: sampling.logit_bias_ids}
      level: {type: string, enum: [low, high], field: priority,
              values: {low: PRIORITY_BACKGROUND, high: 3}}
      note: {type: string, max_length: 5, required: false, field: session_id}
"""
POLICY = POLICY.replace('min: 0, max: 0.2, sign_arg', 'min: -0.2, max: 0.2, sign_arg')


class Frames:
    def transform(self, target: str, source: str) -> Transform:
        if source == 'map':
            return Transform((0.0, 0.0, 0.0))
        if source == 'odom':
            return Transform((5.0, 0.0, 0.0), quaternion(0.0, 0.0, math.pi / 2), 0.5)
        if source == 'old':
            return Transform((0.0, 0.0, 0.0), age_s=60.0)
        raise FrameError(f'the frame {source!r} is not known')


class Recorder:
    """A bridge whose guard always says yes, and what would have been sent."""

    def __init__(self, bridge: ToolBridge) -> None:
        self.bridge = bridge
        self.sent: list[tuple[str, Any, float]] = []
        self.accepted = dict.fromkeys(bridge.policy.tools, 0)
        self.guard: Any = bridge.guard
        self.guard.fault = lambda: ''
        guarded: Any = bridge._guarded
        guarded.send = lambda run, bound, message, duration_s: self.sent.append(
            (bound.tool.name, message, duration_s))
        guarded.follow = lambda run, bound, link: run.verdict(Outcome.EXECUTED, 'succeeded')


@pytest.fixture(scope='module')
def recorder(nav2_env: dict[str, str], module_client: Any) -> Iterator[Recorder]:
    bridge = ToolBridge(module_client.node, parse_policy(POLICY, 'p.yaml'), instance_id='i',
                        frames=Frames())
    yield Recorder(bridge)
    module_client.do(bridge.close)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner,
                                                                max_size=2), max_leaves=5)
COORDINATE = st.floats(-12, 12) | st.integers(-12, 12) | st.integers(-1200, 1200)
SELDOM = st.sampled_from([False] * 24 + [True])
GOOD = {
    'x': COORDINATE, 'y': COORDINATE, 'unit': st.sampled_from(['m', 'cm']),
    'heading': st.floats(-185, 185),
    'frame': st.sampled_from(['map'] * 5 + ['odom'] * 5 + ['old', 'mapp', '']),
    'speed': st.floats(-0.02, 0.22), 'way': st.sampled_from(['ahead', 'back'] * 4 + ['up']),
    'seconds': st.floats(0, 3.2), 'ids': st.lists(st.integers(-1, 101), max_size=4),
    'level': st.sampled_from(['low', 'high', 'PRIORITY_OPERATOR']), 'note': st.text(max_size=6)}
NAMES = {'navigate': ['x', 'y', 'unit', 'heading', 'frame'], 'creep': ['speed', 'way', 'seconds'],
         'weigh': ['ids', 'level', 'note'], 'fly': [], '': [], 'navigate ': ['x']}


@st.composite
def calls(draw: st.DrawFn) -> ToolCall:
    name = draw(st.sampled_from([*['navigate'] * 6, *['creep'] * 6, *['weigh'] * 3, *NAMES]))
    arguments: Any = {
        key: draw(JUNK if draw(SELDOM) else GOOD[key])
        for key in NAMES[name] if not draw(SELDOM)}
    if draw(SELDOM):
        arguments = draw(JUNK)
    elif draw(SELDOM):
        arguments[draw(st.text(max_size=6))] = draw(JUNK)
    return ToolCall('c', name, arguments, repaired=draw(SELDOM))


READS = st.sampled_from([Reads()] * 8 + [Reads(frozenset({'navigate'})), Reads(images=True),
                                         Reads(frozenset({'camera'}))])
REASONS = st.sampled_from([FinishReason.TOOL_CALLS] * 30 + list(FinishReason))


def number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def hold_navigate(arguments: dict[str, Any], message: Any) -> None:
    """Hold a goal against its call: the same numbers by simple arithmetic, and the rules."""
    assert set(arguments) <= set(NAMES['navigate']) and {'x', 'y'} <= set(arguments)
    scale = 0.01 if arguments.get('unit') == 'cm' else 1.0
    pose = message.pose.pose
    for got, key in ((pose.position.x, 'x'), (pose.position.y, 'y')):
        assert number(arguments[key]) and abs(got) <= 30.0
        assert got == pytest.approx(arguments[key] * scale, rel=1e-12, abs=1e-300)
    frame = message.pose.header.frame_id
    assert frame == arguments.get('frame', 'map') and frame in ('map', 'odom')
    x, y = pose.position.x, pose.position.y
    if frame == 'odom':
        x, y = 5.0 - y, x
    assert abs(x) <= 10.0 + 1e-9 and abs(y) <= 10.0 + 1e-9
    assert not (2.0 + 1e-9 < x < 4.0 - 1e-9 and 2.0 + 1e-9 < y < 4.0 - 1e-9)
    rotation = pose.orientation
    assert math.hypot(rotation.x, rotation.y, rotation.z, rotation.w) == pytest.approx(1.0)
    heading = math.degrees(2.0 * math.atan2(rotation.z, rotation.w))
    assert heading == pytest.approx(arguments.get('heading', 0.0), abs=1e-6)


def hold_creep(arguments: dict[str, Any], message: Any, duration_s: float) -> None:
    assert set(arguments) == {'speed', 'way', 'seconds'}
    assert number(arguments['speed']) and 0.0 < arguments['speed'] <= 0.2
    sign = {'ahead': 1.0, 'back': -1.0}[arguments['way']]
    assert message.linear.x == sign * arguments['speed']
    assert not any((message.linear.y, message.linear.z, message.angular.x, message.angular.z))
    assert 0.1 <= duration_s <= 3.0 and duration_s == arguments['seconds']


def hold_weigh(arguments: dict[str, Any], message: Any) -> None:
    assert set(arguments) <= {'ids', 'level', 'note'}
    assert list(message.sampling.logit_bias_ids) == arguments['ids']
    assert len(arguments['ids']) <= 3 and all(
        type(item) is int and 0 <= item <= 99 for item in arguments['ids'])
    assert message.priority == {'low': 0, 'high': 3}[arguments['level']]
    assert len(message.session_id) <= 5 and message.session_id == arguments.get('note', '')


@settings(max_examples=600, deadline=None, report_multiple_bugs=False,
          phases=(Phase.generate,))      # shrinking would take most of the twins' time
@given(call=calls(), reason=REASONS, reads=READS, stopped=SELDOM)
def fuzz(recorder: Recorder, call: ToolCall, reason: FinishReason, reads: Reads,
         stopped: bool) -> None:
    recorder.sent.clear()
    recorder.guard.motion_fault = lambda: 'the stop is pressed' if stopped else ''
    turn = TurnContext(reason, reads=reads)
    verdict: Verdict = recorder.bridge.run(call, request_id='r', turn=turn)
    assert bool(recorder.sent) is (verdict.outcome is Outcome.EXECUTED)
    assert len(verdict.result_json) < 2000
    if not recorder.sent:
        assert verdict.reason, 'a refusal says why'
        return
    ((name, message, duration_s),) = recorder.sent
    recorder.accepted[name] += 1
    assert name == call.name and not call.repaired and reason is FinishReason.TOOL_CALLS
    tool = recorder.bridge.policy.tools[name]
    if tool.motion:
        assert not stopped and not reads.images and not reads.tools - set(tool.trusts)
    if name == 'navigate':
        hold_navigate(call.arguments, message)
    elif name == 'creep':
        hold_creep(call.arguments, message, duration_s)
    else:
        hold_weigh(call.arguments, message)


def test_nothing_outside_the_policy_is_handed_on(recorder: Recorder) -> None:
    fuzz(recorder)
    assert all(count for count in recorder.accepted.values()), recorder.accepted


def test_the_fuzz_catches_a_check_that_is_missing(
        recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without the area or the range check the same fuzz fails."""
    from gemma_thor_ros.ros import checks

    with monkeypatch.context() as patch:
        patch.setattr(recorder.bridge._places, 'check', lambda bound, message: None)
        with pytest.raises(AssertionError):
            fuzz(recorder)
    with monkeypatch.context() as patch:
        patch.setattr(checks, '_check_range', lambda *arguments: None)
        with pytest.raises(AssertionError):
            fuzz(recorder)
