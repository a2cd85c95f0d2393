# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Runs one planned step: the model's forward pass, then a token for each sequence that wants one.

The only file of engine/ that calls the model. Knows no queue, no thread and no outbox.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.engine.admission import Limits, id_array, suppressed_ids
from gemma_thor_ros.engine.plan import Plan
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.ops.sample import SampleError, SampleRow, logprobs_ref, sample_row
from gemma_thor_ros.schema import Guide, TokenLogprob

_CACHED_MASKS = 32                                       # a guide's common ones come as one object


class ModelConfig(Protocol):
    """The part of a model's config that the engine reads."""

    @property
    def sliding_window(self) -> int:
        """Keys that a query of a sliding layer sees, itself included."""


class Model(Protocol):
    """What the engine needs of a model: models/gemma4.py and models/scripted.py have it."""

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    def new_kv_cache(self, num_sliding_pages: int, num_full_pages: int, page_size: int) -> Any:
        """Static memory for the pages of both geometries."""

    def forward(self, batch: Batch, kv_cache: Any) -> npt.NDArray[Any]:
        """Write K and V of the rows to their pages; logits (R, V) of batch.logit_rows."""


@dataclass(frozen=True)
class Choice:
    """The outcome of one part of a plan that wanted a token: the token, or what went wrong."""

    token_id: int
    logprob: TokenLogprob | None = None
    error: str = ''


class Runner:
    """Owns the model and its cache; called by the engine thread alone."""

    def __init__(self, model: Model, kv_cache: Any, limits: Limits) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._limits = limits
        self._suppress = id_array(set(limits.suppress_tokens))

    def run(self, plan: Plan) -> list[Choice | None]:
        """Run a plan; one entry per part, None where no token was wanted.

        Raises what the model raises: then no row of the plan counts.
        """
        logits = self._model.forward(plan.batch, self._kv_cache)
        num_rows = plan.batch.logit_rows.size
        if logits.shape != (num_rows, self._limits.vocab_size):
            raise ValueError(f'the model gave logits of shape {logits.shape} instead of '
                             f'{(num_rows, self._limits.vocab_size)}')
        return [None if part.logit_row < 0 else self._choose(logits[part.logit_row], part.sequence)
                for part in plan.parts]

    def _choose(self, logits: npt.NDArray[Any], sequence: Sequence) -> Choice:
        sampling = sequence.request.sampling
        suppress = self._suppress
        if sequence.num_generated < sampling.min_tokens:
            suppress = id_array(suppressed_ids(self._limits, sampling, sequence.num_generated))
        row = sequence.history.sample_row(sequence.num_tokens, suppress)
        guide = sequence.request.guide
        try:
            if guide is not None:
                row = self._guided(row, guide)
            token_id = sample_row(logits, row)
            if guide is not None:
                guide.accept(token_id)
        except SampleError as error:
            return Choice(-1, error='No token could be chosen at position '
                                    f'{row.position}: {error}.')
        except Exception as error:                       # a guide's fault is its request's alone
            if guide is None:
                raise
            return Choice(-1, error=f'The guide of the answer failed at position {row.position}: '
                                    f'{type(error).__name__}: {error}.')
        if sampling.logprobs < 0:
            return Choice(token_id)
        logprob, top = logprobs_ref(logits, token_id, sampling.logprobs)
        return Choice(token_id, TokenLogprob(token_id, logprob, top))

    def _guided(self, row: SampleRow, guide: Guide) -> SampleRow:
        """The row with what its guide allows. Where that are stop ids alone, min_tokens yields."""
        bits = guide.allowed()
        if bits is None:
            banned = np.array(guide.banned, np.int64)
            return replace(row, suppress_ids=np.union1d(row.suppress_ids, banned))
        allowed = _mask(bits, self._limits.vocab_size)
        suppress = row.suppress_ids
        if suppress.size > self._suppress.size and not np.delete(allowed, suppress).any():
            suppress = self._suppress
        return replace(row, allowed=allowed, suppress_ids=suppress)


@lru_cache(_CACHED_MASKS)
def _mask(bits: bytes, vocab_size: int) -> npt.NDArray[np.bool_]:
    """(V,) bool of a guide's bits, which may be fewer or more than V."""
    found = np.unpackbits(np.frombuffer(bits, np.uint8), count=vocab_size, bitorder='little')
    found.setflags(write=False)
    return found.view(np.bool_)
