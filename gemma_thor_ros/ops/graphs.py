# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs by key: what a key enqueues runs as it is the first time, and as a graph from then.

A graph holds the addresses of its launches' arguments: whoever enqueues uses the same arrays every
time for one key. The ones that were used last are kept. Knows no op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from gemma_thor_ros.ops import device

MOST = 128                               # graphs: sizes of a step, times what its choices need


class Graphs:
    """Graphs of one stream; with `enabled` False everything is launched one by one."""

    def __init__(self, stream: Any, enabled: bool = True, most: int = MOST) -> None:
        self._stream = stream
        self.enabled = enabled
        self._most = most
        self._graphs: dict[Hashable, Any] = {}
        self.num_replays = 0

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, enqueue: Callable[[], None]) -> None:
        """Enqueue the work of a key; enqueue() puts it on the stream."""
        graph = self._graphs.get(key)
        if graph is not None and self.enabled:
            graph.launch(self._stream)
            self.num_replays += 1
            if len(self._graphs) >= self._most:          # the newest come last
                self._graphs[key] = self._graphs.pop(key)
            return
        enqueue()                        # the real thing; it also loads the kernels
        if not self.enabled:
            return
        if len(self._graphs) >= self._most:
            self._stream.synchronize()               # it may be under way
            del self._graphs[next(iter(self._graphs))]
        self._graphs[key] = device.capture(self._stream, enqueue)
