# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Random weights of true shapes, made on the device itself, for benchmarks without a checkpoint.

The values keep activations near 1; the answers are noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_step import CudaGemma4, CudaKvDtype
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.weights.canonical import DenseWeight
from gemma_thor_ros.weights.mlx_modules import MlxSetting
from gemma_thor_ros.weights.presets import preset_config
from gemma_thor_ros.weights.shapes import TextShapes

_SEED_WORDS = 1 << 22                    # 16 MiB of random bytes, used again for every tensor
_NOT_A_NUMBER = 0x7FC0                   # bf16 bits: a router score that is never among the best


@dataclass
class _Packed:
    """NVFP4 arrays on the device."""

    packed: Any
    group_scales: Any
    global_scale: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.packed.shape[:-1], 2 * self.packed.shape[-1])


@dataclass
class _Dense:
    """A bf16 matrix on the device."""

    data: Any

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.data.shape
        return shape


class RandomWeights(Mapping[str, Any]):
    """Canonical name -> random weight of a shape, made at each access.

    in_nvfp4 tells by name which matrices are not bf16: a target's projections and experts.
    """

    def in_nvfp4(self, name: str) -> bool:
        """Never: drafters are bf16."""
        return False

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes
        cupy = device.cupy()
        random = cupy.random.RandomState(1)
        self._words = random.randint(0, 1 << 31, _SEED_WORDS).astype(cupy.uint32)
        self._words ^= self._words << np.uint32(9)
        self._normal = random.standard_normal(_SEED_WORDS).astype(cupy.float32)
        self._turn = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, name: str) -> Any:
        shape = self._shapes[name]
        if self.in_nvfp4(name):
            return self.packed(shape)
        if len(shape) == 2:
            return _Dense(self._bf16(shape, shape[-1] ** -0.5))
        if name.endswith('layer_scalar'):
            return DenseWeight(np.full(shape, 0.5, np.float32), 'f32')
        return DenseWeight(np.ones(shape, np.float32), 'f32')

    def packed(self, shape: tuple[int, ...]) -> _Packed:
        """A random NVFP4 matrix, or E of them; rows have a 2-norm of about 1."""
        cupy = device.cupy()
        codes = self._bytes((*shape[:-1], shape[-1] // 2))
        groups = self._bytes((*shape[:-1], shape[-1] // 16))
        groups &= cupy.uint8(0x0F)
        groups += cupy.uint8(0x30)       # 0.5 to 1.9
        scale = np.full(shape[:-2], 0.3 * shape[-1] ** -0.5, np.float32)
        return _Packed(codes, groups, scale if shape[:-2] else np.float32(scale))

    def _bytes(self, shape: tuple[int, ...]) -> Any:
        return _repeated(self._words.view(np.uint8), shape, self._next())

    def _bf16(self, shape: tuple[int, ...], size: float) -> Any:
        cupy = device.cupy()
        bits = (self._normal * np.float32(size)).view(cupy.uint32) >> np.uint32(16)
        return _repeated(bits.astype(cupy.uint16), shape, self._next())

    def _next(self) -> int:
        self._turn = (self._turn + 40961) % 65536
        return self._turn


@dataclass
class _Affine:
    """MLX affine arrays on the device."""

    words: Any
    scales: _Dense
    biases: _Dense
    bits: int
    group_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.words.shape[:-1], self.words.shape[-1] * 32 // self.bits)


class RandomTarget(RandomWeights):
    """The weights of a target: projections and experts in NVFP4."""

    def in_nvfp4(self, name: str) -> bool:
        """All projections but the router's."""
        return name.endswith('_proj') and 'router' not in name


class RandomAffine(RandomWeights):
    """The weights of a target in MLX affine codes, the table too; routers are bf16."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], setting: MlxSetting) -> None:
        super().__init__(shapes)
        self._setting = setting

    def __getitem__(self, name: str) -> Any:
        shape = self._shapes[name]
        if name == 'embed_tokens' or name.endswith('_proj'):
            return self.affine(shape, self._setting)
        return super().__getitem__(name)

    def affine(self, shape: tuple[int, ...], setting: MlxSetting) -> _Affine:
        """A random matrix; rows have a 2-norm of about 1."""
        cupy = device.cupy()
        bits, size = setting.bits, setting.group_size
        words = self._bytes((*shape[:-1], shape[-1] * bits // 8)).view(cupy.uint32)
        scales = self._bf16((*shape[:-1], shape[-1] // size),
                            (12 / shape[-1]) ** 0.5 / (1 << bits))
        wide = (scales.astype(cupy.uint32) << np.uint32(16)).view(cupy.float32)
        wide *= np.float32(-((1 << bits) - 1) / 2)
        biases = (wide.view(cupy.uint32) >> np.uint32(16)).astype(cupy.uint16)
        return _Affine(words, _Dense(scales), _Dense(biases), bits, size)


def _repeated(source: Any, shape: tuple[int, ...], start: int) -> Any:
    """An array of `shape` with the source's numbers over and over, from `start` on."""
    cupy = device.cupy()
    result = cupy.empty(int(np.prod(shape)), source.dtype)
    turned = cupy.roll(source, -start)
    for at in range(0, result.size, source.size):
        part = result[at:at + source.size]
        part[...] = turned[:part.size]
    return result.reshape(shape)


def random_model(preset: str, kv_dtype: CudaKvDtype, context_length: int,
                 num_layers: int | None = None, prompt_rows: int = 2048,
                 setting: MlxSetting | None = None) -> CudaGemma4:
    """A model of a preset's shapes in NVFP4, head too, or in MLX affine codes of a setting.

    num_layers: the first ones alone.
    """
    raw = preset_config(preset)
    text = raw.get('text_config', raw)
    if num_layers is not None:
        text['layer_types'] = text['layer_types'][:num_layers]
        text['num_hidden_layers'] = num_layers
    config = ModelConfig.from_dict(raw)
    shapes = TextShapes.from_config(raw).all()
    weights = RandomTarget(shapes) if setting is None else RandomAffine(shapes, setting)
    stream = device.new_stream()
    loader = DeviceLoader(stream, quantize_head=lambda table: weights.packed(table.shape))
    with device.errors():
        device.cupy().cuda.runtime.deviceSynchronize()
        return CudaGemma4(config, Settled(weights), loader, stream=stream,
                          context_length=context_length, kv_dtype=kv_dtype,
                          prompt_rows=prompt_rows)


class Settled(Mapping[str, Any]):
    """Weights that are there when they are handed out: they are made on another stream."""

    def __init__(self, weights: RandomWeights) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Any:
        # before as well: the memory of an earlier one may still be read
        device.cupy().cuda.runtime.deviceSynchronize()
        weight = self._weights[name]
        device.cupy().cuda.runtime.deviceSynchronize()
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@contextmanager
def confined_routes(model: CudaGemma4, num_allowed: int) -> Iterator[None]:
    """The routers of a random model choose among their first experts alone; 0: among all."""
    if not num_allowed:
        yield
        return
    cupy = device.cupy()
    kept = [(router, router.proj[num_allowed:].copy()) for router in model.routers()]
    for router, _ in kept:
        router.proj[num_allowed:] = cupy.uint16(_NOT_A_NUMBER)
    cupy.cuda.runtime.deviceSynchronize()
    try:
        yield
    finally:
        for router, rows in kept:
            router.proj[num_allowed:] = rows
        cupy.cuda.runtime.deviceSynchronize()
