# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Soaks the engine on the demo model: many clients, cancels, classes, limits, faults in steps.

    python bench/soak.py [--requests 2000] [--clients 16] [--kv-dtype fp8] [--json FILE]

Exit code 0 when no page was leaked, no answer mixed up, no request left without an end and the
memory is flat; 1 otherwise. What is checked and how: test/model/soak.py.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / 'test' / 'model')]

from soak import Report, demo_model, soak  # noqa: E402

# The run's second half may add this much: allocators and threads come and go.
FLAT_MB = 8.0


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--requests', type=int, default=2000, help='default %(default)s')
    parser.add_argument('--clients', type=int, default=16, help='default %(default)s')
    parser.add_argument('--seed', type=int, default=1, help='default %(default)s')
    parser.add_argument('--fault-every', type=int, default=150, metavar='STEPS',
                        help='steps between two planted faults, 0 = none (default %(default)s)')
    parser.add_argument('--kv-dtype', choices=('float32', 'bf16', 'fp8'), default='float32')
    parser.add_argument('--json', type=Path, help='write the report to this file too')
    options = parser.parse_args()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task('soak', total=options.requests)
        report = soak(
            demo_model(options.kv_dtype), options.requests, num_clients=options.clients,
            fault_every=options.fault_every, seed=options.seed,
            on_progress=lambda done: progress.update(task, completed=done))
    growth = report.rss_mb[-1] - report.rss_mb[len(report.rss_mb) // 2 - 1]
    if growth > FLAT_MB:
        report.problems.append(f'{growth:.1f} MiB more after the second half')
    entry = record(report, growth, options)
    sys.stdout.write(json.dumps(entry, indent=1) + '\n')
    if options.json:
        options.json.write_text(json.dumps([entry], indent=1) + '\n', encoding='utf-8')
    return 1 if report.problems else 0


def record(report: Report, growth: float, options: argparse.Namespace) -> dict[str, Any]:
    """The run as a receipt's record; its value is the number of problems."""
    return {
        'metric': 'soak_problems', 'value': len(report.problems), 'unit': 'problems',
        'context': {
            'model': 'demo', 'path': 'engine', 'kv': options.kv_dtype,
            'requests': options.requests, 'clients': options.clients, 'seed': options.seed,
            'seconds': round(report.seconds, 1), 'steps': report.steps, 'tokens': report.tokens,
            'ends': dict(report.ends), 'refused': dict(report.refused),
            'faults': dict(report.faults), 'preemptions': report.preemptions,
            'drops': report.drops, 'prompt_tokens': report.prompt_tokens,
            'cached_tokens': report.cached_tokens,
            'checkpoints_evicted': report.checkpoints_evicted,
            'first_token_ms': report.first_token_ms, 'rss_mb': report.rss_mb,
            'rss_growth_mb': round(growth, 1), 'objects': report.objects},
        'problems': report.problems[:20], 'card': 'CPU',
        'processor': platform.processor() or platform.machine(),
        'date': time.strftime('%Y-%m-%d'), 'command': 'python bench/soak.py'}


if __name__ == '__main__':
    raise SystemExit(main())
