# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The ROS part of bench/serving.py, in small: the node beside HTTP on an engine made elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / 'bench'))

import serving


def test_streams_beside_ros_are_measured(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, serving.__file__, '--out', str(tmp_path), '--model',
         'demo', '--device', 'cpu', '--tokens', '16', '--rounds', '1', '--parts', 'ros'],
        capture_output=True, text=True, timeout=60.0, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records: list[dict[str, Any]] = json.loads((tmp_path / 'receipt-serving.json').read_text())
    shares = {record['context']['beside']: record['value'] for record in records
              if record['metric'] == 'stream_share'}
    assert shares.keys() == {'tokens topic', 'chat goal'} and min(shares.values()) > 0
    ros, = [record for record in records
            if record['metric'] == 'decode_tok_s' and record['context']['path'] == 'ros']
    assert ros['value'] > 0
    assert [record for record in records if record['metric'] == 'tokens_messages']


def test_a_stream_that_the_topic_does_not_show_whole_is_a_fault() -> None:
    bed: Any = SimpleNamespace(faults=[], options=SimpleNamespace(tokens=8))
    goals = SimpleNamespace(seen=lambda: (5, 17))
    assert serving.shown_since(goals, (2, 9), bed) == 3.0 and bed.faults == []
    assert serving.shown_since(goals, (2, 10), bed, wait_s=0.1) == 3.0
    assert len(bed.faults) == 1
