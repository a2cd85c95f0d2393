# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Models in MLX affine codes on the CUDA path against the same models on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import draft_rig
import numpy as np
import pytest
import test_cuda_drafters
import test_cuda_model
from host_device import HostStream, any_stream
from machine import normal, to_bf16
from test_cuda_model import DENSE, STEPS, TINY, D, P, Rig, batch, errors

from gemma_thor_ros.cli.bench import uses_of
from gemma_thor_ros.load_device import affine_uses
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.ops.affine_order import AffineFragments, AffineStack
from gemma_thor_ros.ops.affine_specs import affine_specs
from gemma_thor_ros.ops.cuda_weights import DeviceLoader, bf16_parts
from gemma_thor_ros.schema import ConfigError
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight, Weight
from gemma_thor_ros.weights.mlx_bits import quantize_affine
from gemma_thor_ros.weights.mlx_modules import MlxSetting
from gemma_thor_ros.weights.modules import Form
from gemma_thor_ros.weights.shapes import TextShapes

# Of a recipe: what differs from 4 bits in groups of 64.
OVERRIDES = {'v_proj': (8, 64), 'down_proj': (8, 64), 'up_proj': (8, 64)}


def affine(seed: int, shape: tuple[int, ...], bits: int = 4, group_size: int = 64) -> AffineWeight:
    made = quantize_affine(normal(seed, int(np.prod(shape[:-1])), shape[-1])
                           * np.float32(shape[-1] ** -0.5), bits, group_size)
    arrays = [array.reshape(*shape[:-1], -1) for array in made[:3]]
    return AffineWeight(arrays[0], DenseWeight(arrays[1], 'bf16'), DenseWeight(arrays[2], 'bf16'),
                        bits, group_size)


@cache
def weights(name: str, mixed: bool) -> dict[str, Weight]:
    """All matrices quantised, the table too, routers with 8 bits; mixed: not alike."""
    found: dict[str, Weight] = {}
    config = {'dense': DENSE, 'moe': TINY}[name]
    for seed, (tensor, shape) in enumerate(TextShapes.from_config(config).all().items()):
        if tensor.endswith('router.proj'):
            found[tensor] = affine(seed, shape, 8)
        elif len(shape) > 1:
            other = next((o for part, o in OVERRIDES.items() if mixed and part in tensor), (4, 64))
            found[tensor] = affine(seed, shape, *other)
        else:
            found[tensor] = DenseWeight(to_bf16(1 + 0.1 * normal(seed, *shape)), 'bf16')
    return found


@pytest.fixture
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return any_stream(request, monkeypatch)


@pytest.mark.parametrize(('name', 'mixed'), [('dense', True), ('moe', False)])
def test_the_device_computes_what_the_cpu_does(name: str, mixed: bool, stream: Any,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, chunks beside generated rows, verify steps; then with one scale changed."""
    monkeypatch.setattr(test_cuda_model, 'weights', lambda name: weights(name, mixed))
    rig = Rig(name, stream, 'bf16')
    found, _ = errors(rig, STEPS)
    assert max(found) < 0.03, found
    layer = rig.model._layers[0]
    assert isinstance(rig.model.table.head, AffineFragments)
    assert isinstance(layer.qkv_proj, AffineStack if mixed else AffineFragments)
    if mixed:
        return
    assert layer.experts.router.proj.shape[0] > 1                # bf16 does not hold it
    layer.experts.weights.down.scales[:32] ^= 0x8000             # planted: the signs of scales
    assert max(errors(rig, STEPS)[0]) > 0.05


@pytest.mark.parametrize('kind', ['dflash', 'mtp'])
def test_drafters_read_the_packed_table(kind: str, full: None, stream: Any,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_rig, 'weights', lambda name: weights(name, False))
    rig = draft_rig.DraftRig('dense', kind, stream)
    found, _ = test_cuda_drafters.device_logits(rig)
    expected, _ = test_cuda_drafters.host_logits(rig, np.float32)
    # an assistant's later steps depend on the tokens before them
    assert test_cuda_drafters.error(found[:, 0], expected[:, 0]) < 0.02
    rig.model.table.rows.scales[:] ^= 0x8000         # planted: the signs of all scales
    wrong, _ = test_cuda_drafters.device_logits(rig)
    assert test_cuda_drafters.error(wrong[:, 0], expected[:, 0]) > 0.05


def test_a_chunked_prompt_is_a_whole_one(full: None, stream: Any,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_cuda_model, 'weights', lambda name: weights(name, False))
    rig = Rig('moe', stream, 'bf16')
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
    gate, up = affine(2, (2, 32, 64)), affine(3, (2, 32, 64), 8)
    with pytest.raises(ConfigError, match='have 4 bits in groups of 64 and 8 in groups of 64'):
        loader.experts(gate, up, up)
    with pytest.raises(ConfigError, match='experts in bf16 do not run on CUDA'):
        loader.experts(gate, gate, DenseWeight(np.zeros((2, 64, 32), np.uint16), 'bf16'))
    uneven = affine(4, (2, 24, 64))
    with pytest.raises(ConfigError, match='multiples of 16 rows'):
        loader.experts(gate, gate, uneven)
    fine = AffineWeight(good.words, DenseWeight(np.full((32, 1), 0.1, np.float32), 'f32'),
                        good.biases, 4, 64)
    with pytest.raises(ConfigError, match='float32 values that bf16 does not hold'):
        loader.linear(fine)
    loader.finish()


def test_numbers_in_parts() -> None:
    numbers = normal(1, 5, 7)
    for exact, count in ((numbers, 3), (np.array([[1.0, 257.0]], np.float32), 2),
                         (np.zeros((1, 2), np.float32), 1)):
        parts = bf16_parts(exact)
        assert len(parts) == count
        wide = (parts.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        assert np.array_equal(wide.sum(0), exact)


def test_what_a_pack_is_compiled_for() -> None:
    class Pack(dict[str, Any]):
        def form(self, name: str) -> Form:
            return Form.MLX if isinstance(self[name], AffineWeight) else Form.DENSE

    uses = set(affine_uses(Pack(weights('moe', True))))
    sizes = {(use.outputs, use.columns, use.form, use.experts, use.bits) for use in uses}
    assert {(256, 64, 'head', False, 4), (64, 64, 'geglu', True, 4), (64, 64, 'geglu', True, 8),
            (64, 512, 'plain', False, 4), (64, 64, 'plain', True, 8),
            (768, 64, 'plain', False, 4), (256, 64, 'plain', False, 8)} <= sizes
    alike = affine_uses(Pack(weights('moe', False)))
    assert set(alike) == set(uses_of(ModelConfig.from_dict(TINY), MlxSetting(4, 64)))
    specs = affine_specs(alike, 101376)
    assert len(specs) == len(set(specs)) and {spec.entry for spec in specs} == {
        'affine_order', 'gemm_affine', 'gemv_affine', 'embed_affine', 'moe_items'}
