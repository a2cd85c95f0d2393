# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The norms against float64, at the served widths and with all endings."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from machine import Array, Machine, error, from_bf16, normal, poisoned, to_bf16

from gemma_thor_ros.ops import rms_norm

EPS = 1e-6
WIDTHS = [256, 2816, 3840, 5376, 40]     # demo, 26B-A4B, 12B, 31B, one with idle lanes
ROWS = [1, 3, 16]
BF16_ERROR = 2.5e-3
F32_ERROR = 3e-7


def rms(x: Array, weight: Array) -> Array:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPS) * weight


class Rows:
    """Inputs of one call on the machine, and their values in float64."""

    def __init__(self, machine: Machine, num_rows: int, width: int, outputs: int) -> None:
        self.machine = machine
        shape = (num_rows, width)
        self.x, self.b = 3 * normal(1, *shape), normal(2, *shape)
        self.a = to_bf16(0.01 * normal(3, *shape))
        self.weights = [normal(4 + i, width) for i in range(3 + outputs)]
        self.on = [machine.put(weight) for weight in self.weights]
        self.out = [machine.put(poisoned(shape, 'bf16')) for _ in range(outputs)]
        self.residual = machine.put(self.x)

    def holds(self, residual: Array) -> None:
        """The new residual, and its norms."""
        assert error(self.machine.get(self.residual), residual) < F32_ERROR
        for out, weight in zip(self.out, self.weights[3:], strict=True):
            expected = rms(residual, weight)
            assert error(from_bf16(self.machine.get(out)), expected) < BF16_ERROR


@pytest.mark.parametrize('num_rows', ROWS)
@pytest.mark.parametrize('width', WIDTHS)
def test_norms_of_the_residual(machine: Machine, width: int, num_rows: int) -> None:
    rows = Rows(machine, num_rows, width, 3)
    machine.run(lambda: rms_norm.rms_norm(rows.out, rows.residual, rows.on[3:], EPS,
                                          machine.stream))
    rows.holds(rows.x.astype(np.float64))


@pytest.mark.parametrize('outputs', [0, 1, 3])
@pytest.mark.parametrize('width', WIDTHS)
@pytest.mark.parametrize('kind', ['bf16', 'f32'])
def test_a_branch_onto_the_residual(machine: Machine, width: int, outputs: int,
                                    kind: str) -> None:
    rows = Rows(machine, 3, width, outputs)
    branch = rows.a if kind == 'bf16' else rows.b
    value = from_bf16(rows.a) if kind == 'bf16' else rows.b.astype(np.float64)
    machine.run(lambda: rms_norm.rms_norm_add(
        rows.residual, rows.out, machine.put(branch), rows.on[0], rows.on[3:], EPS, 0.75,
        machine.stream))
    rows.holds((rows.x + rms(value, rows.weights[0])) * 0.75)


@pytest.mark.parametrize('width', [256, 2816])
def test_the_sum_of_two(machine: Machine, width: int) -> None:
    rows = Rows(machine, 7, width, 1)
    out = machine.put(poisoned(rows.x.shape, 'f32'))
    a, b = machine.put(rows.a), machine.put(rows.b)
    machine.run(lambda: rms_norm.rms_norm_sum(out, a, b, rows.on[0], rows.on[1], EPS,
                                              machine.stream))
    expected = rms(from_bf16(rows.a), rows.weights[0]) + rms(rows.b, rows.weights[1])
    assert error(machine.get(out), expected) < F32_ERROR
    machine.run(lambda: rms_norm.rms_norm_sum_add(
        rows.residual, rows.out, a, b, *rows.on[:3], rows.on[3:], EPS, 0.5, machine.stream))
    rows.holds((rows.x + rms(expected, rows.weights[2])) * 0.5)


@pytest.mark.parametrize('width', [256, 2816])
def test_a_branch_in_parts(machine: Machine, width: int) -> None:
    """Three parts have the bits of their sum, rounded to bf16."""
    rows, whole = (Rows(machine, 3, width, 1) for _ in range(2))
    parts = normal(30, 3, 3, width)
    summed = to_bf16((parts[:, 0] + parts[:, 1]) + parts[:, 2])
    b = machine.put(rows.b)
    for into, a in ((rows, parts), (whole, summed)):
        machine.run(lambda into=into, a=a: rms_norm.rms_norm_sum_add(
            into.residual, into.out, machine.put(a), b, *into.on[:3], into.on[3:], EPS, 0.5,
            machine.stream))
    assert np.array_equal(machine.get(rows.residual), machine.get(whole.residual))
    assert np.array_equal(machine.get(rows.out[0]), machine.get(whole.out[0]))


@pytest.mark.parametrize(('width', 'num_chosen'), [(256, 2), (2816, 8)])
def test_the_experts_sum(machine: Machine, width: int, num_chosen: int) -> None:
    rows = Rows(machine, 3, width, 1)
    ids = np.arange(3 * num_chosen, dtype=np.int32).reshape(3, -1)
    ids[1] = -1                                      # a padding row
    weights = np.abs(normal(20, 3, num_chosen)) + 0.1
    results = to_bf16(normal(21, 3, num_chosen, width))
    summed = (from_bf16(results) * weights[:, :, None]).sum(1)
    results[1], summed[1] = 0x7FC0, 0
    experts = machine.put(ids), machine.put(weights)
    machine.run(lambda: rms_norm.rms_norm_sum_add(
        rows.residual, rows.out, machine.put(rows.a), machine.put(results), *rows.on[:3],
        rows.on[3:], EPS, 1.0, machine.stream, experts))
    expected = rms(from_bf16(rows.a), rows.weights[0]) + rms(summed, rows.weights[1])
    rows.holds(rows.x + rms(expected, rows.weights[2]))


@pytest.mark.parametrize('width', [256, 2816])
def test_a_row_has_the_same_bits_alone(machine: Machine, width: int) -> None:
    rows = Rows(machine, 16, width, 1)
    experts = (machine.put(np.zeros((16, 2), np.int32)), machine.put(normal(22, 16, 2)))
    results = machine.put(to_bf16(normal(23, 16, 2, width)))
    a, alone = machine.put(rows.a), machine.put(rows.x)
    alone_out = machine.put(poisoned(rows.x.shape, 'bf16'))

    def run(residual: Any, out: Any, part: slice) -> None:
        rms_norm.rms_norm_sum_add(
            residual[part], [out[part]], a[part], results[part], *rows.on[:3], rows.on[3:], EPS,
            1.0, machine.stream, (experts[0][part], experts[1][part]))

    machine.run(partial(run, rows.residual, rows.out[0], slice(0, 16)))
    for row in range(16):
        machine.run(partial(run, alone, alone_out, slice(row, row + 1)))
    assert np.array_equal(machine.get(rows.residual), machine.get(alone))
    assert np.array_equal(machine.get(rows.out[0]), machine.get(alone_out))
