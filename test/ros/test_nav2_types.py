# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Goals with poses: nested fields, yaw to quaternion, arrays; case D04."""

import math
from typing import Any

import pytest
from geometry_msgs.msg import PoseStamped

from gemma_thor_ros.resources import folder
from gemma_thor_ros.ros.binding import BoundTool, bind_policy
from gemma_thor_ros.ros.checks import TurnContext, check_call
from gemma_thor_ros.ros.frames import StaticFrames
from gemma_thor_ros.ros.interfaces import find_messages
from gemma_thor_ros.ros.places import Places
from gemma_thor_ros.ros.policy import load_policy, parse_policy
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome
from gemma_thor_ros.schema import ConfigError, FinishReason, ToolCall

NAVIGATE = """\
version: 1
tools:
  navigate:
    description: Drive to a point of the map.
    motion: true
    action: {name: navigate_to_pose, type: nav2_msgs/action/NavigateToPose}
    timeout_s: 60
    pose: pose
    args:
      x: {type: number, unit: m, min: -10 m, max: 10 m, field: pose.pose.position.x}
      y: {type: number, unit: m, min: -10 m, max: 10 m, field: pose.pose.position.y}
      heading: {type: number, unit: deg, min: -180 deg, max: 180 deg, required: false,
                field: pose.pose.orientation, convert: yaw_to_quaternion}
    constants:
      pose.header.frame_id: map
"""

pytestmark = pytest.mark.usefixtures('nav2_env')


def bound(text: str = NAVIGATE) -> BoundTool:
    return bind_policy(parse_policy(text, 'p.yaml'))['navigate']


def goal(text: str = NAVIGATE, **arguments: Any) -> Any:
    policy = parse_policy(text, 'p.yaml')
    checked = check_call(policy, ToolCall('c', 'navigate', arguments),
                         TurnContext(FinishReason.TOOL_CALLS))
    return bind_policy(policy)['navigate'].make_message(checked.fields)


def test_case_d04_without_a_heading_the_quaternion_is_a_unit_one() -> None:
    pose = goal(x=1.0, y=2.0).pose
    assert (pose.header.frame_id, pose.pose.position.x, pose.pose.position.y) == ('map', 1.0, 2.0)
    rotation = pose.pose.orientation
    assert (rotation.x, rotation.y, rotation.z, rotation.w) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize('degrees', [0, 90, -90, 180, -180, 37.5])
def test_a_heading_becomes_a_quaternion(degrees: float) -> None:
    rotation = goal(x=0, y=0, heading=degrees).pose.pose.orientation
    yaw = math.degrees(2.0 * math.atan2(rotation.z, rotation.w))
    assert yaw == pytest.approx(degrees, abs=1e-9) and (rotation.x, rotation.y) == (0.0, 0.0)
    assert rotation.z**2 + rotation.w**2 == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize(('z', 'w'), [(0.0, 0.0), (0.5, 0.5), (0.0, 1.1), (0.0, 0.25)])
def test_case_d04_a_quaternion_that_is_no_rotation_is_refused(z: float, w: float) -> None:
    start = NAVIGATE.index('      heading')
    text = NAVIGATE[:start] + NAVIGATE[NAVIGATE.index('    constants'):] + (
        f'      pose.pose.orientation.z: {z!r}\n      pose.pose.orientation.w: {float(w)!r}\n')
    with pytest.raises(CallRefusedError) as caught:
        goal(text, x=1, y=2)
    assert caught.value.outcome is Outcome.REFUSED_RANGE
    assert 'pose.pose.orientation is no rotation' in caught.value.reason


def test_the_policy_for_nav2_robots_fits_nav2() -> None:
    policy = load_policy(folder('config') / 'tools' / 'nav2.yaml')
    bound = bind_policy(policy)

    def go(name: str, **arguments: Any) -> Any:
        checked = check_call(policy, ToolCall('c', name, arguments),
                             TurnContext(FinishReason.TOOL_CALLS))
        message = bound[name].make_message(checked.fields)
        Places(policy, StaticFrames([], ['map'])).check(bound[name], message)
        return message.pose

    pose = go('navigate', x=3, y=-4, heading=90)
    assert (pose.header.frame_id, pose.pose.position.x, pose.pose.position.y) == ('map', 3.0, -4.0)
    assert pose.pose.orientation.z == pytest.approx(math.sqrt(0.5))
    assert go('go_home').pose.position.x == 0.0
    with pytest.raises(CallRefusedError) as caught:
        go('navigate', x=11, y=0)
    assert caught.value.outcome is Outcome.REFUSED_GEOFENCE
    assert policy.frames.source == 'tf'
    told = bound['where_am_i'].result_values(bound['where_am_i'].result_class())
    assert told == {'x': 0.0, 'y': 0.0}


def test_quaternions_are_found_wherever_they_are() -> None:
    assert find_messages(PoseStamped, 'geometry_msgs/msg/Quaternion') == ['pose.orientation']
    assert bound().quaternions == ('pose.pose.orientation',)


@pytest.mark.parametrize(('old', 'new', 'line', 'words'), [
    ('field: pose.pose.orientation, convert: yaw_to_quaternion',
     'field: pose.pose.position.z, convert: yaw_to_quaternion', 13, 'position.z is float64'),
    ('field: pose.pose.orientation, convert: yaw_to_quaternion', 'field: pose.pose.orientation',
     13, 'is geometry_msgs/msg/Quaternion'),
    ('unit: deg, min: -180 deg, max: 180 deg', 'unit: m, min: -1 m, max: 1 m', 13,
     'a unit of angle'),
    ('unit: deg, min: -180 deg, max: 180 deg', 'min: -1, max: 1', 13, 'a unit of angle'),
    ('heading: {type: number, unit: deg', 'heading: {type: integer, unit: deg', 13,
     'convert does not go with type integer'),
    ('pose.header.frame_id: map', 'pose.pose.orientation.w: 1.0', 15, 'argument heading writes'),
    ('pose.header.frame_id: map', 'pose.pose: 1', 15, 'argument x writes'),
    ('pose.header.frame_id: map', 'behavior_tree: [a]', 15, "['a'] does not fit"),
    ('pose.header.frame_id: map', 'pose.header.stamp: 1', 15, 'one value cannot fill'),
    ('    pose: pose\n', '', 3, 'say pose: pose, so that its frame is checked'),
    ('pose: pose\n', 'pose: pose.pose\n', 8, 'say pose: pose'),
    ('pose: pose\n', 'pose: {frame: map, x: pose.pose.position.x}\n', 8, 'say pose: pose'),
    ('pose.header.frame_id: map', 'behavior_tree: a', 8, 'nothing fills pose.header.frame_id'),
])
def test_what_does_not_fit_is_refused_at_start(old: str, new: str, line: int, words: str) -> None:
    assert NAVIGATE.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        bound(NAVIGATE.replace(old, new))
    # The items of a mapping over two lines lie on the second one too.
    assert str(caught.value).split(':')[1] in (str(line), str(line - 1)), str(caught.value)
    assert words in str(caught.value)
