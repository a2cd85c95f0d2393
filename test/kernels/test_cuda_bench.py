# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The parts of `gemma-thor bench` through the whole engine, on a tiny model."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import test_cuda_images
from draft_rig import RAW, draft_weights
from host_device import HostStream, any_stream
from test_cuda_model import Rig, batch
from test_cuda_vision import vision_weights

from gemma_thor_ros import load_drafter
from gemma_thor_ros.cli import bench, bench_clocks, bench_device, bench_draft, bench_tower
from gemma_thor_ros.cli.bench_device import Bench
from gemma_thor_ros.cli.bench_records import Records
from gemma_thor_ros.cli.main import main
from gemma_thor_ros.models.batch import Role
from gemma_thor_ros.models.cuda_inputs import Key
from gemma_thor_ros.ops import device, step_times
from gemma_thor_ros.ops.step_times import GraphLog, Node
from gemma_thor_ros.schema import ConfigError


@pytest.fixture
def tiny(request: pytest.FixtureRequest, tmp_path: Path,
         monkeypatch: pytest.MonkeyPatch) -> Bench:
    stream = any_stream(request, monkeypatch)
    monkeypatch.setattr(bench_device, 'PAGE_SIZE', 16)
    monkeypatch.setattr(bench_device, 'CHUNK', 16)
    monkeypatch.setattr(bench_device, '_VERIFY_RUNS', 1)
    monkeypatch.setattr(bench_device, 'FIRST_ID', 5)
    model = Rig('moe', stream, 'fp8').model
    return Bench(model, Records(tmp_path / 'receipt.json', card='none'),
                 bench_device.context_of(model, 'tiny', 'bf16'), lambda line: None, 100.0)


def test_decode_and_sequences(full: None, tiny: Bench, tmp_path: Path) -> None:
    bench_device.decode(tiny, (3,), 12, 'fp8', True)
    bench_device.sequences(tiny, (2,), 3, 4, 'fp8')
    records = {record['metric']: record for record in
               json.loads((tmp_path / 'receipt.json').read_text())}
    assert records.keys() == {'decode_tok_s', 'ttft_ms', 'graph_us', 'between_graphs_us',
                              'tokens_equal', 'batched_tok_s'}
    assert records['tokens_equal']['value'] == 1.0
    inside = records['graph_us']
    assert inside['context']['way'] == 'in decode' and inside['value'] > 0
    assert inside['context']['token_hash'] == records['decode_tok_s']['context']['token_hash']
    if isinstance(tiny.model.stream, HostStream):    # which has no NVML
        assert records['decode_tok_s']['context']['clocks'] is None
    decoded = records['decode_tok_s']
    assert decoded['value'] > 0 and decoded['card'] == 'none'
    assert decoded['context']['depth'] == 3 and len(decoded['context']['token_hash']) == 16
    started, counted = decoded['context']['run_ahead']
    assert 9 <= counted <= started <= 11


def test_what_every_layer_does(request: pytest.FixtureRequest,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The experts of each layer, and who writes K and V of one row alone."""
    rig = Rig('moe', any_stream(request, monkeypatch), 'bf16')
    model, config, step = rig.model, rig.config, batch((Role.DECODE, 0, 0, 3))
    layers = model.experts_by_layer(step, rig.cache)
    assert len(layers) == config.num_hidden_layers
    assert (layers[-1] == model.chosen_experts(3)).all()
    assert any((other != layers[-1]).any() for other in layers)     # not the last one's each time
    found = bench_device.mean_distinct(model, step, rig.cache)
    assert found == round(sum(len(set(ids.flat)) for ids in layers) / len(layers), 1)
    if isinstance(rig.stream, HostStream):
        rig.stream.launches.clear()
        model.warm_up([Key(1, 1, 1)])
        names = [name.removeprefix('graph ') for name in rig.stream.launches]
        for kind, entry in (('sliding_attention', 'kv_append'),
                            ('full_attention', 'attention_append')):
            assert names.count(entry) == len(config.layers_of(kind)), (kind, names)


def test_every_graph_of_a_decode_is_timed(full: None, tiny: Bench) -> None:
    with tiny.engine(1, 40, 'fp8') as engine:
        bench_device.ask(engine, tiny.model, 3, 8)
        with GraphLog(tiny.model.graphs, tiny.model.stream) as log:
            bench_device.ask(engine, tiny.model, 3, 8)
        bench_device.ask(engine, tiny.model, 3, 8)       # not any more
    inside, between = log.times(100)
    assert 8 <= len(inside) == len(between) + 1 <= 9     # the prompt, 7 steps, one started early
    assert all(time > 0 for time in inside + between)


def test_a_receipt_names_no_folder(tmp_path: Path) -> None:
    records = Records(tmp_path / 'r.json', command='gemma-thor bench --format nvfp4 --receipt '
                      f'{tmp_path}/r.json --out=/some/where out/x')
    records.add('read_gb_s', [1.0], 'GB/s')
    record, = json.loads((tmp_path / 'r.json').read_text(encoding='utf-8'))
    assert record['command'] == (
        'gemma-thor bench --format nvfp4 --receipt r.json --out=where out/x')


def test_what_samples_of_the_clock_come_to() -> None:
    assert bench_clocks.summary([]) is None
    samples = [(1980, 690400, 0x4), (1700, 701600, 0x24), (1500, 699000, 0)]
    assert bench_clocks.summary(samples) == {
        'sm_mhz': [1500, 1700, 1980], 'power_w': [690, 699, 702],
        'limited_by': {'power cap': 0.667, 'heat': 0.333}, 'samples': 3}


def test_the_clock_is_asked_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a device that does not tell its reasons gives none."""
    refuses = False

    def give(value: int, status: int = 0) -> Any:
        def call(handle: Any, *more: Any) -> int:
            more[-1]._obj.value = value
            return status
        return call

    def library() -> Any:
        return SimpleNamespace(
            nvmlDeviceGetClockInfo=give(1980), nvmlDeviceGetPowerUsage=give(650000),
            nvmlDeviceGetCurrentClocksThrottleReasons=give(0x4, int(refuses)))

    monkeypatch.setattr(bench_clocks, '_INTERVAL_S', 0.001)
    monkeypatch.setattr(bench_clocks, '_open', lambda bus_id: (library(), None))
    with bench_clocks.ClockWatch('0000:19:00.0') as clocks:
        time.sleep(0.05)
    assert clocks.found is not None and clocks.found['samples'] > 2
    assert clocks.found['limited_by'] == {'power cap': 1.0}
    assert not [thread for thread in threading.enumerate() if thread.name == 'bench-clocks']
    refuses = True
    with bench_clocks.ClockWatch('0000:19:00.0') as clocks:
        time.sleep(0.01)
    assert clocks.found is None


def test_page_types_are_compared_at_the_same_depth(full: None, tiny: Bench) -> None:
    bench_device.kv_types(tiny, (20,), 9)
    decoded = [record for record in tiny.records.records if record['metric'] == 'decode_tok_s']
    assert [record['context']['kv'] for record in decoded] == ['fp8', 'bf16']
    assert {record['context']['depth'] for record in decoded} == {20}
    ratio = tiny.records.records[-1]
    assert ratio['metric'] == 'fp8_times_bf16'
    assert ratio['value'] == pytest.approx(decoded[0]['value'] / decoded[1]['value'], rel=1e-4)


def untimed(timer: Any, graphs: Any, stream: Any) -> None:
    """GraphTimer.__init__ with events that count: 1 for a start, 10 for an end."""
    timer._graphs, timer._stream, timer._run, timer._count = graphs, stream, graphs.run, 0

    def count(by: int) -> SimpleNamespace:
        return SimpleNamespace(record=lambda on: setattr(timer, '_count', timer._count + by))

    timer._start, timer._end = count(1), count(10)


def test_verify(full: None, tiny: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(tiny.model.stream, HostStream):
        monkeypatch.setattr(bench_device, 'times_us', lambda stream, work: [work() or 1.0])
        monkeypatch.setattr(step_times.GraphTimer, '__init__', untimed)
        monkeypatch.setattr(step_times.GraphTimer, 'us', lambda timer: timer._count)
        monkeypatch.setattr(bench_device, 'node_times', lambda stream, work: [
            work() or Node('embed', (), 1, 2.0)])
    bench_device.verify(tiny, (4,), (), 20, 'bf16')
    record, beside, *nodes = tiny.records.records
    assert beside['metric'] == 'beside_graph_us' and beside['unit'] == 'us'
    if isinstance(tiny.model.stream, HostStream):    # one graph a step, timed from end to end
        assert beside['value'] == pytest.approx(record['value'] * 1e3 - 11, rel=1e-3)
    assert record['metric'] == 'verify_ms' and record['context']['distinct_experts'] >= 2
    assert {node['metric'] for node in nodes} == {'graph_us', 'node_us'}
    assert 'embed' in {node['context'].get('op') for node in nodes}
    assert {node['context']['rows'] for node in nodes} == {4}


def test_drafts(full: None, tiny: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind: a pass as a call and alone, and rounds whose drafts start behind the verify."""
    monkeypatch.setattr(bench_draft, '_RUNS', 1)
    monkeypatch.setattr(bench_draft, '_WARM', 1)
    if isinstance(tiny.model.stream, HostStream):    # what the device makes and times
        raw: Any = {id(raw_): draft_weights(raw_) for raw_ in RAW.values()}
        monkeypatch.setattr(bench_draft, 'RandomWeights', lambda shapes: next(
            found for found in raw.values() if found.keys() == shapes.keys()))
        monkeypatch.setattr(bench_draft, 'Settled', lambda weights: weights)
        monkeypatch.setattr(bench_draft, 'compile_specs', lambda *_: 0)
        monkeypatch.setattr(bench_draft, 'device_drafter', lambda *args, **named: (
            load_drafter.device_drafter(*args, **{**named, 'quantize_head': None})))
        monkeypatch.setattr(bench_draft, 'times_us', lambda stream, work: [work() or 1.0])
        monkeypatch.setattr(bench_draft, 'node_times', lambda stream, work: [work()] * 0)
    bench_draft.measure(tiny, RAW, (4,), (), 20, 'bf16')
    records = {(record['metric'], record['context']['drafter'], record['context']['path']): record
               for record in tiny.records.records if record['context']['path'] != 'node'}
    assert records.keys() == {(metric, kind, path) for kind in RAW for metric, path in (
        ('draft_ms', 'call'), ('draft_ms', 'graph'), ('drafted_verify_ms', 'model'),
        ('round_ms', 'model'))}
    for kind in RAW:
        context = records['round_ms', kind, 'model']['context']
        assert context['ahead_used'] == '2 of 2' and context['distinct_experts'] >= 2


def test_an_image(full: None, request: pytest.FixtureRequest, tmp_path: Path,
                  monkeypatch: pytest.MonkeyPatch) -> None:
    """From pixels to soft tokens and to the first token, and each launch by itself."""
    stream = any_stream(request, monkeypatch)
    raw = {**test_cuda_images.raw('tower'), 'image_token_id': 95}
    monkeypatch.setattr(bench_device, 'PAGE_SIZE', 16)
    monkeypatch.setattr(bench_device, 'CHUNK', 16)
    monkeypatch.setattr(bench_device, 'FIRST_ID', 5)
    for name, value in {'_GRID': (3, 2), '_RUNS': 1, '_PROMPT': 4,
                        'preset_config': lambda preset: raw}.items():
        monkeypatch.setattr(bench_tower, name, value)
    if isinstance(stream, HostStream):               # what the device makes and times
        monkeypatch.setattr(bench_tower, 'compile_specs', lambda *_: 0)
        monkeypatch.setattr(bench_tower, 'RandomWeights', lambda shapes: vision_weights('tower'))
        monkeypatch.setattr(bench_tower, 'Settled', lambda weights: weights)
        monkeypatch.setattr(bench_tower, 'node_times', lambda stream, work: [work()] * 0)
        monkeypatch.setattr(bench_tower, '_time', lambda *_: b'')
        monkeypatch.setattr(bench_tower, '_attention', lambda *_: None)
    model = test_cuda_images.on_device('tower', stream)
    model.vision = None
    tiny = Bench(model, Records(tmp_path / 'receipt.json', card='none'), {}, lambda line: None)
    bench_tower.measure(tiny, 'any')
    times = [record for record in tiny.records.records if record['metric'] == 'ttft_ms']
    assert [record['context']['image'] for record in times] == ['new', 'kept']
    assert all(record['context']['tokens'] == 10 and record['value'] > 0 for record in times)
    model.vision = None
    with pytest.raises(ConfigError, match='any has no vision part for a model of hidden_size 64'):
        raw['text_config'] = {**raw['text_config'], 'hidden_size': 72}
        bench_tower.measure(tiny, 'any')


def test_a_part_that_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def fail(*_: Any) -> None:
        raise RuntimeError('planted')

    monkeypatch.setattr(Bench, 'bandwidth', fail)
    monkeypatch.setattr(bench_device, 'decode', fail)
    monkeypatch.setattr(bench, 'measure_prefill', lambda *_: done.append('prefill'))
    nothing: Any = None
    assert bench.measure(Bench(nothing, Records(None), {}, lambda line: None),
                         ['decode', 'prefill'], [1], 1) == 2
    assert done == ['prefill'] and capsys.readouterr().err.count('RuntimeError: planted') == 2


@pytest.mark.skipif(not device.find(), reason='there is a CUDA device here')
@pytest.mark.parametrize(('words', 'message'), [
    ([], 'needs a CUDA device, but'), (['--parts', 'decode,naps'], 'naps'),
    (['--depths', 'deep'], 'deep')])
def test_wrong_use(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['bench', *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(('room', 'lengths'), [(4096, [512]), (131072, [512, 4096, 32768])])
def test_long_prompts_are_set_against_shorter_ones(room: int, lengths: list[int],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {512: 2000.0, 4096: 4000.0, 32768: 3000.0}

    def ask(_engine: Any, _model: Any, length: int, _tokens: int) -> list[Any]:
        return [SimpleNamespace(submitted=1.0, times=[1.0 + length / rates.get(length, 1.0)])]

    config = SimpleNamespace(max_position_embeddings=room)
    records = Records(None)
    tiny = Bench(cast('Any', SimpleNamespace(config=config)), records, {}, lambda line: None)
    monkeypatch.setattr(bench_device, 'ask', ask)
    monkeypatch.setattr(bench_device, '_node_table', lambda *_, **__: None)
    monkeypatch.setattr(Bench, 'engine', lambda *_: contextlib.nullcontext())
    bench.measure_prefill(tiny)
    told = [(record['metric'], record['context']['tokens'], record['value'])
            for record in records.records]
    shares = [('prefill_share', 32768, 0.75)] if 32768 in lengths else []
    assert told == [*(('prefill_tok_s', length, rates[length]) for length in lengths), *shares]
