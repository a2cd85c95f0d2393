# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How the small demo model is made: data generator, tokenizer, training, export, evaluation.

Not part of the runtime package: nothing in gemma_thor_ros imports this. The generator needs only the
standard library; training needs torch.
"""
