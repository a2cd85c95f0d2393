# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The exactness contract for prompts with images, on tiny models with sight, bit by bit.

Chunked == one prefill, concurrent == alone, warm == cold, dropped == undisturbed, drafted ==
plain; each gate with the errors that it has to catch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import vision_cases as cases
from draft_cases import CASES as DRAFT_CASES
from draft_cases import make_drafter
from draft_gates import drafted_gate, kept_some, scripted
from engine_gates import Job, chunk_gate, concurrent_gate, make_request, run
from forward import random_weights
from preempt_gates import dropped_once, paused_once, preempt_gate
from prefix_gates import Visit, warm_gate

from gemma_thor_ros.engine import image_rows, plan, prefix_cache
from gemma_thor_ros.image.prepare import PreparedImage, prepare_image
from gemma_thor_ros.models.batch import SoftRows
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.vision_config import VisionConfig
from gemma_thor_ros.schema import PromptImage, Request
from gemma_thor_ros.weights.canonical import DenseWeight
from gemma_thor_ros.weights.vision import canonical_name

PAGE = 8
OPTIONS: dict[str, Any] = {'page_size': PAGE, 'max_image_tokens': 70, 'stop_ids': ()}
SIZES = {'a': (60, 90), 'b': (60, 90), 'c': (30, 300)}   # a and b: as many tokens, other pixels


def sighted(raw: dict[str, Any]) -> Gemma4:
    config, vision = ModelConfig.from_dict(raw), VisionConfig.from_dict(raw)
    assert vision is not None
    weights = {canonical_name(key): DenseWeight(value, 'f32')
               for key, value in cases.vision_tensors(raw).items()}
    return Gemma4(config, random_weights(config), np.float32, vision=(vision, weights))


@cache
def model(name: str) -> Gemma4:
    return sighted(cases.CONFIGS[name])


@cache
def image(name: str, side: int) -> PreparedImage:
    return prepare_image(cases.picture(name, *SIZES[name]), 70, side)


def request(name: str, kind: str, parts: list[int | str], **sampling: Any) -> Request:
    """A prompt of so many random tokens, then an image, ...; `name` keys the tokens."""
    side = 48 if kind == 'embedder' else 16
    base = make_request(name, 400, vocab_size=90, **{'max_tokens': 5, **sampling})
    ids, placed = [], []
    for part in parts:
        if isinstance(part, int):
            ids += base.prompt_ids[len(ids):len(ids) + part]
            continue
        shown = image(part, side)
        ids.append(cases.IDS['boi_token_id'])
        placed.append(PromptImage(len(ids), shown.num_tokens, shown.digest, shown.patches,
                                  shown.columns))
        ids += [cases.IDS['image_token_id']] * shown.num_tokens + [cases.IDS['eoi_token_id']]
    return replace(base, prompt_ids=tuple(ids), images=tuple(placed))


def jobs(kind: str) -> list[Job]:
    return [Job(request('one', kind, [6, 'a', 9])),
            Job(request('two', kind, [30, 'c', 3, 'b', 1]), 1),
            Job(request('last', kind, [11, 'b']), 2),
            Job(request('text', kind, [50]), 2)]


KINDS = ['tower', 'embedder', 'clipped']
BOTH_WAYS = ['tower', 'embedder']


@pytest.mark.parametrize('kind', KINDS)
def test_chunked_equals_whole(kind: str, grid: bool) -> None:
    """Chunks shorter than an image too: it is then a chunk of its own."""
    chunks = range(1, 80) if grid else (5, 16, 64, 71)
    assert chunk_gate(model(kind), jobs(kind), chunks=chunks, **OPTIONS) == []


@pytest.mark.parametrize('kind', KINDS)
def test_concurrent_equals_solo(kind: str) -> None:
    assert concurrent_gate(model(kind), jobs(kind), prefill_chunk=40, **OPTIONS) == []


def visits(kind: str) -> list[Visit]:
    """Prompts around an image of 60 tokens whose beginning and end lie inside pages."""
    first = request('base', kind, [20, 'a', 30])
    assert image('a', 16).num_tokens == 60 and len(first.prompt_ids) == 112
    inside = replace(first, request_id='marked', checkpoints=(40, 60))
    return [
        Visit(first, 0), Visit(replace(first, request_id='again'), 104),
        Visit(replace(request('base', kind, [20, 'b', 30]), request_id='other image'), 16),
        Visit(replace(request('base', kind, [20, 'a', 30, 9]), request_id='longer'), 104),
        Visit(inside, 104),
        # of the prompt's last page border one would end in the image: from before it
        Visit(replace(request('base', kind, [20, 'a']), request_id='ends with it'), 16),
        Visit(replace(request('base', kind, [20, 'a', 'b']), request_id='two of them'), 16),
        Visit(replace(request('base', kind, [76]), request_id='no image'), 16),
        Visit(replace(request('base', kind, [20, 'a', 5, 'a', 30]), request_id='a and a'), 16),
        Visit(replace(request('base', kind, [20, 'a', 5, 'b', 30]), request_id='a and b'), 88)]


@pytest.mark.parametrize(('kind', 'chunk'), [('tower', 2048), *((kind, 24) for kind in KINDS)])
def test_warm_equals_cold(kind: str, chunk: int) -> None:
    assert warm_gate(model(kind), visits(kind), prefill_chunk=chunk, checkpoint_interval=1,
                     **OPTIONS) == []


@pytest.mark.parametrize('kind', KINDS)
def test_prompts_drawn_at_random_warm_and_together(kind: str, grid: bool) -> None:
    """Prompts that share beginnings, several at a time, in chunks, on too small a cache."""
    for seed in range(40 if grid else 1):
        rng = np.random.default_rng(seed)
        drawn = []
        for number in range(8):
            parts: list[int | str] = []
            for _ in range(rng.integers(1, 4)):
                parts += [int(rng.choice((0, 8, 20))), str(rng.choice(list(SIZES)))]
            base = request('shared', kind, [*parts, int(rng.integers(1, 24))], seed=int(seed))
            drawn.append(Visit(replace(base, request_id=f'{number}')))
        assert warm_gate(model(kind), drawn, together=int(rng.integers(1, 5)),
                         prefill_chunk=int(rng.integers(1, 90)), checkpoint_interval=1,
                         max_checkpoint_pages=24, **OPTIONS) == [], seed


def test_same_ids_without_the_image_are_another_prompt() -> None:
    """Whoever sends the ids of soft tokens as they are does not get an image of somebody else."""
    seen = request('base', 'tower', [20, 'a', 30])
    blind = replace(seen, request_id='blind', images=())
    assert warm_gate(model('tower'), [Visit(seen, 0), Visit(blind, 16), Visit(
        replace(seen, request_id='again'), 104)], checkpoint_interval=1, **OPTIONS) == []


def test_over_experts_as_over_a_dense_model(grid: bool) -> None:
    assert concurrent_gate(model('experts'), jobs('experts'), prefill_chunk=40, **OPTIONS) == []
    if grid:
        test_chunked_equals_whole('experts', grid)
        test_warm_equals_cold('experts', 24)
        test_prompts_drawn_at_random_warm_and_together('experts', grid)
        test_paused_or_dropped_equals_undisturbed('experts')
        test_drafted_equals_plain('experts')


@pytest.mark.parametrize('kind', [*BOTH_WAYS, 'experts'])
def test_case_h14_the_same_image_early_and_late(kind: str) -> None:
    """Positions 10 and 1500, each cold, then warm; and both in one prompt."""
    early = request('early', kind, [9, 'a', 20])
    late = request('late', kind, [50, 'a', 30])          # ids of 'late' begin with 50 of its own
    text = make_request('long', 1449, vocab_size=90).prompt_ids
    shift = len(text)
    late = replace(late, prompt_ids=(*text, *late.prompt_ids), images=tuple(
        replace(each, start=each.start + shift) for each in late.images))
    both = replace(late, request_id='both', prompt_ids=early.prompt_ids + late.prompt_ids[
        len(early.prompt_ids):], images=early.images + late.images)
    assert [each.start for each in both.images] == [10, 1500]
    asked = [early, late, both]
    order = [Visit(each, 0 if each is not both else -1) for each in asked] + [
        Visit(replace(each, request_id=f'warm {each.request_id}'),
              (len(each.prompt_ids) - 1) // PAGE * PAGE) for each in asked]
    assert warm_gate(model(kind), order, prefill_chunk=256, num_sliding_pages=800,
                     **OPTIONS) == []


@pytest.mark.parametrize('kind', BOTH_WAYS)
def test_paused_or_dropped_equals_undisturbed(kind: str) -> None:
    victim = request('victim', kind, [20, 'a', 3, 'c', 9])
    intruder = request('intruder', kind, [12, 'b', 40])
    assert preempt_gate(model(kind), victim, intruder, [1, 3, 5], expect=paused_once,
                        prefill_chunk=24, **OPTIONS) == []
    assert preempt_gate(model(kind), victim, intruder, [1, 3, 5], expect=dropped_once,
                        prefill_chunk=24, num_full_pages=20, max_checkpoint_pages=0,
                        **OPTIONS) == []


@pytest.mark.parametrize('kind', KINDS)
def test_drafted_equals_plain(kind: str) -> None:
    assert drafted_gate(model(kind), lambda: [Job(replace(job.request, sampling=replace(
        job.request.sampling, max_tokens=24))) for job in jobs(kind)], scripted(0.7),
        num_drafts=4, expect=kept_some, **OPTIONS) == []


@pytest.mark.parametrize(('case', 'variant'), [
    ('draft_moe', 'dflash_causal'), ('draft_dense', 'mtp_next')])
def test_drafters_of_the_real_kinds_read_rows_of_images(case: str, variant: str) -> None:
    raw = DRAFT_CASES[case]['target']
    target = sighted({'model_type': 'gemma4', 'vision_config': cases.TOWER, **cases.IDS,
                      'text_config': {**raw, 'use_bidirectional_attention': 'vision'}})
    assert drafted_gate(target, lambda: jobs('tower'),
                        lambda *_: make_drafter(case, variant, target), num_drafts=4,
                        expect=lambda answers: sum(answer.usage.drafted_tokens for answer in
                                                   answers.values()) > 10, **OPTIONS) == []


def test_an_image_is_encoded_once() -> None:
    rows = image_rows.ImageRows(model('tower').vision)   # type: ignore[arg-type]
    shown = request('x', 'tower', [3, 'a', 3, 'b', 3]).images
    first = rows._soft_tokens(shown[0])
    assert rows._soft_tokens(shown[0]) is first and rows.num_encoded == 1
    small = image_rows.ImageRows(model('tower').vision, 1)       # type: ignore[arg-type]
    for each in (*shown, *shown):
        small._soft_tokens(each)
    assert small.num_encoded == 4 and len(small._kept) == 1


# Planted errors.

def cut_images(monkeypatch: pytest.MonkeyPatch, quietly: bool) -> None:
    """Chunks end where the budget does; `quietly`: no assertion sees it either."""
    monkeypatch.setattr(plan, 'prompt_rows', lambda sequence, budget, alone: min(
        budget, sequence.num_prompt - sequence.num_committed))
    if not quietly:
        return
    monkeypatch.setattr(plan, '_image_blocks', lambda sequence, start, end: tuple(
        (max(start, each.start), min(end, each.stop)) for each in sequence.request.images
        if each.start < end and each.stop > start))

    def rows(self: image_rows.ImageRows, step: plan.Plan) -> tuple[SoftRows, ...]:
        return tuple(SoftRows(span.start_row + low - span.start_position, self._soft_tokens(each)[
            low - each.start:high - each.start])
            for part, span in zip(step.parts, step.batch.spans, strict=True)
            for each in part.sequence.request.images for low, high in span.blocks
            if each.start <= low < each.stop)
    monkeypatch.setattr(image_rows.ImageRows, 'of', rows)


@pytest.mark.parametrize('kind', BOTH_WAYS)
@pytest.mark.parametrize('quietly', [False, True])
def test_a_cut_image_is_caught(kind: str, quietly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_images(monkeypatch, quietly)
    assert chunk_gate(model(kind), jobs(kind), chunks=(16,), **OPTIONS)


def test_a_cut_image_does_not_matter_where_rows_look_back_only(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """So the quiet plant above is right in all but what it is meant to break."""
    cut_images(monkeypatch, quietly=True)
    assert chunk_gate(model('causal'), jobs('causal'), chunks=(16,), **OPTIONS) == []


@pytest.mark.parametrize('kind', BOTH_WAYS)
def test_a_hit_inside_an_image_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache.Trail, '_outside', lambda self, depth: depth)
    assert warm_gate(model(kind), visits(kind), checkpoint_interval=1, **OPTIONS)


@pytest.mark.parametrize('kind', ['tower', 'clipped'])
@pytest.mark.parametrize('wrong', ['left out', 'of the first image'])
def test_a_wrong_hash_is_caught(kind: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(self: prefix_cache.Trail, page: int) -> bytes:
        seen = self._images[0].digest if self._images and wrong != 'left out' else b''
        return self._ids[page * PAGE:(page + 1) * PAGE].tobytes() + seen
    monkeypatch.setattr(prefix_cache.Trail, 'key', key)
    assert warm_gate(model(kind), visits(kind), checkpoint_interval=1, audit=False, **OPTIONS)


def test_a_soft_token_too_many_is_an_error_of_its_request_alone() -> None:
    good = request('good', 'tower', [6, 'a', 9])
    shown = good.images[0]
    bad = replace(good, request_id='bad', prompt_ids=(*good.prompt_ids[:7], 90, *good.prompt_ids[
        7:]), images=(replace(shown, num_tokens=shown.num_tokens + 1),))
    answers = run(model('tower'), [Job(bad), Job(good, 3)], **OPTIONS)
    assert 'has 60 soft tokens, its prompt has room for 61' in answers['bad'].message
    assert answers['good'].message == '' and len(answers['good'].token_ids) == 5
