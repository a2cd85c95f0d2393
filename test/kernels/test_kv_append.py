# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Norms, rope and the write of K and V against the twin in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from machine import Array, Machine, error, from_bf16, normal, poisoned, to_bf16

from gemma_thor_ros.ops import kv_append
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.weights.number_formats import E4M3_VALUES

EPS = 1e-6


@dataclass(frozen=True)
class Geometry:
    head_dim: int
    num_q_heads: int
    num_kv_heads: int
    has_v: bool
    num_pairs: int
    theta: float


SLIDING = Geometry(256, 16, 8, True, 128, 1e4)           # 26B-A4B
FULL = Geometry(512, 16, 2, False, 64, 1e6)
DEMO = Geometry(256, 4, 2, True, 128, 1e4)
DEMO_FULL = Geometry(512, 4, 1, False, 64, 1e6)
FULL_WITH_V = Geometry(512, 8, 2, True, 64, 1e6)
PARTIAL = Geometry(256, 4, 1, False, 32, 1e4)


class Step:
    """Rows at positions up to `far`, the second one padding, of two sequences with mixed pages."""

    def __init__(self, shape: Geometry, num_rows: int, page_size: int, far: int) -> None:
        self.shape, self.page_size = shape, page_size
        heads = shape.num_q_heads + shape.num_kv_heads * (2 if shape.has_v else 1)
        self.qkv = to_bf16(3 * normal(1, num_rows, heads * shape.head_dim))
        self.q_norm, self.k_norm = (np.abs(normal(2 + i, shape.head_dim)) + 0.2 for i in range(2))
        self.sequences = np.arange(num_rows, dtype=np.int32) % 2
        self.sequences[1:2] = -1
        self.positions = far - np.arange(num_rows, dtype=np.int32)
        num_pages = far // page_size + 1
        self.table = np.full((2, num_pages), -1, np.int32)
        used = np.unique(self.positions // page_size)
        ids = np.random.default_rng(4).permutation(2 * used.size + 1).astype(np.int32)
        self.table[0, used], self.table[1, used] = ids[:used.size], ids[used.size:-1]
        self.num_pages = 2 * used.size + 1
        self.rows = np.flatnonzero(self.sequences >= 0)
        self.pages = self.table[self.sequences[self.rows], self.positions[self.rows] // page_size]
        self.slots = self.positions[self.rows] % page_size
        self.inverse = np.abs(normal(5, 2, shape.num_kv_heads)) + 0.5

    def run(self, machine: Machine, fp8: bool, rows: slice | None = None,
            ) -> tuple[Array, Array, Array]:
        """q, k_pages and v_pages of these rows (default all), poisoned before."""
        rows = rows or slice(None)
        shape = self.shape
        size = (self.num_pages, self.page_size, shape.num_kv_heads, shape.head_dim)
        pages = [machine.put(np.full(size, 0x7F, np.uint8) if fp8 else poisoned(size, 'bf16'))
                 for _ in range(2)]
        num_rows = self.qkv[rows].shape[0]
        q = machine.put(poisoned((num_rows, shape.num_q_heads, shape.head_dim), 'bf16'))
        turns = kv_append.rope_turns(shape.theta, shape.head_dim, shape.num_pairs)
        put = machine.put
        machine.run(lambda: kv_append.kv_append(
            q, *pages, put(self.qkv[rows]), put(self.q_norm), put(self.k_norm), put(turns),
            put(self.sequences[rows]), put(self.positions[rows]), put(self.table),
            (put(self.inverse[0]), put(self.inverse[1])), EPS, machine.stream))
        return machine.get(q), machine.get(pages[0]), machine.get(pages[1])

    def expected(self) -> tuple[Array, Array, Array]:
        """The same by the twin: q (T, Q, D), and K and V of the real rows."""
        shape = self.shape
        size = (self.num_pages, self.page_size, shape.num_kv_heads, shape.head_dim)
        q = np.empty((self.qkv.shape[0], shape.num_q_heads, shape.head_dim))
        k_pages, v_pages = np.zeros(size), np.zeros(size)
        cos, sin = kv_append.rope_table(self.positions, shape.theta, shape.head_dim,
                                        shape.num_pairs, np.float64)
        norms = np.concatenate([np.tile(self.q_norm, (shape.num_q_heads, 1)),
                                np.tile(self.k_norm, (shape.num_kv_heads, 1))]).astype(np.float64)
        where = kv_append.PageRows(self.rows, self.pages, self.slots)
        kv_append.kv_append_ref(q, k_pages, v_pages, from_bf16(self.qkv), norms, cos, sin, where,
                                EPS, scratch=Scratch(np.float64))
        return q, k_pages[self.pages, self.slots], v_pages[self.pages, self.slots]


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize(('page_size', 'far'), [(16, 20), (64, 262143)])
@pytest.mark.parametrize('shape', [SLIDING, FULL, DEMO, DEMO_FULL, FULL_WITH_V, PARTIAL])
def test_against_the_twin(machine: Machine, shape: Geometry, page_size: int, far: int,
                          fp8: bool) -> None:
    step = Step(shape, 7, page_size, far)
    q, k_pages, v_pages = step.run(machine, fp8)
    expected_q, expected_k, expected_v = step.expected()
    assert error(from_bf16(q[step.rows]), expected_q[step.rows]) < 2.5e-3
    assert not q[1].any()                            # padding
    written = np.zeros(k_pages.shape[:2], bool)
    written[step.pages, step.slots] = True
    for pages, expected, inverse in ((k_pages, expected_k, step.inverse[0]),
                                     (v_pages, expected_v, step.inverse[1])):
        assert (pages[~written] == (0x7F if fp8 else 0x7FC0)).all()
        stored = pages[step.pages, step.slots]
        if not fp8:
            assert error(from_bf16(stored), expected) < 2.5e-3
            continue
        scaled = expected * inverse[:, None]
        values = E4M3_VALUES[stored]
        # the nearest e4m3 number: within half of its step, but for float32's own error
        step_size = 2.0 ** (np.maximum(np.floor(np.log2(np.abs(scaled) + 1e-30)), -6) - 3)
        assert (np.abs(values - scaled) <= step_size * 0.50001 + 1e-6 * np.abs(scaled)).all()


def test_fp8_saturates(machine: Machine) -> None:
    step = Step(DEMO, 3, 16, 20)
    step.inverse[...] = 1e4
    _, k_pages, v_pages = step.run(machine, True)
    for pages in (k_pages, v_pages):
        values = E4M3_VALUES[pages[step.pages, step.slots]]
        assert np.abs(values).max() == 448.0         # never NaN


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize('shape', [DEMO, DEMO_FULL])
def test_a_row_has_the_same_bits_alone(machine: Machine, shape: Geometry, fp8: bool) -> None:
    step = Step(shape, 16, 16, 40)
    q, k_pages, v_pages = step.run(machine, fp8)
    for row, page, slot in zip(step.rows, step.pages, step.slots, strict=True):
        alone = step.run(machine, fp8, slice(row, row + 1))
        assert np.array_equal(alone[0][0], q[row])
        assert np.array_equal(alone[1][page, slot], k_pages[page, slot])
        assert np.array_equal(alone[2][page, slot], v_pages[page, slot])
