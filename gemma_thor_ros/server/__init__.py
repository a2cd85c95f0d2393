# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible endpoint. Converts HTTP to and from chat.py; never executes tools."""
