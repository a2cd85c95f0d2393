# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""bench/cold_start.py: its vocabulary is one that loads, and a second compilation is a failure."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / 'bench'))

import cold_start

from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.text.tokenizer import Tokenizer


def test_a_wide_vocabulary_loads_and_uses_its_merges(tmp_path: Path) -> None:
    content = cold_start.wide_tokenizer(DEMO_FOLDER / 'tokenizer.json', 30000)
    (tmp_path / 'tokenizer.json').write_text(json.dumps(content))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.vocab_size == 30000
    made = tokenizer.pieces[29999]
    assert made is not None and tokenizer.decode(tokenizer.encode(made)) == made
    assert len(content['model']['merges']) > 25000
    with pytest.raises(ValueError, match='make no vocabulary'):
        cold_start.wide_tokenizer(DEMO_FOLDER / 'tokenizer.json', 10**9)


def run_of(compiled: int, first_token: float) -> dict[str, Any]:
    marks = {'start': 0.0, 'python': 0.1, 'reading weights': 1.0, 'laying out the KV cache': 3.0,
             'first token': first_token}
    return {'marks': marks, 'compiled': compiled, 'rss_mb': 9.0, 'anonymous_mb': 5.0,
            'device_mb': 7.0, 'card': 'some card', 'driver': '1'}


@pytest.mark.parametrize(('compiled', 'code'), [(0, 0), (1, 1)])
def test_the_receipt(compiled: int, code: int, tmp_path: Path) -> None:
    options = argparse.Namespace(out=tmp_path, commit='abc', folder=None, preset='p',
                                 device='cuda', layers=None)
    runs = [run_of(60, 30.0), run_of(0, 5.5), run_of(compiled, 6.0)]
    assert cold_start.report(runs, options) == code
    records = json.loads((tmp_path / 'receipt-cold-start.json').read_text())
    found = {(record['metric'], record['context']['kernel_cache']): record['value']
             for record in records if record['metric'] != 'span_s'}
    assert found['cold_start_s', 'empty'] == 30.0 and found['cold_start_s', 'warm'] == 5.75
    assert found['load_s', 'warm'] == 2.0 and found['besides_load_s', 'warm'] == 3.75
    assert found['compiled', 'empty'] == 60
    spans = [record['value'] for record in records if record['metric'] == 'span_s'
             and record['context']['kernel_cache'] == 'empty']
    assert sum(spans) == pytest.approx(30.0)
