# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A short name for what a checkpoint holds, for audits: the hash of its headers.

Names, types, shapes and places of all tensors and the sizes of the files are in it, the numbers
themselves are not: reading tens of gigabytes would hold up the start.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_LENGTH_BYTES = 8


def headers_hash(folder: str | Path) -> str:
    """Return the sha256 of config.json and of the headers of all safetensors files, in hex.

    Raises:
        OSError: a file can't be read.
    """
    folder = Path(folder)
    digest = hashlib.sha256((folder / 'config.json').read_bytes())
    for path in sorted(folder.glob('*.safetensors')):
        with path.open('rb') as file:
            length = file.read(_LENGTH_BYTES)
            header = file.read(int.from_bytes(length, 'little'))
        digest.update(f'{path.name} {path.stat().st_size} '.encode() + length + header)
    return digest.hexdigest()
