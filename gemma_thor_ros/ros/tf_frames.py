# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Frames as the robot publishes them on /tf and /tf_static, through tf2_ros.

tf2_ros is part of every ROS installation and of no Python package registry, so it is imported only
where a policy needs frames.
"""

from __future__ import annotations

import importlib
from typing import Any

from rclpy.node import Node
from rclpy.time import Time

from gemma_thor_ros.ros.frames import FrameError, FrameSource, StaticFrames, Transform
from gemma_thor_ros.ros.policy_types import Policy


class TfFrames:
    """Listens to tf on a node.

    Raises:
        ModuleNotFoundError: tf2_ros is not installed.
    """

    def __init__(self, node: Node) -> None:
        self._tf2: Any = importlib.import_module('tf2_ros')
        self._node = node
        self._buffer = self._tf2.Buffer()
        self._listener = self._tf2.TransformListener(self._buffer, node)

    def transform(self, target: str, source: str) -> Transform:
        """Return the newest transform of points in `source` to `target`."""
        try:
            found = self._buffer.lookup_transform(target, source, Time())
        except self._tf2.TransformException as error:
            raise FrameError(f'no transform from the frame {source!r} to {target!r}: '
                             f'{error}') from error
        moved, turned = found.transform.translation, found.transform.rotation
        stamp = Time.from_msg(found.header.stamp, clock_type=self._node.get_clock().clock_type)
        # A transform that never changes has the stamp 0.
        age_s = 0.0 if stamp.nanoseconds == 0 else (
            self._node.get_clock().now() - stamp).nanoseconds / 1e9
        return Transform((moved.x, moved.y, moved.z), (turned.x, turned.y, turned.z, turned.w),
                         age_s)

    def close(self) -> None:
        """Stop listening."""
        self._listener.unregister()


def make_frame_source(node: Node, policy: Policy) -> FrameSource:
    """Return where the frames of a policy come from: tf where it can be had, else the policy.

    Raises:
        ConfigError: the policy wants tf, and tf2_ros is not installed.
    """
    frames = policy.frames
    uses = any(tool.pose is not None for tool in policy.tools.values())
    if uses and frames.source != 'static':
        try:
            return TfFrames(node)
        except ModuleNotFoundError as error:
            if frames.source == 'tf':
                policy.source.fail(('frames', 'source'), f'{error.name} is not installed')
            node.get_logger().info(f'{error.name} is not installed: the frames are those of the '
                                   'policy alone')
    known = {frames.reference, *(area.frame for area in policy.areas.values())}
    return StaticFrames(frames.static, known)
