# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo model's held-out dialogues, and how an answer to one is judged."""
