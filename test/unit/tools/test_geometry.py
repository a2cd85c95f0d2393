# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Areas and frames: plane geometry, transforms against matrices, and how a policy writes them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.ros.areas import Area, Polygon, box
from gemma_thor_ros.ros.frames import (
    FrameError,
    StaticFrame,
    StaticFrames,
    Transform,
    quaternion,
)
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.schema import ConfigError

ANGLES = st.floats(-math.pi, math.pi)
METRES = st.floats(-100.0, 100.0)
LAB = Area('lab', 'map', (box(-10.0, -10.0, 10.0, 10.0), box(10.0, -1.0, 12.0, 1.0)),
           (Polygon(((0.0, 0.0), (2.0, 0.0), (0.0, 2.0))),))


@pytest.mark.parametrize(('x', 'y', 'held'), [
    (5.0, 5.0, True), (10.0, 10.0, True), (10.001, 5.0, False), (11.0, 0.0, True),
    (11.0, 1.5, False), (0.5, 0.5, False), (1.0, 1.0, False), (1.01, 1.0, True),
    (500.0, 2.0, False), (-10.0, -10.0, True), (0.0, -0.001, True), (math.inf, 0.0, False),
    (math.nan, 0.0, False),
])
def test_an_area_is_its_inside_without_its_outside(x: float, y: float, held: bool) -> None:
    assert LAB.holds(x, y) is held


def test_a_polygon_may_be_concave_and_run_either_way() -> None:
    corners = ((0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (2.0, 1.0), (0.0, 4.0))
    for shape in (Polygon(corners), Polygon(corners[::-1])):
        assert shape.holds(2.0, 0.5) and shape.holds(0.5, 2.0) and shape.holds(3.5, 2.0)
        assert not shape.holds(2.0, 2.0) and not shape.holds(5.0, 1.0)
        assert all(shape.holds(*corner) for corner in corners)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-6, 6), st.integers(-6, 6)), min_size=3, max_size=3,
                unique=True), st.integers(-7, 7), st.integers(-7, 7))
def test_a_triangle_holds_what_its_three_edges_hold(corners: Any, x: int, y: int) -> None:
    (x1, y1), (x2, y2), (x3, y3) = corners
    area = (x2 - x1) * (y3 - y1) - (x3 - x1) * (y2 - y1)
    if area == 0:
        return

    def side(ax: int, ay: int, bx: int, by: int) -> int:
        return ((bx - ax) * (y - ay) - (by - ay) * (x - ax)) * (1 if area > 0 else -1)

    inside = min(side(x1, y1, x2, y2), side(x2, y2, x3, y3), side(x3, y3, x1, y1)) >= 0
    shape = Polygon(tuple((float(a), float(b)) for a, b in corners))
    assert shape.holds(float(x), float(y)) is inside


def matrix(transform: Transform) -> Any:
    """Return the 4 x 4 matrix of a transform, from its quaternion by the textbook."""
    x, y, z, w = transform.rotation
    return np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w),
         transform.translation[0]],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w),
         transform.translation[1]],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y),
         transform.translation[2]],
        [0, 0, 0, 1]])


TRANSFORMS = st.builds(lambda moved, turned: Transform(moved, quaternion(*turned)),
                       st.tuples(METRES, METRES, METRES), st.tuples(ANGLES, ANGLES, ANGLES))


@settings(max_examples=200, deadline=None)
@given(TRANSFORMS, TRANSFORMS, st.tuples(METRES, METRES, METRES))
def test_transforms_are_matrices(one: Transform, two: Transform, point: Any) -> None:
    wanted = matrix(one) @ [*point, 1.0]
    assert np.allclose([*one.point(point), 1.0], wanted, atol=1e-9)
    assert np.allclose(matrix(one.after(two)), matrix(one) @ matrix(two), atol=1e-9)
    assert np.allclose(matrix(one.inverse().after(one)), np.eye(4), atol=1e-9)


def test_roll_pitch_and_yaw_turn_about_x_y_and_z() -> None:
    assert Transform((0, 0, 0), quaternion(0, 0, math.pi / 2)).point((1, 0, 0)) == pytest.approx(
        (0, 1, 0))
    assert Transform((0, 0, 0), quaternion(math.pi / 2, 0, 0)).point((0, 1, 0)) == pytest.approx(
        (0, 0, 1))
    assert Transform((0, 0, 0), quaternion(0, math.pi / 2, 0)).point((0, 0, 1)) == pytest.approx(
        (1, 0, 0))


def test_static_frames_are_a_tree() -> None:
    frames = StaticFrames([
        StaticFrame('map', 'odom', (10.0, 0.0, 0.0), quaternion(0, 0, math.pi / 2)),
        StaticFrame('odom', 'base', (1.0, 2.0, 0.0), quaternion(0, 0, 0)),
        StaticFrame('world', 'site', (0.0, 0.0, 0.0), quaternion(0, 0, 0))], ['alone'])
    assert frames.transform('map', 'base').point((1.0, 0.0, 0.0)) == pytest.approx((8.0, 2.0, 0.0))
    assert frames.transform('base', 'map').point((8.0, 2.0, 0.0)) == pytest.approx((1.0, 0.0, 0.0))
    assert frames.transform('alone', 'alone').point((1.0, 2.0, 3.0)) == (1.0, 2.0, 3.0)
    for target, source, words in (('map', 'mapp', "'mapp' is not known"),
                                  ('mapp', 'map', "'mapp' is not known"),
                                  ('map', 'site', 'not connected')):
        with pytest.raises(FrameError, match=words):
            frames.transform(target, source)


@pytest.mark.parametrize(('pairs', 'words'), [
    ([('a', 'b'), ('c', 'b')], 'b has two parents'), ([('a', 'a')], 'its own ancestor'),
    ([('a', 'b'), ('b', 'c'), ('c', 'a')], 'its own ancestor'),
])
def test_what_is_no_tree_is_refused(pairs: Any, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        StaticFrames([StaticFrame(parent, child, (0, 0, 0), quaternion(0, 0, 0))
                      for parent, child in pairs])


POLICY = """\
version: 1
frames:
  source: static
  max_age_s: 0.5
  static:
    - {parent: map, child: odom, x: 150 cm, yaw: 90 deg}
areas:
  lab:
    frame: map
    inside:
      - box: [-10, -10, 10, 10]
    outside:
      - polygon: [[0, 0], [2, 0], [0, 2]]
tools:
  go:
    description: Go.
    motion: true
    action: {name: go, type: demo_msgs/action/Go}
    timeout_s: 1
    area: lab
    pose: {frame: odom, x: x, y: y}
"""


def test_a_policy_writes_places_down() -> None:
    policy = parse_policy(POLICY)
    assert policy.frames.max_age_s == 0.5 and policy.frames.reference == 'map'
    frame = policy.frames.static[0]
    assert frame.translation == (1.5, 0.0, 0.0)
    assert frame.rotation == pytest.approx(quaternion(0, 0, math.pi / 2))
    assert policy.areas['lab'].holds(-1.0, 0.0) and not policy.areas['lab'].holds(0.5, 0.5)


@pytest.mark.parametrize(('old', 'new', 'line', 'words'), [
    ('x: 150 cm', 'x: 1.5', 6, "x is 1.5; it must be a length, such as '1.5 m'"),
    ('yaw: 90 deg', 'yaw: 90 m', 6, "yaw is '90 m'; it must be an angle"),
    ('child: odom', 'child: map', 5, 'its own ancestor'),
    ('[-10, -10, 10, 10]', '[10, -10, -10, 10]', 11, 'smallest x and y'),
    ('[-10, -10, 10, 10]', '[-10, -10, 10]', 11, 'box'),
    ('polygon: [[0, 0], [2, 0], [0, 2]]', 'polygon: [[0, 0], [2, 0]]', 13, 'polygon'),
    ('    inside:\n      - box: [-10, -10, 10, 10]\n', '', 8, 'areas.lab lacks inside'),
    ('area: lab', 'area: labb', 20, "there is no area 'labb'"),
    ('    pose: {frame: odom, x: x, y: y}\n', '', 20, 'an area needs a pose'),
    ('{frame: odom, x: x, y: y}', '{x: x, y: y}', 21, 'either frame or frame_field'),
    ('{frame: odom, x: x, y: y}', '{frame: odom, frame_field: f, x: x}', 21, 'either frame or'),
    ('{frame: odom, x: x, y: y}', '{frame: odom, z: z}', 21, 'needs x or y'),
    ('frame: odom', 'frame: /odom', 21, 'pose'),
    ('source: static', 'source: gps', 3, 'auto, tf, static'),
])
def test_faults_name_their_line(old: str, new: str, line: int, words: str) -> None:
    assert POLICY.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        parse_policy(POLICY.replace(old, new), 'p.yaml')
    message = str(caught.value)
    assert message.startswith(f'p.yaml:{line}: ') and words in message, message
