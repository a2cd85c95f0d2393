# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""20 seconds of bench/robot_soak.py; `make soak` runs an hour."""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def test_twenty_seconds_of_everything_at_once(processes: Any, tmp_path: Path) -> None:
    report_file = tmp_path / 'report.json'
    run = processes.start(sys.executable, str(ROOT / 'bench' / 'robot_soak.py'), '--seconds', '20',
                          '--json', str(report_file))
    code = run.wait(120.0)
    (report,) = json.loads(report_file.read_text())
    assert report['problems'] == [] and code == 0
    context = report['context']
    assert context['requests'] > 50, context
    assert all(context['actions'][name] for name in (
        'stop_and_release', 'restart_robot', 'pause_node')), context
    assert all(context['ends'].get(end) for end in ('succeeded', 'cancelled', 'stopped')), context
    assert context['steps']['SENT'] > 20 and context['steps']['REFUSED'] > 20, context
