# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The drafters' own kernels against NumPy in float64, outputs poisoned."""

from __future__ import annotations

import numpy as np
import pytest
from machine import Array, Machine, error, from_bf16, normal, poisoned, to_bf16

from gemma_thor_ros.ops import (
    draft_attention,
    draft_heads,
    draft_pick,
    gemm_bf16,
    kv_append,
    slot_copy,
)
from gemma_thor_ros.ops.geglu import geglu_ref
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings, pack_rows
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.ops.swiglu import swiglu_ref

LIMIT = 6e-3


def attended(qkv: Array, k: Array, v: Array, start: int, kv_heads: int, group: int,
             window: int | None, causal: bool) -> Array:
    """(T, Q, D) for one sequence: k and v (keys, KV, D) of its context."""
    rows, dim = qkv.shape[0], k.shape[2]
    heads = qkv.reshape(rows, -1, dim)
    split = kv_heads * group
    k = np.concatenate([k, heads[:, split:split + kv_heads]])
    v = np.concatenate([v, heads[:, split + kv_heads:]])
    behind = start + np.arange(rows)[:, None] - np.arange(start + rows)
    seen = np.ones(behind.shape, np.bool_)
    if causal:
        seen &= behind >= 0
    if window:
        seen &= behind < window
    out = np.empty((rows, split, dim))
    for head in range(split):
        scores = np.where(seen, heads[:, head] @ k[:, head // group].T, -np.inf)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        out[:, head] = shares @ v[:, head // group] / shares.sum(1, keepdims=True)
    return out


@pytest.mark.parametrize(('dim', 'kv_heads', 'group', 'block', 'window', 'causal', 'starts'), [
    (128, 1, 4, 16, None, False, (70,)), (128, 2, 8, 16, 70, True, (200, 0)),
    (16, 1, 1, 3, None, True, (2500,)), (64, 1, 3, 5, 9, False, (64, 63, 1)),
    (128, 8, 4, 16, 2048, True, (1024,))])
@pytest.mark.parametrize('planted', [False, True])
def test_attention(dim: int, kv_heads: int, group: int, block: int, window: int | None,
                   causal: bool, starts: tuple[int, ...], planted: bool, grid: bool,
                   machine: Machine) -> None:
    if machine.small and not grid and (planted or max(starts) > 70 or kv_heads > 1):
        pytest.skip('part of make grid on the emulator')
    page, count, num = 16, len(starts), -(-max(starts) // 16) + 1
    order = np.random.default_rng(1).permutation(count * num).astype(np.int32)
    table = order.reshape(count, num)
    qkv = to_bf16(normal(2, count * block, (group + 2) * kv_heads * dim) * 0.3)
    pages = [to_bf16(normal(seed, count * num, page, kv_heads, dim)) for seed in (3, 4)]
    expected = []
    for b, start in enumerate(starts):
        k, v = (from_bf16(part)[table[b]].reshape(-1, kv_heads, dim)[:start] for part in pages)
        expected.append(attended(from_bf16(qkv[b * block:(b + 1) * block]), k, v, start, kv_heads,
                                 group, window, causal))
    for part in pages:                   # what no row may see is not a number
        for b, start in enumerate(starts):
            slots = part[table[b]].reshape(-1, kv_heads, dim)
            slots[start:] = 0x7FC0
            slots[:max(0, start - window + 1) if window else 0] = 0x7FC0
            part[table[b]] = slots.reshape(num, page, kv_heads, dim)
    out = machine.put(poisoned((count * block, group * kv_heads, dim), 'bf16'))
    scratch = draft_attention.DraftScratch.make(
        lambda shape, dtype: machine.put(np.full(shape, np.nan, dtype)), count * block,
        group * kv_heads, dim)
    at = np.array(starts, np.int32) + planted            # one key too many: not a number
    machine.run(lambda: draft_attention.draft_attention(
        out, machine.put(qkv), machine.put(pages[0]), machine.put(pages[1]), scratch,
        machine.put(table), machine.put(at), window, causal, machine.stream))
    found = error(from_bf16(machine.get(out)), np.concatenate(expected))
    assert (found < LIMIT) != planted, found


@pytest.mark.parametrize(('dim', 'pairs', 'k_heads', 'offset'), [(128, 64, 2, 0), (512, 64, 0, -1),
                                                                 (256, 128, 0, 0)])
def test_heads(dim: int, pairs: int, k_heads: int, offset: int, machine: Machine) -> None:
    starts, q_heads, rows = np.array([9, 100], np.int32), 3, 2
    numbers = to_bf16(normal(5, 4, (q_heads + 2 * k_heads) * dim))
    norms = 1 + normal(6, 2, dim) / 8
    heads = machine.put(numbers)
    machine.run(lambda: draft_heads.draft_heads(
        heads, machine.put(norms[0]), machine.put(norms[1]),
        machine.put(kv_append.rope_turns(1e6, dim, pairs)), machine.put(starts),
        num_q_heads=q_heads, num_k_heads=k_heads, offset=offset, eps=1e-6, q_scale=0.125,
        stream=machine.stream))
    at = (starts[:, None] + np.arange(rows) + offset).ravel()
    cos, sin = kv_append.rope_table(at, 1e6, dim, pairs, np.float64)
    wide = from_bf16(numbers).reshape(4, -1, dim)
    expected = wide.copy()
    for low, high, norm, scale in ((0, q_heads, norms[0], 0.125),
                                   (q_heads, q_heads + k_heads, norms[1], 1.0)):
        if low < high:
            expected[:, low:high] = scale * kv_append.norm_rope_ref(
                wide[:, low:high], norm, cos, sin, 1e-6, scratch=Scratch(np.float64))
    assert error(from_bf16(machine.get(heads)), expected.reshape(4, -1)) < LIMIT


@pytest.mark.parametrize('rows', [1, 3, 16, 17])
@pytest.mark.parametrize('gate', ['gelu', 'silu'])
def test_gated_product(rows: int, gate: gemm_bf16.Gate, machine: Machine) -> None:
    x, weight = to_bf16(normal(7, rows, 200)), to_bf16(normal(8, 2 * 40, 200) / 8)
    out = machine.put(poisoned((rows, 40), 'bf16'))
    machine.run(lambda: gemm_bf16.gated_bf16(out, machine.put(x), machine.put(weight), gate,
                                             machine.stream))
    expected = np.empty((rows, 40))
    products = from_bf16(x) @ from_bf16(weight).T
    (geglu_ref if gate == 'gelu' else swiglu_ref)(expected, products)
    assert error(from_bf16(machine.get(out)), expected) < 2 * LIMIT


def test_each_run_has_its_own_place(machine: Machine) -> None:
    """The host may fill the next one before a run begins; five runs go round."""
    slots, size = slot_copy.SLOTS, 5 * 16
    given = np.random.default_rng(21).integers(0, 256, (slots + 1, size)).astype(np.uint8)
    inputs, results = machine.put(given[:slots]), machine.put(np.zeros((slots, size), np.uint8))
    state, own = machine.put(np.zeros(1, np.uint32)), machine.put(np.zeros(size, np.uint8))
    for run in range(slots + 1):
        if run == slots:
            machine.run(lambda: inputs.__setitem__(0, machine.put(given[slots])))
        machine.run(lambda: slot_copy.slot_copy('slot_in', own, inputs, state, size - 16,
                                                machine.stream))
        found = machine.get(own)
        assert np.array_equal(found[:-16], given[run, :-16]) and not found[-16:].any()
        machine.run(lambda: slot_copy.slot_copy('slot_out', results, own, state, size,
                                                machine.stream))
        assert np.array_equal(machine.get(results)[run % slots], found)
    assert int(machine.get(state)[0]) == slots + 1
    assert np.array_equal(machine.get(results)[1:, :-16], given[1:slots, :-16])


def test_starts(machine: Machine) -> None:
    """All kept, none, two of three, one row alone, and a place without a sequence."""
    tokens = np.array([2, 3, 4, 9, 1, 6, 5, 7, 0, 8], np.int32)
    ids = np.array([1, 2, 3, 5, 5, 7, 6, 5, 4, 3], np.int32)
    spans = np.array([[0, 3, 10, 0], [3, 2, 40, 0], [5, 4, 7, 0], [9, 1, 3, 0], [0, 0, 0, 0]],
                     np.int32)
    records = pack_rows([SampleRow(SampleSettings(), 0)] * 15, 64).records
    layout = draft_pick.RecordLayout(3, 1, 3, 1)
    found = [machine.put(poisoned(shape, 'i32')) for shape in ((10,), (5,), (5, 2), (5, 4))]
    placed = machine.put(records)
    machine.run(lambda: draft_pick.draft_accept(
        *found, placed, machine.put(ids), machine.put(tokens), machine.put(spans), layout,
        machine.stream))
    draft_ids, starts, newest, draft_spans = (machine.get(array) for array in found)
    right = draft_pick.draft_accept_ref(ids, tokens, spans)
    assert right.tolist() == [[4, 13], [9, 41], [7, 10], [8, 4], [-1, 0]]
    assert np.array_equal(newest, right) and np.array_equal(starts, right[:, 1])
    assert np.array_equal(draft_ids.reshape(5, 2), np.stack([right[:, 0], [-7] * 5], axis=1))
    assert draft_spans[:4, :3].tolist() == [[b, 1, right[b, 1] - 1] for b in range(4)]
    assert draft_spans[4, 1] == 0
    places = machine.get(placed)[:, 44:48].copy().view(np.int32).ravel()
    assert np.array_equal(places, (right[:, 1:] + 1 + np.arange(3)).ravel())


@pytest.mark.parametrize('planted', [False, True])
def test_confidence(planted: bool, machine: Machine) -> None:
    logits, tokens = 4 * normal(9, 3, 1000), np.array([7, 999, -1], np.int32)
    temperatures = (0.0, 0.5, 2.0)
    records = pack_rows([SampleRow(SampleSettings(temperature=t), 0) for t in temperatures],
                        1000).records
    confidence = machine.put(poisoned((3,), 'f32'))
    shares = machine.put(poisoned((3, draft_pick.PARTS), 'f32'))
    tickets = machine.put(np.zeros(3, np.uint32))
    machine.run(lambda: draft_pick.draft_confidence(
        confidence, (shares, tickets), machine.put(logits), machine.put(tokens),
        machine.put(records), machine.stream))
    assert not machine.get(tickets).any()
    expected = draft_pick.draft_confidence_ref(
        logits, tokens, np.array((0.0, 1.0, 2.0) if planted else temperatures))
    assert (error(machine.get(confidence), expected) < 1e-5) != planted
