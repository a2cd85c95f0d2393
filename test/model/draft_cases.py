# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Tiny targets with tiny drafters, and the two rounds of which the draft goldens tell.

The goldens are made by scripts/make_draft_goldens.py: a prompt, a draft, a verify step of which
some rows are rejected, and a draft after another newest token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import counter_weights
import numpy as np
import numpy.typing as npt
from forward import Array, Role, Rows, error, page_table, random_model, step

from gemma_thor_ros.models.batch import Batch, Span
from gemma_thor_ros.models.config import ModelConfig
from gemma_thor_ros.models.dflash import DFlash
from gemma_thor_ros.models.draft_config import DFlashConfig, MtpConfig
from gemma_thor_ros.models.draft_target import DraftTarget
from gemma_thor_ros.models.drafter import DraftSpan, Taps
from gemma_thor_ros.models.gemma4 import Gemma4
from gemma_thor_ros.models.mtp import Mtp
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings
from gemma_thor_ros.weights.canonical import DenseWeight
from gemma_thor_ros.weights.drafter_shapes import drafter_shapes

FOLDER = Path(__file__).parents[1] / 'data' / 'goldens'
CASES: dict[str, Any] = json.loads((FOLDER / 'drafts.json').read_text())['cases']
EXACT, SINGLE = 1e-9, 5e-5               # a block has few rows, so a column can be faint
PAGE_SIZE = 16

Drafter = DFlash | Mtp


@cache
def golden(case: str, variant: str) -> Array:
    """Logits (2, N, V) of the two rounds."""
    with np.load(FOLDER / f'{case}.npz') as arrays:
        found: Array = arrays[variant]
    return found


def draft_weights(kind: str, config: Mapping[str, Any]) -> dict[str, DenseWeight]:
    """Counter weights of a drafter."""
    return {name: DenseWeight(counter_weights.tensor(f'{kind}.{name}', shape), 'f32')
            for name, shape in drafter_shapes(config).items()}


def draft_target(model: Gemma4) -> DraftTarget:
    """What a drafter borrows of a model."""
    return DraftTarget(model.config, model.table, model.final_norm)


def make_drafter(case: str, variant: str, model: Gemma4) -> Drafter:
    """The drafter of a case: variant 'dflash_MASK' or 'mtp_POSITION'."""
    kind, _, setting = variant.partition('_')
    raw = CASES[case][kind]
    weights, target = draft_weights(kind, raw), draft_target(model)
    setting_: Any = setting
    if kind == 'dflash':
        return DFlash(DFlashConfig.from_dict(raw, model.config, setting_), weights, target,
                      model.dtype, model.rounding)
    return Mtp(MtpConfig.from_dict(raw, model.config, setting_), weights, target, model.dtype,
               model.rounding)


@dataclass
class Bench:
    """A target and a drafter over one sequence's pages."""

    model: Gemma4
    drafter: Any
    num_positions: int

    def __post_init__(self) -> None:
        num = -(-self.num_positions // PAGE_SIZE)
        self.sliding = page_table(num, seed=3)
        self.full = page_table(num, seed=5)
        self.kv_cache = self.model.new_kv_cache(num, num, PAGE_SIZE)
        self.cache = self.drafter.new_cache(num, num, PAGE_SIZE)
        self.hidden: dict[int, Array] = {}

    def run(self, tokens: list[int], start: int, role: Role) -> None:
        """A target step over some tokens, and what the drafter keeps of it."""
        part = Rows(tokens, start, role, self.full, self.sliding)
        taps = Taps(self.drafter.config.taps)
        step(self.model, self.kv_cache, part, tap=taps)
        hidden = taps.hidden(len(tokens))
        span = Span(role, 0, len(tokens), start, self.sliding, self.full)
        positions = np.arange(start, start + len(tokens), dtype=np.int32)
        batch = Batch(np.array(tokens, np.int32), positions, (span,), np.zeros(0, np.int32))
        self.drafter.absorb(batch, hidden, self.cache)
        self.hidden.update({start + row: hidden[:, row] for row in range(len(tokens))})

    def span(self, token: int, position: int, num_drafts: int,
             temperature: float = 0.0) -> DraftSpan:
        """What the engine asks a draft for."""
        first = SampleRow(SampleSettings(temperature=temperature), position + 1)
        return DraftSpan(token, position, num_drafts, self.sliding, self.full,
                         self.hidden.get(position - 1), first)


def logits_of(drafter: Drafter, work: Callable[[], Any]) -> Array:
    """The logits (N, V) that a drafter's head gives while work() runs, for one sequence."""
    found: list[Array] = []
    right = drafter.ops.head

    def head(*args: Any) -> Array:
        found.append(right(*args).copy())
        return found[-1]

    drafter.ops.head = head  # type: ignore[method-assign]
    try:
        work()
    finally:
        drafter.ops.head = right  # type: ignore[method-assign]
    return np.concatenate(found)


def two_rounds(case: str, model: Gemma4, drafter: Drafter) -> Array:
    """Logits (2, N, V) of both rounds of a case."""
    told = CASES[case]
    tokens, prompt = told['tokens'], told['prompt']
    kind = drafter.config.name
    num = told['drafts'][0 if kind == 'dflash' else 1]
    bench = Bench(model, drafter, len(tokens) + 16)
    bench.run(tokens[:9], 0, Role.PREFILL)
    bench.run(tokens[9:prompt], 9, Role.PREFILL)
    found = []
    for newest, position in ((tokens[prompt], prompt), (tokens[-1], prompt + told['kept'])):
        span = bench.span(newest, position, num)
        found.append(logits_of(drafter, lambda span=span: drafter.draft(  # type: ignore[misc]
            [span], bench.cache, bench.kv_cache)))
        bench.run(tokens[prompt:prompt + told['verified']], prompt, Role.DECODE)
    return np.stack(found)


def golden_error(case: str, variant: str, dtype: npt.DTypeLike,
                 plant: Callable[[Gemma4, Any], None] | None = None) -> tuple[float, float]:
    """Errors of the first and of the second round, with a planted fault or without."""
    model = random_model(CASES[case]['target'], dtype)
    drafter = make_drafter(case, variant, model)
    if plant is not None:
        plant(model, drafter)
    ours = two_rounds(case, model, drafter)
    theirs = golden(case, variant)
    assert ours.dtype == dtype
    return error(ours[0], theirs[0]), error(ours[1], theirs[1])


def target_config(case: str) -> ModelConfig:
    """The config of a case's target."""
    return ModelConfig.from_dict(CASES[case]['target'])
