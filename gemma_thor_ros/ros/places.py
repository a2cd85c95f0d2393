# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Where a call would send the robot: its frame must be known and fresh, its area must hold it.

Asked when a call is made and again at the moment of sending.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ros.binding import BoundTool
from gemma_thor_ros.ros.frames import FrameError, FrameSource, Transform
from gemma_thor_ros.ros.interfaces import get_field
from gemma_thor_ros.ros.policy_types import Policy
from gemma_thor_ros.ros.units import number_text
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome

MAX_AHEAD_S = 5.0                # localisation may post-date its transforms by so much


class Places:
    """Holds goals against the frames and areas of a policy."""

    def __init__(self, policy: Policy, source: FrameSource) -> None:
        self._policy = policy
        self._source = source

    def check(self, bound: BoundTool, message: Any) -> None:
        """Refuse a goal whose frame is unknown or old, or that lies outside its area.

        Raises:
            CallRefusedError: REFUSED_FRAME or REFUSED_GEOFENCE, with frame and numbers.
        """
        pose = bound.pose
        if pose is None:
            return
        frame = pose.frame or get_field(message, pose.frame_field)
        area = self._policy.areas.get(bound.tool.area)
        target = self._policy.frames.reference if area is None else area.frame
        transform = self._transform(target, frame)
        if area is None:
            return
        point = [float(get_field(message, path)) if path else 0.0
                 for path in (pose.x, pose.y, pose.z)]
        x, y, _ = transform.point((point[0], point[1], point[2]))
        if not area.holds(x, y):
            raise CallRefusedError(
                Outcome.REFUSED_GEOFENCE,
                f'x {number_text(x)} m, y {number_text(y)} m in the frame {target} is outside '
                f'the area {area.name}')

    def _transform(self, target: str, frame: str) -> Transform:
        if not frame:
            raise CallRefusedError(Outcome.REFUSED_FRAME, 'the goal names no frame')
        try:
            transform = self._source.transform(target, frame)
        except FrameError as error:
            raise CallRefusedError(Outcome.REFUSED_FRAME, str(error)) from error
        limit = self._policy.frames.max_age_s
        if not -MAX_AHEAD_S <= transform.age_s <= limit:
            raise CallRefusedError(
                Outcome.REFUSED_FRAME,
                f'the transform from the frame {frame!r} to {target!r} is {transform.age_s:.1f} s '
                f'old, the limit is {limit:g} s')
        return transform
