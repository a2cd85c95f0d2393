# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A dense model in MLX affine codes on the CUDA path against the same model on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import test_cuda_model
from host_device import HostStream, any_stream
from machine import normal, to_bf16
from test_cuda_model import DENSE, STEPS, D, P, Rig, batch, errors

from gemma_thor_ros.load_device import unfit
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.ops.affine_order import AffineFragments, AffineStack
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight, Weight
from gemma_thor_ros.weights.mlx_bits import quantize_affine
from gemma_thor_ros.weights.shapes import TextShapes

# Of a recipe: what differs from 4 bits in groups of 64.
OVERRIDES = {'v_proj': (8, 64), 'down_proj': (8, 64), 'up_proj': (8, 64)}


def affine(seed: int, shape: tuple[int, int], bits: int = 4, group_size: int = 64) -> AffineWeight:
    made = quantize_affine(normal(seed, *shape) * np.float32(shape[-1] ** -0.5), bits, group_size)
    return AffineWeight(made.words, DenseWeight(made.scales, 'bf16'),
                        DenseWeight(made.biases, 'bf16'), bits, group_size)


@cache
def weights(mixed: bool) -> dict[str, Weight]:
    """All matrices quantised, the table too; mixed: not alike."""
    found: dict[str, Weight] = {}
    for seed, (name, shape) in enumerate(TextShapes.from_config(DENSE).all().items()):
        if len(shape) == 2:
            other = next((o for part, o in OVERRIDES.items() if mixed and part in name), (4, 64))
            found[name] = affine(seed, shape, *other)
        else:
            found[name] = DenseWeight(to_bf16(1 + 0.1 * normal(seed, *shape)), 'bf16')
    return found


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return any_stream(request, monkeypatch)


@pytest.mark.parametrize('mixed', [False, True])
def test_the_device_computes_what_the_cpu_does(mixed: bool, stream: Any,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, chunks beside generated rows, verify steps; then with one scale changed."""
    monkeypatch.setattr(test_cuda_model, 'weights', lambda name: weights(mixed))
    rig = Rig('dense', stream, 'bf16')
    found, _ = errors(rig, STEPS)
    assert max(found) < 0.02, found
    assert isinstance(rig.model.table.head, AffineFragments)
    qkv = rig.model._layers[0].qkv_proj
    assert isinstance(qkv, AffineStack if mixed else AffineFragments)
    if not mixed:                        # planted
        qkv.scales[:16] ^= 0x8000
        assert max(errors(rig, STEPS)[0]) > 0.05


def test_a_chunked_prompt_is_a_whole_one(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_cuda_model, 'weights', lambda name: weights(False))
    rig = Rig('dense', stream, 'bf16')
    whole = rig.model.forward(batch((P, 0, 0, 21), wanted=[20]), rig.cache)
    rig.model.forward(batch((P, 1, 0, 9), wanted=[8]), rig.cache)
    rig.model.forward(batch((P, 0, 0, 18), wanted=[17]), rig.cache)
    assert np.array_equal(whole, rig.model.forward(batch((P, 0, 18, 3), wanted=[2]), rig.cache))
    alone = [rig.model.forward(batch((D, 0, 21 + i, 1)), rig.cache) for i in range(3)]
    together = rig.model.forward(batch((D, 0, 21, 3)), rig.cache)
    assert np.array_equal(np.concatenate(alone), together)


def test_what_is_refused(stream: Any) -> None:
    if not isinstance(stream, HostStream):
        pytest.skip('the same words on a device')
    loader = DeviceLoader(stream)
    good = affine(1, (32, 64))
    with pytest.raises(ConfigError, match='stored alike; found MLX affine and bf16'):
        loader.linear(good, DenseWeight(np.zeros((32, 64), np.uint16), 'bf16'))
    stack = AffineWeight(good.words[None], good.scales[None], good.biases[None], 4, 64)
    with pytest.raises(ConfigError, match='experts in MLX affine run on the CPU alone'):
        loader.experts(stack, stack, stack)
    scale = DenseWeight(np.ones(64, np.float32), 'f32')
    with pytest.raises(ConfigError, match='routers in MLX affine run on the CPU alone'):
        loader.router(scale, good, scale, 64)
    fine = AffineWeight(good.words, DenseWeight(np.full((32, 1), 0.1, np.float32), 'f32'),
                        good.biases, 4, 64)
    with pytest.raises(ConfigError, match='float32 values that bf16 does not hold'):
        loader.linear(fine)
    loader.finish()


def test_where_a_pack_runs() -> None:
    class Pack(dict[str, Any]):
        def form(self, name: str) -> Any:
            from gemma_thor_ros.weights.modules import Form
            return Form.MLX if name.endswith('_proj') else Form.DENSE

    config: Any = ModelConfig.from_dict(DENSE)
    pack: Any = Pack({'layers.0.self_attn.q_proj': 0, 'norm': 0})
    assert unfit(config, pack, 16) == ''
    pack['layers.0.experts.gate_proj'] = 0
    assert 'experts.gate_proj is MLX affine' in unfit(config, pack, 16)
