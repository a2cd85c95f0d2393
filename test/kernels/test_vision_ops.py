# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What a vision part runs on the device, op by op against the twins in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from machine import Array, Machine, error, from_bf16, normal, poisoned, to_bf16

from gemma_thor_ros.ops import (
    geglu,
    layer_norm,
    library_gemm,
    prefill_gemm,
    rms_norm,
    vision_attention,
    vision_patches,
)
from gemma_thor_ros.ops.scratch import Scratch

from . import cases

ROUNDED = 2.5e-3                         # one rounding to bf16, as the relative 2-norm
# N, D, columns and rows of patches: part of a tile, tiles with a rest, more than a block's queries
SMALL = [(1, 72, 13, 5), (2, 24, 5, 3), (3, 16, 9, 15)]
TRUE = [(16, 72, 60, 42), (16, 72, 48, 51)]      # of the 26B and the 31B


@pytest.fixture
def sizes(machine: Machine, grid: bool) -> Callable[[bool], None]:
    """Leaves out what is not among the first few sizes, without a device and make grid."""
    def check(first: bool) -> None:
        if machine.small and not grid and not first:
            pytest.skip('without a CUDA device this is part of make grid')
    return check


def heads_of(machine: Machine, shape: tuple[int, int, int, int], seed: int = 1) -> Array:
    num_heads, dim, columns, rows = shape
    if machine.small and columns * rows > 200:
        pytest.skip('large, for a device')
    return normal(seed, columns * rows, 3, num_heads, dim)


def attend(machine: Machine, qkv: Array, *shape: tuple[int, int]) -> Array:
    out = machine.put(poisoned((qkv.shape[0], *qkv.shape[2:]), 'bf16'))
    machine.run(lambda: vision_attention.vision_attention(out, machine.put(qkv), machine.stream,
                                                          *shape))
    return machine.get(out)


def attended(qkv: Array) -> Array:
    expected = np.empty((qkv.shape[0], qkv.shape[2] * qkv.shape[3]))
    vision_attention.vision_attention_ref(
        expected, from_bf16(qkv).reshape(qkv.shape[0], -1), qkv.shape[2])
    return expected.reshape(qkv.shape[0], *qkv.shape[2:])


@pytest.mark.parametrize('shape', SMALL + TRUE)
def test_attention(machine: Machine, shape: tuple[int, int, int, int],
                   sizes: Callable[[bool], None]) -> None:
    sizes(shape in SMALL[:2])
    qkv = heads_of(machine, shape)
    qkv[:, 0] *= 0.3                     # neither even means nor a single key
    bits = to_bf16(qkv)
    out = attend(machine, bits)
    assert error(from_bf16(out), attended(bits)) < 1.5 * ROUNDED
    others = vision_attention.SHAPES if shape is SMALL[0] or not machine.small else ()
    assert all(np.array_equal(attend(machine, bits, other), out) for other in others)
    # planted: the last patch is left out, and a column of a head
    short = attended(bits[:-1])
    assert error(from_bf16(out[:-1]), short) > 2 * ROUNDED
    bits[:, 0, :, -1] = 0
    assert error(from_bf16(out), attended(bits)) > 2 * ROUNDED


def test_scores_that_grow(machine: Machine) -> None:
    """Each tile of keys raises the maximum by much: sums shrink to nothing."""
    qkv = heads_of(machine, (1, 72, 16, 12))
    qkv[:, 0], qkv[:, 1] = 1.0, np.linspace(-8, 8, 192)[:, None, None]
    bits = to_bf16(qkv)
    assert error(from_bf16(attend(machine, bits)), attended(bits)) < 1.5 * ROUNDED


@pytest.mark.parametrize('shape', SMALL + TRUE)
def test_heads(machine: Machine, shape: tuple[int, int, int, int],
               sizes: Callable[[bool], None]) -> None:
    sizes(shape in SMALL[:1])
    num_heads, dim, columns, rows = shape
    qkv = to_bf16(2 * heads_of(machine, shape, 2))
    norms = [1 + normal(seed, dim) / 4 for seed in (3, 4)]
    longest = max(columns, rows)
    cos, sin = (table[:, 0, 0] for table in vision_attention.axial_rope_table(
        longest, longest, 100.0, dim, np.float32))
    placed = machine.put(qkv)
    machine.run(lambda: vision_attention.vision_heads(
        placed, *map(machine.put, (*norms, cos, sin)), columns, 1e-6, machine.stream))
    out = from_bf16(machine.get(placed))

    def expected(columns: int) -> Array:
        found = from_bf16(qkv).reshape(qkv.shape[0], -1)
        tables = vision_attention.axial_rope_table(qkv.shape[0], columns, 100.0, dim, np.float64)
        vision_attention.vision_heads_ref(found, *(norm.astype(np.float64) for norm in norms),
                                          *tables, num_heads, 1e-6)
        return found.reshape(qkv.shape)

    assert error(out, expected(columns)) < ROUNDED
    assert error(out, expected(columns + 1)) > 4 * ROUNDED       # planted: another width
    assert error(out[:, 2], expected(columns + 1)[:, 2]) < ROUNDED   # which turns no v


@pytest.mark.parametrize('centred', [False, True])
@pytest.mark.parametrize('width', [48, 768, 6912])
def test_numbers(machine: Machine, width: int, centred: bool,
                 sizes: Callable[[bool], None]) -> None:
    sizes(width == (768 if centred else 6912))
    patches = (np.arange(3 * width) * 37 % 256).astype(np.uint8).reshape(3, width)
    out = machine.put(poisoned((3, width), 'bf16'))
    machine.run(lambda: vision_patches.vision_numbers(out, machine.put(patches), centred,
                                                      machine.stream))
    expected = np.empty((3, width), np.float32)
    vision_patches.patch_numbers_ref(expected, patches, centred, 'device')
    assert np.array_equal(from_bf16(machine.get(out)), expected)     # in one order: every bit


@pytest.mark.parametrize(('width', 'apart'), [(40, False), (1152, False), (3840, True)])
def test_positions(machine: Machine, width: int, apart: bool,
                   sizes: Callable[[bool], None]) -> None:
    sizes(width == 3840)
    x, tables = normal(1, 15, width), normal(2, 9, 2, width)
    columns = 5
    placed = machine.put(x)
    pair = machine.put(tables if apart else np.ascontiguousarray(tables.transpose(1, 0, 2)))
    machine.run(lambda: vision_patches.vision_positions(
        placed, *((pair[:, 0], pair[:, 1]) if apart else (pair[0], pair[1])), columns,
        machine.stream))
    vision_patches.add_positions_ref(x, tables[:, 0], tables[:, 1], columns)
    assert np.array_equal(machine.get(placed), x)
    with pytest.raises(AssertionError):  # a place that the tables do not have
        vision_patches.vision_positions(placed, tables[:2, 0], tables[:2, 1], columns,
                                        machine.stream)


def test_pool_and_standardize(machine: Machine) -> None:
    columns, rows, width = 9, 6, 48
    x, bias, scale = normal(1, columns * rows, width), normal(2, width), normal(3, width)
    out = machine.put(poisoned((6, width), 'f32'))
    machine.run(lambda: vision_patches.vision_pool(out, machine.put(x), columns, 3, 72 ** 0.5,
                                                   machine.stream))
    expected = np.empty((6, width), np.float32)
    vision_patches.pool_ref(expected, x, columns, 3, 72 ** 0.5)
    assert np.array_equal(machine.get(out), expected)
    machine.run(lambda: vision_patches.vision_standardize(
        out, machine.put(bias), machine.put(scale), machine.stream))
    vision_patches.standardize_ref(expected, bias, scale, 'device')
    assert np.array_equal(machine.get(out), expected)
    machine.run(lambda: vision_patches.vision_bias(out, machine.put(bias), machine.stream))
    expected += bias
    assert np.array_equal(machine.get(out), from_bf16(to_bf16(expected)))


def test_widen_and_clip(machine: Machine) -> None:
    bits = to_bf16(3 * normal(1, 5, 48))
    wide = machine.put(poisoned((5, 48), 'f32'))
    machine.run(lambda: vision_patches.vision_widen(wide, machine.put(bits), machine.stream))
    assert np.array_equal(machine.get(wide), from_bf16(bits))
    out = machine.put(poisoned((5, 80), 'bf16'))
    machine.run(lambda: vision_patches.vision_clip(out[:, 16:64], machine.put(bits), -1.5, 1.25,
                                                   machine.stream))
    found = machine.get(out)
    assert np.array_equal(from_bf16(found[:, 16:64]), np.clip(from_bf16(bits), -1.5, 1.25))
    assert (found[:, :16] == 0x7FC0).all() and (found[:, 64:] == 0x7FC0).all()


@pytest.mark.parametrize('in_float', [False, True])
@pytest.mark.parametrize('width', [40, 3840, 6912])
def test_layer_norm(machine: Machine, width: int, in_float: bool,
                    sizes: Callable[[bool], None]) -> None:
    sizes(width == (40 if in_float else 6912))
    x = 3 + 2 * normal(1, 3, width)
    bits, weight, bias = to_bf16(x), normal(2, width), normal(3, width)
    placed = machine.put(x if in_float else bits)
    machine.run(lambda: layer_norm.layer_norm(placed, machine.put(weight), machine.put(bias), 1e-5,
                                              machine.stream))
    found = machine.get(placed)
    start = x.astype(np.float64) if in_float else from_bf16(bits)
    expected = np.empty((3, width))
    layer_norm.layer_norm_ref(expected, start, weight, bias, 1e-5)
    out = found.astype(np.float64) if in_float else from_bf16(found)
    assert error(out, expected) < ROUNDED
    assert np.array_equal(out, from_bf16(to_bf16(out.astype(np.float32))))   # rounded once
    layer_norm.layer_norm_ref(expected, start, weight, 0 * bias, 1e-5)
    assert error(out, expected) > 4 * ROUNDED        # planted: without the bias


# (N, M) of the products of the 26B's and the 31B's tower and projection, and of the 12B's embedder
PRODUCTS = ((1152, 768), (3456, 1152), (1152, 1152), (8608, 1152), (1152, 4304), (5376, 1152),
            (3840, 6912), (3840, 3840))


@pytest.mark.parametrize('shape', PRODUCTS)
def test_products(cp: Any, stream: Any, shape: tuple[int, int]) -> None:
    """cuBLAS's and ours: sums in float32, rounded once, twice the same; another weight shows."""
    assert library_gemm.missing() == ''
    outputs, columns = shape
    x, weight, other = (cases.random_rows(cp, (rows, columns), seed) for seed, rows in (
        (1, 280 if columns in (6912, 3840) else 2520), (2, outputs), (3, outputs)))
    exact = cases.from_bf16(cp, x) @ cases.from_bf16(cp, weight).T
    terms = cp.abs(cases.from_bf16(cp, x)) @ cp.abs(cases.from_bf16(cp, weight)).T
    limit = 2.0 ** -8 * cp.abs(exact) + 4e-6 * terms
    for product in library_gemm.library_gemm, prefill_gemm.prefill_gemm_bf16:
        found = []
        for matrix in weight, weight, other:
            out = cases.poisoned(cp, exact.shape, 'bf16')
            cp.cuda.runtime.deviceSynchronize()
            product(out, x, matrix, stream)
            stream.synchronize()
            found.append(out)
        assert bool((cp.abs(cases.from_bf16(cp, found[0]) - exact) <= limit).all())
        assert bool((found[0] == found[1]).all())
        assert not bool((cp.abs(cases.from_bf16(cp, found[2]) - exact) <= limit).all())


def test_rows_of_the_towers_sizes(machine: Machine) -> None:
    if machine.small:
        pytest.skip('the same as at other sizes, for a device')
    gate_up = to_bf16(3 * normal(2, 70, 2 * 4304))
    out = machine.put(poisoned((70, 4304), 'bf16'))
    machine.run(lambda: geglu.geglu(out, machine.put(gate_up), machine.stream))
    expected = np.empty((70, 4304))
    geglu.geglu_ref(expected, from_bf16(gate_up))
    assert error(from_bf16(machine.get(out)), expected) < ROUNDED
    x, branch, weights = normal(3, 70, 1152), to_bf16(normal(4, 70, 1152)), normal(5, 2, 1152)
    residual, normed = machine.put(x), machine.put(poisoned((70, 1152), 'bf16'))
    placed = [machine.put(weight) for weight in weights]
    machine.run(lambda: rms_norm.rms_norm_add(
        residual, [normed], machine.put(branch), placed[0], placed[1:], 1e-6, 1.0,
        machine.stream))
    total = x.astype(np.float64)
    rms_norm.rms_norm_add_ref(total, from_bf16(branch), weights[0], 1e-6, 1.0,
                              scratch=Scratch(np.float64))
    assert error(machine.get(residual), total) < 1e-6
    expected = np.empty((70, 1152))
    rms_norm.rms_norm_ref(expected, total, weights[1], 1e-6)
    assert error(from_bf16(machine.get(normed)), expected) < ROUNDED
