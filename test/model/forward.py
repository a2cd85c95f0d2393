# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Small models of random weights and a minimal driver of the forward pass for the model tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import counter_weights
import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.kv_cache import KVCache
from gemma_thor_ros.weights.canonical import DenseWeight

Array = npt.NDArray[Any]

TINY_MOE: dict[str, Any] = {
    'model_type': 'gemma4_text', 'vocab_size': 96, 'hidden_size': 48, 'num_hidden_layers': 4,
    'layer_types': ['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention'],
    'num_attention_heads': 4, 'num_key_value_heads': 2, 'num_global_key_value_heads': 1,
    'head_dim': 16, 'global_head_dim': 32, 'intermediate_size': 64, 'attention_k_eq_v': True,
    'sliding_window': 40, 'enable_moe_block': True, 'num_experts': 6, 'top_k_experts': 2,
    'moe_intermediate_size': 32, 'final_logit_softcapping': 30.0,
    'hidden_size_per_layer_input': 0, 'max_position_embeddings': 4096,
}
TINY_DENSE: dict[str, Any] = {
    **TINY_MOE, 'enable_moe_block': False, 'attention_k_eq_v': False, 'num_key_value_heads': 4,
}
# E2B's form: more than half of the layers without K and V, with MLPs twice as wide
TINY_INPUTS: dict[str, Any] = {
    **TINY_DENSE, 'num_hidden_layers': 5, 'num_key_value_heads': 1,
    'layer_types': ['sliding_attention', 'full_attention', 'sliding_attention',
                    'sliding_attention', 'full_attention'],
    'num_kv_shared_layers': 3, 'use_double_wide_mlp': True, 'hidden_size_per_layer_input': 8,
    'vocab_size_per_layer_input': 96,
}


def random_weights(config: ModelConfig) -> dict[str, DenseWeight]:
    """Counter weights of every tensor of a config."""
    return {name: DenseWeight(counter_weights.tensor(name, shape), 'f32')
            for name, shape in counter_weights.shapes(config).items()}


def random_model(raw: dict[str, Any], dtype: npt.DTypeLike = np.float32,
                 rounding: Any = 'none', **options: Any) -> Gemma4:
    config = ModelConfig.from_dict(raw)
    return Gemma4(config, random_weights(config), dtype, rounding, **options)


@dataclass
class Rows:
    """Some consecutive tokens of one sequence to run in a step.

    pages is its page table, sliding_pages another one for the sliding layers.
    """

    tokens: Sequence[int]
    start: int
    role: Role
    pages: npt.NDArray[np.int32]
    sliding_pages: npt.NDArray[np.int32] | None = None


def page_table(num_pages: int, seed: int | None = None,
               base: int = 0) -> npt.NDArray[np.int32]:
    """Pages base .. base + num_pages - 1 in order, or shuffled."""
    pages = np.arange(base, base + num_pages, dtype=np.int32)
    return pages if seed is None else np.random.default_rng(seed).permutation(pages)


def step(model: Gemma4, cache: KVCache, *parts: Rows, all_logits: bool = True,
         **options: Any) -> list[Array]:
    """One forward over the parts in the order given; logits (rows, V) of each part.

    Without all_logits only those of each part's last row, as an engine asks for them.
    """
    spans = []
    row = 0
    for part in parts:
        sliding = part.pages if part.sliding_pages is None else part.sliding_pages
        spans.append(Span(part.role, row, len(part.tokens), part.start, sliding, part.pages))
        row += len(part.tokens)
    tokens = np.concatenate([np.asarray(part.tokens, np.int32) for part in parts])
    positions = np.concatenate([np.arange(p.start, p.start + len(p.tokens), dtype=np.int32)
                                for p in parts])
    ends = np.cumsum([len(part.tokens) for part in parts], dtype=np.int32)
    wanted = np.arange(row, dtype=np.int32) if all_logits else ends - 1
    batch = Batch(tokens, positions, tuple(spans), wanted)
    logits = model.forward(batch, cache, **options)
    if not all_logits:
        return list(logits[:, None])
    return np.split(logits, ends[:-1])


def prefill(model: Gemma4, cache: KVCache, tokens: Sequence[int], pages: npt.NDArray[np.int32],
            chunk: int | None = None) -> Array:
    """All logits of a prompt, in chunks of `chunk` rows."""
    size = chunk or len(tokens)
    return np.concatenate([
        step(model, cache, Rows(tokens[at:at + size], at, Role.PREFILL, pages))[0]
        for at in range(0, len(tokens), size)])


def decode(model: Gemma4, cache: KVCache, tokens: Sequence[int], start: int,
           pages: npt.NDArray[np.int32]) -> Array:
    """All logits of teacher-forced generated tokens, one step each."""
    return np.concatenate([
        step(model, cache, Rows([token], start + i, Role.DECODE, pages))[0]
        for i, token in enumerate(tokens)])


class Worst(NamedTuple):
    """The largest relative error (2-norm) of a row or a column, and which one it is."""

    error: float
    place: str


def worst(ours: Array, theirs: Array) -> Worst:
    """Judge (rows, columns) against the same of a reference, along both axes."""
    difference = ours.astype(np.float64) - theirs
    found = []
    for kind, axis in (('row', -1), ('column', -2)):
        relative = (np.linalg.norm(difference, axis=axis) / np.linalg.norm(theirs, axis=axis))
        found.append(Worst(float(np.max(relative)), f'{kind} {np.argmax(relative)}'))
    return max(found)


def error(ours: Array, theirs: Array) -> float:
    """The largest relative error of a row or a column, in the 2-norm."""
    return worst(ours, theirs).error
