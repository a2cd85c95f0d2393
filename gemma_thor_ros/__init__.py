# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 on the robot: one engine behind ROS 2, safe tool calls and an OpenAI-compatible
endpoint.

This file imports nothing, so that `import gemma_thor_ros.msg` loads nothing else of ours.
"""

__version__ = '0.1.0'
