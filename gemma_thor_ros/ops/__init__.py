# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One file per op: its NumPy twin, and later its CUDA launcher."""
