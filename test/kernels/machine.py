# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Where a kernel test runs: on a CUDA device, or the same source and launchers on the CPU.

Tests build NumPy arrays, `put` them, call an op's launcher with `stream`, and `get` the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from emulator import Emulator

from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.compile import KernelSpec

Array = npt.NDArray[Any]


@dataclass
class Machine:
    """xp is NumPy or CuPy; small: a CPU, so take the small shapes."""

    xp: Any
    stream: Any
    small: bool

    def put(self, array: Array) -> Any:
        """A copy of a host array on the machine."""
        return self.xp.asarray(np.ascontiguousarray(array)) if not self.small else array.copy()

    def get(self, array: Any) -> Array:
        """The host's copy."""
        return array.copy() if self.small else self.xp.asnumpy(array)

    def run(self, launch: Callable[[], None]) -> None:
        """Launch, and wait for the end of it; what is put inside is there before the launch."""
        if self.small:
            launch()
            return
        self.xp.cuda.runtime.deviceSynchronize()
        with self.stream:
            launch()
        self.stream.synchronize()


def emulated_machine(emulator: Emulator, monkeypatch: Any) -> Machine:
    """Turn the launchers' device into the emulator until the test ends."""

    def compiled(spec: KernelSpec) -> Any:
        kernel = emulator.kernel(spec.file, spec.entry, **dict(spec.defines))
        return SimpleNamespace(spec=spec, run=kernel)

    def launch(kernel: Any, grid: tuple[int, ...], threads: int, args: tuple[Any, ...],
               stream: Any, shared_bytes: int = 0, *, overlap: bool = True) -> None:
        kernel.run(grid, (threads,), args)

    monkeypatch.setattr(device, 'compiled', compiled)
    monkeypatch.setattr(device, 'launch', launch)
    monkeypatch.setattr(device, 'clusters_at_once', lambda *_: 1)
    monkeypatch.setattr(device, 'info', lambda: device.DeviceInfo(
        'emulator', 'sm_80', 3, 101376, 0))
    return Machine(np, None, True)


def to_bf16(numbers: Array) -> Array:
    """Bits of the nearest bf16 of float32 numbers."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def from_bf16(bits: Array) -> Array:
    """Values in float64."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def normal(seed: int, *shape: int) -> Array:
    """float32 normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def poisoned(shape: tuple[int, ...], dtype: str) -> Array:
    """NaN everywhere: bf16 bits, or float32; -7 as integers."""
    if dtype == 'bf16':
        return np.full(shape, 0x7FC0, np.uint16)
    return np.full(shape, -7, np.int32) if dtype == 'i32' else np.full(shape, np.nan, np.float32)


def error(out: Array, expected: Array) -> float:
    """2-norm of the difference over that of the expected; NaN where out has one."""
    return float(np.linalg.norm((out - expected).ravel()) / np.linalg.norm(expected.ravel()))
