# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Temperatures and memory of the machine, as far as Linux lets us read them; heaps, priority.

Reads /sys/class/thermal and /proc; a figure that is not there is left out. Knows no ROS.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass, field
from pathlib import Path

NEAR_CRITICAL_C = 5.0
LITTLE_MEMORY = 0.05  # of the total
_KIB = 1024
_M_ARENA_MAX = -8  # malloc.h
_REAL_TIME = 1  # the lowest of 99
_NICE = -10


@dataclass(frozen=True)
class Health:
    """One look at the machine; bytes and degrees Celsius. `warning` '' = nothing is wrong."""

    temperatures: dict[str, float] = field(default_factory=dict)
    memory_total: int = 0
    memory_available: int = 0
    process_memory: int = 0
    warning: str = ''


def share_heaps() -> None:
    """Let all threads of this process share two heaps of the C library; before they start.

    By default glibc gives many threads many heaps, and what one has freed no other can use.
    Elsewhere than on glibc nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def run_ahead() -> None:
    """Let this thread, and those that it starts from now on, run before all ordinary ones.

    In real time (SCHED_RR) where that is allowed, else at a lower nice value, else not at all:
    it takes CAP_SYS_NICE or a limit of the user (rtprio, nice).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_REAL_TIME))
    except (OSError, AttributeError):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, min(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def runs_ahead() -> bool:
    """Whether this thread runs before ordinary ones."""
    with contextlib.suppress(OSError, AttributeError):
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return True
    return os.getpriority(os.PRIO_PROCESS, 0) < 0


def read_health(sys: Path = Path('/sys'), proc: Path = Path('/proc')) -> Health:
    """Return what can be read now; takes well under a millisecond a zone."""
    temperatures: dict[str, float] = {}
    warnings = []
    for zone in sorted((sys / 'class' / 'thermal').glob('thermal_zone*')):
        degrees = _number(zone / 'temp')
        if degrees is None:
            continue
        kind = _text(zone / 'type') or zone.name
        name = kind if kind not in temperatures else f'{kind} ({zone.name})'
        temperatures[name] = degrees / 1000.0
        critical = _critical(zone)
        if critical is not None and temperatures[name] >= critical - NEAR_CRITICAL_C:
            warnings.append(
                f'{name} has {temperatures[name]:.0f} °C, the machine stops at {critical:.0f} °C'
            )
    memory = _table(proc / 'meminfo')
    total, available = memory.get('MemTotal', 0), memory.get('MemAvailable', 0)
    if total and available < LITTLE_MEMORY * total:
        warnings.append(f'{available / 2**30:.1f} of {total / 2**30:.1f} GiB memory are left')
    process = _table(proc / 'self' / 'status').get('VmRSS', 0)
    return Health(temperatures, total, available, process, '; '.join(warnings))


def _critical(zone: Path) -> float | None:
    for kind in zone.glob('trip_point_*_type'):
        if _text(kind) == 'critical':
            degrees = _number(kind.with_name(kind.name.replace('_type', '_temp')))
            # Some zones have 0 or absurd values for "none".
            if degrees is not None and 0 < degrees < 200_000:
                return degrees / 1000.0
    return None


def _table(path: Path) -> dict[str, int]:
    """Return the 'Name:   123 kB' lines of a file in bytes."""
    table = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(':')
        words = value.split()
        if len(words) == 2 and words[1] == 'kB' and words[0].isdigit():
            table[name] = int(words[0]) * _KIB
    return table


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding='utf-8', errors='replace').strip()
    except OSError:  # not there, not allowed, or the sensor sleeps
        return ''
