# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Areas of the ground that a goal must lie in: boxes and polygons in a named frame.

Plane geometry in metres. Knows no ROS and no policy file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True)
class Polygon:
    """A closed polygon of three corners or more, in either direction; its edge belongs to it."""

    corners: tuple[Point, ...]

    def holds(self, x: float, y: float) -> bool:
        """Whether a point lies in the polygon (even-odd rule) or on its edge."""
        inside = False
        for (x1, y1), (x2, y2) in zip(self.corners, self.corners[1:] + self.corners[:1],
                                      strict=True):
            cross = (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
            if (cross == 0.0 and min(x1, x2) <= x <= max(x1, x2)
                    and min(y1, y2) <= y <= max(y1, y2)):
                return True
            # The side of the edge decides, by the sign of `cross`: no division, no rounding.
            if (y1 > y) != (y2 > y) and (cross > 0.0) == (y2 > y1):
                inside = not inside
        return inside


def box(min_x: float, min_y: float, max_x: float, max_y: float) -> Polygon:
    """Return a rectangle along the axes."""
    return Polygon(((min_x, min_y), (max_x, min_y), (max_x, max_y), (min_x, max_y)))


@dataclass(frozen=True)
class Area:
    """Where a goal may lie: in one of `inside`, and in none of `outside`; metres in `frame`."""

    name: str
    frame: str
    inside: tuple[Polygon, ...]
    outside: tuple[Polygon, ...] = ()

    def holds(self, x: float, y: float) -> bool:
        """Whether a goal may lie at a point of the frame."""
        return _any_holds(self.inside, x, y) and not _any_holds(self.outside, x, y)


def _any_holds(shapes: Sequence[Polygon], x: float, y: float) -> bool:
    return any(shape.holds(x, y) for shape in shapes)
