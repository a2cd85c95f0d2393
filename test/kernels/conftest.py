# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Tests with `cp` need a CUDA device; without one they are skipped, with the reason.

Those with `machine` run there, and without a device on the emulator.
"""
from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemma_thor_ros.ops import device

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / 'model'))      # the engine's gates

from emulator import COMPILER, Emulator
from machine import Machine, emulated_machine


@pytest.fixture(scope='session')
def cp() -> Any:
    """CuPy on a device that works."""
    cupy = pytest.importorskip('cupy', reason='CuPy is not installed, so there is no CUDA device')
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f'no CUDA device: {error}')
    if not count:
        pytest.skip('no CUDA device')
    return cupy


@pytest.fixture(scope='session')
def stream(cp: Any) -> Any:
    """The stream that all kernels run on."""
    assert device.info().name
    return cp.cuda.Stream()              # waits for what CuPy's own stream still does


@pytest.fixture
def full(grid: bool) -> None:
    """What takes the emulator long is part of make grid; a device runs it always."""
    if not grid and not _has_device():
        pytest.skip('without a CUDA device this is part of make grid')


def _has_device() -> bool:
    if importlib.util.find_spec('cupy') is None:
        return False
    runtime = device.cupy().cuda.runtime
    try:
        return bool(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:
        return False


@pytest.fixture(scope='session')
def emulator(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """Kernels as C++; the compiled ones are kept with pytest's cache, where it is on."""
    cache = getattr(pytestconfig, 'cache', None)
    folder = cache.mkdir('emulated_kernels') if cache else tmp_path_factory.mktemp('emulated')
    return Emulator(folder)


@pytest.fixture(params=['emulated', 'device'])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A CUDA device where there is one, else the emulator."""
    if request.param == 'device':
        cupy, stream = request.getfixturevalue('cp'), request.getfixturevalue('stream')
        yield Machine(cupy, stream, False)
        return
    if _has_device():
        pytest.skip('the kernels run on the device itself')
    if COMPILER is None:
        pytest.skip('the emulator needs a C++ compiler')
    yield emulated_machine(request.getfixturevalue('emulator'), monkeypatch)


class _NoStream:
    """A stream of the emulator, which runs every launch at once."""

    def __enter__(self) -> _NoStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _NumpyAsCupy:
    """NumPy with the few names that CuPy has beyond it."""

    def __init__(self) -> None:
        self.asnumpy = np.asarray
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(deviceSynchronize=lambda: None),
            get_current_stream=_NoStream)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def small(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """(cp, stream) for small shapes: on a device, or NumPy and the emulator."""
    if not machine.small:
        return machine.xp, machine.stream
    host = _NumpyAsCupy()
    monkeypatch.setattr(device, 'cupy', lambda: host)
    monkeypatch.setattr(device, 'has_e2m1_conversion', lambda: False)
    return host, _NoStream()
