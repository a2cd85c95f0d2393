# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step goes: its launches by entry, each kind timed as a graph of its own.

For benchmarks. Also the read bandwidth of the device, which figures are compared with. Knows no
model.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec
from gemma_thor_ros.ops.graphs import Graphs

_REPLAYS = 9
_BANDWIDTH_BYTES = 4 << 30


@dataclass(frozen=True)
class Node:
    """One kind of launch of a step."""

    entry: str
    constants: tuple[tuple[str, int], ...]
    count: int                           # launches of a step
    us: float                            # of one launch, in a graph of all of them


def times_us(stream: Any, enqueue: Callable[[], None], replays: int = _REPLAYS) -> list[float]:
    """Microseconds of each replay of a graph of what enqueue() puts on the stream."""
    cupy = device.cupy()
    enqueue()                            # loads the kernels outside the capture
    stream.synchronize()
    graph = device.capture(stream, enqueue)
    times = []
    for index in range(replays + 2):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        if index >= 2:
            times.append(cupy.cuda.get_elapsed_time(start, end) * 1e3)
    return times


class GraphTimer:
    """Times on the device what some graphs run while it is open.

    A graph that is replayed behind a step finds its pages in the device's caches of addresses, and
    is up to a tenth quicker than it was in the step.
    """

    def __init__(self, graphs: Graphs, stream: Any) -> None:
        cupy = device.cupy()
        self._graphs, self._stream, self._run = graphs, stream, graphs.run
        self._start, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def __enter__(self) -> GraphTimer:
        self._graphs.run = self._timed   # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._graphs.run = self._run     # type: ignore[method-assign]

    def us(self) -> float:
        """Microseconds of the last one."""
        self._end.synchronize()
        return float(device.cupy().cuda.get_elapsed_time(self._start, self._end)) * 1e3

    def _timed(self, key: Hashable, enqueue: Callable[[], None]) -> None:
        self._start.record(self._stream)
        self._run(key, enqueue)
        self._end.record(self._stream)


def read_bandwidth(stream: Any, num_bytes: int = _BANDWIDTH_BYTES) -> list[float]:
    """GB/s of reading num_bytes once, of some runs."""
    cupy, blocks = device.cupy(), device.info().num_multiprocessors * 8
    num_bytes = min(num_bytes, device.memory()[0] // 8 // 4096 * 4096)
    data = cupy.empty(num_bytes // 4, cupy.uint32)
    data[:] = cupy.arange(data.size, dtype=cupy.uint32) * np.uint32(2654435761)
    sums = cupy.empty(blocks * 256, cupy.uint32)
    cupy.cuda.runtime.deviceSynchronize()
    kernel = device.compiled(KernelSpec.of('read_bandwidth'))
    times = times_us(stream, lambda: device.launch(
        kernel, (blocks,), 256, (sums, data, data.size // 4), stream, overlap=False))
    return [num_bytes / time / 1e3 for time in times]


def node_times(stream: Any, enqueue: Callable[[], None]) -> list[Node]:
    """The launches of enqueue(), grouped by entry and constants, the longest in all first.

    A group runs alone, so that overlap is that of equal kernels; the sum may differ from the step.
    """
    kinds: dict[KernelSpec, list[Callable[[], None]]] = defaultdict(list)
    original, follow = device.launch, device.follow

    def note(kernel: Any, grid: Any, threads: int, args: Any, _: Any, *more: Any,
             **options: Any) -> None:
        kinds[kernel.spec].append(partial(original, kernel, grid, threads, args, stream, *more,
                                          **options))

    device.launch = cast(Any, note)
    device.follow = lambda stream, other: None
    try:
        enqueue()
    finally:
        device.launch, device.follow = original, follow

    def run(launches: list[Callable[[], None]]) -> None:
        for launch in launches:
            launch()

    nodes = [Node(spec.entry, spec.defines, len(launches),
                  statistics.median(times_us(stream, partial(run, launches))) / len(launches))
             for spec, launches in kinds.items()]
    return sorted(nodes, key=lambda node: -node.us * node.count)
