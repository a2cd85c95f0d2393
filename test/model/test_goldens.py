# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Our forward pass against what the reference implementation computed in float64.

The goldens are made by scripts/make_goldens.py. Every wrong variant of the mathematics that is
easy to write is planted once and must be caught here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forward import Array, Role, Rows, error, page_table, random_model, step, worst

from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops import kv_append
from gemma_thor_ros.ops.rms_norm import inverse_rms, rms_norm_ref

FOLDER = Path(__file__).parents[1] / 'data' / 'goldens'
CASES: dict[str, Any] = json.loads((FOLDER / 'goldens.json').read_text())['cases']
PAGE_SIZE = 16
EXACT, SINGLE, UNTOUCHED = 1e-9, 1e-5, 1e-6


@cache
def golden(name: str) -> dict[str, Array]:
    with np.load(FOLDER / f'{name}.npz') as arrays:
        return dict(arrays)


def run(model: Gemma4, name: str) -> tuple[Array, Array, int]:
    """Layers (L, R, H) and logits (R, V) of the golden's rows; how many are prompt rows."""
    case = CASES[name]
    tokens, num_prompt, rows = case['tokens'], case['prompt'], case['rows']
    pages = page_table(-(-len(tokens) // PAGE_SIZE), seed=7)
    kv_cache = model.new_kv_cache(pages.size, pages.size, PAGE_SIZE)
    hidden: list[list[Array]] = [[] for _ in range(model.config.num_hidden_layers)]
    logits = []
    for start, stop, role in [(0, num_prompt, Role.PREFILL),
                              *((i, i + 1, Role.DECODE) for i in range(num_prompt, len(tokens)))]:
        part = Rows(tokens[start:stop], start, role, pages)
        logits += step(model, kv_cache, part, tap=lambda i, x: hidden[i].append(x))
    wanted = [*rows, *range(num_prompt, len(tokens))]
    return (np.stack([np.concatenate(parts)[wanted] for parts in hidden]),
            np.concatenate(logits)[wanted], len(rows))


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize(('dtype', 'limit'), [(np.float64, EXACT), (np.float32, SINGLE)])
def test_layers_and_logits(name: str, dtype: Any, limit: float) -> None:
    layers, logits, num_prompt = run(random_model(CASES[name]['config'], dtype), name)
    expected = golden(name)
    assert layers.dtype == logits.dtype == dtype
    for part in (slice(0, num_prompt), slice(num_prompt, None)):
        for layer, hidden in enumerate(layers):
            found = worst(hidden[part], expected['layers'][layer, part])
            assert found.error <= limit, (layer, part, found)
        found = worst(logits[part], expected['logits'][part])
        assert found.error <= limit, (part, found)


def test_a_fault_of_one_column_is_found_and_named() -> None:
    """One that hides in every row: the faintest column, off by a thousandth."""
    theirs = golden('moe_k_eq_v_256')['logits']
    column = int(np.argmin(np.linalg.norm(theirs, axis=0)))
    ours = theirs.copy()
    ours[:, column] *= 1.001
    rows = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
    found = worst(ours, theirs)
    assert rows.max() < 1e-4 < found.error < 1.01e-3
    assert found.place == f'column {column}' and worst(theirs, theirs).error == 0


@pytest.mark.parametrize('name', CASES)
def test_untouched_reference(name: str) -> None:
    _, logits, _ = run(random_model(CASES[name]['config'], np.float64), name)
    theirs = golden(name)['float32_logits'].astype(np.float64)
    assert np.linalg.norm(theirs - logits) <= UNTOUCHED * np.linalg.norm(logits)


# Planted errors: each changes one thing of a right model.


def replace_op(model: Gemma4, name: str, wrap: Callable[..., Any]) -> None:
    """Put wrap(right op) in the place of an op."""
    model.ops = dataclasses.replace(model.ops, **{name: wrap(getattr(model.ops, name))})


def rope_exponent_over_rotary_dims(model: Gemma4) -> None:
    replace_op(model, 'rope_table', lambda right: lambda positions, theta, head_dim, pairs: right(
        positions, theta, 2 * pairs, pairs))


def rope_on_leading_dims(model: Gemma4) -> None:
    def rotate(x: Array, cos: Array, sin: Array, scratch: Any) -> None:
        pairs = cos.shape[-1]
        low, high = x[..., :pairs].copy(), x[..., pairs:2 * pairs].copy()
        x[..., :pairs] = low * cos - high * sin
        x[..., pairs:2 * pairs] = high * cos + low * sin

    replace_op(model, 'kv_append', lambda right: patched(right, kv_append, '_rotate', rotate))


def rope_pairs_interleaved(model: Gemma4) -> None:
    def rotate(x: Array, cos: Array, sin: Array, scratch: Any) -> None:
        pairs = cos.shape[-1]
        low, high = x[..., 0:2 * pairs:2].copy(), x[..., 1:2 * pairs:2].copy()
        x[..., 0:2 * pairs:2] = low * cos - high * sin
        x[..., 1:2 * pairs:2] = high * cos + low * sin

    replace_op(model, 'kv_append', lambda right: patched(right, kv_append, '_rotate', rotate))


def patched(right: Callable[..., Any], module: Any, name: str,
            wrong: Any) -> Callable[..., Any]:
    """`right` with `module.name` replaced while it runs."""
    def call(*args: Any, **kwargs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, wrong)
            return right(*args, **kwargs)
    return call


def v_from(change: Callable[[Array, Array, Array], Array]) -> Callable[[Gemma4], None]:
    """Write change(raw v heads, k pages' new rows, k_norm) as V."""
    def plant(model: Gemma4) -> None:
        def wrap(right: Callable[..., Any]) -> Callable[..., Any]:
            def append(q: Array, k_pages: Array, v_pages: Array, qkv: Array, norm: Array,
                       cos: Array, sin: Array, where: Any, eps: float, *rest: Any) -> None:
                right(q, k_pages, v_pages, qkv, norm, cos, sin, where, eps, *rest)
                heads = qkv.reshape(qkv.shape[0], -1, q.shape[2])[where.rows]
                raw = heads[:, -k_pages.shape[2]:]
                keys = k_pages[where.pages, where.slots]
                v_pages[where.pages, where.slots] = change(raw, keys, norm[-1])
            return append
        replace_op(model, 'kv_append', wrap)
    return plant


def layer_scalar_on_the_branch(model: Gemma4) -> None:
    def wrap(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda residual, branch, weight, eps, scale: right(
            residual, branch, weight * scale, eps, 1.0)
    replace_op(model, 'rms_norm_add', wrap)


def router_reads_normed_rows(model: Gemma4) -> None:
    norm = model._layers[0].pre_feedforward_layernorm

    def wrap(right: Callable[..., Any]) -> Callable[..., Any]:
        def route(ids: Array, weights: Array, residual: Array, *rest: Any) -> None:
            normed = np.empty_like(residual)
            rms_norm_ref(normed, residual, norm, 1e-6)
            right(ids, weights, normed, *rest)
        return route
    replace_op(model, 'moe_route', wrap)


def per_expert_scale_before_renormalising(model: Gemma4) -> None:
    def wrap(right: Callable[..., Any]) -> Callable[..., Any]:
        def route(ids: Array, weights: Array, *rest: Any) -> None:
            right(ids, weights, *rest)
            weights /= weights.sum(axis=-1, keepdims=True)
        return route
    replace_op(model, 'moe_route', wrap)


def per_expert_scale_left_out(model: Gemma4) -> None:
    replace_op(model, 'moe_route', lambda right: lambda ids, weights, x, scale, proj, per_expert,
               *rest: right(ids, weights, x, scale, proj, np.ones_like(per_expert), *rest))


def router_without_root(model: Gemma4) -> None:
    replace_op(model, 'moe_route', lambda right: lambda ids, weights, x, scale, *rest: right(
        ids, weights, x, scale * model.config.hidden_size ** 0.5, *rest))


def window_by(change: int) -> Callable[[Gemma4], None]:
    def plant(model: Gemma4) -> None:
        replace_op(model, 'plan_attention', lambda right: lambda spans, window, size, group: right(
            spans, window and window + change, size, group))
    return plant


def embedding_scale_unrounded(model: Gemma4) -> None:
    model._embed_scale = model.config.hidden_size ** 0.5


def norm_weight_plus_one(model: Gemma4) -> None:
    replace_op(model, 'rms_norm', lambda right: lambda out, x, weight, eps: right(
        out, x, 1 + weight, eps))


def attention_scaled_by_head_dim(model: Gemma4) -> None:
    replace_op(model, 'attention', lambda right: lambda out, q, *rest: right(
        out, q * q.shape[-1] ** -0.5, *rest))


def gelu_with_erf(model: Gemma4) -> None:
    def geglu(out: Array, gate_up: Array) -> None:
        gate, up = np.split(gate_up, 2, axis=-1)
        out[...] = gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2))) / 2 * up
    replace_op(model, 'geglu', lambda right: geglu)


def no_softcap(model: Gemma4) -> None:
    replace_op(model, 'head', lambda right: lambda logits, x, table, cap: right(
        logits, x, table, 1e9))


def no_norm_on_the_sum(model: Gemma4) -> None:
    def wrap(right: Callable[..., Any]) -> Callable[..., Any]:
        def add(residual: Array, branch: Array, weight: Array, eps: float, scale: float) -> None:
            if scale == 1.0:
                right(residual, branch, weight, eps, scale)
            else:
                residual[...] = (residual + branch) * scale
        return add
    replace_op(model, 'rms_norm_add', wrap)


def inputs_op(change: Callable[..., None]) -> Callable[[Gemma4], None]:
    """Write the per-layer inputs by change(right op, its arguments)."""
    def plant(model: Gemma4) -> None:
        replace_op(model, 'per_layer_inputs', lambda right: functools.partial(change, right))
    return plant


def inputs_without_the_projection(right: Any, out: Array, *rest: Any) -> None:
    out[...] = 0
    right(out, *rest)


def inputs_without_the_table(right: Any, out: Array, tokens: Any, *rest: Any) -> None:
    right(out, np.full_like(tokens, -1), *rest)


def inputs_without_root_of_two(model: Gemma4) -> None:
    def change(right: Any, out: Array, *rest: Any) -> None:
        right(out, *rest)
        out *= 2 ** 0.5
    inputs_op(change)(model)


def inputs_without_root_of_hidden(model: Gemma4) -> None:
    def change(right: Any, out: Array, tokens: Any, table: Any, norm: Array, hidden: int,
               eps: float) -> None:
        right(out, tokens, table, norm, 1, eps)
    inputs_op(change)(model)


def gate_reads_the_norm(model: Gemma4) -> None:
    def narrow(out: Array, x: Array) -> None:
        rms_norm_ref(out, x, np.ones(x.shape[1]), 1e-6)
    replace_op(model, 'narrow', lambda right: narrow)


def gate_is_silu(model: Gemma4) -> None:
    def gate(gate: Array, inputs: Array) -> None:
        gate[...] = gate / (1 + np.exp(-gate)) * inputs
    replace_op(model, 'per_layer_gate', lambda right: gate)


def inputs_of_the_layer_before(model: Gemma4) -> None:
    size = model.config.hidden_size_per_layer_input
    inputs_op(lambda right, out, *rest: (right(out, *rest), out.__setitem__(
        slice(None), np.roll(out, size, axis=1))))(model)


def layer_scalar_before_the_input(model: Gemma4) -> None:
    for layer in range(model.config.num_hidden_layers):
        own = model._layers[layer]
        assert own.layer_input is not None
        norm = own.layer_input.post_per_layer_input_norm / own.layer_scalar
        model._layers[layer] = dataclasses.replace(own, layer_input=dataclasses.replace(
            own.layer_input, post_per_layer_input_norm=norm))


def shared_from_the_first_of_its_type(model: Gemma4) -> None:
    right = model.config

    class Wrong(type(right)):                        # type: ignore[misc]
        def kv_layer(self, layer: int) -> int:
            found = right.kv_layer(layer)
            return layer if found == layer else right.layer_types.index(right.layer_types[layer])

    fields = {field.name: getattr(right, field.name) for field in dataclasses.fields(right)}
    model.config = Wrong(**fields)


def shared_queries_unturned(model: Gemma4) -> None:
    def queries(q: Array, weight: Array, cos: Array, sin: Array, eps: float) -> None:
        rms_norm_ref(q, q.copy(), weight, eps)
    replace_op(model, 'queries', lambda right: queries)


def decode_position_one_late(model: Gemma4) -> None:
    def wrap(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda positions, *rest: right(positions + (positions.size == 1), *rest)
    replace_op(model, 'rope_table', wrap)


INPUTS = tuple(name for name in CASES if name.startswith('inputs'))
# a norm hides a common factor, all but its eps: only the float64 goldens see these
FAINT = (per_expert_scale_before_renormalising, inputs_without_root_of_hidden,
         inputs_without_root_of_two)
# the 31B's differs from another one in sizes alone
ALL = tuple(name for name in CASES if not name.endswith('31b'))
MOE = tuple(name for name in ALL if 'moe' in name)
K_EQ_V = tuple(name for name in ALL if 'k_eq_v' in name)
PLANTS: list[tuple[Callable[[Gemma4], None], tuple[str, ...]]] = [
    (rope_exponent_over_rotary_dims, ALL), (rope_on_leading_dims, ALL),
    (rope_pairs_interleaved, ALL),
    (v_from(lambda raw, keys, norm: raw), ALL),
    (v_from(lambda raw, keys, norm: raw * inverse_rms(raw, 1e-6)[..., None] * norm), K_EQ_V),
    (v_from(lambda raw, keys, norm: keys), K_EQ_V),
    (layer_scalar_on_the_branch, ALL), (router_reads_normed_rows, MOE),
    (per_expert_scale_before_renormalising, MOE), (per_expert_scale_left_out, MOE),
    (router_without_root, MOE),
    (window_by(1), ALL), (window_by(-1), ALL), (embedding_scale_unrounded, ALL),
    (norm_weight_plus_one, ALL), (attention_scaled_by_head_dim, ALL), (gelu_with_erf, ALL),
    (no_softcap, ALL), (no_norm_on_the_sum, ALL),
    (inputs_op(inputs_without_the_projection), INPUTS),
    (inputs_op(inputs_without_the_table), INPUTS), (inputs_without_root_of_two, INPUTS),
    (inputs_without_root_of_hidden, INPUTS), (gate_reads_the_norm, INPUTS),
    (gate_is_silu, INPUTS), (inputs_of_the_layer_before, INPUTS),
    (layer_scalar_before_the_input, INPUTS), (shared_from_the_first_of_its_type, INPUTS),
    (shared_queries_unturned, INPUTS), (decode_position_one_late, ALL),
]


@pytest.mark.parametrize(('plant', 'name'), [(p, name) for p, names in PLANTS for name in names])
def test_planted_error_is_caught(plant: Callable[[Gemma4], None], name: str) -> None:
    model = random_model(CASES[name]['config'], np.float64)
    plant(model)
    _, logits, num_prompt = run(model, name)
    expected = golden(name)['logits']
    limit = 10 * EXACT if plant in FAINT else SINGLE
    if plant is not decode_position_one_late:
        assert error(logits[:num_prompt], expected[:num_prompt]) > limit
    assert error(logits[num_prompt:], expected[num_prompt:]) > limit
