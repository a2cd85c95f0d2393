# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Tiny targets with tiny drafters on the CUDA path, and the same drafters on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from engine_gates import Answer, Job
from host_device import HostStream
from machine import normal, to_bf16
from test_cuda_model import CONFIGS, CONTEXT, weights

from gemma_thor_ros.load_drafter import device_drafter
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.cuda_draft import CudaDrafter
from gemma_thor_ros.models.cuda_step import CudaGemma4
from gemma_thor_ros.models.dflash import DFlash
from gemma_thor_ros.models.draft_config import DFlashConfig, MtpConfig
from gemma_thor_ros.models.draft_target import DraftTarget
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.mtp import Mtp
from gemma_thor_ros.ops import device
from gemma_thor_ros.ops.cuda_weights import DeviceLoader
from gemma_thor_ros.weights.canonical import DenseWeight
from gemma_thor_ros.weights.drafter_shapes import drafter_shapes

Array = np.ndarray
PAGE = 16
PAGES = 12

DFLASH: dict[str, Any] = {
    'architectures': ['DFlashDraftModel'], 'attention_bias': False, 'block_size': 8,
    'final_logit_softcapping': 30.0, 'head_dim': 32, 'hidden_act': 'silu', 'hidden_size': 64,
    'intermediate_size': 40, 'num_attention_heads': 4, 'num_key_value_heads': 2,
    'num_hidden_layers': 2, 'num_target_layers': 2, 'rms_norm_eps': 1e-6, 'rope_theta': 1000000,
    'sliding_window': 20, 'vocab_size': 256, 'layer_types': ['full_attention',
                                                            'sliding_attention'],
    'dflash_config': {'mask_token_id': 4, 'target_layer_ids': [0, 1]}, 'model_type': 'qwen3'}
MTP: dict[str, Any] = {
    'architectures': ['Gemma4AssistantForCausalLM'], 'backbone_hidden_size': 64,
    'model_type': 'gemma4_assistant', 'tie_word_embeddings': True,
    'use_ordered_embeddings': False,
    'text_config': {**CONFIGS['dense'], 'hidden_size': 32, 'intermediate_size': 48,
                    'num_kv_shared_layers': 2}}
RAW = {'dflash': DFLASH, 'mtp': MTP}


def draft_weights(raw: dict[str, Any]) -> dict[str, DenseWeight]:
    """Random bf16 weights of a drafter."""
    found = {}
    for seed, (name, shape) in enumerate(drafter_shapes(raw).items()):
        numbers = normal(900 + seed, *shape)
        numbers = numbers * shape[-1] ** -0.5 if len(shape) == 2 else 1 + 0.1 * numbers
        found[name] = DenseWeight(to_bf16(numbers), 'bf16')
    return found


def draft_config(kind: str, target: ModelConfig, setting: Any = None) -> DFlashConfig | MtpConfig:
    """The config of a drafter of RAW; setting: its block mask or position."""
    if kind == 'dflash':
        return DFlashConfig.from_dict(DFLASH, target, setting or 'auto')
    return MtpConfig.from_dict(MTP, target, setting or 'newest')


class DraftRig:
    """A model and its drafter on the device."""

    def __init__(self, name: str, kind: str, stream: Any, kv_dtype: Any = 'bf16',
                 setting: Any = None, scalar: float | None = None) -> None:
        self.config = ModelConfig.from_dict(CONFIGS[name])
        self.stream = stream
        self.kv_dtype = kv_dtype
        self.draft_config = draft_config(kind, self.config, setting)
        self.weights = dict(weights(name))
        if scalar is not None:           # of the last layer
            self.weights['layers.1.layer_scalar'] = DenseWeight(
                to_bf16(np.full(1, scalar, np.float32)), 'bf16')
        self.draft_weights = draft_weights(RAW[kind])
        self.model = CudaGemma4(self.config, self.weights, DeviceLoader(stream), stream=stream,
                                context_length=CONTEXT, kv_dtype=kv_dtype)
        self.drafter = device_drafter(self.draft_config, self.draft_weights, self.model,
                                      context_length=CONTEXT)

    def caches(self) -> tuple[Any, Any]:
        """New ones of the target and of the drafter."""
        return (self.model.new_kv_cache(PAGES, PAGES, PAGE),
                self.drafter.new_cache(PAGES, PAGES, PAGE))

    def twins(self, dtype: Any = np.float32) -> tuple[Gemma4, Any]:
        """Target and drafter on the CPU, rounding where the device does."""
        target = Gemma4(self.config, self.weights, dtype, 'device', kv_dtype=self.kv_dtype)
        shared = DraftTarget(target.config, target.table, target.final_norm)
        kind: Any = DFlash if self.draft_config.name == 'dflash' else Mtp
        return target, kind(self.draft_config, self.draft_weights, shared, dtype, 'device')


class Oracle:
    """Makes the drafts of a rig the plain answers' own, but for some of them.

    A wrong one is that of every `wrong_each`-th position; 1: all of them.
    """

    def __init__(self, rig: DraftRig, jobs: Sequence[Job], answers: dict[str, Answer],
                 wrong_each: int) -> None:
        self.whole = [(*job.request.prompt_ids, *answers[job.request.request_id].token_ids)
                      for job in jobs]
        self.rig = rig
        self.wrong_each = wrong_each
        rig.drafter.graphs.enabled = False           # a graph would replay the drafter's own
        self._right = rig.drafter.network.launch
        rig.drafter.network.launch = self._launch    # type: ignore[method-assign]

    def _launch(self, inputs: Any, choose: Any, count: int, steps: int, kv_cache: Any) -> None:
        self._right(inputs, choose, count, steps, kv_cache)
        self.rig.stream.synchronize()
        picks, layout = self.rig.drafter._picks, self.rig.drafter.network.layout(count, steps)
        for b in range(count):
            token, position = int(inputs.ids[b * inputs.ids_stride]), int(inputs.starts[b])
            rest = next((whole[position + 1:] for whole in self.whole
                         if whole[position:position + 1] == (token,)), ())
            for i, right in enumerate(rest):
                step = i + 1 - layout.offset
                if step < steps:
                    wrong = (position + i) % self.wrong_each == 0
                    picks.tokens[b * layout.row_stride + step * layout.step_stride] = (
                        right + wrong) % 256
        if not isinstance(self.rig.stream, HostStream):
            device.cupy().cuda.runtime.deviceSynchronize()


def poisonable(model: CudaGemma4, drafter: CudaDrafter | None = None) -> None:
    """Let the engine gates make freed pages of a model and its drafter NaN, on the emulator."""
    not_a_number = {'uint16': 0x7FC0, 'uint8': 0x7F}
    new_kv_cache = model.new_kv_cache

    def poison(cache: Any, geometry: str, pages: Sequence[int]) -> None:
        if not isinstance(model.stream, HostStream):
            return
        for k, v, kind in zip(cache.k_pages, cache.v_pages, cache.config.layer_types,
                              strict=True):
            if kind.startswith(geometry):
                k[list(pages)] = v[list(pages)] = not_a_number[k.dtype.name]
        kept: Any = {} if drafter is None else drafter.network._pages
        if not isinstance(kept, dict):
            kept = {'sliding_attention': (kept[None],)}
        for kind, arrays in kept.items():
            for array in arrays if kind.startswith(geometry) else ():
                array[:, list(pages)] = 0x7FC0

    def make(*sizes: int, **named: int) -> Any:
        cache: Any = new_kv_cache(*sizes, **named)
        cache.poison = partial(poison, cache)
        return cache

    model.new_kv_cache = make            # type: ignore[method-assign]
