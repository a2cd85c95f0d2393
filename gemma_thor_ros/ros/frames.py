# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Coordinate frames: transforms, and a source of them that a policy file writes down.

tf_frames.py has the source that listens to tf. Metres, radians, quaternions (x, y, z, w). Knows no
ROS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

Vector = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]

IDENTITY: Quaternion = (0.0, 0.0, 0.0, 1.0)


class FrameError(Exception):
    """A transform can't be had; the message names the frame."""


@dataclass(frozen=True)
class Transform:
    """Takes points of a source frame to a target frame: turned first, then moved.

    `age_s` is how long ago it was true (negative: its time lies ahead), 0 for one that never
    changes.
    """

    translation: Vector
    rotation: Quaternion = IDENTITY
    age_s: float = 0.0

    def point(self, point: Vector) -> Vector:
        """Return a point of the source frame in the target frame."""
        x, y, z = _rotated(self.rotation, point)
        return (x + self.translation[0], y + self.translation[1], z + self.translation[2])

    def after(self, first: Transform) -> Transform:
        """Return the transform that does `first` and then this one."""
        return Transform(self.point(first.translation),
                         _product(self.rotation, first.rotation), max(self.age_s, first.age_s))

    def inverse(self) -> Transform:
        """Return the transform from the target frame to the source frame."""
        x, y, z, w = self.rotation
        back = (-x, -y, -z, w)
        moved = _rotated(back, self.translation)
        return Transform((-moved[0], -moved[1], -moved[2]), back, self.age_s)


class FrameSource(Protocol):
    """Where transforms come from."""

    def transform(self, target: str, source: str) -> Transform:
        """Return the newest transform of points in `source` to `target`.

        Raises:
            FrameError: one of the frames is unknown, or they are not connected.
        """


@dataclass(frozen=True)
class StaticFrame:
    """A frame that a policy file writes down: where `child` lies in `parent`."""

    parent: str
    child: str
    translation: Vector
    rotation: Quaternion


class StaticFrames:
    """Frames that never move. `known` are frames that need no parent.

    Raises:
        FrameError: a frame has two parents or is its own ancestor.
    """

    def __init__(self, frames: Sequence[StaticFrame], known: Iterable[str] = ()) -> None:
        self._parents: dict[str, tuple[str, Transform]] = {}
        self._known = set(known)
        for frame in frames:
            if frame.child in self._parents:
                raise FrameError(f'the frame {frame.child} has two parents')
            self._parents[frame.child] = (
                frame.parent, Transform(frame.translation, frame.rotation))
            self._known |= {frame.parent, frame.child}
        for frame in frames:
            self._to_root(frame.child)

    def transform(self, target: str, source: str) -> Transform:
        """Return the transform of points in `source` to `target`."""
        for name in (source, target):
            if name not in self._known:
                raise FrameError(f'the frame {name!r} is not known')
        source_root, from_source = self._to_root(source)
        target_root, from_target = self._to_root(target)
        if source_root != target_root:
            raise FrameError(f'the frames {source!r} and {target!r} are not connected')
        return from_target.inverse().after(from_source)

    def _to_root(self, name: str) -> tuple[str, Transform]:
        transform, seen = Transform((0.0, 0.0, 0.0)), {name}
        while name in self._parents:
            name, step = self._parents[name]
            if name in seen:
                raise FrameError(f'the frame {name} is its own ancestor')
            seen.add(name)
            transform = step.after(transform)
        return name, transform


def quaternion(roll: float, pitch: float, yaw: float) -> Quaternion:
    """Return the rotation of fixed-axis roll, pitch and yaw in radians, as ROS counts them."""
    sr, cr = math.sin(roll / 2), math.cos(roll / 2)
    sp, cp = math.sin(pitch / 2), math.cos(pitch / 2)
    sy, cy = math.sin(yaw / 2), math.cos(yaw / 2)
    return (sr * cp * cy - cr * sp * sy, cr * sp * cy + sr * cp * sy,
            cr * cp * sy - sr * sp * cy, cr * cp * cy + sr * sp * sy)


def _rotated(rotation: Quaternion, point: Vector) -> Vector:
    x, y, z, w = rotation
    px, py, pz = point
    # v + 2w (q x v) + 2 q x (q x v)
    cx, cy, cz = y * pz - z * py, z * px - x * pz, x * py - y * px
    return (px + 2 * (w * cx + y * cz - z * cy), py + 2 * (w * cy + z * cx - x * cz),
            pz + 2 * (w * cz + x * cy - y * cx))


def _product(a: Quaternion, b: Quaternion) -> Quaternion:
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    return (aw * bx + ax * bw + ay * bz - az * by, aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw, aw * bw - ax * bx - ay * by - az * bz)
