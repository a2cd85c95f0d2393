# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""ops/device.py on a CPU: NumPy's memory for the device's, the emulator for kernels.

A captured graph holds its launches with their arguments and runs these again, so that a launch
argument that is not static shows. Copies and launches are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulator import COMPILER, Emulator

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec

Launch = tuple[Any, tuple[int, ...], int, tuple[Any, ...]]


class HostStream:
    """Runs everything at once, or keeps it while a graph is captured."""

    ptr = 0

    def __init__(self) -> None:
        self.captured: list[Launch] | None = None
        self.launches: list[str] = []
        self.num_copies = 0

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        assert self.captured is None, 'a capture may not wait'


class HostEvent:
    """Nothing is ever under way."""

    def record(self, stream: HostStream) -> None:
        assert stream.captured is None, 'a capture may not record an event here'

    def synchronize(self) -> None:
        pass


class HostGraph:
    """Launches with the arguments that they had."""

    def __init__(self, launches: list[Launch], run: Callable[[Launch], None]) -> None:
        self._launches = launches
        self._run = run

    def launch(self, stream: HostStream) -> None:
        for launch in self._launches:
            stream.launches.append(f'graph {launch[0].spec.entry}')
            self._run(launch)


class _NumpyAsCupy:
    """NumPy with the few names that CuPy has beyond it."""

    def __init__(self) -> None:
        self.asnumpy = np.asarray
        self.cuda = SimpleNamespace(get_current_stream=HostStream)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def any_stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stream of the CUDA device where there is one, else of the host's stand-in."""
    if not device.find():
        return device.new_stream()
    if COMPILER is None:
        pytest.skip('there is neither a CUDA device nor a C++ compiler for the emulator')
    return host_device(request.getfixturevalue('emulator'), monkeypatch)


def host_device(emulator: Emulator, monkeypatch: Any) -> HostStream:
    """Turn ops/device into the host until the test ends; the stream of all work."""
    stream = HostStream()

    def compiled(spec: KernelSpec) -> Any:
        kernel = emulator.kernel(spec.file, spec.entry, **dict(spec.defines))
        return SimpleNamespace(spec=spec, run=kernel)

    def run(launch: Launch) -> None:
        kernel, grid, threads, args = launch
        kernel.run(grid, (threads,), args)

    def launch(kernel: Any, grid: tuple[int, ...], threads: int, args: tuple[Any, ...],
               on: Any, shared_bytes: int = 0, *, overlap: bool = True) -> None:
        assert on is stream, 'all work of a step is on one stream'
        assert stream.launches or not overlap, 'the first launch may not overlap'
        if stream.captured is not None:
            stream.captured.append((kernel, grid, threads, args))
            return
        stream.launches.append(kernel.spec.entry)
        run((kernel, grid, threads, args))

    def capture(on: HostStream, enqueue: Callable[[], None]) -> HostGraph:
        on.captured = []
        try:
            enqueue()
            return HostGraph(on.captured, run)
        finally:
            on.captured = None

    def copy(target: np.ndarray, source: np.ndarray, on: HostStream) -> None:
        assert on is stream and on.captured is None, 'copies are not part of a graph'
        assert target.flags.c_contiguous and source.flags.c_contiguous
        assert target.nbytes == source.nbytes, (target.shape, source.shape)
        stream.num_copies += 1
        target.reshape(-1).view(np.uint8)[...] = source.reshape(-1).view(np.uint8)

    def zeros(shape: Any, dtype: Any) -> np.ndarray:
        return np.zeros(shape, dtype)

    def pinned(num_bytes: int) -> np.ndarray:
        return np.empty(num_bytes, np.uint8)

    module = _NumpyAsCupy()
    stand_ins: dict[str, Any] = {
        'compiled': compiled, 'launch': launch, 'capture': capture, 'copy_in': copy,
        'copy_out': copy, 'copy_on': copy, 'zeros': zeros, 'empty': zeros, 'pinned': pinned,
        'put': np.array, 'cupy': lambda: module, 'errors': nullcontext,
        'follow': lambda on, other: None, 'new_stream': lambda: stream, 'new_event': HostEvent,
        'release_unused': lambda: None, 'timed_event': HostEvent,
        'elapsed_us': lambda start, end: 2.0, 'pci_bus_id': lambda: 'none',
        'has_e2m1_conversion': lambda: False, 'is_here': lambda array: False,
        'clusters_at_once': lambda *_: 1,
        'info': lambda: device.DeviceInfo('emulator', 'sm_80', 3, 101376, 0)}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(device, name, stand_in)
    return stream
