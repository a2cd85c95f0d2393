# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Short names for what a checkpoint holds.

For audits the hash of its headers: names, types, shapes and places of all tensors and the sizes of
the files, not the numbers themselves. For K and V that were saved also a sample of the numbers.
Reading all of tens of gigabytes would hold up the start.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_LENGTH_BYTES = 8
_BLOCKS, _BLOCK_BYTES = 64, 4096


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


def sampled_hash(folder: str | Path) -> str:
    """Return the sha256 of headers_hash and of 64 blocks of 4 KiB, evenly over each file, in hex.

    Training changes nearly every number, so that it changes the sample too.

    Raises:
        OSError: a file can't be read.
    """
    folder = Path(folder)
    digest = hashlib.sha256(headers_hash(folder).encode())
    for path in sorted(folder.glob('*.safetensors')):
        last = max(0, path.stat().st_size - _BLOCK_BYTES)
        with path.open('rb') as file:
            for index in range(_BLOCKS):
                file.seek(last * index // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
