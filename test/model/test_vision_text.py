# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Prompts with images in the text model: against the reference in float64, and cut into chunks.

Rows generated behind the images are judged apart from the prompt's.

A tower's images are seen both ways in sliding layers, as far as the window goes; the embedder's in
all layers, and whole; small models look back only. Each of the other ways is planted once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import vision_cases as cases
from forward import Array, Role, Rows, error, page_table, random_model, step, worst
from test_vision import EXACT, RECORD, SINGLE, golden, images, vision_of

from gemma_thor_ros.models.batch import Batch, SoftRows, Span
from gemma_thor_ros.models.config import FULL, SLIDING, ModelConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops import attention

PAGE_SIZE = 16


@cache
def prompt(name: str, dtype: Any) -> tuple[tuple[int, ...], tuple[tuple[int, Array], ...]]:
    """Token ids, and (first position, soft tokens) of each image."""
    vision = vision_of(name, dtype)
    soft = [vision.encode(image.patches, image.columns) for image in images(name)]
    ids, starts = cases.prompt(name, [values.shape[0] for values in soft])
    return tuple(ids), tuple(zip(starts, soft, strict=True))


def model_of(name: str, dtype: Any) -> Gemma4:
    return random_model(cases.CONFIGS[name], dtype)


def run(model: Gemma4, name: str, cuts: Sequence[int] = (), cut_images: bool = False,
        ) -> tuple[Array, Array]:
    """Layers (L, T, H) and logits (T, V) of a prompt, in chunks that end at `cuts`.

    The rows of the tokens generated behind it, one a step, come last.
    """
    ids, soft = prompt(name, model.dtype.type)
    generated = cases.generated(name)
    pages = page_table(-(-(len(ids) + len(generated)) // PAGE_SIZE), seed=3)
    kv_cache = model.new_kv_cache(pages.size, pages.size, PAGE_SIZE)
    hidden: list[list[Array]] = [[] for _ in range(model.config.num_hidden_layers)]
    logits = []
    for start, stop in zip((0, *cuts), (*cuts, len(ids)), strict=True):
        rows, blocks = [], []
        for first, values in soft:
            low, high = max(start, first), min(stop, first + len(values))
            if low < high:
                assert cut_images or high - low == len(values), 'an image is cut'
                rows.append(SoftRows(low - start, values[low - first:high - first]))
                blocks.append((low, high))
        span = Span(Role.PREFILL, 0, stop - start, start, pages, pages, tuple(blocks))
        count = np.arange(stop - start, dtype=np.int32)
        batch = Batch(np.array(ids[start:stop], np.int32), count + np.int32(start), (span,),
                      count, tuple(rows))
        logits.append(model.forward(batch, kv_cache, lambda i, x: hidden[i].append(x)))
    for position, token in enumerate(generated, len(ids)):
        logits += step(model, kv_cache, Rows([token], position, Role.DECODE, pages),
                       tap=lambda i, x: hidden[i].append(x))
    return (np.stack([np.concatenate(parts) for parts in hidden]), np.concatenate(logits))


@pytest.mark.parametrize('name', RECORD)
@pytest.mark.parametrize(('dtype', 'limit'), [(np.float64, EXACT), (np.float32, SINGLE)])
def test_layers_and_logits(name: str, dtype: Any, limit: float) -> None:
    layers, logits = run(model_of(name, dtype), name)
    rows = RECORD[name]['rows']
    prompt_rows, generated = slice(0, len(rows)), slice(len(rows), None)
    theirs = golden()[f'{name}.logits']
    assert theirs[generated].shape[0] == len(cases.generated(name)) > 1
    for part, wanted in ((prompt_rows, rows), (generated, slice(-len(theirs[generated]), None))):
        for ours, layer in zip(layers, golden()[f'{name}.layers'], strict=True):
            found = worst(ours[wanted], layer[part])
            assert found.error <= limit, (part, found)
        found = worst(logits[wanted], theirs[part])
        assert found.error <= limit, (part, found)


def legal_cuts(name: str) -> list[int]:
    ids, soft = prompt(name, np.float32)
    inside = {at for first, values in soft for at in range(first + 1, first + len(values))}
    return [at for at in range(1, len(ids)) if at not in inside]


@pytest.mark.parametrize('name', RECORD)
def test_cuts_beside_images_change_no_bit(name: str) -> None:
    model = model_of(name, np.float32)
    whole = run(model, name)
    cuts = legal_cuts(name)
    for chosen in (cuts, cuts[::3], cuts[1:2], cuts[-2:-1]):
        layers, logits = run(model, name, chosen)
        assert (layers == whole[0]).all() and (logits == whole[1]).all()


@pytest.mark.parametrize('name', ['tower', 'embedder'])
def test_a_cut_through_an_image_is_felt(name: str) -> None:
    """Why the engine never cuts there; a model that looks back only does not mind."""
    model = model_of(name, np.float32)
    _, ((first, values), *_) = prompt(name, np.float32)
    for cut in (first + 1, first + len(values) // 2, first + len(values) - 1):
        with pytest.raises(AssertionError, match='an image is cut'):
            run(model, name, [cut])
        assert error(run(model, name, [cut], cut_images=True)[1], run(model, name)[1]) > 1e-4
    small = model_of('causal', np.float32)
    _, ((first, _),) = prompt('causal', np.float32)
    cut_logits = run(small, 'causal', [first + 9], cut_images=True)[1]
    assert (cut_logits == run(small, 'causal')[1]).all()


def test_who_sees_whom() -> None:
    """The rule itself, key by key."""
    for name, kind, expected in (
            ('tower', SLIDING, 'in window'), ('tower', FULL, 'causal'),
            ('embedder', SLIDING, 'whole'), ('embedder', FULL, 'whole'),
            ('causal', SLIDING, 'causal')):
        config = ModelConfig.from_dict(cases.CONFIGS[name])
        assert config.image_blocks(kind) == expected, (name, kind)
    window, block = 8, (20, 60)
    for rule in ('in window', 'whole'):
        span = attention.AttentionSpan(0, 90, 0, np.arange(6), blocks=(block,),
                                       whole_blocks=rule == 'whole')
        (plan,) = attention.plan_attention([(span, False)], window, 16, 1, np.float64)
        seen = np.zeros((90, 128), bool)
        for tile in plan.tiles:
            bias = tile.bias[:, :, 0].transpose(0, 2, 1, 3)      # (tiles, rows, chunks, C)
            flat = bias.reshape(-1, bias.shape[2] * attention.KEY_CHUNK)
            rows = slice(tile.start_row, tile.start_row + tile.num_rows)
            seen[rows] = flat[tile.slot:tile.slot + tile.num_rows] == 0
        for row in range(90):
            inside = block[0] <= row < block[1]
            for key in range(128):
                own = inside and block[0] <= key < block[1]
                want = (key > row - window and (key <= row or own)) or (rule == 'whole' and own)
                assert seen[row, key] == want, (rule, row, key)


# Planted errors: each changes one thing of a right model.

Plant = Callable[[Gemma4], None]


def blocks_as(sliding: str, full: str) -> Plant:
    def plant(model: Gemma4) -> None:
        class Wrong(ModelConfig):
            def image_blocks(self, layer_type: str) -> Any:
                return sliding if layer_type == SLIDING else full

        fields = {field.name: getattr(model.config, field.name)
                  for field in dataclasses.fields(model.config)}
        model.config = Wrong(**fields)
    return plant


def soft_tokens_scaled(model: Gemma4) -> None:
    scale = model._embed_scale
    change_rows(model, lambda values: values * scale)


def soft_tokens_left_out(model: Gemma4) -> None:
    change_rows(model, lambda values: values * 0)


def soft_tokens_reversed(model: Gemma4) -> None:
    change_rows(model, lambda values: values[::-1])


def change_rows(model: Gemma4, change: Callable[[Array], Array]) -> None:
    right = model.forward

    def forward(batch: Batch, *rest: Any, **options: Any) -> Array:
        soft = tuple(SoftRows(rows.start_row, change(rows.values)) for rows in batch.soft_rows)
        return right(dataclasses.replace(batch, soft_rows=soft), *rest, **options)
    model.forward = forward                              # type: ignore[method-assign]


def inputs_of_the_image_token(model: Gemma4) -> None:
    """Per-layer embeddings of the image token instead of the pad token."""
    right = model.ops.per_layer_inputs

    def inputs(out: Array, tokens: Array, *rest: Any) -> None:
        right(out, np.where(tokens == model.config.pad_token_id, cases.IDS['image_token_id'],
                            tokens), *rest)
    model.ops = dataclasses.replace(model.ops, per_layer_inputs=inputs)


def inputs_before_the_image(model: Gemma4) -> None:
    """Soft tokens come after the per-layer embeddings were made of the rows."""
    right = model.ops.per_layer_inputs
    placed: list[Any] = []

    class Late(type(model.ops)):                         # type: ignore[misc]
        def place_rows(self, residual: Array, rows: Any, values: Array) -> None:
            placed.append((residual, rows, values))

    def inputs(*args: Any) -> None:
        right(*args)
        for residual, rows, values in placed:
            residual[rows] = values
        placed.clear()
    fields = {field.name: getattr(model.ops, field.name)
              for field in dataclasses.fields(model.ops)}
    model.ops = Late(**{**fields, 'per_layer_inputs': inputs})


PLANTS: list[tuple[Plant, str]] = [
    (inputs_of_the_image_token, 'clipped'), (inputs_before_the_image, 'clipped'),
    (blocks_as('causal', 'causal'), 'tower'), (blocks_as('causal', 'causal'), 'embedder'),
    *((plant, name) for plant in (blocks_as('in window', 'whole'), blocks_as('whole', 'causal'))
      for name in ('tower', 'experts')),
    (blocks_as('in window', 'whole'), 'embedder'), (blocks_as('whole', 'causal'), 'embedder'),
    (blocks_as('in window', 'causal'), 'causal'),
    *((plant, name) for plant in (soft_tokens_scaled, soft_tokens_left_out, soft_tokens_reversed)
      for name in RECORD),
]


@pytest.mark.parametrize(('plant', 'name'), PLANTS)
def test_planted_error_is_caught(plant: Plant, name: str) -> None:
    model = model_of(name, np.float64)
    plant(model)
    rows, logits, theirs = RECORD[name]['rows'], run(model, name)[1], golden()[f'{name}.logits']
    assert error(logits[rows], theirs[:len(rows)]) > SINGLE
    assert error(logits[-len(theirs) + len(rows):], theirs[len(rows):]) > SINGLE
