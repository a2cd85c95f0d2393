# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""DFlash against a float64 reference, and every easy mistake planted once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draft_cases import CASES, EXACT, SINGLE, Bench, golden_error, make_drafter, target_config
from forward import Array, Role, random_model

from gemma_thor_ros.models.dflash import DFlash
from gemma_thor_ros.models.draft_config import DFlashConfig
from gemma_thor_ros.models.drafter import DraftSpan, pick_drafts
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings
from gemma_thor_ros.schema import ConfigError

MASKS = ('auto', 'causal', 'bidirectional')


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('mask', MASKS)
def test_block_logits(case: str, mask: str) -> None:
    assert max(golden_error(case, f'dflash_{mask}', np.float64)) <= EXACT
    assert max(golden_error(case, f'dflash_{mask}', np.float32)) <= SINGLE


def test_the_three_masks_differ() -> None:
    def swapped(mask: str) -> Callable[[Gemma4, Any], None]:
        def plant(model: Gemma4, drafter: DFlash) -> None:
            config = DFlashConfig.from_dict(CASES['draft_moe']['dflash'], model.config, mask)  # type: ignore[arg-type]
            drafter._layers = [dataclasses.replace(layer, causal=causal) for layer, causal in zip(
                drafter._layers, config.causal_layers, strict=True)]
        return plant

    for mask in MASKS:
        for other in MASKS:
            wrong = min(golden_error('draft_moe', f'dflash_{mask}', np.float64, swapped(other)))
            assert (wrong > SINGLE) is (mask != other), (mask, other)


# Planted errors: each changes one thing of a right drafter.


def replaced(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
             ) -> Callable[[Gemma4, DFlash], None]:
    """Put wrap(right op) in the place of one of the drafter's ops."""
    def plant(model: Gemma4, drafter: DFlash) -> None:
        setattr(drafter.ops, name, wrap(getattr(drafter.ops, name)))
    return plant


def tap_before_layer_scalar(model: Gemma4, drafter: DFlash) -> None:
    scalars = [model._layers[layer].layer_scalar for layer in drafter.config.taps]
    right = drafter.absorb

    def absorb(batch: Any, hidden: Array, cache: Any) -> None:
        right(batch, hidden / np.array(scalars)[:, None, None], cache)
    drafter.absorb = absorb  # type: ignore[method-assign]


def taps_in_another_order(model: Gemma4, drafter: DFlash) -> None:
    right = drafter.absorb
    drafter.absorb = lambda batch, hidden, cache: right(  # type: ignore[method-assign]
        batch, hidden[::-1], cache)


def block_one_position_late(model: Gemma4, drafter: DFlash) -> None:
    right = drafter.block_logits

    def logits(spans: Any, cache: Any) -> Array:
        turned = drafter._rope
        drafter._rope = lambda positions: turned(positions + 1)  # type: ignore[method-assign]
        try:
            return right(spans, cache)
        finally:
            drafter._rope = turned  # type: ignore[method-assign]
    drafter.block_logits = logits  # type: ignore[method-assign]


def stale_key(model: Gemma4, drafter: DFlash) -> None:
    """The block begins one slot late, so that a rejected row's key stays before it."""
    right = drafter._places

    def places(spans: Any, kind: str, cache: Any) -> Any:
        later = [dataclasses.replace(span, position=span.position + 1) for span in spans]
        return right(later, kind, cache)
    drafter._places = places  # type: ignore[method-assign]


def context_without_norm(model: Gemma4, drafter: DFlash) -> None:
    drafter._hidden_norm = np.ones_like(drafter._hidden_norm)


def window_by(change: int) -> Callable[[Gemma4, DFlash], None]:
    return replaced('plan_attention', lambda right: lambda spans, window, *rest: right(
        spans, window and window + change, *rest))


def v_normalised(model: Gemma4, drafter: DFlash) -> None:
    right = drafter._write

    def write(cache: Any, index: int, k: Array, v: Array, *rest: Any) -> None:
        heads = v.reshape(len(v), -1, drafter.config.head_dim)
        heads = heads / np.sqrt((heads * heads).mean(-1, keepdims=True) + 1e-6)
        right(cache, index, k, heads.reshape(v.shape), *rest)
    drafter._write = write  # type: ignore[method-assign]


PLANTS: list[Callable[[Gemma4, DFlash], None]] = [
    replaced('embed', lambda right: lambda ids, table, scale: right(ids, table, 1.0)),
    replaced('embed', lambda right: lambda ids, table, scale: right(
        ids, table, table.linear.shape[1] ** 0.5)),
    tap_before_layer_scalar, taps_in_another_order, block_one_position_late, stale_key,
    context_without_norm, window_by(1), window_by(-1), v_normalised,
    replaced('swiglu', lambda right: lambda gate_up: gate_up[:, :gate_up.shape[1] // 2]
             * gate_up[:, gate_up.shape[1] // 2:]),
    replaced('norm_rope', lambda right: lambda heads, weight, rope, eps, scale=1.0: right(
        heads, weight, rope, eps)),
    replaced('head', lambda right: lambda x, table, cap: right(x, table, None)),
]


@pytest.mark.parametrize('plant', PLANTS)
@pytest.mark.parametrize('case', CASES)
def test_planted_error_is_caught(case: str, plant: Callable[[Gemma4, DFlash], None]) -> None:
    _, second = golden_error(case, 'dflash_auto', np.float64, plant)
    assert second > SINGLE


def test_block_leaves_the_context_alone() -> None:
    """Drafts never change what lies in the target's pages' places."""
    model = random_model(CASES['draft_moe']['target'], np.float64)
    drafter = make_drafter('draft_moe', 'dflash_auto', model)
    assert isinstance(drafter, DFlash)
    bench = Bench(model, drafter, 48)
    bench.run(list(range(20, 43)), 0, Role.PREFILL)
    num = bench.cache.num_pages

    def context() -> list[Array]:
        return [pages[:num[kind]].copy() for both in (bench.cache.k_pages, bench.cache.v_pages)
                for pages, kind in zip(both, drafter.config.layer_types, strict=True)]

    before = context()
    assert any(pages.any() for pages in before)
    drafter.draft([bench.span(9, 23, 7)], bench.cache, None)
    assert all(np.array_equal(a, b) for a, b in zip(before, context(), strict=True))


def test_many_sequences_draft_as_each_alone() -> None:
    model = random_model(CASES['draft_dense']['target'])
    drafter = make_drafter('draft_dense', 'dflash_auto', model)
    assert isinstance(drafter, DFlash)
    bench = Bench(model, drafter, 160)
    bench.run(list(range(100)), 0, Role.PREFILL)
    spans: list[DraftSpan] = [bench.span(token, position, 1 + position % 15)
                              for token, position in zip(range(3, 23), range(79, 99), strict=True)]
    together = drafter.draft(spans, bench.cache, None)
    assert together.token_ids.shape == (20, 15)
    for row, span in enumerate(spans):
        alone = drafter.draft([span], bench.cache, None)
        num = span.num_drafts
        assert np.array_equal(together.token_ids[row, :num], alone.token_ids[0])
        assert np.allclose(together.confidence[row, :num], alone.confidence[0], rtol=1e-4)
    assert ((together.confidence >= 0) & (together.confidence <= 1)).all()


@pytest.mark.parametrize(('change', 'words'), [
    ({'hidden_size': 80}, 'hidden_size 80, the model 72'),
    ({'num_target_layers': 30}, 'num_target_layers 30, the model has 6 layers'),
    ({'vocab_size': 161}, 'vocab_size 161, the model 160'),
    ({'hidden_act': 'gelu'}, "hidden_act is 'gelu', expected silu"),
    ({'block_size': 17}, 'block_size is 17, at most 16'),
    ({'layer_types': ['sliding_attention']}, 'expected 3 entries'),
    ({'architectures': ['Qwen3ForCausalLM']}, "expected ['DFlashDraftModel']"),
    ({'rope_scaling': {'type': 'yarn'}}, 'turns all pairs, unscaled'),
    ({'dflash_config': {'mask_token_id': 4, 'target_layer_ids': [0, 6]}}, 'below the 6 layers'),
    ({'dflash_config': {'mask_token_id': 4, 'target_layer_ids': [2, 0]}}, 'ascending'),
    ({'dflash_config': {'mask_token_id': 160, 'target_layer_ids': [0]}}, 'mask_token_id is 160'),
    ({'num_key_value_heads': 4}, '6 heads over 4 kv heads'),
])
def test_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        DFlashConfig.from_dict({**CASES['draft_moe']['dflash'], **change},
                               target_config('draft_moe'))
    assert words in str(refused.value)


def test_config_says_which_layers_are_causal() -> None:
    raw, target = CASES['draft_moe']['dflash'], target_config('draft_moe')
    assert DFlashConfig.from_dict(raw, target).causal_layers == (True, True, False)
    told = {**raw, 'is_causal': False}
    assert DFlashConfig.from_dict(told, target).causal_layers == (False,) * 3
    assert DFlashConfig.from_dict(told, target, 'causal').causal_layers == (True,) * 3
    # block_size stands in either of two places
    moved = {key: value for key, value in raw.items() if key != 'block_size'}
    moved['dflash_config'] = {**raw['dflash_config'], 'block_size': 5}
    assert DFlashConfig.from_dict(moved, target).max_drafts == 4


def test_confidence_at_hardly_any_temperature() -> None:
    """A temperature that is 0 in float32 divides nothing by zero."""
    pages, logits = np.zeros(1, np.int32), np.array([[1.0, 3.0, 3.5]], np.float32)
    first = SampleRow(SampleSettings(temperature=1e-300), 1)
    with np.errstate(all='raise', under='ignore'):
        ids, confidence = pick_drafts(logits, DraftSpan(0, 0, 1, pages, pages, None, first))
    assert ids.tolist() == [2] and confidence.tolist() == [1.0]
