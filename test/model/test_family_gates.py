# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Every gate of the exactness contract on every family: its ratios of heads in a tiny model.

Weights as float, NVFP4 with a device's rounding and MLX affine with MLX's; bf16 and FP8 pages.
`--grid` runs all of them, else a sample in which each family, gate, form and page type occurs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from draft_cases import draft_target, draft_weights
from draft_gates import drafted_gate, kept_some, scripted
from engine_gates import Job, chunk_gate, concurrent_gate, make_request
from forward import random_weights
from preempt_gates import dropped_once, preempt_gate
from prefix_gates import length_visits, saved_gate, warm_gate
from test_saved_prefix import value_that_changed

from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.dflash import DFlash
from gemma_thor_ros.models.draft_config import DFlashConfig, MtpConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.mtp import Mtp
from gemma_thor_ros.weights.canonical import AffineWeight, DenseWeight
from gemma_thor_ros.weights.mlx_bits import quantize_affine
from gemma_thor_ros.weights.quantize import quantize_nvfp4

S, F = 'sliding_attention', 'full_attention'
BASE: dict[str, Any] = {
    'model_type': 'gemma4_text', 'vocab_size': 96, 'hidden_size': 64, 'num_hidden_layers': 4,
    'layer_types': [S, F, S, F], 'num_attention_heads': 16, 'num_key_value_heads': 8,
    'num_global_key_value_heads': 2, 'head_dim': 8, 'global_head_dim': 16,
    'intermediate_size': 64, 'attention_k_eq_v': True, 'sliding_window': 24,
    'final_logit_softcapping': 30.0, 'hidden_size_per_layer_input': 0,
    'num_kv_shared_layers': 0, 'max_position_embeddings': 4096}
SMALL: dict[str, Any] = {
    **BASE, 'num_hidden_layers': 6, 'layer_types': [S, F, S, F, S, F], 'num_attention_heads': 8,
    'num_key_value_heads': 2, 'num_global_key_value_heads': None, 'attention_k_eq_v': False,
    'num_kv_shared_layers': 2, 'hidden_size_per_layer_input': 32,
    'vocab_size_per_layer_input': 96}
FAMILIES: dict[str, dict[str, Any]] = {
    '26B-A4B': {**BASE, 'enable_moe_block': True, 'num_experts': 8, 'top_k_experts': 2,
                'moe_intermediate_size': 32},
    '31B': BASE,
    '12B': {**BASE, 'model_type': 'gemma4_unified_text', 'num_global_key_value_heads': 1},
    'E4B': SMALL,
    'E2B': {**SMALL, 'num_key_value_heads': 1, 'num_kv_shared_layers': 4,
            'use_double_wide_mlp': True}}
ROUNDING = {'float': 'none', 'nvfp4': 'device', 'mlx-4bit-g32': 'mlx'}
PAGES = ('bf16', 'fp8')
PAGE = 16
request = partial(make_request, vocab_size=96, max_tokens=6)


@cache
def model(family: str, form: str, pages: str) -> Gemma4:
    """Packed weights are unpacked at every use, as those of a large model are on the CPU."""
    config = ModelConfig.from_dict(FAMILIES[family])
    weights: dict[str, Any] = {
        name: packed(form, weight) if name.endswith('_proj') else weight
        for name, weight in random_weights(config).items()}
    assert form == 'float' or any(not isinstance(each, DenseWeight) for each in weights.values())
    rounding: Any = ROUNDING[form]
    kv_dtype: Any = pages
    return Gemma4(config, weights, np.float32, rounding, kv_dtype=kv_dtype,
                  weight_budget_bytes=1 << 30 if form == 'float' else 0)


def packed(form: str, weight: DenseWeight) -> Any:
    if form == 'float':
        return weight
    values = weight.to_float(np.float32)
    if form == 'nvfp4':
        return quantize_nvfp4(values)
    flat = quantize_affine(values.reshape(-1, values.shape[-1]), 4, 32)
    words, scales, biases = (each.reshape(*values.shape[:-1], -1) for each in flat[:3])
    return AffineWeight(words, DenseWeight(scales, 'bf16'), DenseWeight(biases, 'bf16'), 4, 32)


def jobs() -> list[Job]:
    return [Job(request('long', 60, 1, max_tokens=14)), Job(request('short', 3, 2), 1),
            Job(request('gone', 40, 4), 2, 7), Job(request('late', 33, 3), 4)]


def concurrent(gemma: Gemma4) -> list[str]:
    return concurrent_gate(gemma, jobs(), prefill_chunk=23, page_size=PAGE, stop_ids=())


def chunked(gemma: Gemma4) -> list[str]:
    return chunk_gate(gemma, [Job(request('p', 70, 5))], chunks=(1, 23), page_size=PAGE,
                      stop_ids=())


def resumed(gemma: Gemma4) -> list[str]:
    return warm_gate(gemma, length_visits(request, [25, 57], PAGE), page_size=PAGE)


def dropped(gemma: Gemma4) -> list[str]:
    """In the prompt, and in the middle of the answer."""
    return preempt_gate(gemma, request('victim', 41, 1, max_tokens=24), request('intruder', 45, 2),
                        (1, 14), expect=dropped_once, page_size=PAGE, num_full_pages=6,
                        num_sliding_pages=6, prefill_chunk=23)


def drafted(gemma: Gemma4) -> list[str]:
    return drafted_gate(gemma, lambda: [job for job in jobs() if job.cancel_step < 0],
                        scripted(0.7), num_drafts=7, page_size=PAGE, stop_ids=(),
                        expect=kept_some)


def restored(gemma: Gemma4) -> list[str]:
    return saved_gate(gemma, 57, request)


GATES: list[Callable[[Gemma4], list[str]]] = [
    concurrent, chunked, resumed, dropped, drafted, restored]
NAMES, FORMS = list(FAMILIES), list(ROUNDING)
ALL = list(product(range(len(NAMES)), range(len(GATES)), range(len(FORMS)), range(2)))
# every third pair of family and gate, in one of the forms
SAMPLE = [case for case in ALL if (case[0] + case[1]) % 3 == 1 and case[2:] == (
    (case[0] + 2 * (case[1] // 3)) % 3, (case[0] + case[1] // 3) % 2)]


# The drafters that are published for a family, in its ratios of heads.
DRAFTERS = [('26B-A4B', 'mtp'), ('31B', 'mtp'), ('12B', 'mtp'), ('26B-A4B', 'dflash'),
            ('31B', 'dflash')]


def drafter_config(family: str, kind: str) -> dict[str, Any]:
    if kind == 'dflash':
        return {
            'architectures': ['DFlashDraftModel'], 'model_type': 'qwen3', 'hidden_size': 64,
            'intermediate_size': 72, 'num_hidden_layers': 3, 'num_attention_heads': 8,
            'num_key_value_heads': 2, 'head_dim': 16, 'layer_types': [S, S, F],
            'sliding_window': 20, 'block_size': 8, 'num_target_layers': 4, 'rms_norm_eps': 1e-6,
            'rope_theta': 1e6, 'vocab_size': 96,
            'dflash_config': {'mask_token_id': 4, 'target_layer_ids': [0, 2]}}
    text = {**BASE, 'num_global_key_value_heads': FAMILIES[family]['num_global_key_value_heads'],
            'hidden_size': 32, 'num_hidden_layers': 3, 'layer_types': [S, S, F],
            'num_kv_shared_layers': 3, 'vocab_size_per_layer_input': 0}
    unified = '_unified' if family == '12B' else ''
    return {'model_type': f'gemma4{unified}_assistant', 'backbone_hidden_size': 64,
            'use_ordered_embeddings': False, 'text_config': {
                **text, 'model_type': f'gemma4{unified}_text'}}


def drafter_of(family: str, kind: str, gemma: Gemma4) -> Any:
    raw = drafter_config(family, kind)
    weights, target = draft_weights(kind, raw), draft_target(gemma)
    made: Any = Mtp if kind == 'mtp' else DFlash
    config: Any = (MtpConfig.from_dict(raw, gemma.config) if kind == 'mtp'
                   else DFlashConfig.from_dict(raw, gemma.config))
    return made(config, weights, target, gemma.dtype, gemma.rounding)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    whole = metafunc.config.getoption('--grid')
    if 'case' in metafunc.fixturenames:
        metafunc.parametrize('case', ALL if whole else SAMPLE, ids=lambda case: '-'.join((
            NAMES[case[0]], GATES[case[1]].__name__, FORMS[case[2]], PAGES[case[3]])))
    if 'published' in metafunc.fixturenames:
        metafunc.parametrize('published', DRAFTERS if whole else DRAFTERS[2::2],
                             ids=lambda published: '-'.join(published))
    if 'pair' in metafunc.fixturenames:
        pairs = list(product(NAMES, GATES))
        metafunc.parametrize('pair', pairs if whole else pairs[::len(GATES) - 1],
                             ids=lambda pair: f'{pair[0]}-{pair[1].__name__}')


def test_the_sample_has_every_one() -> None:
    for index, count in enumerate((len(NAMES), len(GATES), len(FORMS), len(PAGES))):
        assert len({case[index] for case in SAMPLE}) == count


def test_gate(case: tuple[int, int, int, int]) -> None:
    family, gate, form, pages = case
    assert GATES[gate](model(NAMES[family], FORMS[form], PAGES[pages])) == []


def test_drafted_by_the_published_kinds(published: tuple[str, str]) -> None:
    """Of random weights: hardly a draft is kept, and none may change a token."""
    family, kind = published
    gemma = model(family, 'nvfp4', 'fp8')

    def drafted_enough(answers: dict[str, Any]) -> bool:
        return sum(each.usage.drafted_tokens for each in answers.values()) > 20
    assert drafted_gate(gemma, lambda: [job for job in jobs() if job.cancel_step < 0],
                        lambda *_: drafter_of(family, kind, gemma), num_drafts=5, page_size=PAGE,
                        stop_ids=(), expect=drafted_enough) == []


class RowVariant:
    """op linear that adds up in another order where rows have company, or too little of it."""

    def __init__(self, right: Callable[..., None]) -> None:
        self.right = right

    def __call__(self, out: Any, x: Any, weight: Any, num_decode_rows: int) -> None:
        self.right(out, x, weight, num_decode_rows)
        rows = slice(0, num_decode_rows if num_decode_rows > 1 else 0)
        if 0 < x.shape[0] - num_decode_rows <= 32:       # one tile of prompt rows
            rows = slice(rows.start if rows.stop else num_decode_rows, None)
        matrix = weight.rows(0, weight.shape[0])
        out[rows] = x[rows, ::-1].copy() @ matrix[:, ::-1].T.copy()


def test_planted_error_is_caught(pair: tuple[str, Callable[[Gemma4], list[str]]],
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    family, gate = pair
    right = model(family, 'float', 'bf16')
    if gate is restored:
        value_that_changed(monkeypatch)
    else:
        monkeypatch.setattr(right, 'ops', replace(right.ops, linear=RowVariant(right.ops.linear)))
    assert gate(right) != []
