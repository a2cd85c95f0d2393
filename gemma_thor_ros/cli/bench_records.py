# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Receipts: a list of records in a JSON file, written anew with every record.

A run that is cut off keeps what it had. Knows nothing of what is measured.
"""

from __future__ import annotations

import datetime
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Records:
    """The records of one run; `common` is what all of them hold besides."""

    def __init__(self, path: Path | None, **common: Any) -> None:
        self.records: list[dict[str, Any]] = []
        self._path = path
        self._common = {**common, 'date': datetime.date.today().isoformat()}
        if 'command' in common:
            self._common['command'] = without_folders(str(common['command']))

    def add(self, metric: str, values: Sequence[float], unit: str, *,
            fraction: float | None = None, **context: Any) -> float:
        """Keep the median of some runs with their spread; gives the median."""
        value = float(statistics.median(values))
        self.records.append({
            'metric': metric, 'value': _short(value), 'unit': unit, 'context': context,
            'fraction_of_limit': None if fraction is None else _short(fraction), **self._common,
            'spread': [_short(min(values)), _short(max(values))]})
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part = self._path.with_suffix('.part')
            part.write_text(json.dumps(self.records, indent=1) + '\n', encoding='utf-8')
            part.replace(self._path)
        return value


def without_folders(command: str) -> str:
    """A command line whose absolute paths are names alone: folders are one machine's own."""
    return re.sub(r'(?<![^\s=])/(?:[^\s/]+/)*([^\s/]+)', r'\1', command)


def driver_version() -> str:
    """What the NVIDIA kernel module says of itself, or ''."""
    module = Path('/proc/driver/nvidia/version')
    if not module.is_file():
        return ''
    found = re.search(r'\d+\.\d+(\.\d+)?', module.read_text(encoding='utf-8'))
    return found[0] if found else ''


def _short(value: float) -> float:
    return float(f'{value:.6g}')
