# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor roofline` against figures that were worked out by hand."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemma_thor_ros.cli import main, roofline
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.weights.presets import preset_config


def config(name: str) -> ModelConfig:
    return ModelConfig.from_dict(preset_config(name))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main.main(['roofline', *words, '--json']) == 0
    return json.loads(capsys.readouterr().out)


def test_parameters_of_26b_a4b() -> None:
    parts = roofline.count_parts(config('26b-a4b'))
    sliding = 2816 * (16 * 256 + 2 * 8 * 256 + 16 * 256)
    full = 2816 * (16 * 512 + 2 * 512 + 16 * 512)            # v comes from k
    assert parts.attention == 25 * sliding + 5 * full == 1_110_179_840
    assert parts.dense_mlp == 30 * 3 * 2816 * 2112
    assert parts.one_expert == 30 * 3 * 2816 * 704
    assert parts.chosen_experts == 8 * parts.one_expert == 1_427_374_080
    assert parts.head == 262144 * 2816 and parts.router == 30 * 128 * 2816
    assert parts.per_layer == 0


def test_cache_of_26b_a4b() -> None:
    a4b = config('26b-a4b')
    assert roofline.kv_bytes(a4b, 256, 1) == 256 * (25 * 2 * 8 * 256 + 5 * 2 * 2 * 512)
    # beyond the window only full layers grow
    grown = roofline.kv_bytes(a4b, 131072, 1) - roofline.kv_bytes(a4b, 2048, 1)
    assert grown == (131072 - 2048) * 5 * 2 * 2 * 512
    assert roofline.kv_bytes(a4b, 1024, 2) == 2 * roofline.kv_bytes(a4b, 1024, 1)


def test_known_limits(capsys: pytest.CaptureFixture[str]) -> None:
    """The limits that bench/ holds its figures against."""
    found = run(capsys, '--device', 'h200', '--depth', '1')
    weights = (1_110_179_840 + 535_265_280 + 1_427_374_080 + 738_197_504) * 9 / 16
    by_hand = weights + 30 * 128 * 2816 * 2 + 25 * 4096 + 5 * 2048
    assert found['total_mb'] == pytest.approx(by_hand / 1e6, rel=1e-12)
    assert found['decode']['attained']['tok_s'] == pytest.approx(4.5e12 / by_hand)
    assert found['decode']['attained']['tok_s'] == pytest.approx(2088, rel=0.01)
    assert found['decode']['attained']['ms'] == pytest.approx(0.48, abs=0.005)
    thor = run(capsys, '--device', 'thor', '--depth', '1')
    assert thor['decode']['datasheet']['tok_s'] == pytest.approx(127, abs=1.5)
    assert thor['decode']['attained']['ms'] == pytest.approx(10.7, abs=0.2)
    wide = run(capsys, '--device', 'h200', '--depth', '1', '--head', 'bf16')
    assert wide['decode']['attained']['tok_s'] == pytest.approx(1400, rel=0.01)
    assert found['prefill']['tok_s'] == pytest.approx(790e12 / 2 / (
        1_110_179_840 + 535_265_280 + 1_427_374_080 + 30 * 128 * 2816))


def test_drafted_decoding(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run(capsys, '--device', 'h200', '--depth', '1')['drafted']
    attained = {row['distinct_experts']: row for row in rows if row['bandwidth'] == 'attained'}
    for distinct, gigabytes, ms in ((16, 2.9, 0.66), (80, 9.4, 2.1)):
        assert attained[distinct]['verify_mb'] / 1e3 == pytest.approx(gigabytes, abs=0.08)
        assert attained[distinct]['verify_ms'] == pytest.approx(ms, abs=0.02)
    assert attained[80]['draft_ms'] == pytest.approx(0.28, abs=0.01)
    row = attained[64]
    assert row['tok_s']['6'] == pytest.approx(6e3 / (row['draft_ms'] + row['verify_ms']))
    # one more distinct expert costs its three matrices in 30 layers
    step = (attained[64]['verify_mb'] - attained[32]['verify_mb']) / 32
    assert step == pytest.approx(100.4, abs=0.05)


@pytest.mark.parametrize('name', ['31b', '12b', 'e4b', 'e2b'])
def test_other_models(capsys: pytest.CaptureFixture[str], name: str) -> None:
    found = run(capsys, '--model', name, '--draft-parameters', '1e8')
    assert 'experts' not in found['bytes_mb'] and 'router' not in found['bytes_mb']
    assert ('per-layer embeddings' in found['bytes_mb']) == name.startswith('e')
    assert [row['distinct_experts'] for row in found['drafted']] == [0, 0]
    parts = roofline.count_parts(config(name))
    size = {'31b': 29.3e9, '12b': 10.9e9, 'e4b': 4.0e9, 'e2b': 1.9e9}[name]   # without the head
    assert parts.attention + parts.dense_mlp + parts.per_layer == pytest.approx(size, rel=0.05)


def test_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / 'config.json').write_text(json.dumps(preset_config('26b-a4b')))
    assert main.main(['roofline', '--model', str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert 'attention projections' in shown and '624' in shown and 'Thor' in shown
    assert 'drafts' not in shown         # a folder's drafter is not known


@pytest.mark.parametrize(('words', 'reason'), [
    (('--model', 'none-such'), 'none-such'), (('--depth', '0'), '--depth is 0'),
    (('--draft-parameters', '-1'), 'above 0')])
def test_bad_input_is_told(capsys: pytest.CaptureFixture[str], words: tuple[str, ...],
                           reason: str) -> None:
    assert main.main(['roofline', *words]) == 2
    assert reason in capsys.readouterr().err
