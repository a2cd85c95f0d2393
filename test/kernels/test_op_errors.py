# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""bench/op_errors.py: its measure, and each kind of case at a small size."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machine import Array, Machine, from_bf16, normal, to_bf16

sys.path.append(str(Path(__file__).resolve().parents[2] / 'bench'))

import attention_bound
import attention_errors
import op_errors


def test_the_measure_leaves_one_rounding_out_and_sees_what_is_more() -> None:
    exact = normal(1, 5, 64).astype(np.float64) * 1.37
    rounded = from_bf16(to_bf16(exact))
    assert op_errors.excess(np, rounded, exact, np.abs(exact), op_errors.BF16) < 1e-7
    assert op_errors.excess(np, rounded, exact, np.abs(exact), op_errors.BF16 + 1) > 1e-4
    off = rounded.copy()
    off[3, 5] = from_bf16(to_bf16(exact) + np.uint16(1))[3, 5]   # the next number
    assert op_errors.excess(np, off, exact, np.abs(exact), op_errors.BF16) > 5e-4
    # just below a power of two, and what may be added leads beyond it, where steps are longer
    below, above = np.array([1 - 2.0**-12]), np.array([1 + 2.0**-7])
    for allowed, least, most in ((2.0**-8 + 2.0**-12, 0, 1e-7), (2.0**-8, 1e-4, 3e-4)):
        found = op_errors.excess(np, above, below, np.ones(1), op_errors.BF16, allowed)
        assert least <= found <= most


def test_small_products(full: None, small: tuple[Any, Any]) -> None:
    for rows in (1, 9):
        assert op_errors.affine_sums(*small, (40, 192), 4, 64, rows)() < 4e-6
    for rows in (1, 9, 100):
        assert op_errors.nvfp4_rows(*small, (88, 144), rows)() < 4e-6


def test_small_rows(full: None, machine: Machine) -> None:
    if not machine.small:
        pytest.skip('bench/op_errors.py runs on the device itself')
    for case in (op_errors.normed, op_errors.added, op_errors.gated, op_errors.embedded,
                 op_errors.capped):
        assert 0 <= case(machine, 256, 3)() < op_errors.ROUNDED
    assert op_errors.heads(machine, op_errors.appended.DEMO, 20)() < op_errors.ROUNDED


@pytest.mark.parametrize('fp8', [False, True])
def test_generated_rows_and_planted_errors(machine: Machine, fp8: bool,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """One key's K or V 1e-4 too large, probabilities rounded twice, not, or by another maximum."""
    if not machine.small:
        pytest.skip('bench/op_errors.py runs on the device itself')
    shape = attention_errors.decode.NARROW
    judge = attention_errors.generated(machine, shape, fp8, 16, (15, 130, 200))
    right = judge()
    assert right.beyond < 1e-6 and right.slack < 1e-5
    assert 1e-3 < right.norm < 2e-3 and 5e-4 < right.open_share < (0.03 if fp8 else 0.003)
    _, keys = attention_errors.pages_of(shape, fp8, 1024)
    for part in (keys.k, keys.v):
        for key in (0, 65):
            kept = part[0, key].copy()
            part[0, key] *= 1 + 1e-4
            assert judge().beyond > 2e-5, key
            part[0, key] = kept
    rounding = attention_bound.rounding

    def twice(shares: Array, bits: int) -> tuple[Array, Array, Array]:
        step, _, gap = rounding(shares, bits)
        return step, rounding(rounding(shares, bits + 2)[1], bits)[1], gap

    def never(shares: Array, bits: int) -> tuple[Array, Array, Array]:
        step, _, gap = rounding(shares, bits)
        return step, shares.copy(), gap

    for planted in (twice, never):
        with monkeypatch.context() as patch:
            patch.setattr(attention_bound, 'rounding', planted)
            assert judge().beyond > 5e-5, planted.__name__
    with monkeypatch.context() as patch:
        patch.setattr(attention_errors.attention_decode, 'chunk_of', lambda key, window: 0)
        assert judge().beyond > 5e-5
    assert judge() == right


@pytest.mark.parametrize('fp8', [False, True])
def test_other_forms_of_attention(machine: Machine, fp8: bool, grid: bool) -> None:
    if not machine.small:
        pytest.skip('bench/op_errors.py runs on the device itself')
    narrow, full = attention_errors.decode.NARROW, attention_errors.decode.DEMO_FULL
    judges = [attention_errors.prompted(machine, narrow, fp8, 20, (30,))]
    if grid:
        judges += [
            attention_errors.prompted(machine, full, fp8, 9, (0, 60)),
            attention_errors.prompted(machine, narrow, fp8, 20, (30,), sees_block=True),
            *(attention_errors.pictured(machine, narrow, fp8, bool(case), case)
              for case in range(2)),
            attention_errors.appended(machine, narrow, fp8, True, 70),
            attention_errors.generated(machine, full, fp8, 3, (2, 64, 130)),
            attention_errors.looked(machine, 1, 72, 65, (0,)),
            attention_errors.looked(machine, 2, 24, 150, (0, 1)),
            *(attention_errors.drafted(machine, draft, 70) for draft in (
                attention_errors.Draft(128, 1, 4, 16, None, False),
                attention_errors.Draft(64, 1, 3, 5, 9, True)))]
    for judge in judges:
        assert judge().beyond < 2e-6


def test_prompts_by_wgmma(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles of its own; planted: the maxima of other tiles."""
    if not machine.small:
        pytest.skip('bench/op_errors.py runs on the device itself')
    op = attention_errors.prefill_attention_wgmma
    monkeypatch.setattr(op, 'serves', lambda *_: True)
    judge = attention_errors.prompted(machine, attention_errors.prompts_wgmma.EIGHT, True, 3,
                                      (140,))
    assert judge().beyond < 2e-6
    monkeypatch.setattr(op, 'TILE', 32)
    assert judge().beyond > 5e-5


def test_the_float64_roundings_are_those_of_the_types() -> None:
    shares = np.exp(-12 * np.abs(normal(1, 5000)).astype(np.float64))
    shares[0] = 1
    step, bf16, gap = attention_bound.rounding(shares, 8)
    assert np.array_equal(bf16, from_bf16(to_bf16(shares)))
    assert np.array_equal(attention_bound.rounding(shares, 11)[1],
                          (shares * 2.0**15).astype(np.float16).astype(np.float64) / 2.0**15)
    for way in (-1, 1):                  # just short of the tie, and just behind it
        tie = shares + np.where(bf16 < shares, gap, -gap)
        near = attention_bound.rounding(tie + way * 1e-6 * step, 8)[1]
        assert np.isin(near - bf16, [0, *np.unique(step), *-np.unique(step)]).all()
    tops = np.array([[3.0, 1, 5, -np.inf, 2]])
    assert attention_bound.running_maxima(tops, (0, 0, 1, 1, 2)).tolist() == [[3, 3, 5, 5, 2]]
    assert attention_bound.running_maxima(tops, (0, 1, 0, 1, 0)).tolist() == [[3, 1, 5, 1, 5]]


def test_every_served_shape_and_edge_is_a_case(machine: Machine) -> None:
    found = [context for context, _ in attention_errors.served(machine)]
    for name in attention_errors.GEOMETRIES:
        for kv in ('bf16', 'fp8'):
            own = [each for each in found if each.get('layer') == name and each.get('kv') == kv]
            rows = {(each['op'], each['rows']) for each in own}
            assert {('attention_decode', count) for count in (1, 2, 7, 16)} <= rows
            assert {('prefill_attention', count) for count in (1, 17, 65, 129)} <= rows
            assert ('attention_append', 1) in rows
    assert {each['op'] for each in found} == {
        'attention_decode', 'attention_append', 'prefill_attention', 'vision_attention',
        'draft_attention'}


def test_a_first_run_learns_the_kernels_and_launches_none(machine: Machine) -> None:
    if not machine.small:
        pytest.skip('bench/op_errors.py runs on the device itself')
    specs: dict[Any, None] = {}
    with op_errors.learning(specs):
        judge = op_errors.normed(machine, 256, 3)
    assert [spec.file for spec in specs] == ['rms_norm'] and np.isinf(judge())


def test_figures_are_recorded_beside_their_limits(capsys: pytest.CaptureFixture[str],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """And a case that raises is counted, not hidden."""
    monkeypatch.setattr(op_errors.kernels, 'compile_together', lambda specs: None)
    records: list[dict[str, Any]] = []

    def record(metric: str, value: float, unit: str, fraction: float | None,
               **context: Any) -> None:
        records.append({'unit': unit, 'fraction': fraction, **context})

    def broken() -> Any:
        raise ValueError('no device')

    bench: Any = SimpleNamespace(record=record)
    verdict = attention_errors.Verdict(2e-5, 1e-6, 0.01, 1e-3)
    found = [({'op': 'a'}, lambda: lambda: verdict), ({'op': 'b'}, broken),
             ({'op': 'c', 'scores': 'times 3'}, lambda: lambda: verdict)]
    assert op_errors.run(bench, found, op_errors.shares) == 1
    assert [each['fraction'] for each in records] == [2.0, None, None, None]
    assert records[0]['open_share'] == 0.01 and records[1]['unit'] == op_errors.NORM
    assert 'ABOVE 1e-05' in capsys.readouterr().out
    assert op_errors.run(bench, [({'op': 'd'}, 4e-6, lambda: lambda: 1e-6)], op_errors.sums) == 0
    assert records[-1]['fraction'] == 0.25
