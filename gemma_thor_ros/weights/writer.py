# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints of any size: all sizes are known first, then tensors come one by one.

Layout as the safetensors library makes it: within a file wide types first, then by name, so that
every tensor is aligned. Files carry a temporary name until the last byte is there. Knows no
models.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from gemma_thor_ros.weights.safetensors_file import (
    INDEX_NAME,
    NUMPY_TYPES,
    SINGLE_NAME,
    Array,
)

DEFAULT_SHARD_BYTES = 5_000_000_000      # what the hub's own writers use


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written: dtype as in a safetensors header ('BF16', 'F8_E4M3', ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        size = np.dtype(NUMPY_TYPES[self.dtype]).itemsize
        for axis in self.shape:
            size *= axis
        return size


def plan_shards(specs: Iterable[TensorSpec], max_shard_bytes: int) -> list[list[TensorSpec]]:
    """Fill files in the given order; a tensor larger than the limit gets a file of its own."""
    shards: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        if shards[-1] and size + spec.nbytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += spec.nbytes
    return shards


class CheckpointWriter:
    """Writes model.safetensors, or shards and their index, into a folder.

    Use as a context manager; `write` may be called in any order, once for each spec. When the
    block ends normally the files get their final names and replace what an earlier checkpoint left
    there; after an exception they are removed.
    """

    def __init__(self, folder: Path, specs: Iterable[TensorSpec],
                 max_shard_bytes: int = DEFAULT_SHARD_BYTES) -> None:
        self._folder = folder
        shards = plan_shards(specs, max_shard_bytes)
        self._names = _file_names(len(shards))
        self._files: list[IO[bytes]] = []
        self._places: dict[str, tuple[TensorSpec, IO[bytes], int]] = {}
        self._weight_map: dict[str, str] = {}
        self.total_bytes = sum(spec.nbytes for shard in shards for spec in shard)
        for name, shard in zip(self._names, shards, strict=True):
            self._begin_file(name, shard)
        self._missing = set(self._places)

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for file in self._files:
            file.close()
        if kind is not None:
            for name in self._names:
                _partial(self._folder / name).unlink(missing_ok=True)
            return
        assert not self._missing, f'{len(self._missing)} tensors not written: {self._missing}'
        for old in [*self._folder.glob('*.safetensors'), self._folder / INDEX_NAME]:
            old.unlink(missing_ok=True)
        for name in self._names:
            _partial(self._folder / name).replace(self._folder / name)
        if len(self._names) > 1:
            index = {'metadata': {'total_size': self.total_bytes},
                     'weight_map': dict(sorted(self._weight_map.items()))}
            (self._folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + '\n')

    def write(self, name: str, array: Array) -> None:
        """Write one tensor, given as its bits in the NumPy type of its dtype."""
        assert array.shape == self._places[name][0].shape, (name, array.shape)
        self.write_chunks(name, [array])

    def write_chunks(self, name: str, chunks: Iterable[Array]) -> None:
        """Write one tensor in pieces, in memory order, so that it need never exist as a whole."""
        spec, file, position = self._places[name]
        self._missing.remove(name)
        file.seek(position)
        size = 0
        for chunk in chunks:
            assert chunk.dtype == NUMPY_TYPES[spec.dtype], (spec, chunk.dtype)
            size += chunk.nbytes
            file.write(np.ascontiguousarray(chunk).data)
        assert size == spec.nbytes, (spec, size)

    def _begin_file(self, name: str, shard: list[TensorSpec]) -> None:
        header: dict[str, object] = {'__metadata__': {'format': 'pt'}}
        places, offset = [], 0
        for spec in sorted(shard, key=_layout_key):
            assert spec.name not in header, f'{spec.name} is planned twice'
            header[spec.name] = {'dtype': spec.dtype, 'shape': list(spec.shape),
                                 'data_offsets': [offset, offset + spec.nbytes]}
            places.append((spec, offset))
            offset += spec.nbytes
        text = json.dumps(header, separators=(',', ':')).encode()
        text += b' ' * (-len(text) % 8)
        file = _partial(self._folder / name).open('wb')
        self._files.append(file)
        file.write(struct.pack('<Q', len(text)) + text)
        start = 8 + len(text)
        file.truncate(start + offset)
        for spec, offset in places:
            self._places[spec.name] = (spec, file, start + offset)
            self._weight_map[spec.name] = name


def _layout_key(spec: TensorSpec) -> tuple[int, str]:
    return -np.dtype(NUMPY_TYPES[spec.dtype]).itemsize, spec.name


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE_NAME]
    return [f'model-{number:05d}-of-{count:05d}.safetensors' for number in range(1, count + 1)]


def _partial(path: Path) -> Path:
    return path.with_name(path.name + '.partial')
