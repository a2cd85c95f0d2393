# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Named scratch arrays of the CPU ops, kept between calls.

NumPy would map and unmap fresh memory for every large temporary, which costs more than the
arithmetic of a small model. One Scratch belongs to one op table and so to one thread.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Scratch:
    """Hands out uninitialised C-contiguous arrays; the same name gives the same memory again."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._buffers: dict[str, Array] = {}
        self._views: dict[tuple[Any, ...], Array] = {}

    def get(self, name: str, *shape: int) -> Array:
        """An array of `shape`; what an earlier get of this name returned is overwritten."""
        view = self._views.get((name, *shape))
        if view is None:
            size = math.prod(shape)
            buffer = self._buffers.get(name)
            if buffer is None or buffer.size < size:
                # a quarter more, so that a growing context does not reallocate at every chunk
                buffer = self._buffers[name] = np.zeros(size + size // 4, self.dtype)
                self._views = {key: old for key, old in self._views.items() if key[0] != name}
            if len(self._views) > 4096:
                self._views.clear()
            view = self._views[(name, *shape)] = buffer[:size].reshape(shape)
        return view

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return sum(buffer.nbytes for buffer in self._buffers.values())
