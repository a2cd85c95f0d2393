# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Drafters on the CUDA path: their drafts against the CPU's, and the same answers as without."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import engine_gates
import numpy as np
import pytest
from draft_rig import RAW, DraftRig, Oracle, draft_config, poisonable
from engine_gates import Answer, Job, differences, make_request, run, solo
from host_device import HostStream, any_stream
from test_cuda_model import CONFIGS, CONTEXT, PAGE, TOKENS, D, P, Rig, batch, table

from gemma_thor_ros import load_device
from gemma_thor_ros.models import cuda_draft
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.drafter import DraftSpan, Taps
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.draft_pick import draft_accept_ref
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings

Array = np.ndarray
# prompts of two sequences past the windows, then a verify step of which some rows are rejected
STEPS = [batch((P, 0, 0, 27), (P, 1, 0, 7), wanted=[26, 33]),
         batch((D, 0, 27, 4), (D, 1, 7, 3))]
PLACES = ((0, 29), (1, 10))              # sequence and newest token afterwards
NUM_DRAFTS = 5


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = any_stream(request, monkeypatch)
    if not isinstance(found, HostStream):
        compile_all()
    return found


@cache
def compile_all() -> None:
    """All kernels of these tests side by side: one after the other takes minutes on a device."""
    for name in CONFIGS:
        config = ModelConfig.from_dict(CONFIGS[name])
        for kv_dtype in ('bf16', 'fp8'):
            load_device.compile_ahead(config, PAGE, kv_dtype, 16, lambda share: None)
            for kind in RAW:
                load_device.compile_specs(load_device.drafter_specs(
                    draft_config(kind, config), config, PAGE, kv_dtype), 16, lambda share: None)


def spans(hidden: Any) -> list[DraftSpan]:
    found = []
    for sequence, position in PLACES:
        pages = table(sequence)
        token = int(np.roll(TOKENS, sequence)[position])
        row = hidden(sequence, position - 1) if hidden else None
        found.append(DraftSpan(token, position, NUM_DRAFTS, pages, pages, row, SampleRow(
            SampleSettings(temperature=0.0), position + 1)))
    return found


def device_logits(rig: DraftRig, plant: Any = None) -> tuple[Array, Any]:
    """Logits (B, N, V) of a draft after STEPS, and the drafts."""
    kv_cache, cache = rig.caches()
    if plant is not None:
        plant(rig)
    for step in STEPS:
        rig.model.forward(step, kv_cache)
    network: Any = rig.drafter.network
    found: list[Array] = []
    right = rig.drafter._picks.choose

    def choose(needs: Any, records: Any, logits: Any, low: int) -> Any:
        values = np.empty(logits.shape, np.float32)
        device.copy_out(values, logits, rig.stream)
        rig.stream.synchronize()
        found.append(values)
        return right(needs, records, logits, low)

    rig.drafter._picks.choose = choose   # type: ignore[method-assign]
    rig.drafter.graphs.enabled = False
    drafts = rig.drafter.draft(spans(None), cache, kv_cache)
    if rig.draft_config.name == 'dflash':
        return found[0].reshape(2, network.ids_stride, -1)[:, 1:NUM_DRAFTS + 1], drafts
    return np.stack(found, axis=1), drafts


def host_logits(rig: DraftRig, dtype: Any) -> tuple[Array, Any]:
    """The same on the CPU."""
    target, drafter = rig.twins(dtype)
    kv_cache, cache = target.new_kv_cache(12, 12, 16), drafter.new_cache(12, 12, 16)
    rows: dict[tuple[int, int], Array] = {}
    for step in STEPS:
        taps = Taps(drafter.config.taps)
        target.forward(step, kv_cache, taps)
        hidden = taps.hidden(step.token_ids.size)
        drafter.absorb(step, hidden, cache)
        for sequence, span in enumerate(step.spans):
            for row in range(span.num_rows):
                rows[sequence, span.start_position + row] = hidden[:, span.start_row + row]
    found: list[Array] = []
    right = drafter.ops.head

    def head(*args: Any) -> Array:
        found.append(right(*args).copy())
        return found[-1]

    drafter.ops.head = head
    drafts = drafter.draft(spans(lambda *place: rows[place]), cache, kv_cache)
    if rig.draft_config.name == 'dflash':
        return found[0].reshape(2, NUM_DRAFTS, -1), drafts
    return np.stack(found, axis=1), drafts


def error(ours: Array, theirs: Array) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize(('kind', 'setting'), [
    ('dflash', 'auto'), ('dflash', 'causal'), ('dflash', 'bidirectional'), ('mtp', 'newest'),
    ('mtp', 'last_key')])
def test_drafts_are_those_of_the_cpu(kind: str, setting: str, request: pytest.FixtureRequest,
                                     stream: Any) -> None:
    if setting not in ('auto', 'newest'):
        request.getfixturevalue('full')
    rig = DraftRig('dense', kind, stream, setting=setting)
    (ours, drafts), (exact, theirs) = device_logits(rig), host_logits(rig, np.float64)
    rounded, _ = host_logits(rig, np.float32)
    first = (slice(None), slice(0, 1 if kind == 'mtp' else None))     # then drafts may part
    assert error(ours[first], exact[first]) < max(0.03, 4 * error(rounded[first], exact[first]))
    assert np.mean(drafts.token_ids == theirs.token_ids) > 0.7
    assert error(drafts.confidence[:, :1], theirs.confidence[:, :1]) < 0.05


SETTINGS = {'page_size': PAGE, 'context_length': CONTEXT, 'stop_ids': (), 'num_full_pages': 24,
            'num_sliding_pages': 24}


def jobs(temperature: float, count: int, seed: int = 0) -> list[Job]:
    """Uneven prompts and answers; the first passes the windows."""
    lengths, sizes = (21, 3, 9, 1), (8, 6, 6, 9)
    return [Job(make_request(f'r{i}', lengths[i], seed + i, vocab_size=256,
                             temperature=temperature, max_tokens=sizes[i]), i)
            for i in range(count)]


def gate(name: str, kind: str, stream: Any, *, kv_dtype: str = 'bf16', temperature: float = 0.7,
         count: int = 2, num_drafts: int | None = 4, wrong_each: int = 5, seed: int = 0,
         plant: Any = None) -> tuple[list[str], DraftRig, dict[str, Answer]]:
    """Differences between drafted and plain answers, each of the latter alone."""
    todo = jobs(temperature, count, seed)
    engine_gates.WAIT = 120.0            # steps that compile, or are emulated, make answers late
    plain = Rig(name, stream, kv_dtype).model
    poisonable(plain)
    whole = solo(plain, todo, **SETTINGS)
    rig = DraftRig(name, kind, stream, kv_dtype)
    poisonable(rig.model, rig.drafter)
    Oracle(rig, todo, whole, wrong_each)
    if plant is not None:
        plant(rig)
    found = run(rig.model, todo, drafter=rig.drafter, num_drafts=num_drafts, max_rows=16,
                prefill_chunk=13, **SETTINGS)
    return differences(found, whole, todo), rig, found


@pytest.mark.parametrize(('name', 'kind', 'kv_dtype', 'temperature', 'count'), [
    ('dense', 'dflash', 'fp8', 0.7, 2), ('moe', 'mtp', 'bf16', 0.0, 1)])
def test_drafted_is_plain(name: str, kind: str, kv_dtype: str, temperature: float, count: int,
                          stream: Any) -> None:
    lines, rig, found = gate(name, kind, stream, kv_dtype=kv_dtype, temperature=temperature,
                             count=count, wrong_each=4)
    assert lines == []
    usages = [answer.usage for answer in found.values()]
    accepted = sum(usage.accepted_tokens for usage in usages)
    assert 3 <= accepted < sum(usage.drafted_tokens for usage in usages)
    assert rig.drafter.num_ahead_used >= 1


@pytest.mark.parametrize('temperature', [0.0, 0.7, 1.5])
@pytest.mark.parametrize(('name', 'kind'), [(name, kind) for name in ('dense', 'moe')
                                            for kind in ('dflash', 'mtp')])
def test_drafted_is_plain_for_all(name: str, kind: str, temperature: float, full: None,
                                  stream: Any) -> None:
    seed = int(10 * temperature) + len(name) + len(kind)
    lines, *_ = gate(name, kind, stream, kv_dtype='fp8' if seed % 2 else 'bf16', seed=seed,
                     temperature=temperature, count=1 + seed % 4, wrong_each=3 + seed % 4,
                     num_drafts=(3, None, 7)[seed % 3])
    assert lines == []


def test_drafts_that_are_always_wrong_change_nothing(full: None, stream: Any) -> None:
    lines, _, found = gate('dense', 'dflash', stream, wrong_each=1)
    assert lines == []
    assert sum(answer.usage.accepted_tokens for answer in found.values()) == 0


def test_the_gate_catches_a_draft_that_is_taken_unseen(full: None, stream: Any) -> None:
    def plant(rig: DraftRig) -> None:
        right = rig.model.choose

        def choose(step: Any, *args: Any, **options: Any) -> Any:
            found = right(step, *args, **options)
            if step.logit_rows.size > 1 and len(step.spans) == 1:
                found.tokens[:-1] = step.token_ids[step.logit_rows[1:]]
            return found

        rig.model.choose = choose        # type: ignore[method-assign]

    assert gate('dense', 'dflash', stream, wrong_each=3, count=1, plant=plant)[0]


@pytest.mark.parametrize('kind', ['dflash', 'mtp'])
@pytest.mark.parametrize('late', [False, True])
def test_drafts_behind_a_step_are_those_of_a_call(kind: str, late: bool, full: None, stream: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """The start is found on the device, and a graph gives what launches one by one do."""
    rig = DraftRig('dense', kind, stream)
    kv_cache, cache = rig.caches()
    if late:                             # planted: one token too far, by a copy, so no graph
        rig.drafter.graphs.enabled = False
        right = cuda_draft.draft_accept
        monkeypatch.setattr(cuda_draft, 'draft_accept', lambda *args: right(
            *args[:6], device.put(np.roll(fetched(args[6], stream), -1)), *args[7:]))
    rig.model.forward(STEPS[0], kv_cache)
    settings = SampleSettings(temperature=0.7, seed=5)
    for _ in range(2):                   # launched, then as graphs
        step = STEPS[1]
        choice = [SampleRow(settings, int(position) + 1) for position in step.positions]
        rig.drafter._steps = rig.drafter.network.steps(NUM_DRAFTS)
        tokens = rig.model.choose(step, kv_cache, choice, draft_ahead=True).tokens
        newest = draft_accept_ref(step.token_ids, tokens, np.array([
            (span.start_row, span.num_rows, span.start_position, 0) for span in step.spans]))
        asked = [DraftSpan(int(token), int(position), NUM_DRAFTS, span.sliding_pages,
                           span.full_pages, None, SampleRow(settings, int(position) + 1))
                 for span, (token, position) in zip(step.spans, newest, strict=True)]
        used = rig.drafter.num_ahead_used
        behind = rig.drafter.draft(asked, cache, kv_cache)
        assert rig.drafter.num_ahead_used == used + (not late)
        called = rig.drafter.draft(asked, cache, kv_cache)
        assert np.array_equal(behind.token_ids, called.token_ids)
        assert np.array_equal(behind.confidence, called.confidence)


@pytest.mark.parametrize('planted', [False, True])
def test_a_pass_that_could_not_start_is_counted(planted: bool, full: None, stream: Any,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the device does not count it, and the next one takes its inputs."""
    rig = DraftRig('dense', 'mtp', stream)
    kv_cache, cache = rig.caches()
    for step in STEPS:
        rig.model.forward(step, kv_cache)
    asked = spans(None)
    right = rig.drafter.draft(asked[:1], cache, kv_cache)

    def fail(num_records: int) -> None:
        raise RuntimeError('planted')

    with monkeypatch.context() as patch:
        patch.setattr(rig.drafter._inputs, 'take', fail)
        if planted:
            patch.setattr(rig.drafter._slots, 'failed', lambda: None)
        rig.drafter.graphs.enabled = False
        with pytest.raises(RuntimeError, match='planted'):
            rig.drafter.draft(asked[1:], cache, kv_cache)
    rig.drafter._slots.results[...] = 0xff       # else another test's, which had the same drafts
    found = rig.drafter.draft(asked[:1], cache, kv_cache)
    same = (np.array_equal(found.token_ids, right.token_ids)
            and np.array_equal(found.confidence, right.confidence))
    assert same != planted


def fetched(array: Any, stream: Any) -> Array:
    host = np.empty(array.shape, array.dtype)
    device.copy_out(host, array, stream)
    stream.synchronize()
    return host


def unscaled_embedding(rig: DraftRig) -> None:
    network: Any = rig.drafter.network
    network._target.__dict__['embed_scale'] = 1.0


def tap_before_the_scalar(rig: DraftRig) -> None:
    network: Any = rig.drafter.network
    right, layers = network.tap, rig.model._layers
    network.tap = lambda layer, residual: right(layer, residual / np.float32(
        layers[layer].layer_scalar))


def one_key_too_many(rig: DraftRig) -> None:
    """The slot of the newest token still holds what was rejected."""
    inputs: Any = rig.drafter._inputs
    right = inputs.send

    def send(places: Any, records: Any) -> int:
        place: int = right([dataclasses.replace(place, position=place.position + 1)
                            for place in places], records)
        return place

    inputs.send = send


def rows_not_kept(rig: DraftRig) -> None:
    network: Any = rig.drafter.network
    right = network.keep
    network.keep = lambda normed, rows: right(normed, rows) if rows.prompt else None


@pytest.mark.parametrize(('kind', 'plant'), [
    ('dflash', unscaled_embedding), ('dflash', tap_before_the_scalar),
    ('dflash', one_key_too_many), ('dflash', rows_not_kept), ('mtp', unscaled_embedding),
    ('mtp', one_key_too_many), ('mtp', rows_not_kept)])
def test_a_planted_error_shows(kind: str, plant: Any, full: None, stream: Any) -> None:
    if not isinstance(stream, HostStream):
        pytest.skip('the faults are planted into arrays of the host')
    rig = DraftRig('dense', kind, stream, scalar=0.25)
    (ours, _), (exact, _), (rounded, _) = (device_logits(rig, plant), host_logits(rig, np.float64),
                                           host_logits(rig, np.float32))
    assert error(ours[:, :1], exact[:, :1]) > max(0.03, 4 * error(rounded[:, :1], exact[:, :1]))
