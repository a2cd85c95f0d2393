# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What pages hold, as bytes: read out of a cache and written into another one of the same shape.

A plane is an array whose first axis counts the pages of one geometry: K of a layer, V of a layer,
what a drafter keeps beside them. Knows no request and no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.config import FULL, SLIDING
from gemma_thor_ros.ops import device

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
GEOMETRIES = (SLIDING, FULL)


@runtime_checkable
class Paged(Protocol):
    """A cache, or a drafter that keeps one to itself."""

    def planes(self) -> Planes:
        """All of its arrays; those of the newest cache."""


@dataclass(frozen=True)
class Planes:
    """The arrays of a cache by geometry. stream: they lie on a device, and this orders the copies.

    One thread may copy at a time: the one that runs the model.
    """

    sliding: tuple[Any, ...]
    full: tuple[Any, ...]
    stream: Any = None

    def joined(self, other: Planes) -> Planes:
        """These and those of another cache with the same pages."""
        return Planes(self.sliding + other.sliding, self.full + other.full,
                      self.stream or other.stream)

    @property
    def layout(self) -> tuple[str, ...]:
        """A line for each array: equal layouts have pages of equal meaning, element by element."""
        return tuple(f'{kind} {np.dtype(plane.dtype).str} {"x".join(map(str, plane.shape[1:]))}'
                     for kind in GEOMETRIES for plane in self._of(kind))

    def page_bytes(self, kind: str) -> int:
        """Bytes of one page of a geometry, in all arrays."""
        return sum(plane[0].nbytes for plane in self._of(kind))

    def read(self, kind: str, pages: Sequence[int], target: Bytes) -> None:
        """Copy pages to target (n, page_bytes); it has them when this returns."""
        with self._copies():
            for index, page in enumerate(pages):
                for plane, part in self._parts(kind, target[index]):
                    if self.stream is None:
                        part.view(plane.dtype)[...] = plane[page].reshape(-1)
                    else:
                        device.copy_out(part, plane[page], self.stream)

    def write(self, kind: str, pages: Sequence[int], source: Bytes) -> None:
        """Copy source (n, page_bytes) into pages, which must be of this cache."""
        with self._copies():
            for index, page in enumerate(pages):
                for plane, part in self._parts(kind, source[index]):
                    if self.stream is None:
                        plane[page].reshape(-1)[...] = part.view(plane.dtype)
                    else:
                        device.copy_in(plane[page], part, self.stream)

    def _of(self, kind: str) -> tuple[Any, ...]:
        return self.sliding if kind == SLIDING else self.full

    def _parts(self, kind: str, row: Bytes) -> Iterator[tuple[Any, Bytes]]:
        """Each array, and its part of a page's bytes."""
        start = 0
        for plane in self._of(kind):
            size = plane[0].nbytes
            yield plane, row[start:start + size]
            start += size

    @contextmanager
    def _copies(self) -> Iterator[None]:
        """Wait for the copies at the end; a lost device is a DeviceError."""
        if self.stream is None:
            yield
            return
        with device.errors():
            yield
            self.stream.synchronize()
