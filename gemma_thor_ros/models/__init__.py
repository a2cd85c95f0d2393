# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Arrays in, arrays out: one forward pass of Gemma 4 for CUDA and CPU."""
