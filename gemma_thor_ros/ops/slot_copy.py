# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Memory of the host that a graph reads at its start and writes at its end by itself.

A copy before a graph and one behind it cost more than the bytes: other engines of the device do
them, and each waits for the other. Here each run of a graph has the next of SLOTS places, as the
device counts; the host counts alike. Knows no model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec

SLOTS = 4                                # runs that may be under way, or not be read yet
_VECTOR_BYTES = 16


class Slots:
    """Inputs and results of the runs of one stream's graphs: (SLOTS, bytes) u8 each, pinned."""

    def __init__(self, input_bytes: int, result_bytes: int, stream: Any) -> None:
        """Sizes of one run."""
        self.inputs, self.results = (
            device.pinned(SLOTS * size).reshape(SLOTS, size)
            for size in (-(-most // _VECTOR_BYTES) * _VECTOR_BYTES
                         for most in (input_bytes, result_bytes)))
        self._state = device.zeros(1, np.uint32)
        self._stream = stream
        self._run = SLOTS - 1            # the last one's place
        self._events = [device.new_event() for _ in range(SLOTS)]

    def next_run(self) -> int:
        """The place of the next run; waits until the run that had it is over."""
        self._run = (self._run + 1) % SLOTS
        self._events[self._run].synchronize()
        return self._run

    def take(self, to: Any, num_bytes: int) -> None:
        """Enqueue to[:num_bytes] u8 = the run's inputs: its first launch."""
        slot_copy('slot_in', to, self.inputs, self._state, num_bytes, self._stream)

    def leave(self, source: Any) -> None:
        """Enqueue the run's results = source u8: its last launch."""
        slot_copy('slot_out', self.results, source, self._state, source.size, self._stream)

    def failed(self) -> None:
        """The run could not be enqueued, or in part: let the device count it all the same."""
        self._stream.synchronize()
        counted = device.pinned(4)
        counted.view(np.uint32)[0] = self._run + 1
        device.copy_in(self._state.view(np.uint8), counted, self._stream)
        self._stream.synchronize()

    def enqueued(self) -> Any:
        """All of the run is on the stream: an event behind it, for whoever reads its results."""
        event = self._events[self._run]
        event.record(self._stream)
        return event


def slot_copy(entry: str, to: Any, source: Any, state: Any, num_bytes: int, stream: Any) -> None:
    """Enqueue 'slot_in' or 'slot_out': bytes from or to a run's place in pinned (SLOTS, bytes)."""
    slots = source if entry == 'slot_in' else to
    assert num_bytes % _VECTOR_BYTES == 0 and num_bytes <= slots.shape[1], (num_bytes, slots.shape)
    device.launch(device.compiled(spec(entry)), (1,), 256,
                  (to, source, state, slots.shape[1] // _VECTOR_BYTES,
                   num_bytes // _VECTOR_BYTES), stream, overlap=entry == 'slot_out')


def spec(entry: str) -> KernelSpec:
    """What is compiled: nothing of it depends on a model."""
    return KernelSpec.of('slot_copy', entry, SLOTS=SLOTS)


def bytes_moved(num_bytes: int) -> int:
    """Read and written."""
    return 2 * num_bytes
