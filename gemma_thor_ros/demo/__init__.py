# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo: a small simulated robot, and the small model's files that drive it by words."""
