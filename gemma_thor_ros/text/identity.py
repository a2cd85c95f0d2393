# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A short name for how prompts are rendered, for audits: the hash of the code that does it."""

from __future__ import annotations

import hashlib
from pathlib import Path

# What a prompt's text depends on, besides the variant.
_FILES = (
    'call_syntax.py',
    'declarations.py',
    'normalize_messages.py',
    'normalize_tools.py',
    'prompt.py',
    'segments.py',
    'strip.py',
    'writer.py',
)


def template_hash(variant: str) -> str:
    """Return the sha256 of the renderer and its variant, in hex."""
    digest = hashlib.sha256(variant.encode())
    for name in _FILES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()
