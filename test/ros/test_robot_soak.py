# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""20 seconds of bench/robot_soak.py; `make soak` runs an hour."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUR = ROOT / 'bench' / 'reports' / 'robot_soak-2026-11-30-hour.json'
REPORTS = sorted((ROOT / 'bench' / 'reports').glob('robot_soak-????-??-??.json'))


def stale(report: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a kept report is of other sources than those of `root`."""
    monkeypatch.syspath_prepend(str(ROOT / 'bench'))
    robot_soak = importlib.import_module('robot_soak')
    (record,) = json.loads(report.read_text())
    return bool(record['source_hash'] != robot_soak.source_hash(root))


def test_the_kept_report_is_of_these_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of goals or stops: `make soak`, and commit its report."""
    assert not stale(REPORTS[-1], ROOT, monkeypatch)
    (record,) = json.loads(REPORTS[-1].read_text())
    assert record['problems'] == []
    assert record['context']['requests'] > 3000


def test_an_hour_is_on_record() -> None:
    """Of the sources before the last changes; what they must keep is the report above."""
    (record,) = json.loads(HOUR.read_text())
    context = record['context']
    assert record['problems'] == []
    assert context['seconds'] >= 3600 and context['requests'] > 20_000
    for memory in context['rss_mb'].values():
        assert max(memory[len(memory) // 2:]) - memory[len(memory) // 2] < 5.0


def test_a_changed_line_makes_the_report_stale(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ('gemma_thor_ros', 'gemma_thor_ros/ros', 'gemma_thor_ros/demo', 'bench'):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for path in (ROOT / folder).glob('*.py'):
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    before = stale(REPORTS[-1], tmp_path, monkeypatch)
    guard = tmp_path / 'gemma_thor_ros' / 'ros' / 'goal_guard.py'
    guard.write_text(guard.read_text().replace('TICK_S = 0.02', 'TICK_S = 0.03'))
    assert not before and stale(REPORTS[-1], tmp_path, monkeypatch)


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
