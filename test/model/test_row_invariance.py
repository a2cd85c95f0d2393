# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A row has the same bits whatever stands beside it and however the prompt was cut.

Each gate is run again on a model with a planted fault that it must catch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counter_weights import counter_bytes
from forward import (
    TINY_DENSE,
    TINY_INPUTS,
    TINY_MOE,
    Array,
    Role,
    Rows,
    decode,
    page_table,
    prefill,
    random_model,
    step,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.models import gemma4
from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.rows import RowPlan, plan_rows
from gemma_thor_ros.ops import attention, kv_append, moe
from gemma_thor_ros.ops.linear import CPU_TILES, LinearWeight, RowTiles, tiled_matmul
from gemma_thor_ros.ops.rounding import round_to_bf16
from gemma_thor_ros.ops.scratch import Scratch
from gemma_thor_ros.ops.table import cpu_op_table

CONFIGS = {'moe': TINY_MOE, 'dense': TINY_DENSE, 'inputs': TINY_INPUTS}
MODES = [(np.float32, 'none'), (np.float32, 'device'), (np.float64, 'none')]
PROMPT = (counter_bytes('prompt', 300) % 96).tolist()
ANSWER = (counter_bytes('answer', 6) % 96).tolist()
PAGE_SIZE = 16
NUM_PAGES = 24


def same(a: Array, b: Array) -> bool:
    """Bit for bit, the sign of zero and NaN included."""
    bits = np.uint32 if a.dtype == np.float32 else np.uint64
    return a.dtype == b.dtype and np.array_equal(a.view(bits), b.view(bits))


def solo(model: Gemma4, chunk: int | None = None, length: int = len(PROMPT), seed: int = 3,
         page_size: int = PAGE_SIZE) -> Array:
    """Prompt and answer logits of one sequence alone."""
    pages = page_table(NUM_PAGES * PAGE_SIZE // page_size, seed)
    cache = model.new_kv_cache(pages.size, pages.size, page_size)
    return np.concatenate([prefill(model, cache, PROMPT[:length], pages, chunk),
                           decode(model, cache, ANSWER, length, pages)])


def chunks_agree(model: Gemma4, sizes: tuple[int, ...]) -> bool:
    whole = solo(model)
    return all(same(solo(model, chunk), whole) for chunk in sizes)


@pytest.mark.parametrize('config', CONFIGS)
@pytest.mark.parametrize(('dtype', 'rounding'), MODES)
def test_chunks_equal_one_prefill(config: str, dtype: Any, rounding: str) -> None:
    sizes = (1, 2, 15, 16, 17, 255) if dtype == np.float32 else (1, 17, 255)
    assert chunks_agree(random_model(CONFIGS[config], dtype, rounding), sizes)


@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, 299), max_size=6), seed=st.integers(0, 1000))
def test_any_cuts(cuts: set[int], seed: int) -> None:
    model = random_model(TINY_MOE)
    pages = page_table(NUM_PAGES, seed)
    cache = model.new_kv_cache(NUM_PAGES, NUM_PAGES, PAGE_SIZE)
    edges = [0, *sorted(cuts), 300]
    logits = [step(model, cache, Rows(PROMPT[a:b], a, Role.PREFILL, pages))[0]
              for a, b in zip(edges, edges[1:], strict=False)]
    assert same(np.concatenate(logits), solo(model)[:300])


@pytest.mark.parametrize('page_size', [1, 4, 64, 128])
def test_page_layout(page_size: int) -> None:
    model = random_model(TINY_MOE)
    assert same(solo(model, seed=9, page_size=page_size), solo(model))


def concurrent(model: Gemma4, order: tuple[int, ...]) -> bool:
    """Prefill one sequence while others decode, then decode all in the given order of slots."""
    lengths = (300, 41, 130, 7)
    alone = [solo(model, length=length) for length in lengths]
    pages = [page_table(NUM_PAGES, seed, NUM_PAGES * seed) for seed in range(len(lengths))]
    cache = model.new_kv_cache(NUM_PAGES * len(lengths), NUM_PAGES * len(lengths), PAGE_SIZE)
    agree = True
    for i, length in enumerate(lengths[1:], 1):
        agree &= same(prefill(model, cache, PROMPT[:length], pages[i], 37), alone[i][:length])
    for at in range(2):      # the first sequence's prompt runs beside the others' answers
        half = slice(150 * at, 150 * at + 150)
        parts = {i: Rows([ANSWER[at]], lengths[i] + at, Role.DECODE, pages[i]) for i in (1, 2, 3)}
        parts[0] = Rows(PROMPT[half], 150 * at, Role.PREFILL, pages[0])
        for i, logits in zip(order, step(model, cache, *(parts[i] for i in order)), strict=True):
            agree &= same(logits, alone[i][half] if i == 0 else alone[i][lengths[i] + at][None])
    done = {0: 0, 1: 2, 2: 2, 3: 2}
    for at in range(4):      # generated rows of all sequences, one or two a step
        count = 1 + at % 2
        running = [i for i in order if done[i] + count <= len(ANSWER)]
        parts = {i: Rows(ANSWER[done[i]:done[i] + count], lengths[i] + done[i], Role.DECODE,
                         pages[i]) for i in running}
        for i, logits in zip(running, step(model, cache, *(parts[i] for i in running)),
                             strict=True):
            first = lengths[i] + done[i]
            agree &= same(logits, alone[i][first:first + count])
            done[i] += count
    return agree


@pytest.mark.parametrize('config', CONFIGS)
@pytest.mark.parametrize(('dtype', 'rounding'), MODES)
def test_concurrent_equals_solo(config: str, dtype: Any, rounding: str) -> None:
    model = random_model(CONFIGS[config], dtype, rounding)
    assert concurrent(model, (0, 1, 2, 3))
    assert concurrent(model, (3, 1, 0, 2))


def test_verify_rows_equal_decode_rows() -> None:
    model = random_model(TINY_MOE)
    pages = page_table(NUM_PAGES)
    cache = model.new_kv_cache(NUM_PAGES, NUM_PAGES, PAGE_SIZE)
    expected = solo(model)
    prefill(model, cache, PROMPT, pages)
    for drafted in (6, 3, 16):      # a rejected draft is simply overwritten
        rows = (ANSWER + [5] * 16)[:drafted]
        logits = step(model, cache, Rows(rows, 300, Role.DECODE, pages))[0]
        assert same(logits[:6], expected[300:300 + min(drafted, 6)])


def test_other_memory_never_reaches_a_row() -> None:
    """NaN in unused slots and pages, and freed sliding pages, change nothing."""
    model = random_model(TINY_MOE)
    pages = page_table(NUM_PAGES, 5)
    cache = model.new_kv_cache(2 * NUM_PAGES, 2 * NUM_PAGES, PAGE_SIZE)
    for array in (*cache.k_pages, *cache.v_pages):
        array[...] = np.nan
    prompt = prefill(model, cache, PROMPT, pages, 64)
    freed = pages.copy()
    window = model.config.sliding_window
    num_freed = (len(PROMPT) - window) // PAGE_SIZE
    freed[:num_freed] = -1
    for layer in model.config.layers_of('sliding_attention'):
        cache.k_pages[layer][pages[:num_freed]] = np.nan
        cache.v_pages[layer][pages[:num_freed]] = np.nan
    batch_logits = []
    for i, token in enumerate(ANSWER):
        part = Rows([token], 300 + i, Role.DECODE, pages, freed)
        batch_logits += step(model, cache, part)
    assert same(np.concatenate([prompt, *batch_logits]), solo(model))


def test_scratch_of_earlier_steps_never_reaches_a_row() -> None:
    model = random_model(TINY_MOE)
    expected = solo(model)
    pages = page_table(NUM_PAGES)
    poisoned = model.new_kv_cache(NUM_PAGES, NUM_PAGES, PAGE_SIZE)
    for array in (*poisoned.k_pages, *poisoned.v_pages):
        array[...] = np.nan
    # attention over NaN keys fills workspace and scratch with NaN
    step(model, poisoned, Rows(PROMPT[:128], 128, Role.PREFILL, pages))
    step(model, poisoned, Rows(ANSWER, 200, Role.DECODE, pages))
    assert same(solo(model), expected)


# Planted faults: each makes a model whose rows lean on one another.


def untiled_linear(model: Gemma4) -> None:
    """Give BLAS all rows of a role at once, as a plain x @ W.T would."""
    def matmul(out: Array, x: Array, weight: LinearWeight, num_decode_rows: int) -> None:
        for rows in (slice(0, num_decode_rows), slice(num_decode_rows, None)):
            if x[rows].size:
                np.matmul(x[rows], weight.rows(0, weight.shape[0]).T, out=out[rows])

    unpadded = cpu_op_table(model.dtype, model.rounding, tiles=RowTiles(1, 1))
    model.ops = dataclasses.replace(unpadded, linear=matmul)


def untiled_experts(model: Gemma4) -> None:
    """Multiply all rows of an expert at once."""
    def matmul(out: Array, x: Array, matrix: Array, tile: int) -> None:
        np.matmul(x, matrix.T, out=out)

    replace_inside(model, 'moe', moe, 'tiled_matmul', matmul)


def tiles_from_the_first_row(model: Gemma4) -> None:
    """Cut the tiles of the prompt from the chunk's first row, not at absolute positions."""
    def plan(batch: Batch, tiles: RowTiles) -> RowPlan:
        shifted = [dataclasses.replace(span, start_position=0) for span in batch.spans]
        rows = plan_rows(dataclasses.replace(batch, spans=tuple(shifted)), tiles)
        spans = tuple(zip(batch.spans, (row for _, row in rows.spans), strict=True))
        return dataclasses.replace(rows, spans=spans)

    forward = model.forward

    def call(*args: Any) -> Array:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gemma4, 'plan_rows', plan)
            return forward(*args)

    model.forward = call  # type: ignore[method-assign]


def softmax_over_all_keys(model: Gemma4) -> None:
    """Sum over a row's keys in one go: the order of the sum follows their number."""
    def attend(q: Array, k: Array, v: Array, bias: Array, *rest: Any) -> Array:
        heads, dim = k.shape[2:]
        seen = np.flatnonzero((bias > -np.inf).any(axis=(0, 2, 3)).reshape(-1))
        keys, values = (x.reshape(-1, heads, dim)[seen] for x in (k, v))
        mask = bias.transpose(0, 2, 3, 1, 4).reshape(bias.shape[0], 1, bias.shape[3], -1)
        scores = q[:, 0] @ keys.transpose(1, 2, 0) + mask[..., seen]
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        return (scores @ values.transpose(1, 0, 2)) / scores.sum(-1, keepdims=True)

    replace_inside(model, 'attention', attention, '_attend', attend)


def fresh_keys_unrounded(model: Gemma4) -> None:
    """Let a chunk see its own K and V before they are rounded to the cache type."""
    right = model.ops.attention
    exact = functools.partial(kv_append.kv_append_ref, scratch=Scratch(model.dtype))

    def attend(out: Array, q: Array, k_pages: Array, v_pages: Array, plan: Any) -> None:
        right(out, round_to_bf16(q.copy()), k_pages, v_pages, plan)
        round_to_bf16(k_pages)
        round_to_bf16(v_pages)

    model.ops = dataclasses.replace(model.ops, kv_append=exact, attention=attend)


def replace_inside(model: Gemma4, op: str, module: Any, name: str,
                   wrong: Callable[..., Any]) -> None:
    """Replace module.name while an op of this model runs."""
    right = getattr(model.ops, op)

    def call(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, wrong)
            right(*args)

    model.ops = dataclasses.replace(model.ops, **{op: call})


def chunk_gate(model: Gemma4) -> bool:
    return chunks_agree(model, (1, 2, 15, 16, 17, 255))


def concurrency_gate(model: Gemma4) -> bool:
    return concurrent(model, (3, 1, 0, 2))


@pytest.mark.parametrize(('plant', 'gate', 'rounding'), [
    (untiled_linear, chunk_gate, 'none'), (untiled_linear, concurrency_gate, 'none'),
    (untiled_experts, chunk_gate, 'none'), (untiled_experts, concurrency_gate, 'none'),
    (tiles_from_the_first_row, chunk_gate, 'none'),
    (softmax_over_all_keys, chunk_gate, 'none'), (fresh_keys_unrounded, chunk_gate, 'device'),
])
def test_planted_fault_is_caught(plant: Callable[[Gemma4], None],
                                 gate: Callable[[Gemma4], bool], rounding: Any) -> None:
    model = random_model(TINY_MOE, np.float32, rounding)
    plant(model)
    if plant in HARMLESS_WHERE and HARMLESS_WHERE[plant]():
        pytest.skip('this BLAS gives the row the same bits there')
    assert not gate(model)


def any_count_is_harmless() -> bool:
    """Whether the BLAS in use gives a row the same bits in a product of any number of rows."""
    matrix = np.random.default_rng(0).standard_normal((96, 48), dtype=np.float32)
    row = np.random.default_rng(1).standard_normal((1, 48), dtype=np.float32)
    return all(same(np.tile(row, (count, 1)) @ matrix.T, np.tile(row @ matrix.T, (count, 1)))
               for count in (1, 2, 7, 16, 17, 32, 300))


def any_place_is_harmless() -> bool:
    """Whether it gives a row the same bits at every place of a tile."""
    matrix = np.random.default_rng(0).standard_normal((96, 48), dtype=np.float32)
    row = np.random.default_rng(1).standard_normal((1, 48), dtype=np.float32)
    product = np.tile(row, (CPU_TILES.prefill, 1)) @ matrix.T
    return same(product, np.tile(product[:1], (CPU_TILES.prefill, 1)))


HARMLESS_WHERE = {untiled_linear: any_count_is_harmless, untiled_experts: any_count_is_harmless,
                  tiles_from_the_first_row: any_place_is_harmless}


def test_rows_of_a_tile_do_not_meet() -> None:
    """In its fixed place a row's product is the same beside any other rows."""
    rng = np.random.default_rng(1)
    tile = CPU_TILES.prefill
    for shape in ((256, 1024), (2048, 256), (96, 48), (8, 250)):
        matrix = rng.standard_normal(shape, dtype=np.float32)
        x = rng.standard_normal((tile, shape[1]), dtype=np.float32)
        expected, alone = np.empty((2, tile, shape[0]), np.float32)
        tiled_matmul(expected, x, matrix, tile)
        for row in range(tile):
            others = np.zeros_like(x) if row % 2 else rng.standard_normal(x.shape, np.float32)
            others[row] = x[row]
            tiled_matmul(alone, others, matrix, tile)
            assert same(alone[row], expected[row])
