# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Random weights on the device, their values in float64, and bf16 there; for tests and bench/."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gemma_thor_ros.weights.number_formats import E2M1_VALUES, E4M3_VALUES

# 26B-A4B (N, M): the stacked q, k (and v) projections and o of both layer types, the dense down.
PROJECTIONS = ((8192, 2816), (9216, 2816), (2816, 4096), (2816, 8192), (2816, 2112))
GATE_UP = (2112, 2816)                   # (I, M) of the dense MLP
EXPERTS = (128, 704, 2816)               # E, I, H
HEAD = (262144, 2816)
# the DFlash draft
BF16 = ((4096, 2816), (2816, 4096), (2816, 16896), (11264, 2816), (2816, 5632), (1024, 8192),
        (4096, 1024))
ROWS = (1, 2, 3, 7, 8, 9, 15, 16)
CHOSEN = 8
SOFTCAP = 30.0


@dataclass
class Packed:
    """An NVFP4 matrix, or E of them, as CuPy arrays."""

    packed: Any
    group_scales: Any
    global_scale: Any


def random_weight(cp: Any, shape: tuple[int, ...], seed: int, scale_bits: tuple[int, int],
                  global_scale: float) -> Packed:
    """All codes; scales with bits in the range; E different global scales for E matrices."""
    random = cp.random.RandomState(seed)
    lead, columns = shape[:-1], shape[-1]
    packed = random.randint(0, 256, (*lead, columns // 2)).astype(cp.uint8)
    groups = random.randint(*scale_bits, (*lead, columns // 16)).astype(cp.uint8)
    if len(shape) == 2:
        return Packed(packed, groups, np.float32(global_scale))
    spread = np.linspace(0.5, 2.0, shape[0], dtype=np.float32)
    return Packed(packed, groups, np.float32(global_scale) * spread)


def dequantized(cp: Any, weight: Packed, expert: int | None = None) -> Any:
    """(N, M) in float64, exact."""
    packed, groups, scale = weight.packed, weight.group_scales, weight.global_scale
    if expert is not None:
        packed, groups, scale = packed[expert], groups[expert], scale[expert]
    values = cp.asarray(E2M1_VALUES)
    codes = cp.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    numbers = values[codes]
    numbers *= cp.repeat(cp.asarray(E4M3_VALUES)[groups], 16, axis=1)
    numbers *= float(scale)
    return numbers


def to_bf16(cp: Any, numbers: Any) -> Any:
    """Bits of the nearest bf16 of float32 or float64 numbers, rounded once, ties to even."""
    wide = numbers.astype(cp.float64)
    # to odd in float32 first, so that the second rounding sees what was cut off
    single = wide.astype(cp.float32)
    bits = single.view(cp.uint32)
    inexact = single.astype(cp.float64) != wide
    away = cp.abs(single.astype(cp.float64)) > cp.abs(wide)
    bits = bits - (inexact & away).astype(cp.uint32)
    bits = bits | inexact.astype(cp.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cp.uint16)


def from_bf16(cp: Any, bits: Any) -> Any:
    """Values in float64."""
    return (bits.astype(cp.uint32) << 16).view(cp.float32).astype(cp.float64)


def random_rows(cp: Any, shape: tuple[int, ...], seed: int) -> Any:
    """bf16 bits of normal numbers."""
    return to_bf16(cp, cp.random.RandomState(seed).standard_normal(shape))


def integer_rows(cp: Any, shape: tuple[int, ...], seed: int) -> Any:
    """bf16 bits of integers from -4 to 4: sums with coarse weights are exact in float32."""
    return to_bf16(cp, cp.random.RandomState(seed).randint(-4, 5, shape).astype(cp.float64))


def poisoned(cp: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """NaN everywhere: bf16 bits, or float32."""
    if dtype == 'bf16':
        return cp.full(shape, 0x7FC0, cp.uint16)
    return cp.full(shape, cp.nan, cp.float32)


def gelu_tanh(cp: Any, z: Any) -> Any:
    """In float64."""
    return 0.5 * z * (1 + cp.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z ** 3)))


def geglu(cp: Any, gate: Any, up: Any) -> Any:
    """geglu of products that are rounded to bf16 first, in float64."""
    return gelu_tanh(cp, from_bf16(cp, to_bf16(cp, gate))) * from_bf16(cp, to_bf16(cp, up))


def error(cp: Any, out: Any, expected: Any) -> float:
    """2-norm of the difference over that of the expected; NaN where out has one."""
    difference = out.astype(cp.float64) - expected
    return float(cp.linalg.norm(difference.ravel()) / cp.linalg.norm(expected.ravel()))


def routing(cp: Any, num_tokens: int, num_experts: int, num_chosen: int, distinct: int,
            seed: int) -> tuple[Any, Any]:
    """expert_ids (T, K) i32 that hit about `distinct` experts, and weights (T, K) f32."""
    random = np.random.default_rng(seed)
    pool = random.permutation(num_experts)[:max(distinct, num_chosen)]
    ids = np.stack([random.permutation(pool)[:num_chosen] for _ in range(num_tokens)])
    if num_tokens * num_chosen >= pool.size:          # every one of the pool is hit
        order = np.resize(random.permutation(pool), num_tokens * num_chosen)
        rows = order.reshape(num_tokens, num_chosen)
        if all(len(set(row.tolist())) == num_chosen for row in rows):
            ids = rows
    weights = random.dirichlet(np.ones(num_chosen), num_tokens).astype(np.float32)
    return cp.asarray(ids.astype(np.int32)), cp.asarray(weights)
