# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The device's sampler chooses the twin's token, for every setting and any logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from machine import Array, Machine, poisoned

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.ops import sample as op

VOCAB = 262144                           # of the real models


def choose(machine: Machine, logits: Array, rows: Sequence[op.SampleRow],
           needs: op.Needs | None = None) -> Array:
    """Tokens by the device, errors as their negative codes; needs: other than the rows' own."""
    packed = op.pack_rows(rows, logits.shape[1])
    on = [machine.put(a) for a in (packed.records, packed.ids, packed.values, packed.masks)]
    sizes = op.scratch_sizes(*logits.shape)
    kinds = (np.uint32, np.uint64, np.uint64)
    scratch = [machine.put(np.full(size, 0xA5A5A5A5, kind))
               for size, kind in zip(sizes, kinds, strict=True)]
    tokens = machine.put(poisoned((logits.shape[0],), 'i32'))
    on_device = machine.put(logits)
    machine.run(lambda: op.sample(tokens, on_device, (on[0], on[1], on[2], on[3]),
                                  (scratch[0], scratch[1], scratch[2]), machine.stream,
                                  needs or packed.needs))
    return machine.get(tokens)


def expected(logits: Array, rows: Sequence[op.SampleRow]) -> list[int]:
    """Tokens by the twin."""
    tokens = []
    with np.errstate(all='ignore'):
        for row_logits, row in zip(logits, rows, strict=True):
            try:
                tokens.append(op.sample_row(row_logits, row))
            except op.SampleError as error:
                words = str(error)
                tokens.append(-1 if 'NaN' in words else -2 if 'masked' in words else -3)
    return tokens


def random_row(random: np.random.Generator, vocab_size: int) -> op.SampleRow:
    """Settings from all corners."""

    def ids(most: int) -> Array:
        count = random.integers(0, min(vocab_size, most) + 1)
        return random.permutation(vocab_size)[:count].astype(np.int64)

    def one_of(*values: Any) -> Any:
        return values[random.integers(len(values))]

    bias, counted = ids(5), ids(40)
    settings = op.SampleSettings(
        temperature=one_of(0.0, 0.1, 0.7, 1.0, 1.0, 3.0, 1e30, 1e-37),
        min_p=one_of(0.0, 0.05, 1.0),
        top_k=one_of(0, 0, 1, 5, 64, 256, 300, 2000), top_p=one_of(1.0, 0.95, 0.5, 0.0, 0.999999),
        repetition_penalty=one_of(1.0, 1.3), presence_penalty=one_of(0.0, 0.7),
        frequency_penalty=one_of(0.0, 0.3), seed=int(random.integers(0, 2 ** 63)) * 2 + 1,
        choice=int(random.integers(0, 2 ** 32)), bias_ids=bias,
        bias_values=(5 * random.standard_normal(bias.size)).astype(np.float32))
    allowed = None
    if random.random() < 0.3:
        allowed = random.random(vocab_size) < one_of(0.5, 0.01, 0.0)
    return op.SampleRow(settings, int(random.integers(0, 1 << 18)), ids(4), ids(50), counted,
                        random.integers(1, 5, counted.size).astype(np.float32), allowed)


def random_logits(random: np.random.Generator, num_rows: int, vocab_size: int) -> Array:
    """Flat, peaked, tied; now and then something broken."""
    logits = random.standard_normal((num_rows, vocab_size))
    logits *= (0.01, 1.0, 5.0, 12.0)[random.integers(4)]
    kind = random.integers(0, 4)
    if kind == 1:
        logits = np.round(logits)        # ties, and both zeros
    if kind == 2:
        logits[:, random.integers(0, vocab_size, 3)] += 20
    for broken in (np.nan, np.inf):
        if random.random() < 0.1:
            logits[0, random.integers(0, vocab_size)] = broken
    if random.random() < 0.1:
        logits[0] = -np.inf
    return logits.astype(np.float32)


@pytest.mark.parametrize('seed', range(12))
def test_any_setting_on_any_logits(machine: Machine, seed: int) -> None:
    random = np.random.default_rng(seed)
    for vocab_size in (4, 300, 1000, 4096, 33000):
        for _ in range(1 if machine.small else 20):
            num_rows = int(random.integers(1, 4))
            logits = random_logits(random, num_rows, vocab_size)
            rows = [random_row(random, vocab_size) for _ in range(num_rows)]
            assert choose(machine, logits, rows).tolist() == expected(logits, rows)


@pytest.mark.parametrize('settings', [
    {'temperature': 0.0}, {}, {'top_k': 64, 'top_p': 0.95}, {'top_p': 0.95},
    {'top_p': 0.95, 'temperature': 0.6, 'min_p': 0.02}, {'top_k': 5000, 'top_p': 0.9}])
def test_the_real_vocabulary(machine: Machine, settings: dict[str, Any]) -> None:
    """Logits as a soft cap leaves them, with every path of the sampler."""
    random = np.random.default_rng(1)
    num_rows = 1 if machine.small else 16
    logits = random.standard_normal((num_rows, VOCAB)) * 3
    logits[:, random.permutation(VOCAB)[:40]] += 12
    logits = (30 * np.tanh(logits / 30)).astype(np.float32)
    rows = [op.SampleRow(op.SampleSettings(**settings, seed=9, choice=i), 100 + i)
            for i in range(num_rows)]
    assert choose(machine, logits, rows).tolist() == expected(logits, rows)


def test_a_row_is_the_same_alone(machine: Machine) -> None:
    random = np.random.default_rng(2)
    logits = (4 * random.standard_normal((16, 4096))).astype(np.float32)
    rows = [random_row(random, 4096) for _ in range(16)]
    together = choose(machine, logits, rows)
    for i in range(0, 16, 5 if machine.small else 1):
        assert choose(machine, logits[i:i + 1], rows[i:i + 1])[0] == together[i]


def tied_rows(seed: int) -> tuple[Array, list[op.SampleRow]]:
    """Logits of few different values, and settings whose cuts fall among equal ones."""
    random = np.random.default_rng(seed)
    logits = np.round(2 * random.standard_normal((4, 4096))).astype(np.float32) / 2
    pairs = ((0, 0.9), (300, 1.0), (300, 0.7), (2000, 0.95))
    return logits, [op.SampleRow(op.SampleSettings(top_k=k, top_p=p, seed=seed, temperature=t), 5)
                    for (k, p), t in zip(pairs, (1.0, 3.0, 0.5, 2.0), strict=True)]


def few_ids(seed: int) -> tuple[Array, list[op.SampleRow]]:
    """So few ids that one more or less shows in some of the rows."""
    random = np.random.default_rng(seed)
    logits = random.integers(0, 2, (48, 12)).astype(np.float32)
    return logits, [op.SampleRow(op.SampleSettings(top_p=0.1 + 0.8 * random.random(), seed=i), 3)
                    for i in range(48)]


def test_cuts_among_equal_values(machine: Machine) -> None:
    logits, rows = few_ids(0)
    assert choose(machine, logits, rows).tolist() == expected(logits, rows)
    for seed in range(3 if machine.small else 40):
        logits, rows = tied_rows(seed)
        want = expected(logits, rows)
        assert choose(machine, logits, rows).tolist() == want
        # launches that no row needs change nothing
        assert choose(machine, logits, rows, op.Needs()).tolist() == want


@pytest.mark.parametrize(('right', 'wrong'), [
    ('s.extra = (weight - s.goal) * mass;', 's.extra = 0;'),
    ('(s.goal + mass - 1) / mass', '(s.goal + mass - 1) / mass + 1'),
    ('digit == 1 ? 10 : 0', 'digit == 1 ? 11 : 0'),
    ('own < s.cut_key) continue', 'own <= s.cut_key) continue')])
def test_planted_errors_in_the_search_are_seen(machine: Machine, monkeypatch: pytest.MonkeyPatch,
                                               right: str, wrong: str) -> None:
    if not machine.small:
        pytest.skip('the faults are planted into the source that the emulator compiles')
    original = compiler.kernel_source
    assert right in original('sample_search')
    monkeypatch.setattr(compiler, 'kernel_source',
                        lambda name: original(name).replace(right, wrong))
    cases = [few_ids(0), *(tied_rows(seed) for seed in range(8))]
    assert any(choose(machine, *case).tolist() != expected(*case) for case in cases)


def test_the_noise_is_the_twins(machine: Machine) -> None:
    """Flat logits: the token is the noise's own argmax, so that any wrong bit shows."""
    logits = np.zeros((64, 4096), np.float32)
    rows = [op.SampleRow(op.SampleSettings(seed=i * 0x123456789ABCDEF, choice=i % 3), 7 * i)
            for i in range(64)]
    tokens = choose(machine, logits, rows)
    assert tokens.tolist() == expected(logits, rows)
    assert len(set(tokens.tolist())) > 50


def test_a_step_becomes_the_next_one(machine: Machine) -> None:
    """Four steps of two sequences and a row of padding, from inputs that were sent once."""
    random = np.random.default_rng(4)
    settings = [op.SampleSettings(seed=3), op.SampleSettings(top_k=20), op.SampleSettings()]
    packed = op.pack_rows([op.SampleRow(each, 40 + i) for i, each in enumerate(settings)], 1024)
    packed.records.view(op._RECORD)['turn'] = 2
    start = np.full((7, op.RESULT_ROWS), -1, np.int32)
    start[1, :2], start[2, :2] = (0, 1), (39, 40)
    start[3:].reshape(-1, 4)[:2] = [[0, 1, 39, 0], [1, 1, 40, 0]]
    control, records, ids, values, masks = (machine.put(array) for array in (
        start, packed.records, packed.ids, packed.values, packed.masks))
    # on a device, too: what matters is the place of each token
    results = machine.put(np.full((op.TURNS, op.RESULT_ROWS), -7, np.int32))
    tokens = machine.put(np.zeros(3, np.int32))
    scratch = tuple(machine.put(np.zeros(size, kind)) for size, kind in zip(
        op.scratch_sizes(3, 1024), (np.uint32, np.uint64, np.uint64), strict=True))
    for step in range(4):
        logits = random.standard_normal((3, 1024)).astype(np.float32)
        rows = [op.SampleRow(each, 40 + i + step) for i, each in enumerate(settings)]
        on_device = machine.put(logits)
        machine.run(lambda on_device=on_device: op.sample(      # type: ignore[misc]
            tokens, on_device, (records, ids, values, masks), (scratch[0], scratch[1], scratch[2]),
            machine.stream, packed.needs, results, control))
        want = expected(logits, rows)
        found = machine.get(results)
        assert found[(2 + step) % op.TURNS, :3].tolist() == want
        assert (found[(3 + step) % op.TURNS] == -7).all() == (step < 3)
        moved = machine.get(control)
        assert moved[0].tolist() == [*want[:2], *[-1] * 14]
        assert moved[2].tolist() == [40 + step, 41 + step, *[-1] * 14]
        assert moved[3:].reshape(-1, 4)[:3].tolist() == [
            [0, 1, 40 + step, 0], [1, 1, 41 + step, 0], [-1] * 4]
        assert np.array_equal(moved[1], start[1])


def test_a_row_without_a_token_raises() -> None:
    op.check_tokens(np.array([3, 0], np.int32))
    for code, words in ((-1, 'NaN'), (-2, 'masked'), (-3, 'infinity')):
        with pytest.raises(op.SampleError, match=words):
            op.check_tokens(np.array([3, code], np.int32))
