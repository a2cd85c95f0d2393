# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The text weights of a checkpoint for whoever copies them elsewhere, layer after layer.

Everything is a view of the mapped files, experts too, and a layer's pages leave memory when the
next one is asked for: on a robot host and device share memory. Knows no device.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from gemma_thor_ros.weights.canonical import DenseWeight, Nvfp4Stack, Nvfp4Weight, Weight
from gemma_thor_ros.weights.checkpoint import Checkpoint, TextWeights
from gemma_thor_ros.weights.modules import Form, read_nvfp4
from gemma_thor_ros.weights.names import Part
from gemma_thor_ros.weights.parallel import bounded_map
from gemma_thor_ros.weights.quantize import Convention, largest_magnitude, quantize_matrix

_LAYER = re.compile(r'layers\.(\d+)\.')
_QUANTISED = (Form.COMPRESSED_TENSORS, Form.MODELOPT)
_BLOCK_ROWS = 8192                       # of a table that is quantised by several threads


class StreamedWeights(Mapping[str, 'Weight | Nvfp4Stack']):
    """Canonical name -> weight, each to be asked for once, layers in ascending order.

    progress(share) is called with the share of the text weights' bytes that were asked for.
    """

    def __init__(self, checkpoint: Checkpoint, weights: TextWeights,
                 progress: Callable[[float], None] = lambda share: None) -> None:
        self._checkpoint = checkpoint
        self._weights = weights
        self._progress = progress
        self._groups: dict[str, list[str]] = defaultdict(list)   # layer -> names on disk
        for name in checkpoint.parts()[Part.TEXT]:
            self._groups[_group(name)].append(name)
        self.num_bytes = sum(checkpoint.info(name).nbytes for group in self._groups.values()
                             for name in group)
        self._group: str | None = None   # of the newest weight
        self._asked = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __getitem__(self, name: str) -> Weight | Nvfp4Stack:
        group = _group(name)
        if self._group is not None and group != self._group:
            self._drop(self._group)
        self._group = group
        weight = self._read(name)
        matrices = weight.matrices if isinstance(weight, Nvfp4Stack) else (weight,)
        self._asked += sum(matrix.nbytes for matrix in matrices)
        self._progress(min(1.0, self._asked / self.num_bytes))
        return weight

    def close(self) -> None:
        """Let the pages of the last layer go."""
        if self._group is not None:
            self._drop(self._group)
            self._group = None

    def _read(self, name: str) -> Weight | Nvfp4Stack:
        form = self._weights.form(name)
        modules = self._weights.disk_modules(name) if form in _QUANTISED else []
        if len(modules) < 2:
            return self._weights[name]
        return Nvfp4Stack(tuple(read_nvfp4(self._checkpoint.tensors, module, form)
                                for module in modules))

    def _drop(self, group: str) -> None:
        self._checkpoint.tensors.drop(self._groups[group])


def quantised_table(weight: DenseWeight, num_threads: int) -> Nvfp4Weight:
    """A bf16 table (V, H) as one NVFP4 matrix, as `gemma-thor quantize` would write it."""
    amax = largest_magnitude(weight)
    blocks = [weight[start:start + _BLOCK_ROWS] for start in range(0, weight.shape[0],
                                                                   _BLOCK_ROWS)]
    parts = [tensor.weight for tensor in bounded_map(
        lambda block: quantize_matrix(block, Convention.MODELOPT, amax), blocks, num_threads)]
    return Nvfp4Weight(np.concatenate([part.packed for part in parts]),
                       np.concatenate([part.group_scales for part in parts]),
                       parts[0].global_scale)


def _group(name: str) -> str:
    found = _LAYER.search(name)
    return found[1] if found else ''
