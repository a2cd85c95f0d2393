# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A NavigateToPose server that arrives at once and prints `goal <json>` for each goal."""

from __future__ import annotations

import json
import os

import rclpy
from nav2_msgs.action import NavigateToPose
from rclpy.action import ActionServer


def execute(handle: object) -> NavigateToPose.Result:
    pose = handle.request.pose
    rotation = pose.pose.orientation
    fields = {'frame': pose.header.frame_id, 'x': pose.pose.position.x, 'y': pose.pose.position.y,
              'qx': rotation.x, 'qy': rotation.y, 'qz': rotation.z, 'qw': rotation.w}
    os.write(1, f'goal {json.dumps(fields)}\n'.encode())
    handle.succeed()
    return NavigateToPose.Result()


def main() -> None:
    rclpy.init()
    node = rclpy.create_node('nav_server')
    server = ActionServer(node, NavigateToPose, 'navigate_to_pose', execute)
    os.write(1, b'ready\n')
    rclpy.spin(node)
    server.destroy()


if __name__ == '__main__':
    main()
