# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A whole model on the CUDA path against the same model on the CPU, teacher-forced.

Where no GPU is, the kernels run on the emulator, in the device's memory order and through the same
loader, inputs and graphs.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from host_device import HostStream, any_stream
from machine import normal, to_bf16

from gemma_thor_ros import load_device
from gemma_thor_ros.load_device import warm_keys
from gemma_thor_ros.models import cuda_inputs
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_inputs import Key, cut_passes, prompt_bucket
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops import device, matrix_specs
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.ops.graphs import Graphs
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings, sample_row
from gemma_thor_ros.weights.canonical import DenseWeight, Nvfp4Weight, Weight
from gemma_thor_ros.weights.modules import Form
from gemma_thor_ros.weights.number_formats import encode_e4m3
from gemma_thor_ros.weights.shapes import TextShapes

Array = np.ndarray
PAGE = 16
CONTEXT = 128
TINY: dict[str, Any] = {
    'model_type': 'gemma4_text', 'vocab_size': 256, 'hidden_size': 64, 'num_hidden_layers': 2,
    'layer_types': ['sliding_attention', 'full_attention'], 'num_attention_heads': 2,
    'num_key_value_heads': 1, 'num_global_key_value_heads': 1, 'head_dim': 256,
    'global_head_dim': 512, 'intermediate_size': 64, 'attention_k_eq_v': True,
    'sliding_window': 24, 'enable_moe_block': True, 'num_experts': 8, 'top_k_experts': 2,
    'moe_intermediate_size': 64, 'final_logit_softcapping': 30.0,
    'hidden_size_per_layer_input': 0, 'max_position_embeddings': 4096,
}
DENSE = {**TINY, 'enable_moe_block': False}
TOKENS = ((np.arange(64) * 37 + 5) % 251).astype(np.int32)


def nvfp4(seed: int, shape: tuple[int, ...]) -> Nvfp4Weight:
    """Random codes and scales; values of about 1 / sqrt(columns)."""
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (*shape[:-1], shape[-1] // 2), dtype=np.uint8)
    scales = encode_e4m3(rng.uniform(0.5, 1.5, (*shape[:-1], shape[-1] // 16)))
    spread = rng.uniform(0.9, 1.1, shape[:-2]) * 0.35 * shape[-1] ** -0.5
    return Nvfp4Weight(packed, scales, np.asarray(spread, np.float32))


@cache
def weights(name: str) -> dict[str, Weight]:
    """Random weights in the formats of a real checkpoint."""
    found: dict[str, Weight] = {}
    for seed, (tensor, shape) in enumerate(TextShapes.from_config(CONFIGS[name]).all().items()):
        quantised = tensor.endswith('_proj') and 'router' not in tensor
        if quantised and not (name == 'dense' and 'mlp' in tensor):
            found[tensor] = nvfp4(seed, shape)
        elif len(shape) == 2:
            found[tensor] = DenseWeight(to_bf16(normal(seed, *shape) * shape[-1] ** -0.5), 'bf16')
        else:
            found[tensor] = DenseWeight(to_bf16(1 + 0.1 * normal(seed, *shape)), 'bf16')
    return found


CONFIGS = {'moe': TINY, 'dense': DENSE}


class Rig:
    """One model on the device, and on the CPU in its rounding and in float64."""

    def __init__(self, name: str, stream: Any, kv_dtype: Any, prompt_rows: int = 256) -> None:
        self.config = ModelConfig.from_dict(CONFIGS[name])
        self.stream = stream
        self.model = CudaGemma4(self.config, weights(name), DeviceLoader(stream),
                                stream=stream, context_length=CONTEXT, kv_dtype=kv_dtype,
                                prompt_rows=prompt_rows)
        self.cache = self.model.new_kv_cache(12, 12, PAGE)
        self.twins = {dtype: Gemma4(self.config, weights(name), dtype, 'device',
                                    kv_dtype=kv_dtype) for dtype in (np.float32, np.float64)}

    def twin_logits(self, dtype: Any, batches: list[Batch]) -> list[Array]:
        twin = self.twins[dtype]
        cache = twin.new_kv_cache(12, 12, PAGE)
        return [twin.forward(batch, cache) for batch in batches]


def table(seed: int) -> Array:
    """A table of four pages, shuffled: of sequence 0, 1 or 2 of twelve pages."""
    order = np.random.default_rng(7).permutation(12).astype(np.int32)
    return np.concatenate([order[4 * seed:4 * seed + 4], np.full(4, -1, np.int32)])


def batch(*parts: tuple[Role, int, int, int], wanted: Any = None) -> Batch:
    """Parts (role, sequence, start, rows) of TOKENS, all logits wanted."""
    spans, tokens, positions, row = [], [], [], 0
    for role, sequence, start, count in parts:
        pages = table(sequence)
        spans.append(Span(role, row, count, start, pages, pages))
        tokens.append(np.roll(TOKENS, sequence)[start:start + count])
        positions.append(np.arange(start, start + count, dtype=np.int32))
        row += count
    rows = np.arange(row, dtype=np.int32) if wanted is None else np.array(wanted, np.int32)
    return Batch(np.concatenate(tokens), np.concatenate(positions), tuple(spans), rows)


P, D = Role.PREFILL, Role.DECODE
# a prompt of two passes, one beside generated rows, decode rows of three, a verify step
STEPS = [batch((P, 0, 0, 21), wanted=[20]), batch((D, 0, 21, 1), (P, 1, 0, 3), wanted=[0, 3]),
         batch((D, 0, 22, 1), (D, 1, 3, 1)), batch((D, 1, 4, 3), (D, 0, 23, 1)),
         batch((D, 0, 24, 1), (D, 1, 7, 1))]


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return any_stream(request, monkeypatch)


def errors(rig: Rig, steps: list[Batch]) -> tuple[list[float], float]:
    """Relative error of each step's logits, and that of the CPU in the same rounding."""
    exact = np.concatenate(rig.twin_logits(np.float64, steps))
    rounded = np.concatenate(rig.twin_logits(np.float32, steps))
    ours = [rig.model.forward(step, rig.cache) for step in steps]
    ends = np.cumsum([part.shape[0] for part in ours])[:-1]
    found = [float(np.linalg.norm(a - b) / np.linalg.norm(b))
             for a, b in zip(ours, np.split(exact, ends), strict=True)]
    return found, float(np.linalg.norm(rounded - exact) / np.linalg.norm(exact))


# Experts that nearly tie are chosen either way once e4m3 rounds differently: no MoE with FP8.
@pytest.mark.parametrize(('name', 'kv_dtype', 'limit'), [('moe', 'bf16', 0.03),
                                                         ('dense', 'fp8', 0.05)])
def test_the_device_computes_what_the_cpu_does(name: str, kv_dtype: str, limit: float,
                                               request: pytest.FixtureRequest,
                                               stream: Any) -> None:
    if name == 'moe':
        request.getfixturevalue('full')
    rig = Rig(name, stream, kv_dtype)
    found, rounding = errors(rig, STEPS)
    # chunks of keys and orders of sums differ, so that roundings fall differently now and then
    assert max(found) < max(limit, 4 * rounding), (found, rounding)
    assert rig.model.graphs.num_replays > 0 or not rig.model.graphs.enabled


def stale_tables(rig: Rig) -> None:
    """Send the tables of the first pass alone."""
    right, sent = rig.model._inputs._send_table, []

    def send(kind: str, index: int, *rest: Any) -> None:
        if (kind, index) not in sent:
            sent.append((kind, index))
            right(kind, index, *rest)

    rig.model._inputs._send_table = send


def positions_one_late(rig: Rig) -> None:
    right = rig.model.ops.append

    def append(*args: Any) -> None:
        place = args[5]
        right(*args[:5], dataclasses.replace(place, positions=place.positions + 1), *args[6:])

    rig.model.ops.append = append


def scales_left_out(rig: Rig) -> None:
    right = rig.model.ops.attend

    def attend(*args: Any) -> None:
        ones = np.ones_like(args[5].scales[0])
        right(*args[:5], dataclasses.replace(args[5], scales=(ones, ones)))

    rig.model.ops.attend = attend


@pytest.mark.parametrize('plant', [stale_tables, positions_one_late, scales_left_out])
def test_a_planted_error_shows(plant: Any, full: None, stream: Any) -> None:
    if not isinstance(stream, HostStream):
        pytest.skip('the faults are planted into arrays of the host')
    rig = Rig('dense', stream, 'fp8')
    plant(rig)
    found, rounding = errors(rig, STEPS)
    assert max(found) > max(0.05, 4 * rounding)


def logits_of(rig: Rig, *steps: Batch) -> list[Array]:
    return [rig.model.forward(step, rig.cache) for step in steps]


def test_a_row_has_the_same_bits_in_any_company_and_without_graphs(full: None,
                                                                   stream: Any) -> None:
    rig = Rig('moe', stream, 'bf16')
    together = [logits for _ in range(2) for logits in logits_of(rig, *STEPS)]
    for a, b in zip(together[:len(STEPS)], together[len(STEPS):], strict=True):
        assert np.array_equal(a, b)                  # launched, and replayed
    rig.model.graphs.enabled = False
    prompt, = logits_of(rig, batch((P, 0, 0, 21), wanted=[20]))
    assert np.array_equal(prompt, together[0])
    alone, = logits_of(rig, batch((D, 0, 21, 4)))    # as a verify step
    assert np.array_equal(alone[0], together[1][0]) and np.array_equal(alone[1], together[2][0])
    assert np.array_equal(alone[2], together[3][3]) and np.array_equal(alone[3], together[4][0])
    other = logits_of(rig, batch((P, 1, 0, 3), wanted=[2]), batch((D, 1, 3, 1)))
    assert np.array_equal(other[0][0], together[1][1])
    assert np.array_equal(other[1][0], together[2][1])
    hidden: dict[int, Array] = {}
    tapped = rig.model.forward(STEPS[4], rig.cache, hidden.__setitem__)
    assert np.array_equal(tapped, together[4]) and sorted(hidden) == [0, 1]


def test_prompts_have_the_same_bits_however_they_are_cut(full: None, stream: Any) -> None:
    prompt = batch((P, 0, 0, 37), wanted=[36])
    whole, = logits_of(Rig('moe', stream, 'fp8'), prompt)
    every, = logits_of(Rig('moe', stream, 'fp8'), batch((P, 0, 0, 37)))      # 16 rows at a time
    assert np.array_equal(every[36:], whole)
    pieces = Rig('moe', stream, 'fp8', prompt_rows=16)
    for _ in range(2):                   # the rest of 5 rows has 11 of padding
        assert np.array_equal(logits_of(pieces, prompt)[0], whole)
    assert len(pieces.model.graphs) == 1 and pieces.model.graphs.num_replays == 5
    chunks = Rig('moe', stream, 'fp8')
    logits_of(chunks, batch((P, 0, 0, 30), wanted=[]))
    assert np.array_equal(logits_of(chunks, batch((P, 0, 30, 7), wanted=[6]))[0], whole)


def test_padding_behind_a_prompt_changes_no_bit(stream: Any,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = batch((P, 1, 0, 3), wanted=[2])
    padded, = logits_of(rig := Rig('dense', stream, 'fp8', prompt_rows=16), chunk)
    assert len(rig.model.graphs) == 1
    monkeypatch.setattr(cuda_inputs, 'PROMPT_BUCKETS', (3,))
    exact, = logits_of(Rig('dense', stream, 'fp8', prompt_rows=3), chunk)
    assert np.array_equal(padded, exact)


def test_only_rows_of_a_prompt_reach_the_pages(stream: Any) -> None:
    if not isinstance(stream, HostStream):
        pytest.skip('pages are read on the emulated device alone')
    rig = Rig('dense', stream, 'fp8', prompt_rows=16)

    def written(step: Batch) -> int:
        before = [pages.copy() for pages in rig.cache.k_pages]
        logits_of(rig, step)
        return sum(int((a != b).any(axis=(2, 3)).sum()) for a, b in
                   zip(before, rig.cache.k_pages, strict=True))

    rig.model.warm_up(warm_keys(1, 16))
    assert len(rig.model.graphs) == 2 and not any(map(np.any, rig.cache.k_pages))
    assert written(batch((P, 1, 0, 3), wanted=[2])) == 2 * 3
    assert rig.model.graphs.num_replays == 1
    # planted: padding that is taken for rows of sequence 0
    right = rig.model._inputs._buffer.send

    def send(target: Any, control: Array) -> None:
        right(target, np.where(control == -1, 0, control) if control.ndim == 1 else control)

    rig.model._inputs._buffer.send = send
    assert written(batch((P, 1, 3, 1), wanted=[0])) > 2 * 1


def settings(position: int, **values: Any) -> SampleRow:
    return SampleRow(SAMPLING[values.pop('sampling', 'greedy')], position, **values)


SAMPLING = {'greedy': SampleSettings(temperature=0.0),
            'drawn': SampleSettings(temperature=1.0, top_k=20, seed=5),
            'free': SampleSettings(temperature=1.5, seed=11, min_p=0.01)}


def test_tokens_are_those_of_the_twin(full: None, stream: Any) -> None:
    rig = Rig('moe', stream, 'bf16')
    allowed = np.arange(256) % 3 == 0
    rows = {0: [settings(21, sampling='drawn')],
            1: [settings(22, sampling='free'), settings(3, allowed=allowed)],
            3: [settings(5), settings(6, sampling='drawn', suppress_ids=np.arange(50, 200)),
                settings(7, sampling='free'), settings(24, sampling='drawn')]}
    for index, step in enumerate(STEPS[:4]):
        logits = rig.model.forward(step, rig.cache)
        choice = rows.get(index, [settings(9), settings(9)])
        found = rig.model.choose(step, rig.cache, choice, logits_of=[0])
        assert found.tokens.tolist() == [sample_row(row, setting) for row, setting
                                         in zip(logits, choice, strict=True)]
        assert np.array_equal(found.logits[0], logits[0])


def generate(rig: Rig, count: int, run_ahead: bool, sampling: str = 'drawn',
             change: Any = None) -> list[list[int]]:
    """Tokens of sequences 0 and 1 after prompts of 5 and 3, step by step as an engine does."""
    prompts = [batch((P, 0, 0, 5), wanted=[4]), batch((P, 1, 0, 3), wanted=[2])]
    answers = [rig.model.choose(step, rig.cache, [settings(end, sampling=sampling)]
                                ).tokens.tolist() for step, end in zip(prompts, (5, 3),
                                                                       strict=True)]
    for _ in range(count):
        step = batch((D, 0, 4 + len(answers[0]), 1), (D, 1, 2 + len(answers[1]), 1))
        step = dataclasses.replace(step, token_ids=np.array([a[-1] for a in answers], np.int32))
        if change is not None:
            step = change(step, len(answers[0]))
        rows = [settings(5 + len(answers[0]), sampling=sampling),
                settings(3 + len(answers[1]), sampling=sampling)]
        found = rig.model.choose(step, rig.cache, rows, run_ahead=run_ahead).tokens
        for answer, token in zip(answers, found.tolist(), strict=True):
            answer.append(token)
    return answers


class Plain(dict[str, Weight]):
    """Weights with their forms, as a checkpoint tells them."""

    def form(self, name: str) -> Form:
        return Form.DENSE if isinstance(self[name], DenseWeight) else Form.COMPRESSED_TENSORS


@pytest.mark.parametrize('name', ['moe', 'dense'])
def test_all_kernels_are_known_ahead(name: str, stream: Any,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loader compiles is what steps of one, a few and many rows launch.

    The dense model has an MLP in bf16 between projections in NVFP4.
    """
    rig, used, right = Rig(name, stream, 'fp8'), [], device.compiled

    def compiled(spec: Any) -> Any:
        used.append(spec)
        return right(spec)

    monkeypatch.setattr(device, 'compiled', compiled)
    for step in (batch((P, 0, 0, 21), wanted=[20]), batch((D, 0, 21, 1)),
                 batch((D, 0, 22, 1), (D, 1, 0, 1)), batch((D, 0, 23, 4)), batch((D, 1, 1, 9))):
        rig.model.forward(step, rig.cache)
    rig.model.choose(batch((D, 0, 24, 2)), rig.cache, [settings(25), settings(26)])
    text = load_device.text_specs(rig.config, PAGE, 'fp8')
    shapes = load_device.bf16_shapes(cast(Any, Plain(weights(name))))
    more = matrix_specs.bf16_specs(shapes, device.info().shared_bytes_per_block)
    assert used and [spec for spec in dict.fromkeys(used) if spec not in text + more] == []
    # planted: without what is in bf16, and with fewer counts of rows
    assert bool(set(used) - set(text)) == bool(more) == (name == 'dense')
    monkeypatch.setattr(matrix_specs.matrix_specs, '__defaults__', ((1, 16),))
    fewer = load_device.text_specs(rig.config, PAGE, 'fp8')          # as it once was
    assert set(used) - set(fewer + more)


def test_run_ahead_changes_no_token_for_long(full: None, stream: Any) -> None:
    rig = Rig('moe', stream, 'bf16')
    plain = generate(rig, 14, False)
    assert rig.model.num_ahead == 0
    assert generate(rig, 14, True) == plain
    # one bubble where sequence 0 enters its second page at position 16, which the table holds
    assert rig.model.num_ahead == 14 and rig.model.num_ahead_used == 13


def test_run_ahead_changes_no_token(stream: Any) -> None:
    rig = Rig('dense', stream, 'bf16')
    plain = generate(rig, 3, False)
    assert generate(rig, 3, True) == plain
    assert rig.model.num_ahead == 3 and rig.model.num_ahead_used == 2
    # planted: the inputs stay those of the step before
    right = rig.model._sampler.launch
    rig.model._sampler.launch = lambda logits, records, needs, control=None: right(
        logits, records, needs)
    rig.model.graphs = Graphs(rig.stream, rig.model.graphs.enabled)
    assert generate(rig, 2, True) != [answer[:3] for answer in plain]


def test_a_step_that_was_not_foreseen_is_run(full: None, stream: Any) -> None:
    def other_token(step: Batch, length: int) -> Batch:
        if length != 4:
            return step
        return dataclasses.replace(step, token_ids=step.token_ids + np.int32(1))

    rig = Rig('dense', stream, 'bf16')
    plain = generate(rig, 8, False, change=other_token)
    assert generate(rig, 8, True, change=other_token) == plain
    assert rig.model.num_ahead - rig.model.num_ahead_used == 2       # the change, and the end
    # planted: what was enqueued counts always
    rig.model._take_ahead = lambda passes, *_: (
        rig.model._ahead if passes[0].role is D else None)
    assert generate(rig, 8, True, change=other_token) != plain


def test_no_step_is_foreseen_without_a_page(full: None, stream: Any) -> None:
    rig = Rig('dense', stream, 'bf16')

    def short_table(step: Batch, length: int) -> Batch:
        spans = []
        for span in step.spans:
            pages = span.full_pages.copy()
            pages[span.start_position // PAGE + 1:] = -1
            spans.append(dataclasses.replace(span, sliding_pages=pages, full_pages=pages))
        return dataclasses.replace(step, spans=tuple(spans))

    answers = generate(rig, 16, True, change=short_table)
    assert answers == generate(rig, 16, False)
    assert rig.model.num_ahead == 14                 # not at positions 15 of either sequence


def test_what_a_step_sends(full: None, stream: Any) -> None:
    if not isinstance(stream, HostStream):
        pytest.skip('copies are counted on the emulated device alone')
    rig = Rig('moe', stream, 'bf16')
    generate(rig, 4, False)
    before = stream.num_copies
    generate(rig, 1, False)
    # two prompts with their tables anew; then a decode step: tables of two, rows and settings
    prompts = stream.num_copies - before
    assert prompts <= 2 * 4 + 2 * 2 + 1
    generate(rig, 4, True)               # steps that start early send nothing; the first one does
    assert stream.num_copies - before == 2 * prompts
    stream.launches.clear()
    rig.model.warm_up([Key(2, 2, 1)])
    graph = [name.removeprefix('graph ') for name in stream.launches]
    assert stream.launches[0] == 'graph embed', stream.launches
    assert graph[-2:] == ['sample_max', 'sample_pick'] and len(graph) == 2 * 8 + 3 + 2


def test_passes() -> None:
    many = batch(*((D, index % 3, 4 * index, 7) for index in range(5)), (P, 1, 3, 35))
    passes = cut_passes(many, 16)
    assert [step.num_rows for step in passes] == [14, 14, 7, 16, 16, 3]
    assert [step.key for step in passes[2:4]] == [Key(8, 1, 8), Key(16, 1, 16, True)]
    assert [prompt_bucket(rows) for rows in (1, 17, 129, 256, 257)] == [16, 32, 192, 256, 257]
    assert np.concatenate([step.rows for step in passes]).tolist() == list(range(70))


def test_the_graphs_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, made = HostStream(), []

    def capture(on: Any, enqueue: Any) -> Any:
        made.append(enqueue())
        return SimpleNamespace(launch=lambda on: None)

    monkeypatch.setattr(device, 'capture', capture)
    graphs = Graphs(stream, most=2)
    for key in 'abacb':                  # at c it is b that goes, not a, though a was there first
        graphs.run(key, lambda key=key: key)     # type: ignore[misc]
    assert made == ['a', 'b', 'c', 'b'] and len(graphs) == 2 and graphs.num_replays == 1
