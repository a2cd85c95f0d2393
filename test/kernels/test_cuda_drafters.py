# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Drafters on the CUDA path: their drafts against the CPU's, and the same answers as without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draft_rig import DraftRig, Oracle, poisonable
from engine_gates import Answer, Job, differences, make_request, run, solo
from host_device import HostStream, any_stream
from test_cuda_model import CONTEXT, PAGE, TOKENS, D, P, Rig, batch, table

from gemma_thor_ros.models.drafter import DraftSpan, Taps
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings

Array = np.ndarray
# prompts of two sequences past the windows, then a verify step of which some rows are rejected
STEPS = [batch((P, 0, 0, 27), (P, 1, 0, 7), wanted=[26, 33]),
         batch((D, 0, 27, 4), (D, 1, 7, 3))]
PLACES = ((0, 29), (1, 10))              # sequence and newest token afterwards
NUM_DRAFTS = 5


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return any_stream(request, monkeypatch)


def spans(hidden: Any, temperature: float = 0.0) -> list[DraftSpan]:
    found = []
    for sequence, position in PLACES:
        pages = table(sequence)
        token = int(np.roll(TOKENS, sequence)[position])
        row = hidden(sequence, position - 1) if hidden else None
        found.append(DraftSpan(token, position, NUM_DRAFTS, pages, pages, row, SampleRow(
            SampleSettings(temperature=temperature, seed=3), position + 1)))
    return found


def device_logits(rig: DraftRig, temperature: float = 0.0) -> tuple[Array, Any]:
    """Logits (B, N, V) of a draft after STEPS, and the drafts."""
    kv_cache, cache = rig.caches()
    for step in STEPS:
        rig.model.forward(step, kv_cache)
    network: Any = rig.drafter.network
    found: list[Array] = []
    right = rig.drafter._picks.choose

    def choose(needs: Any, logits: Any, low: int) -> Any:
        found.append(np.array(logits.get() if hasattr(logits, 'get') else logits))
        return right(needs, logits, low)

    rig.drafter._picks.choose = choose   # type: ignore[method-assign]
    rig.drafter.graphs.enabled = False
    drafts = rig.drafter.draft(spans(None, temperature), cache, kv_cache)
    if rig.draft_config.name == 'dflash':
        return found[0].reshape(2, network.ids_stride, -1)[:, 1:NUM_DRAFTS + 1], drafts
    return np.stack(found, axis=1), drafts


def host_logits(rig: DraftRig, dtype: Any, temperature: float = 0.0) -> tuple[Array, Any]:
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
    drafts = drafter.draft(spans(lambda *place: rows[place], temperature), cache, kv_cache)
    if rig.draft_config.name == 'dflash':
        return found[0].reshape(2, NUM_DRAFTS, -1), drafts
    return np.stack(found, axis=1), drafts


def error(ours: Array, theirs: Array) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize(('kind', 'setting'), [
    ('dflash', 'auto'), ('dflash', 'causal'), ('dflash', 'bidirectional'), ('mtp', 'newest'),
    ('mtp', 'last_key')])
def test_drafts_are_those_of_the_cpu(kind: str, setting: str, stream: Any) -> None:
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
    lengths, sizes = (21, 3, 9, 1), (15, 10, 7, 12)
    return [Job(make_request(f'r{i}', lengths[i], seed + i, vocab_size=256,
                             temperature=temperature, max_tokens=sizes[i]), i)
            for i in range(count)]


def gate(name: str, kind: str, stream: Any, *, kv_dtype: str = 'bf16', temperature: float = 0.7,
         count: int = 2, num_drafts: int | None = 4, wrong_each: int = 5, seed: int = 0,
         plant: Any = None) -> tuple[list[str], DraftRig, dict[str, Answer]]:
    """Differences between drafted and plain answers, each of the latter alone."""
    todo = jobs(temperature, count, seed)
    plain = Rig(name, stream, kv_dtype).model
    poisonable(plain)
    whole = solo(plain, todo, **SETTINGS)
    rig = DraftRig(name, kind, stream, kv_dtype)
    poisonable(rig.model, rig.drafter)
    if isinstance(stream, HostStream):
        Oracle(rig, todo, whole, wrong_each)
    if plant is not None:
        plant(rig)
    found = run(rig.model, todo, drafter=rig.drafter, num_drafts=num_drafts, max_rows=16,
                prefill_chunk=13, **SETTINGS)
    return differences(found, whole, todo), rig, found


@pytest.mark.parametrize(('name', 'kind', 'kv_dtype', 'temperature'), [
    ('dense', 'dflash', 'fp8', 0.7), ('moe', 'mtp', 'bf16', 0.0)])
def test_drafted_is_plain(name: str, kind: str, kv_dtype: str, temperature: float,
                          stream: Any) -> None:
    lines, rig, found = gate(name, kind, stream, kv_dtype=kv_dtype, temperature=temperature)
    assert lines == []
    if isinstance(stream, HostStream):
        usages = [answer.usage for answer in found.values()]
        accepted = sum(usage.accepted_tokens for usage in usages)
        assert 6 <= accepted < sum(usage.drafted_tokens for usage in usages)
        assert rig.drafter.num_ahead_used >= 1
