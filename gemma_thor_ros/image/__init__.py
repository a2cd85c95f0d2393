# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Image files to what a model's vision part reads: decode, resize, patchify. Knows no model."""
