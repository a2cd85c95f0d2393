# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The device's clock and power while something is measured, from NVML, which the driver brings.

A thread asks every few milliseconds; where there is no NVML the answer is None. Knows no model.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
from typing import Any

_LIBRARY = 'libnvidia-ml.so.1'
_END_S = 5.0
_INTERVAL_S = 0.025
_CLOCK_SM = 1                            # nvmlClockType_t
# nvmlClocksEventReasons: bits of the mask, as nvml.h names them
_REASONS = {0x1: 'idle', 0x2: 'application setting', 0x4: 'power cap', 0x8: 'hardware slowdown',
            0x10: 'sync boost', 0x20: 'heat', 0x40: 'hardware heat', 0x80: 'power brake',
            0x100: 'display setting'}


class ClockWatch:
    """Watches a device while it is open.

    `found` is what a receipt holds then: sm_mhz and power_w as [least, median, most], limited_by
    as the share of the samples in which each reason held the clock down; None without NVML.
    """

    def __init__(self, pci_bus_id: str) -> None:
        """pci_bus_id: as the driver writes it, '0000:19:00.0'."""
        self.found: dict[str, Any] | None = None
        self._samples: list[tuple[int, int, int]] = []
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._bus_id = pci_bus_id

    def __enter__(self) -> ClockWatch:
        library, handle = _open(self._bus_id)
        if library is not None:
            self._thread = threading.Thread(
                target=self._watch, args=(library, handle), name='bench-clocks', daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join(_END_S)    # a driver that hangs keeps no receipt waiting
        self.found = summary(self._samples)

    def _watch(self, library: Any, handle: Any) -> None:
        clock, power, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        while not self._end.wait(_INTERVAL_S):
            failed = (library.nvmlDeviceGetClockInfo(handle, _CLOCK_SM, ctypes.byref(clock))
                      or library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power))
                      or library.nvmlDeviceGetCurrentClocksThrottleReasons(
                          handle, ctypes.byref(reasons)))
            if failed:
                return                   # a device that does not tell; what there is counts
            self._samples.append((clock.value, power.value, reasons.value))


def summary(samples: list[tuple[int, int, int]]) -> dict[str, Any] | None:
    """What some samples come to: MHz, milliwatts and the mask of reasons of each."""
    if not samples:
        return None
    clocks, powers, masks = zip(*samples, strict=True)
    shares = {name: round(sum(bool(mask & bit) for mask in masks) / len(masks), 3)
              for bit, name in _REASONS.items()}
    return {'sm_mhz': [min(clocks), statistics.median(clocks), max(clocks)],
            'power_w': [round(value / 1e3) for value in (
                min(powers), statistics.median(powers), max(powers))],
            'limited_by': {name: share for name, share in shares.items() if share},
            'samples': len(samples)}


def _open(bus_id: str) -> tuple[Any, Any]:
    """NVML and its handle of the device, or None twice."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None, None
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(
            bus_id.encode(), ctypes.byref(handle)):
        return None, None
    return library, handle
