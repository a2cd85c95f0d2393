# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Pinned memory between the host and one stream of the device.

`Upload` streams large arrays, such as mapped weights, through a ring of few buffers; `StepBuffer`
carries the small inputs of steps. Knows no weights, no names and no steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.ops import device

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
SLOT_BYTES = 64 << 20                    # four of them are 256 MiB of pinned memory
NUM_SLOTS = 4
_PART_BYTES = 4 << 20                    # that one thread copies at a time


class Upload:
    """Copies host arrays to the device, several threads filling one buffer while others travel."""

    def __init__(self, stream: Any, num_threads: int = 4, slot_bytes: int = SLOT_BYTES) -> None:
        self._stream = stream
        self._slots = [device.pinned(slot_bytes) for _ in range(NUM_SLOTS)]
        self._sent: list[Any] = [None] * NUM_SLOTS       # event: the buffer may be filled again
        self._next = 0
        self._pool = ThreadPoolExecutor(num_threads, 'gemma_thor_upload')
        self.num_bytes = 0

    def copy(self, target: Any, pieces: Iterable[Array]) -> None:
        """Enqueue target = the pieces' bytes, one after the other; the pieces are read on return.

        target: a contiguous array of the device of exactly that many bytes.
        """
        flat = target.reshape(-1).view(np.uint8)
        done = 0
        for parts in _slots_full(pieces, self._slots[0].size):
            slot, event = self._slots[self._next], self._sent[self._next]
            if event is not None:
                event.synchronize()
            size = self._fill(slot, parts)
            device.copy_in(flat[done:done + size], slot[:size], self._stream)
            event = event or device.new_event()
            event.record(self._stream)
            self._sent[self._next] = event
            self._next = (self._next + 1) % NUM_SLOTS
            done += size
        assert done == flat.nbytes, (done, flat.nbytes)
        self.num_bytes += done

    def close(self) -> None:
        """Wait for what was enqueued, and let the buffers go."""
        self._pool.shutdown()
        for event in self._sent:
            if event is not None:
                event.synchronize()
        self._slots = []

    def _fill(self, slot: Bytes, parts: list[Bytes]) -> int:
        jobs = []
        place = 0
        for part in parts:
            for start in range(0, part.size, _PART_BYTES):
                piece = part[start:start + _PART_BYTES]
                jobs.append((slot[place:place + piece.size], piece))
                place += piece.size
        # NumPy lets other threads run while it copies
        for _ in self._pool.map(lambda job: np.copyto(*job), jobs, chunksize=_chunk(len(jobs))):
            pass
        return place


def _chunk(num_jobs: int) -> int:
    return max(1, num_jobs // 16)


def _slots_full(pieces: Iterable[Array], slot_bytes: int) -> Iterator[list[Bytes]]:
    """The pieces as bytes, cut and gathered so that each list fills one buffer but the last."""
    parts: list[Bytes] = []
    room = slot_bytes
    for piece in pieces:
        rest = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
        while rest.size:
            parts.append(rest[:room])
            rest, room = rest[room:], room - parts[-1].size
            if room == 0:
                yield parts
                parts, room = [], slot_bytes
    if parts:
        yield parts


class StepBuffer:
    """Small copies to the device, ordered on one stream; a few steps may be under way."""

    def __init__(self, stream: Any, num_bytes: int = 1 << 20, num_blocks: int = 8) -> None:
        self._stream = stream
        self._blocks = [device.pinned(num_bytes) for _ in range(num_blocks)]
        self._sent: list[Any] = [None] * num_blocks
        self._current = 0
        self._begun = False              # a block was taken for the copies of this step
        self._used = 0
        self._large: list[list[Bytes]] = [[] for _ in range(num_blocks)]

    def begin(self) -> None:
        """Start the copies of a step; the first waits for those of num_blocks steps before."""
        self._begun = False

    def _next_block(self) -> None:
        self._current = (self._current + 1) % len(self._blocks)
        if self._sent[self._current] is not None:
            self._sent[self._current].synchronize()
        self._begun, self._used = True, 0
        self._large[self._current] = []

    def send(self, target: Any, values: Array) -> None:
        """Enqueue target = values, of equal type and size; values may change on return."""
        assert target.dtype == values.dtype and target.size == values.size, (
            target.dtype, target.shape, values.dtype, values.shape)
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        place = self.reserve(data.size)
        place[...] = data
        device.copy_in(target, place, self._stream)

    def reserve(self, num_bytes: int) -> Bytes:
        """Pinned memory of the step to be filled, for `send_reserved`."""
        if not self._begun:
            self._next_block()
        block = self._blocks[self._current]
        start = -(-self._used // 16) * 16
        if start + num_bytes <= block.size:
            self._used = start + num_bytes
            return block[start:self._used]
        place = device.pinned(num_bytes)
        self._large[self._current].append(place)
        return place

    def send_reserved(self, target: Any, place: Bytes) -> None:
        """Enqueue target = what was written to a reserved place; it is not to change any more."""
        device.copy_in(target, place, self._stream)

    def end(self) -> None:
        """All copies of the step are enqueued; a step without any costs nothing."""
        if not self._begun:
            return
        self._begun = False
        event = self._sent[self._current] = self._sent[self._current] or device.new_event()
        event.record(self._stream)
