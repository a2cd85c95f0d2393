# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A drafter's folder as canonical weights: z-lab's DFlash and google's MTP assistants, in bf16.

Every name, shape and dtype is checked from the headers before a byte of data is read. Whether the
drafter fits a model is models/draft_config's question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import DenseWeight
from gemma_thor_ros.weights.checkpoint import Checkpoint, open_checkpoint
from gemma_thor_ros.weights.drafter_shapes import (
    DrafterKind,
    drafter_disk_name,
    drafter_kind,
    drafter_shapes,
)
from gemma_thor_ros.weights.modules import Form, check_dense, form_of, read_dense
from gemma_thor_ros.weights.names import parameter

# The assistant's head is its own table: a copy of it in a file adds nothing.
_SURPLUS = ('lm_head.weight',)


class DrafterCheckpoint(Mapping[str, DenseWeight]):
    """Canonical name -> weight of a drafter, views of the mapped files made at each access."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Check all names, shapes and dtypes; ConfigError names the folder and the tensor."""
        self.folder = checkpoint.folder
        self.config: dict[str, Any] = checkpoint.config
        self._tensors = checkpoint.tensors
        kind = drafter_kind(checkpoint.config)
        self._shapes = drafter_shapes(checkpoint.config)
        assert kind is not None          # drafter_shapes refuses what is no drafter
        self.kind: DrafterKind = kind
        for name, shape in self._shapes.items():
            module = drafter_disk_name(kind, name)
            form = form_of(self._tensors, module) or Form.DENSE
            if form is not Form.DENSE:
                raise ConfigError(f'{self.folder}: {module!r} is {form.value}; drafters are read '
                                  'in bf16 or float32')
            check_dense(self._tensors, parameter(module), shape)
        wanted = {self.disk_name(name) for name in self._shapes}
        left = [name for name in self._tensors if name not in wanted and name not in _SURPLUS]
        if left:
            raise ConfigError(f'{self.folder}: {len(left)} tensors that config.json has no place '
                              f'for: {", ".join(left[:3])}{", ..." if len(left) > 3 else ""}')

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, name: str) -> DenseWeight:
        if name not in self._shapes:
            raise KeyError(name)
        return read_dense(self._tensors, self.disk_name(name))

    def disk_name(self, name: str) -> str:
        """On-disk tensor of a canonical name."""
        return parameter(drafter_disk_name(self.kind, name))

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights that are used."""
        return sum(self._tensors[self.disk_name(name)].nbytes for name in self._shapes)


def open_drafter(folder: str | Path) -> DrafterCheckpoint:
    """Open a drafter's folder; only headers are read. Raises ConfigError."""
    return DrafterCheckpoint(open_checkpoint(folder))
