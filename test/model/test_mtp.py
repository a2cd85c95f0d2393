# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The MTP assistant against the reference implementation, and every easy mistake planted once."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draft_cases import CASES, EXACT, SINGLE, Bench, golden_error, make_drafter, target_config
from forward import Array, Role, random_model

from gemma_thor_ros.models.draft_config import MtpConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.mtp import Mtp
from gemma_thor_ros.schema import ConfigError


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('position', ['newest', 'last_key'])
def test_chain_of_logits(case: str, position: str) -> None:
    assert max(golden_error(case, f'mtp_{position}', np.float64)) <= EXACT
    assert max(golden_error(case, f'mtp_{position}', np.float32)) <= SINGLE


# Planted errors: each changes one thing of a right assistant.


def replaced(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
             ) -> Callable[[Gemma4, Mtp], None]:
    """Put wrap(right op) in the place of one of the assistant's ops."""
    def plant(model: Gemma4, drafter: Mtp) -> None:
        setattr(drafter.ops, name, wrap(getattr(drafter.ops, name)))
    return plant


def stale_key(model: Gemma4, drafter: Mtp) -> None:
    """One key more is seen: that of a rejected row."""
    right = drafter._round
    position = drafter.config.position

    def round_(spans: Any, cache: Any) -> Any:
        drafter.config = dataclasses.replace(drafter.config, position='last_key')
        later = [dataclasses.replace(span, position=span.position + 1) for span in spans]
        try:
            return right(later, cache)
        finally:
            drafter.config = dataclasses.replace(drafter.config, position=position)
    drafter._round = round_  # type: ignore[method-assign]


def hidden_before_the_final_norm(model: Gemma4, drafter: Mtp) -> None:
    norm = drafter._target.norm

    def wrap(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, weight, eps: x if weight is norm else right(x, weight, eps)
    replaced('rms_norm', wrap)(model, drafter)


def parts_in_another_order(model: Gemma4, drafter: Mtp) -> None:
    replaced('concatenate', lambda right: lambda parts: right(parts[::-1]))(model, drafter)


def other_layer_of_the_kind(model: Gemma4, drafter: Mtp) -> None:
    kinds = dict(drafter.config.shared_layers)
    first = {kind: model.config.layers_of(kind)[0] for kind in kinds}
    drafter.config = dataclasses.replace(drafter.config, shared_layers=tuple(first.items()))


def steps_move_on(model: Gemma4, drafter: Mtp) -> None:
    """Each draft stands one position after the one before."""
    right, count = drafter._step, 0

    def step(newest: Any, hidden: Array, same: Any) -> Any:
        nonlocal count
        kinds = [kind for kind, _ in drafter.config.shared_layers]
        turned = copy.copy(same)
        at = np.array([drafter_position[0] + count])
        object.__setattr__(turned, 'rope', {kind: drafter.ops.rope(
            at, drafter.config.geometry(kind).rope_theta, drafter.config.geometry(kind).head_dim,
            drafter.config.geometry(kind).num_rotary_pairs) for kind in kinds})
        count += 1
        return right(newest, hidden, turned)

    drafter_position: list[int] = [0]
    rounds = drafter._round

    def round_(spans: Any, cache: Any) -> Any:
        nonlocal count
        count = 0
        drafter_position[0] = spans[0].position
        return rounds(spans, cache)
    drafter._step, drafter._round = step, round_  # type: ignore[method-assign]


def window_by(change: int) -> Callable[[Gemma4, Mtp], None]:
    return replaced('plan_attention', lambda right: lambda spans, window, *rest: right(
        spans, window and window + change, *rest))


PLANTS: list[Callable[[Gemma4, Mtp], None]] = [
    replaced('embed', lambda right: lambda ids, table, scale: right(ids, table, 1.0)),
    replaced('add_norm', lambda right: lambda x, branch, weight, eps, scale: right(
        x, branch, weight, eps, 1.0)),
    stale_key, hidden_before_the_final_norm, parts_in_another_order, steps_move_on,
    window_by(1), window_by(-1),
]


@pytest.mark.parametrize('plant', PLANTS)
@pytest.mark.parametrize('case', CASES)
def test_planted_error_is_caught(case: str, plant: Callable[[Gemma4, Mtp], None]) -> None:
    _, second = golden_error(case, 'mtp_newest', np.float64, plant)
    assert second > SINGLE


def test_keys_of_another_layer_are_caught() -> None:
    assert min(golden_error('draft_dense', 'mtp_newest', np.float64,
                            other_layer_of_the_kind)) > SINGLE


def test_many_sequences_draft_as_each_alone() -> None:
    model = random_model(CASES['draft_dense']['target'])
    drafter = make_drafter('draft_dense', 'mtp_newest', model)
    bench = Bench(model, drafter, 160)
    bench.run(list(range(100)), 0, Role.PREFILL)
    spans = [bench.span(token, position, 1 + position % 4, temperature=0.8)
             for token, position in zip(range(3, 13), range(79, 89), strict=True)]
    # a row that the engine does not know costs acceptance alone
    spans[3] = dataclasses.replace(spans[3], hidden=None)
    together = drafter.draft(spans, None, bench.kv_cache)  # type: ignore[arg-type]
    for row, span in enumerate(spans):
        alone = drafter.draft([span], None, bench.kv_cache)  # type: ignore[arg-type]
        num = span.num_drafts
        assert np.array_equal(together.token_ids[row, :num], alone.token_ids[0])
        assert np.allclose(together.confidence[row, :num], alone.confidence[0], rtol=1e-4)


def changed(change: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    raw = CASES['draft_moe']['mtp']
    return {**raw, 'text_config': {**raw['text_config'], **text}, **change}


@pytest.mark.parametrize(('change', 'text', 'words'), [
    ({'backbone_hidden_size': 64}, {}, 'backbone_hidden_size 64, the model hidden_size 72'),
    ({'use_ordered_embeddings': True}, {}, 'use_ordered_embeddings is true'),
    ({'model_type': 'gemma4'}, {}, 'is no assistant of this family'),
    ({'text_config': None}, {}, 'text_config is None'),
    ({}, {'vocab_size': 161}, 'vocab_size 161, the model 160'),
    ({}, {'num_key_value_heads': 4}, '4 kv heads of 16 in sliding_attention layers, the model 2'),
    ({}, {'global_head_dim': 64}, '1 kv heads of 64 in full_attention layers, the model 1 of 32'),
    ({}, {'num_kv_shared_layers': 2}, 'num_kv_shared_layers is 2, expected all 3'),
    ({}, {'enable_moe_block': True}, 'an assistant has dense layers'),
])
def test_refused_by_name(change: dict[str, Any], text: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        MtpConfig.from_dict(changed(change, text), target_config('draft_moe'))
    assert words in str(refused.value)


def test_reads_the_last_layer_of_each_type() -> None:
    config = MtpConfig.from_dict(CASES['draft_dense']['mtp'], target_config('draft_dense'))
    assert dict(config.shared_layers) == {'sliding_attention': 2, 'full_attention': 3}
    assert config.taps == (3,) and config.window == 0 and config.bytes_per_page(16) == (0, 0)
    assert make_drafter('draft_dense', 'mtp_newest', random_model(
        CASES['draft_dense']['target'])).new_cache(4, 4, 16) is None
