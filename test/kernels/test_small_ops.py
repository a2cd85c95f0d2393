# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""embed, geglu and moe_route against their twins in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from machine import Machine, error, from_bf16, normal, poisoned, to_bf16

from gemma_thor_ros.ops import device, embed, geglu, moe_route, rms_norm
from gemma_thor_ros.ops.linear import LinearWeight, TableWeight
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.weights.canonical import DenseWeight

ROUTERS = [(256, 8, 2), (2816, 128, 8), (64, 48, 3)]     # H, E, K: demo, 26B-A4B, idle lanes


@pytest.mark.parametrize('width', [256, 2816, 5376, 40])
def test_embed(machine: Machine, width: int) -> None:
    table = to_bf16(normal(1, 60, width))
    ids = np.array([59, -1, 0, 7, 7], np.int32)
    hidden = machine.put(poisoned((5, width), 'f32'))
    machine.run(lambda: embed.embed(hidden, machine.put(ids), machine.put(table), 53.0,
                                    machine.stream))
    expected = np.empty((5, width))
    embed.embed_ref(expected, ids, TableWeight(DenseWeight(table, 'bf16'), np.float64), 53.0,
                    'device')
    assert np.array_equal(machine.get(hidden), expected)     # one rounding: exact


@pytest.mark.parametrize('num_rows', [1, 7])
@pytest.mark.parametrize('width', [128, 2112, 15360, 21504, 40])
def test_geglu(machine: Machine, width: int, num_rows: int) -> None:
    gate_up = to_bf16(3 * normal(2, num_rows, 2 * width))
    gate_up[0, :3] = to_bf16(np.array([-60, 60, 0], np.float32))
    out = machine.put(poisoned((num_rows, width), 'bf16'))
    machine.run(lambda: geglu.geglu(out, machine.put(gate_up), machine.stream))
    expected = np.empty((num_rows, width))
    geglu.geglu_ref(expected, from_bf16(gate_up))
    assert error(from_bf16(machine.get(out)), expected) < 2.5e-3


class Router:
    """Weights of a router, two experts of which tie always."""

    def __init__(self, width: int, num_experts: int, num_chosen: int) -> None:
        self.shape = (width, num_experts, num_chosen)
        self.weight = to_bf16(normal(3, num_experts, width) / np.sqrt(width))
        self.weight[5] = self.weight[3]
        self.scale = np.abs(normal(4, num_experts)) + 0.5

    def run(self, machine: Machine, x: np.ndarray, sequences: np.ndarray,
            ) -> tuple[np.ndarray, np.ndarray]:
        """Ids and weights by the device."""
        width, num_experts, num_chosen = self.shape
        ids = machine.put(poisoned((x.shape[0], num_chosen), 'i32'))
        weights = machine.put(poisoned((x.shape[0], num_chosen), 'f32'))
        sizes = moe_route.scratch_sizes(x.shape[0], width, num_experts)
        tickets = machine.put(np.zeros(sizes[1], np.uint32))
        machine.run(lambda: moe_route.moe_route(
            ids, weights, machine.put(poisoned((sizes[0],), 'f32')), tickets, machine.put(x),
            machine.put(self.weight), machine.put(self.scale), machine.put(sequences),
            machine.stream))
        assert not machine.get(tickets).any()
        return machine.get(ids), machine.get(weights)


@pytest.mark.parametrize('num_rows', [1, 3, 15, 16, 19])
@pytest.mark.parametrize('shape', ROUTERS)
def test_moe_route(machine: Machine, shape: tuple[int, int, int], num_rows: int) -> None:
    router = Router(*shape)
    x = to_bf16(normal(5, num_rows, shape[0]))
    x[0] = 0                                         # all scores equal: the lowest ids
    sequences = np.zeros(num_rows, np.int32)
    sequences[2:3] = -1
    ids, weights = router.run(machine, x, sequences)
    expected_ids = np.empty(ids.shape, np.int64)
    expected = np.empty(ids.shape)
    residual = from_bf16(x)
    norm = np.sqrt((residual ** 2).mean(-1, keepdims=True))
    # the twin norms by itself: give it rows whose norm is 1, and put the norm into the matrix
    for row in range(num_rows):
        one = slice(row, row + 1)
        matrix = DenseWeight(
            (from_bf16(router.weight) * norm[row]).astype(np.float32), 'f32')
        moe_route.moe_route_ref(
            expected_ids[one], expected[one], residual[one], np.ones(shape[0]),
            LinearWeight([matrix], np.float64), router.scale.astype(np.float64), 1e-30, 1,
            scratch=Scratch(np.float64))
    expected_ids[2:3], expected[2:3] = -1, 0
    assert np.array_equal(ids, expected_ids)
    assert np.abs(weights - expected).max() < 2e-6
    assert ids[0].tolist() == list(range(shape[2]))


def half_layer(machine: Machine, router: Router, sequences: list[int], together: bool,
               ) -> list[np.ndarray]:
    """Residual, two norms, ids and weights of some rows, by one launch or by two."""
    width, num_experts, num_chosen = router.shape
    put, rows = machine.put, len(sequences)
    norms = [put(np.abs(normal(seed, width)) + np.float32(0.5)) for seed in range(4)]
    x, branch = put(normal(7, rows, width)), put(to_bf16(normal(8, rows, width)))
    outs = [put(poisoned((rows, width), 'bf16')) for _ in range(3)]
    sizes = moe_route.scratch_sizes(rows, width, num_experts)
    chosen = (put(poisoned((rows, num_chosen), 'i32')), put(poisoned((rows, num_chosen), 'f32')),
              put(poisoned((sizes[0],), 'f32')), put(np.zeros(sizes[1], np.uint32)))
    tail = (put(router.weight), put(router.scale), put(np.array(sequences, np.int32)),
            machine.stream)
    if together:
        machine.run(lambda: moe_route.moe_route_add(
            *chosen, x, (outs[0], outs[2]), branch, norms[0], (norms[1], norms[3], norms[2]),
            1e-6, 0.75, *tail))
    else:
        machine.run(lambda: rms_norm.rms_norm_add(x, outs, branch, norms[0], norms[1:], 1e-6,
                                                  0.75, machine.stream))
        machine.run(lambda: moe_route.moe_route(*chosen, outs[1], *tail))
    assert not machine.get(chosen[3]).any()
    return [machine.get(array) for array in (x, outs[0], outs[2], *chosen[:2])]


@pytest.mark.parametrize('cluster', [1, 8])
@pytest.mark.parametrize('sequences', [[0], [-1], [0, 1, 0, -1, 2], [0] * 15 + [-1]])
@pytest.mark.parametrize('shape', ROUTERS)
def test_norms_and_route_in_one_launch(machine: Machine, shape: tuple[int, int, int],
                                       sequences: list[int], cluster: int,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of rms_norm_add and moe_route, for rows of sequences and for padding."""
    if machine.small and (len(sequences) > 5 or (shape[1] > 100 and sequences[0] < 0)):
        pytest.skip('large, for a device')
    monkeypatch.setattr(moe_route, '_CLUSTER', cluster)
    if machine.small:
        info = replace(device.info(), arch='sm_90a')     # the first that has clusters
        monkeypatch.setattr(device, 'info', lambda: info)
    router = Router(*shape)
    two, one = (half_layer(machine, router, sequences, together) for together in (False, True))
    for array, other in zip(two, one, strict=True):
        assert np.array_equal(array, other)
    assert ((two[3] == -1).all(axis=1) == (np.array(sequences) < 0)).all()


@pytest.mark.parametrize('shape', ROUTERS)
def test_a_route_is_the_same_alone(machine: Machine, shape: tuple[int, int, int]) -> None:
    router = Router(*shape)
    x = to_bf16(normal(6, 16, shape[0]))
    route = partial(router.run, machine)
    together = route(x, np.zeros(16, np.int32))
    for row in range(16):
        alone = route(x[row:row + 1], np.zeros(1, np.int32))
        assert np.array_equal(alone[0][0], together[0][row])
        assert np.array_equal(alone[1][0], together[1][row])
