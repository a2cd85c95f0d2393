# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Goals in frames: cases D05 and D06 from the call to a NavigateToPose server in another process.

Frames come from a fake source, as the wheels have no tf2; the real tf2_ros and nav2_msgs are used
by the last test, where they are installed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bridge_rig import Rig, in_thread

from gemma_thor_ros.msg import ConfirmationRequest
from gemma_thor_ros.ros.frames import FrameError, Transform, quaternion
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.tf_frames import TfFrames, make_frame_source
from gemma_thor_ros.ros.verdict import Outcome, Step, Verdict
from gemma_thor_ros.schema import ConfigError, ToolCall
from gemma_thor_ros.srv import Confirm

VECTORS = Path(__file__).resolve().parents[1] / 'data' / 'vectors' / 'dispatch_to_ros.jsonl'
CASES = {case['id']: case for case in map(json.loads, VECTORS.read_text().splitlines())}
POLICY = """\
version: 1
frames: {max_age_s: 0.5}
areas:
  lab:
    frame: map
    inside: [{box: [-10, -10, 10, 10]}]
tools:
  navigate:
    description: Drive to a point.
    motion: true
    action: {name: navigate_to_pose, type: nav2_msgs/action/NavigateToPose}
    timeout_s: 10
    pose: pose
    area: lab
    args: &args
      x: {type: number, min: -1000, max: 1000, field: pose.pose.position.x}
      y: {type: number, min: -1000, max: 1000, field: pose.pose.position.y}
      heading: {type: number, unit: deg, min: -180 deg, max: 180 deg, required: false,
                field: pose.pose.orientation, convert: yaw_to_quaternion}
      frame: {type: string, default: map, field: pose.header.frame_id}
    result: {error_code: {field: error_code}}
  ask_first:
    description: Drive to a point when a person says yes.
    motion: true
    action: {name: navigate_to_pose, type: nav2_msgs/action/NavigateToPose}
    timeout_s: 10
    pose: pose
    area: lab
    confirm: always
    args: *args
  drive:
    description: Drive ahead, but not out of the lab.
    motion: true
    action: {name: base/succeed, type: gemma_thor_ros/action/Drive}
    timeout_s: 10
    pose: {frame: base_link, x: distance}
    area: lab
    args:
      distance: {type: number, unit: m, min: -20 m, max: 20 m, field: distance}
  set_gear:
    description: Drive in a gear, which is a whole number.
    motion: true
    action: {name: base/succeed, type: gemma_thor_ros/action/Drive}
    timeout_s: 10
    pose: {frame: base_link, x: distance}
    args:
      level: {type: integer, min: -128, max: 127, field: distance}
  wander:
    description: Drive ahead, anywhere that localisation knows.
    motion: true
    action: {name: base/succeed, type: gemma_thor_ros/action/Drive}
    timeout_s: 10
    pose: {frame: base_link, x: distance}
    args:
      distance: {type: number, unit: m, min: -20 m, max: 20 m, field: distance}
"""


class FakeFrames:
    """The frame source of a robot whose odom lies turned in the map."""

    def __init__(self) -> None:
        self.age_s = 0.1
        self.base = Transform((8.0, 0.0, 0.0))

    def transform(self, target: str, source: str) -> Transform:
        assert target == 'map'
        known = {'map': Transform((0.0, 0.0, 0.0)), 'base_link': self.base,
                 'odom': Transform((5.0, 5.0, 0.0), quaternion(0.0, 0.0, math.pi / 2))}
        if source not in known:
            raise FrameError(f'no transform from the frame {source!r} to {target!r}: unknown')
        return Transform(known[source].translation, known[source].rotation, self.age_s)


class Lab:
    def __init__(self, client: Any, processes: Any) -> None:
        self.frames = FakeFrames()
        self.client = client
        self.nav = processes.script('nav_server.py')
        self.rig = Rig(client, processes, {'succeed': 0.05}, POLICY, frames=self.frames)
        self.nav.wait_for('ready')
        self.rig.wait_allowed()
        client.wait_until(lambda: self.run(x=0.0, y=0.0).succeeded, 20.0, 'the server')
        client.wait_until(lambda: self.run('drive', distance=0.1).succeeded, 20.0, 'the server')

    def run(self, tool: str = 'navigate', **arguments: Any) -> Verdict:
        return self.rig.run_call(ToolCall('c', tool, arguments))

    def goals(self) -> list[dict[str, Any]]:
        return [json.loads(line[5:]) for line in self.nav.lines() if line.startswith('goal ')]


@pytest.fixture(scope='module')
def lab(nav2_env: dict[str, str], module_client: Any, module_processes: Any) -> Iterator[Lab]:
    module_processes.env.update(nav2_env)
    made = Lab(module_client, module_processes)
    yield made
    made.rig.close()


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    if 'lab' in request.fixturenames:
        request.getfixturevalue('lab').frames.__init__()


def test_a_goal_arrives_as_it_was_meant(lab: Lab) -> None:
    verdict = lab.run(x=1.5, y=-2, heading=90, frame='odom')
    assert verdict.succeeded
    assert verdict.result_json == '{"status":"succeeded","error_code":0}'
    goal = lab.goals()[-1]
    assert (goal['frame'], goal['x'], goal['y']) == ('odom', 1.5, -2.0)
    assert (goal['qx'], goal['qy']) == (0.0, 0.0)
    assert (goal['qz'], goal['qw']) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))
    lab.run(x=1, y=2)
    assert [lab.goals()[-1][name] for name in ('qx', 'qy', 'qz', 'qw')] == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize('case', ['D02', 'D03'])
def test_case_d02_and_case_d03_values_that_would_have_to_be_cast_never_arrive(
        lab: Lab, case: str) -> None:
    sent = len(lab.goals())
    call = CASES[case]['request']['tool_call']
    tool = {'move_to': 'navigate'}.get(call['name'], call['name'])
    lab.rig.events.clear()
    verdict = lab.run(tool, **call['arguments'])
    assert verdict.outcome.name.lower() == CASES[case]['expected']['outcome']
    assert Step.SENT not in [event.step for event in lab.rig.events]
    assert len(lab.goals()) == sent
    # The same call with values of the right kind goes.
    assert lab.run(tool, **dict.fromkeys(call['arguments'], 1)).succeeded


def test_case_d04_never_a_zero_quaternion(lab: Lab) -> None:
    sent = len(lab.goals())
    verdict = lab.run('navigate', **CASES['D04']['request']['tool_call']['arguments'])
    assert verdict.outcome is Outcome.REFUSED_SCHEMA and len(lab.goals()) == sent
    assert all(goal['qx']**2 + goal['qy']**2 + goal['qz']**2 + goal['qw']**2 > 0.99
               for goal in lab.goals())


def test_case_d05_an_unknown_frame_is_named(lab: Lab) -> None:
    sent = len(lab.goals())
    case = CASES['D05']
    verdict = lab.run(**case['request']['tool_call']['arguments'])
    assert verdict.outcome.name.lower() == case['expected']['outcome']
    assert case['expected']['tool_result_contains'] in verdict.result_json
    assert lab.run(x=1, y=2, frame='').outcome is Outcome.REFUSED_FRAME
    assert len(lab.goals()) == sent


def test_case_d06_a_goal_outside_the_area_is_refused_with_numbers(lab: Lab) -> None:
    sent = len(lab.goals())
    case = CASES['D06']
    verdict = lab.run(**case['request']['tool_call']['arguments'])
    assert verdict.outcome.name.lower() == case['expected']['outcome']
    assert json.loads(verdict.result_json)['reason'] == (
        'x 500 m, y 2 m in the frame map is outside the area lab')
    # Judged where it lies in the area's frame: odom (4, 6) is map (-1, 9), odom (6, 4) is (1, 11).
    assert lab.run(x=4, y=6, frame='odom').succeeded
    outside = lab.run(x=6, y=4, frame='odom')
    assert outside.outcome is Outcome.REFUSED_GEOFENCE and 'x 1 m, y 11 m' in outside.reason
    assert len(lab.goals()) == sent + 1


@pytest.mark.parametrize(('age_s', 'passes'), [
    (0.0, True), (0.4, True), (0.6, False), (-1.0, True), (-6.0, False), (math.inf, False)])
def test_a_transform_must_be_fresh(lab: Lab, age_s: float, passes: bool) -> None:
    lab.frames.age_s = age_s
    verdict = lab.run(x=1, y=2, frame='odom')
    assert verdict.succeeded is passes
    if not passes:
        assert verdict.outcome is Outcome.REFUSED_FRAME
        assert "'odom'" in verdict.reason and 'the limit is 0.5 s' in verdict.reason


def test_a_relative_drive_is_judged_by_where_it_ends(lab: Lab) -> None:
    assert lab.run('drive', distance=2).succeeded
    outside = lab.run('drive', distance=2.5)
    assert outside.outcome is Outcome.REFUSED_GEOFENCE and 'x 10.5 m, y 0 m' in outside.reason
    lab.frames.base = Transform((8.0, 0.0, 0.0), quaternion(0.0, 0.0, math.pi))
    assert lab.run('drive', distance=15).succeeded
    assert lab.run('wander', distance=20).succeeded
    lab.frames.age_s = 3.0
    assert lab.run('wander', distance=20).outcome is Outcome.REFUSED_FRAME


def test_the_place_is_checked_again_after_a_confirmation(lab: Lab) -> None:
    """Localisation jumps while the question waits: what was inside is outside now."""
    asked: list[ConfirmationRequest] = []
    client = lab.client
    subscription = client.node.create_subscription(
        ConfirmationRequest, '/test_client/confirmations', asked.append, 10)
    service = client.node.create_client(Confirm, '/test_client/confirm')
    assert service.wait_for_service(10.0)
    client.wait_until(lambda: client.node.count_publishers('/test_client/confirmations'), 10.0)
    sent = len(lab.goals())
    try:
        for age_s, outcome in ((0.1, Outcome.EXECUTED), (9.0, Outcome.REFUSED_FRAME)):
            lab.frames.age_s = 0.1
            asked.clear()
            thread, verdicts = in_thread(lambda: lab.run('ask_first', x=1, y=2, frame='odom'))
            client.wait_until(lambda: asked, 5.0, 'the question')
            lab.frames.age_s = age_s
            request = Confirm.Request(confirmation_id=asked[0].confirmation_id, approve=True,
                                      operator_name='Ann')
            assert client.wait(service.call_async(request)).taken
            thread.join(5.0)
            assert verdicts[0].outcome is outcome
            assert Step.CONFIRMED in lab.rig.steps()
        assert len(lab.goals()) == sent + 1
    finally:
        client.node.destroy_subscription(subscription)


# Where frames come from

def policy(source: str, pose: bool = True) -> Any:
    text = ('version: 1\nframes:\n  source: SOURCE\n  static:\n'
            '    - {parent: map, child: odom, x: 1 m}\n'
            'tools:\n  go:\n    description: Go.\n    motion: true\n'
            '    action: {name: go, type: gemma_thor_ros/action/Drive}\n    timeout_s: 1\n')
    if pose:
        text += '    pose: {frame: base, x: distance}\n'
    return parse_policy(text.replace('SOURCE', source), 'p.yaml')


def test_without_tf_the_frames_are_those_of_the_policy(
        client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'tf2_ros', None)       # as where it is not installed
    source = make_frame_source(client.node, policy('auto'))
    assert source.transform('map', 'odom').translation == (1.0, 0.0, 0.0)
    with pytest.raises(ConfigError, match=r'^p\.yaml:3: tf2_ros is not installed'):
        make_frame_source(client.node, policy('tf'))


class FakeBuffer:
    """What TfFrames needs of tf2_ros.Buffer, with the exceptions that it raises."""

    class TransformException(Exception):
        pass

    stamp_s = 0

    def lookup_transform(self, target: str, source: str, time: Any) -> Any:
        from geometry_msgs.msg import TransformStamped

        assert time.nanoseconds == 0, 'the newest one is wanted'
        if source == 'mapp':
            raise self.TransformException('"mapp" passed to lookupTransform does not exist')
        found = TransformStamped()
        found.header.stamp.sec = self.stamp_s
        found.transform.translation.x = 3.0
        found.transform.rotation.z = found.transform.rotation.w = math.sqrt(0.5)
        return found


def fake_tf2(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    module: Any = types.ModuleType('tf2_ros')
    log: list[str] = []

    class Listener:
        def __init__(self, buffer: Any, node: Any) -> None:
            log.append('listening')

        def unregister(self) -> None:
            log.append('closed')

    module.Buffer, module.TransformListener = FakeBuffer, Listener
    module.TransformException = FakeBuffer.TransformException
    monkeypatch.setitem(sys.modules, 'tf2_ros', module)
    return log


def test_with_tf_the_frames_are_the_robots(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = fake_tf2(monkeypatch)
    assert make_frame_source(client.node, policy('static')).transform(
        'map', 'odom').translation == (1.0, 0.0, 0.0)
    make_frame_source(client.node, policy('auto', pose=False))
    assert not log, 'it listens although nothing needs it'
    source = make_frame_source(client.node, policy('auto'))
    assert isinstance(source, TfFrames)
    found = source.transform('map', 'odom')
    assert found.point((1.0, 0.0, 0.0)) == pytest.approx((3.0, 1.0, 0.0)) and found.age_s == 0.0
    now = client.node.get_clock().now().nanoseconds // 10**9
    monkeypatch.setattr(FakeBuffer, 'stamp_s', now - 20)
    assert 19.0 < source.transform('map', 'odom').age_s < 25.0
    monkeypatch.setattr(FakeBuffer, 'stamp_s', now + 30)
    assert -31.0 < source.transform('map', 'odom').age_s < -20.0
    with pytest.raises(FrameError, match=r"frame 'mapp' to 'map': .*does not exist"):
        source.transform('map', 'mapp')
    source.close()
    assert log == ['listening', 'closed']


MISSING = [name for name in ('tf2_ros', 'tf2_msgs', 'nav2_msgs')
           if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f'{", ".join(MISSING)} not installed: they come with a '
                    'ROS installation, no Python package registry has them')
def test_the_real_tf_and_nav2(client: Any) -> None:
    from geometry_msgs.msg import TransformStamped
    from nav2_msgs.action import FollowWaypoints, NavigateToPose
    from tf2_ros import TransformBroadcaster

    from gemma_thor_ros.ros.binding import bind_policy

    assert FollowWaypoints and NavigateToPose
    bound = bind_policy(parse_policy(POLICY, 'p.yaml'))['navigate']
    assert bound.quaternions == ('pose.pose.orientation',)
    source = client.do(lambda: TfFrames(client.node))
    broadcaster = TransformBroadcaster(client.node)
    stop = threading.Event()

    def broadcast() -> None:
        while not stop.wait(0.05):
            message = TransformStamped()
            message.header.stamp = client.node.get_clock().now().to_msg()
            message.header.frame_id, message.child_frame_id = 'map', 'odom'
            message.transform.translation.x, message.transform.rotation.w = 2.0, 1.0
            broadcaster.sendTransform(message)

    thread = threading.Thread(target=broadcast)
    thread.start()
    try:
        def found() -> Any:
            try:
                return source.transform('map', 'odom')
            except FrameError:
                return None

        client.wait_until(found, 10.0, 'tf')
        assert found().translation == (2.0, 0.0, 0.0) and abs(found().age_s) < 1.0
        with pytest.raises(FrameError, match='mapp'):
            source.transform('map', 'mapp')
    finally:
        stop.set()
        thread.join()
        source.close()
