# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: read, checked, decoded, quantised and written with NumPy alone.

Knows names, shapes and number formats; never imports models, ops or engine.
"""
