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
    enqueue()                            # loads the kernels outside the capture
    stream.synchronize()
    graph = device.capture(stream, enqueue)
    times = []
    for index in range(replays + 2):
        start, end = device.timed_event(), device.timed_event()
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        if index >= 2:
            times.append(device.elapsed_us(start, end))
    return times


def sustained_us(stream: Any, enqueue: Callable[[], None], seconds: float) -> list[float]:
    """As times_us, of replays one behind the other for so long: a device without a rest."""
    count = int(seconds * 1e6 / statistics.median(times_us(stream, enqueue, 3)))
    graph = device.capture(stream, enqueue)
    events = [device.timed_event()]
    events[0].record(stream)
    for _ in range(max(count, 2)):
        graph.launch(stream)
        events.append(device.timed_event())
        events[-1].record(stream)
    stream.synchronize()
    return [device.elapsed_us(*pair) for pair in zip(events, events[1:], strict=False)]


class GraphTimer:
    """Times on the device what some graphs run while it is open.

    A graph that is replayed behind a step finds its pages in the device's caches of addresses, and
    is up to a tenth quicker than it was in the step.
    """

    def __init__(self, graphs: Graphs, stream: Any) -> None:
        self._graphs, self._stream, self._run = graphs, stream, graphs.run
        self._start, self._end = device.timed_event(), device.timed_event()

    def __enter__(self) -> GraphTimer:
        self._graphs.run = self._timed   # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._graphs.run = self._run     # type: ignore[method-assign]

    def us(self) -> float:
        """Microseconds of the last one."""
        self._end.synchronize()
        return device.elapsed_us(self._start, self._end)

    def _timed(self, key: Hashable, enqueue: Callable[[], None]) -> None:
        self._start.record(self._stream)
        self._run(key, enqueue)
        self._end.record(self._stream)


class GraphLog:
    """Times on the device every graph that runs while it is open, and what lies between them.

    Events stand before and behind each graph, also of one that is enqueued while another runs.
    """

    def __init__(self, graphs: Graphs, stream: Any) -> None:
        self._graphs, self._stream, self._run = graphs, stream, graphs.run
        self._events: list[tuple[Any, Any]] = []

    def __enter__(self) -> GraphLog:
        self._graphs.run = self._timed   # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._graphs.run = self._run     # type: ignore[method-assign]

    def times(self, last: int) -> tuple[list[float], list[float]]:
        """Microseconds of the last graphs, and from the end of each to the start of the next."""
        self._stream.synchronize()
        events = self._events[-last:]
        return ([device.elapsed_us(*pair) for pair in events],
                [device.elapsed_us(end, start) for (_, end), (start, _) in zip(
                    events, events[1:], strict=False)])

    def _timed(self, key: Hashable, enqueue: Callable[[], None]) -> None:
        pair = device.timed_event(), device.timed_event()
        pair[0].record(self._stream)
        self._run(key, enqueue)
        pair[1].record(self._stream)
        self._events.append(pair)


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
