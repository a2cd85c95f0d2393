# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The records of a training run in the form of bench/receipts, and the curve of its loss as SVG.

python -m demo_model.receipt LOSS.json docs/demo_model_loss.svg
"""

from __future__ import annotations

import datetime
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT, _MARGIN = 720, 320, 48
Log = list[dict[str, float]]


def _output(*command: str) -> str:
    """What a program prints; empty where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ''
    return done.stdout.strip()


def write_receipt(
    path: Path,
    log: Log,
    results: dict[str, Any],
    dialogues: int,
    seconds: float,
    command: str,
    device: Any,
) -> None:
    """Write the records: last loss, speed, dialogues, time, and per cent right by row and format."""
    common = _common(command, device)
    speeds = sorted(row['tokens_per_s'] for row in log)

    def record(metric: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
        return _record(common, metric, value, unit, **more)

    records = [record('train_s', round(seconds, 1), 's', dialogues=dialogues)]
    if log:
        middle = speeds[len(speeds) // 2]
        records += [
            record('train_loss', log[-1]['loss'], 'nats', steps=log[-1]['step']),
            record('train_tok_s', middle, 'tokens/s', spread=[speeds[0], speeds[-1]]),
        ]
    for kind, rows in results.items():
        for row, figures in rows.items():
            records.append(
                record(
                    'right_percent',
                    figures['right_percent'],
                    '%',
                    format=kind,
                    row=row,
                    cases=figures['cases'],
                    withheld=figures['withheld'],
                    path='torch',
                )
            )
    _write(path, records)


def write_drafts_receipt(
    path: Path, drafter: str, run: dict[str, Any], command: str, device: Any
) -> None:
    """Write the records of a drafter's training run: time, last loss, tokens a round by set."""
    common = _common(command, device)
    more: dict[str, Any] = {'drafter': drafter, 'path': 'torch'}
    if run.get('log'):
        more |= {'dialogues': run['dialogues'], 'steps': run['log'][-1]['step']}
    records = [_record(common, 'train_s', run['seconds'], 's', **more)]
    if run.get('log'):
        records.append(_record(common, 'train_loss', run['log'][-1]['loss'], 'nats', **more))
    for name, row in run['results'].items():
        figures = {key: row[key] for key in ('rounds', 'kept_by_position')}
        records.append(
            _record(
                common, 'tokens_per_round', row['tokens_per_round'], 'tokens',
                **more, set=name, cases=row['dialogues'], **figures,
            )
        )  # fmt: skip
    _write(path, records)


def _common(command: str, device: Any) -> dict[str, Any]:
    import torch

    cuda = device.type == 'cuda'
    driver = _output('nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader')
    return {
        'fraction_of_limit': None,
        'card': torch.cuda.get_device_name(device) if cuda else 'cpu',
        'driver': driver,
        'torch': torch.__version__,
        'commit': _output('git', 'rev-parse', 'HEAD'),
        'date': datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d'),
        'command': command,
    }


def _record(
    common: dict[str, Any], metric: str, value: float, unit: str, **more: Any
) -> dict[str, Any]:
    spread = more.pop('spread', [])
    context = {'model': 'demo', **more}
    return {'metric': metric, 'value': value, 'unit': unit, 'context': context, **common, 'spread': spread}


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    lines = ',\n'.join(json.dumps(one) for one in records)
    path.write_text(f'[\n{lines}\n]\n', encoding='utf-8')


def loss_svg(log: Log) -> str:
    """The loss over the seconds, on a logarithmic scale, with the begin of rounding marked."""
    if len(log) < 2:
        raise ValueError('a curve needs two points')
    seconds = [row['seconds'] for row in log]
    heights = [math.log10(max(row['loss'], 1e-6)) for row in log]
    low, high = math.floor(min(heights)), math.ceil(max(heights))
    high = max(high, low + 1)

    def x(value: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * value / seconds[-1]

    def y(value: float) -> float:
        return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        parts.append(
            f'<path d="M{_MARGIN} {y(power):.1f}H{_WIDTH - _MARGIN}" stroke="#ddd"/>'
            f'<text x="4" y="{y(power) + 4:.1f}">{10.0**power:g}</text>'
        )
    for share in range(5):
        at = seconds[-1] * share / 4
        parts.append(f'<text x="{x(at) - 12:.1f}" y="{_HEIGHT - 28}">{at:.0f} s</text>')
    begun = next((row['seconds'] for row in log if row.get('rounded')), None)
    if begun is not None:
        parts.append(
            f'<path d="M{x(begun):.1f} {_MARGIN}V{_HEIGHT - _MARGIN}" stroke="#999" stroke-dasharray="4"/>'
            f'<text x="{x(begun) + 4:.1f}" y="{_MARGIN + 12}">weights rounded to NVFP4</text>'
        )
    points = ' '.join(f'{x(s):.1f},{y(h):.1f}' for s, h in zip(seconds, heights, strict=True))
    parts.append(f'<polyline points="{points}" fill="none" stroke="#1667b7" stroke-width="2"/>')
    parts.append(f'<text x="{_MARGIN}" y="20">cross entropy of the model\'s turns, nats a token</text>')
    return '\n'.join([*parts, '</svg>']) + '\n'


if __name__ == '__main__':
    Path(sys.argv[2]).write_text(
        loss_svg(json.loads(Path(sys.argv[1]).read_text(encoding='utf-8'))), encoding='utf-8'
    )
