# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""bench/serving.py, in small, on the demo model: the figures are there and its checks catch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / 'bench'))

import serving
import serving_priority
from serving_client import Streamed, read_answer

HEAD = 'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n'
TEXT = 'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n'
END = 'data: {"choices": [], "usage": {"completion_tokens": 3}, "timings": {}}\n\n'


@pytest.fixture(scope='module')
def receipt(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp('serving')
    code = serving.main(['--out', str(out), '--model', 'demo', '--device', 'cpu', '--tokens', '16',
                         '--rounds', '1', '--prompt-tokens', '256', '--streams', '2', '--commit',
                         'abc', '--parts', 'http,streams,ttft,saved,priority', '--background',
                         '3'])
    assert code == 0
    records: list[dict[str, Any]] = json.loads((out / 'receipt-serving.json').read_text())
    return records


def found(records: list[dict[str, Any]], metric: str, **context: Any) -> float:
    value, = [record['value'] for record in records if record['metric'] == metric
              and context.items() <= record['context'].items()]
    return float(value)


def test_every_figure_has_its_record(receipt: list[dict[str, Any]]) -> None:
    assert all(record['commit'] == 'abc' and record['card'] == 'CPU' for record in receipt)
    engine = found(receipt, 'decode_tok_s', path='engine')
    stream = found(receipt, 'decode_tok_s', path='http')
    assert found(receipt, 'stream_share') == pytest.approx(stream / engine, rel=1e-3)
    assert found(receipt, 'tokens_equal') == 1.0
    for path in ('engine', 'http'):
        assert found(receipt, 'batched_tok_s', path=path, sequences=2) > 0
    assert found(receipt, 'http_us_per_token', sequences=2) > 0
    assert found(receipt, 'rss_mb') > 50


def test_a_prompt_is_saved_and_restored(receipt: list[dict[str, Any]]) -> None:
    assert found(receipt, 'saved_mb', cached_tokens=240) > 1
    assert all(found(receipt, name) > 0 for name in ('copy_out_s', 'write_s', 'read_and_check_s',
                                                     'copy_in_s'))
    assert found(receipt, 'ttft_ms', prefix='restored') < found(
        receipt, 'ttft_ms', prefix='cold', path='engine', cached_tokens=240)


def test_an_operators_first_token_beside_background_requests(
        receipt: list[dict[str, Any]]) -> None:
    for count in (0, 3):
        for length, own in ((48, 1), (256, 1)):
            context = {'background': count, 'prompt_tokens': length, 'prefill_steps': own}
            assert own <= found(receipt, 'ttft_steps', **context) <= own + 2
            assert found(receipt, 'ttft_ms', **context) > 0
    # planted: a token that came a step too late
    bed = SimpleNamespace(add=lambda *args, **context: None, faults=[])
    serving_priority.record(bed, [(0.1, 4)], 2)
    assert not bed.faults
    serving_priority.record(bed, [(0.1, 3), (0.1, 5)], 2)
    assert bed.faults == ['an operator waited 5 steps for a token, 2 of them its own']


def test_a_warm_prompt_has_all_but_its_last_turn_cached(receipt: list[dict[str, Any]]) -> None:
    warm, = [record['context'] for record in receipt if record['metric'] == 'ttft_ms'
             and record['context'].get('prefix') == 'warm' and record['context']['path'] == 'http']
    assert 200 < warm['cached_tokens'] < warm['prompt_tokens'] <= 256
    assert found(receipt, 'ttft_ms', prefix='cold', cached_tokens=0, path='engine') > 0
    assert found(receipt, 'warm_share') > 0


def test_an_event_counts_when_the_part_that_ends_it_comes() -> None:
    parts = [(1.0, HEAD + TEXT % ''), (2.0, TEXT % 'a'), (3.0, (TEXT % 'b')[:20]),
             (4.0, (TEXT % 'b')[20:] + END), (5.0, 'data: [DONE]\n\n')]
    streamed = read_answer(0.5, parts)
    assert streamed.times == (2.0, 4.0) and streamed.text == 'ab'
    assert streamed.tokens_per_event == 2.0                          # 3 of them in 2 events
    assert streamed.rate == 1.0 and streamed.ttft_s == 1.5


@pytest.mark.parametrize('parts', [
    [(1.0, HEAD + TEXT % 'a' + END)],                                # cut off before [DONE]
    [(1.0, HEAD + TEXT % 'a' + 'data: [DONE]\n\n')],                 # no usage
    [(1.0, HEAD + 'data: {"error": {"message": "late"}}\n\n')],
    [(1.0, 'HTTP/1.1 503 Service Unavailable\r\n\r\n{"error": {"message": "loading"}}')],
])
def test_what_is_no_whole_stream_is_refused(parts: list[tuple[float, str]]) -> None:
    with pytest.raises(RuntimeError):
        read_answer(0.0, parts)


def test_another_text_than_the_engine_s_is_a_fault() -> None:
    chat = SimpleNamespace(detokenize=lambda token_ids: 'one two')
    bed: Any = SimpleNamespace(chat=chat, faults=[])
    answer: Any = SimpleNamespace(token_ids=(1, 2))
    serving.Bed.compare(bed, Streamed(0.0, (1.0,), 'one two', {}, {}), answer)
    assert bed.faults == []
    serving.Bed.compare(bed, Streamed(0.0, (1.0,), 'one too', {}, {}), answer)
    assert len(bed.faults) == 1


def test_rates_count_while_all_answers_run() -> None:
    times = (0.0, 1.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0)
    assert serving.total_rate([(each, 1.0) for each in times]) == 2.0
    assert serving.total_rate([(times[0], 1.0), (times[1], 2.0)]) == 3.0
