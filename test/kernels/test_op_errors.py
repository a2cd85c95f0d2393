# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""bench/op_errors.py: its measure, and each kind of case at a small size."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import Machine, from_bf16, normal, to_bf16

sys.path.append(str(Path(__file__).resolve().parents[2] / 'bench'))

import op_errors


def test_the_measure_leaves_one_rounding_out_and_sees_what_is_more() -> None:
    exact = normal(1, 5, 64).astype(np.float64) * 1.37
    rounded = from_bf16(to_bf16(exact))
    assert op_errors.excess(np, rounded, exact, np.abs(exact), op_errors.BF16) < 1e-7
    assert op_errors.excess(np, rounded, exact, np.abs(exact), op_errors.BF16 + 1) > 1e-4
    off = rounded.copy()
    off[3, 5] = from_bf16(to_bf16(exact) + np.uint16(1))[3, 5]   # the next number
    assert op_errors.excess(np, off, exact, np.abs(exact), op_errors.BF16) > 5e-4


def test_small_products(full: None, small: tuple[Any, Any]) -> None:
    for rows in (1, 9):
        assert op_errors.affine_sums(*small, (40, 192), 4, 64, rows)() < 4e-6
    for rows in (1, 9, 100):
        assert op_errors.nvfp4_rows(*small, (88, 144), rows)() < 4e-6


def test_small_rows_and_attention(full: None, machine: Machine) -> None:
    if not machine.small:
        pytest.skip('bench/op_errors.py runs on the device itself')
    for case in (op_errors.normed, op_errors.added, op_errors.gated):
        assert 0 <= case(machine, 256, 3)() < 1e-6
    assert op_errors.heads(machine, op_errors.appended.DEMO, 20)() < 1e-6
    for fp8 in (False, True):
        for rows in (op_errors.generated(machine, op_errors.decode.NARROW, fp8, 2, 130),
                     op_errors.prompted(machine, op_errors.decode.NARROW, fp8, 30, 20)):
            assert 1e-5 < rows() < 3e-3


def test_a_first_run_learns_the_kernels_and_launches_none(machine: Machine) -> None:
    if not machine.small:
        pytest.skip('bench/op_errors.py runs on the device itself')
    specs: dict[Any, None] = {}
    with op_errors.learning(specs):
        judge = op_errors.normed(machine, 256, 3)
    assert [spec.file for spec in specs] == ['rms_norm'] and np.isnan(judge())
