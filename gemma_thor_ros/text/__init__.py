# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Text in both directions: messages to prompt tokens, answer tokens to text, thoughts and calls.

Knows Gemma 4's chat format and tokenizer; knows no model, no engine, no ROS and no HTTP.
"""
