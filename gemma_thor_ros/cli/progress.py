# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the verbs that write checkpoints share: a bar on standard error, sizes in words."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_UNITS = {'': 1, 'KB': 10 ** 3, 'MB': 10 ** 6, 'GB': 10 ** 9, 'TB': 10 ** 12}


@contextmanager
def byte_progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over bytes; gives a function of (bytes done, bytes in all)."""
    columns = (TextColumn('{task.description}'), BarColumn(), DownloadColumn(),
               TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def size(text: str) -> int:
    """'5GB', '500 MB' or plain bytes; argparse calls this."""
    match = re.fullmatch(r'(\d+(?:\.\d+)?)\s*([KMGT]?B?)', text.strip(), re.IGNORECASE)
    unit = match[2].upper() if match else ''
    unit = f'{unit}B' if unit and not unit.endswith('B') else unit
    value = int(float(match[1]) * (1 if unit == 'B' else _UNITS[unit])) if match else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is no size; write for example 5GB or 500MB')
    return value


def in_words(num_bytes: int) -> str:
    """Bytes with three digits and a decimal unit."""
    for unit, factor in (('GB', 10 ** 9), ('MB', 10 ** 6), ('kB', 10 ** 3)):
        if num_bytes >= factor:
            return f'{num_bytes / factor:.3g} {unit}'
    return f'{num_bytes} B'
