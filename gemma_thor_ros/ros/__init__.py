# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The ROS side: node, conversions, tool policy, tool bridge and goal_guard.

Imports nothing here, so that goal_guard starts without the engine and the policy can be read and
checked where there is no rclpy.
"""
