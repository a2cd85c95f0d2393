# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Reads what a policy says of places: frames, areas, and which fields of a goal are a pose.

Every fault is a ConfigError with its line. Knows no ROS.
"""

from __future__ import annotations

from typing import Any

from gemma_thor_ros.ros import units
from gemma_thor_ros.ros.areas import Area, Polygon, box
from gemma_thor_ros.ros.frames import FrameError, StaticFrame, StaticFrames, quaternion
from gemma_thor_ros.ros.policy_file import ItemPath, PolicyFile, name_list
from gemma_thor_ros.ros.policy_types import (
    DEFAULT_FRAME_AGE_S,
    DEFAULT_REFERENCE,
    Frames,
    PosePolicy,
    ToolPolicy,
)


def read_frames(source: PolicyFile) -> Frames:
    """Return the policy's frames."""
    data = source.data.get('frames', {})
    static = tuple(_static_frame(source, ('frames', 'static', index), item)
                   for index, item in enumerate(data.get('static', ())))
    try:
        StaticFrames(static)
    except FrameError as error:
        source.fail(('frames', 'static'), str(error))
    return Frames(data.get('source', 'auto'), data.get('reference', DEFAULT_REFERENCE),
                  float(data.get('max_age_s', DEFAULT_FRAME_AGE_S)), static)


def read_areas(source: PolicyFile) -> dict[str, Area]:
    """Return the policy's areas by name."""
    return {name: Area(name, data['frame'], _shapes(source, ('areas', name, 'inside'), data),
                       _shapes(source, ('areas', name, 'outside'), data))
            for name, data in source.data.get('areas', {}).items()}


def read_pose(data: dict[str, Any]) -> PosePolicy | None:
    """Return which fields of a tool's goal are its pose."""
    pose = data.get('pose')
    if pose is None:
        return None
    if isinstance(pose, str):
        return PosePolicy(field=pose)
    return PosePolicy('', pose.get('frame', ''), pose.get('frame_field', ''),
                      pose.get('x', ''), pose.get('y', ''), pose.get('z', ''))


def check_place(source: PolicyFile, path: ItemPath, tool: ToolPolicy,
                areas: dict[str, Area]) -> None:
    """Check what a tool says of places."""
    pose = tool.pose
    if tool.area and tool.area not in areas:
        source.fail((*path, 'area'),
                    f'there is no area {tool.area!r}; {name_list("areas", areas)}')
    if tool.area and pose is None:
        source.fail((*path, 'area'), 'an area needs a pose: which fields say where the goal lies')
    if pose is not None and not pose.field:
        if bool(pose.frame) == bool(pose.frame_field):
            source.fail((*path, 'pose'), 'pose needs either frame or frame_field')
        if not pose.x and not pose.y:
            source.fail((*path, 'pose'), 'pose needs x or y')


def _static_frame(source: PolicyFile, path: ItemPath, data: dict[str, Any]) -> StaticFrame:
    x, y, z = (_metres(source, (*path, key), data.get(key)) for key in ('x', 'y', 'z'))
    roll, pitch, yaw = (_quantity(source, (*path, key), data.get(key), 'angle', '90 deg')
                        for key in ('roll', 'pitch', 'yaw'))
    return StaticFrame(data['parent'], data['child'], (x, y, z), quaternion(roll, pitch, yaw))


def _metres(source: PolicyFile, path: ItemPath, value: Any) -> float:
    return _quantity(source, path, value, 'length', '1.5 m')


def _quantity(source: PolicyFile, path: ItemPath, value: Any, dimension: str,
              example: str) -> float:
    """Read a quantity with its unit in SI; 0 when it is absent."""
    if value is None or value == 0:
        return 0.0
    quantity = units.parse_quantity(value) if isinstance(value, str) else None
    if quantity is None or units.dimension(quantity[1]) != dimension:
        article = 'an' if dimension == 'angle' else 'a'
        source.fail(path, f'{path[-1]} is {value!r}; it must be {article} {dimension}, such as '
                          f'{example!r}')
    return units.to_si(*quantity)


def _shapes(source: PolicyFile, path: ItemPath, data: dict[str, Any]) -> tuple[Polygon, ...]:
    shapes = []
    for index, item in enumerate(data.get(path[-1], ())):
        if len(item) != 1:
            source.fail((*path, index), 'give one box or one polygon')
        if 'box' in item:
            min_x, min_y, max_x, max_y = map(float, item['box'])
            if min_x >= max_x or min_y >= max_y:
                source.fail((*path, index, 'box'),
                            'a box is smallest x and y, largest x and y, in metres')
            shapes.append(box(min_x, min_y, max_x, max_y))
        else:
            shapes.append(Polygon(tuple((float(x), float(y)) for x, y in item['polygon'])))
    return tuple(shapes)
