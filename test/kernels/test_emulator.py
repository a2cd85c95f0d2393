# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The emulator itself: does it compute what the device would, and see what it should see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulator import COMPILER, Emulator
from machine import from_bf16, to_bf16

from gemma_thor_ros.ops import compile as compiler
from gemma_thor_ros.weights.number_formats import E4M3_VALUES, encode_e4m3

pytestmark = pytest.mark.skipif(COMPILER is None, reason='the emulator needs a C++ compiler')

PROBE = r"""
extern "C" __global__ void __launch_bounds__(32)
probe_mma(float* c, const u32* a, const u32* b) {
    float sums[4] = {};
    const int lane = threadIdx.x;
    mma_bf16(sums, a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3], b[lane * 2],
             b[lane * 2 + 1]);
    for (int i = 0; i < 4; ++i) c[lane * 4 + i] = sums[i];
}

extern "C" __global__ void __launch_bounds__(256)
probe_e4m3(u32* codes, u32* halves, const float* x, int count) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < count) codes[i] = pack_e4m3(x[i], -x[i]);
    if (i < 256) halves[i] = e4m3_to_f16(i | (255 - i) << 8);
}

extern "C" __global__ void __launch_bounds__(256)
probe_sum(float* out, const float* x, int barriers) {
    __shared__ float room[256];
    room[threadIdx.x] = x[threadIdx.x];
    if (barriers) __syncthreads();
    out[blockIdx.x * 256 + threadIdx.x] = room[255 - threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(32)
probe_copies(uint4* out, const uint4* x, int wait) {
    __shared__ uint4 room[2][32];
    copy_async(room[0] + threadIdx.x, x + threadIdx.x, true);
    commit_copies();
    copy_async(room[1] + threadIdx.x, x, threadIdx.x % 2 == 0);
    commit_copies();
    if (wait == 1) wait_for_copies<1>();
    if (wait == 2) wait_for_copies<0>();
    __syncthreads();
    out[threadIdx.x] = room[0][threadIdx.x];
    out[32 + threadIdx.x] = room[1][threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(32)
probe_transposed(u32* out, const u16* x) {
    u32 m[4];
    load_transposed(m, x + threadIdx.x * 8);
    for (int j = 0; j < 4; ++j) out[j * 32 + threadIdx.x] = m[j];
}
"""


@pytest.fixture
def probe(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Kernels that only this file has, behind the real common.cuh."""
    common = (Path(__file__).resolve().parents[2] / 'kernels' / 'common.cuh').read_text()
    monkeypatch.setattr(compiler, 'kernel_source', lambda name: f'{common}\n{PROBE}')
    return emulator


def test_a_matrix_instruction(probe: Emulator) -> None:
    random = np.random.default_rng(0)
    left, right = (to_bf16(random.integers(-9, 9, shape)) for shape in ((16, 16), (16, 8)))
    fragments = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32)
    for lane in range(32):                           # PTX ISA, m16n8k16
        g, t = lane // 4, lane % 4
        for i in range(4):
            row, k = g + i % 2 * 8, 2 * t + i // 2 * 8
            fragments[0][lane, i] = int(left[row, k]) | int(left[row, k + 1]) << 16
        for i in range(2):
            k = 2 * t + i * 8
            fragments[1][lane, i] = int(right[k, g]) | int(right[k + 1, g]) << 16
    out = np.full((32, 4), np.nan, np.float32)
    probe.kernel('probe', 'probe_mma')((1,), (32,), (out, *fragments))
    product = from_bf16(left) @ from_bf16(right)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        assert out[lane].tolist() == [product[g + i // 2 * 8, 2 * t + i % 2] for i in range(4)]


def test_e4m3_without_an_instruction(probe: Emulator) -> None:
    """The way of sm_80 and sm_86 to e4m3, for every code, border and tie."""
    codes = np.arange(0x7F)
    values = E4M3_VALUES[:0x7F]
    middles = (values[1:] + values[:-1]) / 2
    x = np.concatenate([values, middles, np.nextafter(middles.astype(np.float32), np.float32(0)),
                        np.nextafter(middles.astype(np.float32), np.float32(1e9)),
                        [1e-30, 460, 1e30]]).astype(np.float32)
    out, halves = np.zeros(x.size, np.uint32), np.zeros(256, np.uint32)
    probe.kernel('probe', 'probe_e4m3')((-(-x.size // 256),), (256,), (out, halves, x, x.size))
    assert np.array_equal(out & 0xFF, encode_e4m3(x))
    assert np.array_equal(out[:codes.size] & 0xFF, codes)
    assert np.array_equal(out >> 8, encode_e4m3(x) | 0x80)
    pairs = halves.view(np.float16).reshape(256, 2).astype(np.float64)
    assert np.array_equal(pairs[codes, 0], values)
    assert np.array_equal(pairs[255 - codes, 1], values)


@pytest.mark.parametrize('barriers', [0, 1])
def test_a_missing_barrier_shows(probe: Emulator, barriers: int) -> None:
    x = np.arange(256, dtype=np.float32)
    out = np.zeros((2, 256), np.float32)
    run: Any = probe.kernel('probe', 'probe_sum')
    run((2,), (256,), (out, x, barriers))
    right = [np.array_equal(row, x[::-1]) for row in out]
    assert right == [bool(barriers)] * 2


@pytest.mark.parametrize('wait', [0, 1, 2])
def test_a_missing_wait_shows(probe: Emulator, wait: int) -> None:
    """A copy that nobody waited for has not happened; one that is not real gives zeros."""
    x = np.arange(1, 129, dtype=np.uint32).reshape(32, 4)
    out = np.zeros((2, 32, 4), np.uint32)
    probe.kernel('probe', 'probe_copies')((1,), (32,), (out, x, wait))
    second = np.where(np.arange(32)[:, None] % 2 == 0, x[0], 0)
    there = [np.array_equal(out[0], x), np.array_equal(out[1], second)]
    assert there == [wait > 0, wait > 1]


def test_matrices_are_transposed(probe: Emulator) -> None:
    x = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)     # PTX ISA, ldmatrix .x4 .trans
    out = np.zeros((4, 32, 1), np.uint32)
    probe.kernel('probe', 'probe_transposed')((1,), (32,), (out, x))
    got = out.view(np.uint16).reshape(4, 8, 4, 2)            # matrix, g, t, half
    assert np.array_equal(got.reshape(4, 8, 8), x.transpose(0, 2, 1))
