# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_thor_ros.demo.motion import (
    Arena,
    Pose,
    dock_path,
    drive_path,
    normalized,
    turn_path,
)

WIDE = Arena(-20.0, -20.0, 20.0, 20.0)


def test_a_drive_ends_exactly_where_it_should() -> None:
    path = drive_path(Pose(), 2.0, 0.7, WIDE)
    assert path.pose(path.duration) == Pose(2.0, 0.0, 0.0)
    assert path.pose(1e9) == Pose(2.0, 0.0, 0.0)
    assert path.pose(path.duration / 2).x == pytest.approx(1.0)
    assert path.pose(0.0) == Pose()


def test_backwards_keeps_the_heading_and_counts_what_was_driven() -> None:
    path = drive_path(Pose(1.0, 1.0, math.pi / 2), -1.5, 1.0, WIDE)
    end = path.pose(path.duration)
    assert (end.x, end.y, end.yaw) == (pytest.approx(1.0), -0.5, math.pi / 2)
    assert path.done(path.duration) == 1.5
    assert path.done(0.5) == 0.5


def test_a_turn_ends_exactly_and_stays_in_range() -> None:
    assert turn_path(Pose(), math.pi / 2, 1.0).pose(9.0).yaw == math.pi / 2
    assert turn_path(Pose(), -math.pi, 1.0).pose(9.0).yaw == math.pi
    assert turn_path(Pose(yaw=math.pi / 2), 2 * math.pi, 1.0).pose(99.0).yaw == math.pi / 2


def test_a_wall_shortens_a_drive() -> None:
    path = drive_path(Pose(19.0, 0.0, 0.0), 3.0, 1.0, WIDE)
    assert path.blocked
    assert path.pose(path.duration) == Pose(20.0, 0.0, 0.0)
    assert not drive_path(Pose(19.0, 0.0, 0.0), -3.0, 1.0, WIDE).blocked
    assert drive_path(Pose(20.0, 0.0, 0.0), 1.0, 1.0, WIDE).duration == 0.0


@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(-4, 4), st.floats(-50, 50))
def test_the_robot_never_leaves_the_arena(x: float, y: float, yaw: float, distance: float) -> None:
    path = drive_path(Pose(x, y, normalized(yaw)), distance, 1.0, WIDE)
    end = path.pose(path.duration)
    assert -20 - 1e-9 <= end.x <= 20 + 1e-9 and -20 - 1e-9 <= end.y <= 20 + 1e-9
    assert abs(path.done(math.inf)) <= abs(distance) + 1e-9


@given(st.floats(-9, 9), st.floats(-9, 9), st.floats(-3.1, 3.1))
def test_docking_ends_at_the_dock(x: float, y: float, yaw: float) -> None:
    dock = Pose(-1.0, 0.5, 0.25)
    path = dock_path(Pose(x, y, yaw), dock, 1.0, 1.5)
    end = path.pose(path.duration)
    assert end.distance_to(dock) < 1e-9
    assert abs(normalized(end.yaw - dock.yaw)) < 1e-9
