# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Where the demo robot is at a time: straight lines and turns on the spot, exact at their ends.

Pure geometry in metres, radians and seconds. Knows no ROS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pose:
    """Position in metres and heading in radians, (-pi, pi], 0 along x, positive to the left."""

    x: float = 0.0
    y: float = 0.0
    yaw: float = 0.0

    def ahead(self, distance: float) -> Pose:
        """Return the pose after driving straight; a negative distance goes backwards."""
        return Pose(self.x + distance * math.cos(self.yaw), self.y + distance * math.sin(self.yaw),
                    self.yaw)

    def turned(self, angle: float) -> Pose:
        """Return the pose after turning on the spot."""
        return Pose(self.x, self.y, normalized(self.yaw + angle))

    def distance_to(self, other: Pose) -> float:
        """Return the distance of the positions."""
        return math.hypot(other.x - self.x, other.y - self.y)


@dataclass(frozen=True)
class Segment:
    """A straight line (`turn` false, amount in metres) or a turn (amount in radians)."""

    turn: bool
    amount: float
    speed: float

    @property
    def duration(self) -> float:
        """Return the time that it takes in seconds."""
        return abs(self.amount) / self.speed

    def after(self, start: Pose, share: float) -> Pose:
        """Return the pose when `share` (0 to 1) of it is done."""
        amount = self.amount * share
        return start.turned(amount) if self.turn else start.ahead(amount)


class Path:
    """Segments one after the other from a start pose.

    `blocked` says that the path ends earlier than was asked for.
    """

    def __init__(self, start: Pose, segments: Sequence[Segment], blocked: bool = False) -> None:
        self.start = start
        self.segments = tuple(segments)
        self.blocked = blocked
        self.duration = sum(segment.duration for segment in self.segments)

    def pose(self, time_s: float) -> Pose:
        """Return the pose `time_s` seconds after the start."""
        pose = self.start
        for segment in self.segments:
            if time_s >= segment.duration:
                pose = segment.after(pose, 1.0)
                time_s -= segment.duration
            else:
                return segment.after(pose, max(time_s, 0.0) / segment.duration)
        return pose

    def done(self, time_s: float) -> float:
        """Return what is done of the first segment, in metres or radians, never negative."""
        first = self.segments[0]
        share = 1.0 if time_s >= first.duration else max(time_s, 0.0) / first.duration
        return abs(first.amount) * share


@dataclass(frozen=True)
class Arena:
    """Walls around the robot: a rectangle in metres."""

    min_x: float
    min_y: float
    max_x: float
    max_y: float

    def holds(self, pose: Pose) -> bool:
        """Whether a position lies within the walls."""
        return self.min_x <= pose.x <= self.max_x and self.min_y <= pose.y <= self.max_y

    def free(self, start: Pose, distance: float) -> float:
        """Return how much of a signed straight distance is free of walls."""
        if self.holds(start.ahead(distance)):
            return distance
        sign = math.copysign(1.0, distance)
        room = abs(distance)
        for position, low, high, direction in (
                (start.x, self.min_x, self.max_x, sign * math.cos(start.yaw)),
                (start.y, self.min_y, self.max_y, sign * math.sin(start.yaw))):
            wall = high if direction > 0 else low
            if not low <= position + direction * abs(distance) <= high:
                room = min(room, max((wall - position) / direction, 0.0))
        return sign * room


def drive_path(start: Pose, distance: float, speed: float, arena: Arena) -> Path:
    """Return the path of a drive, shortened at a wall."""
    free = arena.free(start, distance)
    return Path(start, [Segment(False, free, speed)], blocked=free != distance)


def turn_path(start: Pose, angle: float, speed: float) -> Path:
    """Return the path of a turn on the spot."""
    return Path(start, [Segment(True, angle, speed)])


def dock_path(start: Pose, dock: Pose, speed: float, turn_speed: float) -> Path:
    """Return the way to the dock: face it, drive, take its heading."""
    distance = start.distance_to(dock)
    segments = []
    heading = start.yaw
    if distance > 1e-9:
        bearing = math.atan2(dock.y - start.y, dock.x - start.x)
        segments = [Segment(True, normalized(bearing - heading), turn_speed),
                    Segment(False, distance, speed)]
        heading = bearing
    segments.append(Segment(True, normalized(dock.yaw - heading), turn_speed))
    return Path(start, segments)


def normalized(angle: float) -> float:
    """Return the angle in (-pi, pi]."""
    wrapped = math.remainder(angle, math.tau)
    return math.pi if wrapped == -math.pi else wrapped
