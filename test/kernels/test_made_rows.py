# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Products that make their row of the residual, among others: the bits of norms apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from host_device import HostStream, any_stream

from gemma_thor_ros.ops import affine_order, device, fragment_order
from gemma_thor_ros.ops.cuda_table import CudaOps

from . import cases
from .affine_cases import random_affine

H, N, EPS = 2816, 57, 1e-6               # 11 warps of 256 columns
ORDER = ('nvfp4', 'bf16', 'affine', 'nvfp4', 'bf16', 'bf16', 'affine')


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return any_stream(request, monkeypatch)


def test_rows_made_by_products_have_the_bits_of_norms_apart(stream: Any) -> None:
    with stream:                                     # arrays are made on it, too
        compare(stream)


def compare(stream: Any) -> None:
    cp, rng = device.cupy(), np.random.default_rng(1)
    weights: dict[str, Any] = {
        'nvfp4': fragment_order.to_fragments(
            [cases.random_weight(cp, (N, H), 1, (0x20, 0x50), 0.01)], stream=stream),
        'affine': affine_order.to_affine([random_affine(cp, 2, (N, H), 4, 64)], stream=stream),
        'bf16': cases.random_rows(cp, (16, H), 3)}
    own, other, start = (cp.asarray(rng.standard_normal((1, H)).astype(np.float32))
                         for _ in range(3))
    branches = [cases.random_rows(cp, (1, H), 10 + i) for i in range(len(ORDER) + 1)]
    normed = cases.poisoned(cp, (1, H), 'bf16')

    def run(made: bool, tapped: bool = False) -> tuple[list[Any], Any]:
        ops = CudaOps(stream, H, None, 16, device.zeros)
        ops.rows_made, ops.tapped = made, tapped
        residual, outs = start.copy(), []
        for branch, kind in zip(branches, ORDER, strict=False):
            ops.add_norms(residual, (normed,), branch, own[0], (other[0],), EPS, 0.5)
            out = cases.poisoned(cp, (1, 16 if kind == 'bf16' else N), 'bf16')
            ops.linear(out, normed, weights[kind], 1)
            outs.append(out)
        ops.add_norms(residual, (normed,), branches[-1], own[0], (other[0],), EPS, 0.5)
        ops.make_row()
        stream.synchronize()
        return [*(cp.asnumpy(out) for out in outs), cp.asnumpy(normed).copy()], residual

    apart, last = run(False)
    for tapped in (False, True):
        before = stream.launches.count('rms_norm_add') if isinstance(stream, HostStream) else 0
        together, residual = run(True, tapped)
        assert all(np.array_equal(a, b) for a, b in zip(apart, together, strict=True))
        if tapped:
            assert bool((residual == last).all())
        if isinstance(stream, HostStream):           # two NVFP4 and two affine ones make theirs
            norms = stream.launches.count('rms_norm_add') - before
            assert norms == (8 if tapped else 4)
    branches[2] = branches[3]                        # the comparison sees another branch
    assert not np.array_equal(run(True)[0][2], apart[2])
