# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Runs one planned step: the model's forward pass, then tokens for each sequence that wants some.

A draft is kept when it equals the token that is drawn at its place: drawn as without drafts, by
the same key, after the same history. The only file of engine/ that calls the model. Knows no
queue, no thread and no outbox.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.engine.admission import Limits
from gemma_thor_ros.engine.image_rows import ImageRows
from gemma_thor_ros.engine.plan import Part, Plan
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.engine.speculation import Speculation
from gemma_thor_ros.models.batch import Batch
from gemma_thor_ros.models.drafter import Taps
from gemma_thor_ros.ops.sample import SampleError, SampleRow, logprobs_ref, sample_row
from gemma_thor_ros.schema import FinishReason, Guide, TokenLogprob

Tap = Callable[[int, npt.NDArray[Any]], None]
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

    def forward(self, batch: Batch, kv_cache: Any, tap: Tap | None = None, /) -> npt.NDArray[Any]:
        """Write K and V of the rows to their pages; logits (R, V) of batch.logit_rows.

        tap(layer, hidden (T, H)) is called after each layer, rows in the batch's order.
        """


@dataclass(frozen=True)
class Choice:
    """The outcome of one part of a plan that wanted tokens.

    token_ids: the drafts that were kept and the token after them, cut behind the one that ends the
    answer. `end` tells how it ends, `error` what went wrong behind the last of them.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    end: FinishReason | None = None
    error: str = ''


class Runner:
    """Owns the model and its cache; called by the engine thread alone."""

    def __init__(self, model: Model, kv_cache: Any, limits: Limits,
                 speculation: Speculation | None = None) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._limits = limits
        self._speculation = speculation
        vision = getattr(model, 'vision', None)
        self.images = None if vision is None else ImageRows(vision)

    def run(self, plan: Plan, run_ahead: bool = False) -> list[Choice | None]:
        """Run a plan; one entry per part, None where no token was wanted.

        run_ahead: the model may start the next step of the same sequences; only DeviceRunner does.
        Raises what the model raises: then no row of the plan counts.
        """
        batch, speculation = self._with_images(plan), self._speculation
        taps = Taps(() if speculation is None else speculation.layers)
        if taps.layers:
            logits = self._model.forward(batch, self._kv_cache, taps)
        else:
            logits = self._model.forward(batch, self._kv_cache)
        num_rows = batch.logit_rows.size
        if logits.shape != (num_rows, self._limits.vocab_size):
            raise ValueError(f'the model gave logits of shape {logits.shape} instead of '
                             f'{(num_rows, self._limits.vocab_size)}')
        choices = [None if part.logit_row < 0 else self._draw(logits, part) for part in plan.parts]
        if speculation is not None:
            speculation.step_done(plan, choices, taps.hidden(batch.token_ids.size))
        return choices

    def _with_images(self, plan: Plan) -> Batch:
        """The batch with the soft tokens of its images."""
        if self.images is None or not any(span.blocks for span in plan.batch.spans):
            return plan.batch
        return replace(plan.batch, soft_rows=self.images.of(plan))

    def _draw(self, logits: npt.NDArray[Any], part: Part) -> Choice:
        """Draw token by token, as without drafts, for as long as the next draft is the token.

        So history, guide and penalties of each row follow the tokens that really came before it.
        """
        sequence, drafts = part.sequence, part.drafts
        wants_logprobs = sequence.request.sampling.logprobs
        token_ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        end = None
        error = ''
        for index in range(1 + len(drafts)):
            row = logits[part.logit_row + index]
            token_id, error = self._choose(row, sequence, index)
            if error:
                break
            sequence.history.append(token_id)
            token_ids.append(token_id)
            if wants_logprobs >= 0:
                logprob, top = logprobs_ref(self._values(row), token_id, wants_logprobs)
                logprobs.append(TokenLogprob(token_id, logprob, top))
            end = self._end(sequence, token_id, sequence.num_generated + index + 1)
            if end is not None or token_id not in drafts[index:index + 1]:
                break
        return Choice(tuple(token_ids), tuple(logprobs), end, error)

    def _values(self, row: Any) -> npt.NDArray[Any]:
        """(V,) logits of a row that `run` gave to `_draw`."""
        values: npt.NDArray[Any] = row
        return values

    def _choose(self, logits: npt.NDArray[Any], sequence: Sequence, num_drawn: int,
                ) -> tuple[int, str]:
        """The next token, or -1 and what went wrong."""
        row = sequence.sample_row(self._limits, num_drawn)
        guide = sequence.request.guide
        try:
            if guide is not None:
                row = self._guided(row, guide)
            token_id = sample_row(logits, row)
            if guide is not None:
                guide.accept(token_id)
        except SampleError as error:
            return -1, f'No token could be chosen at position {row.position}: {error}.'
        except Exception as error:                       # a guide's fault is its request's alone
            if guide is None:
                raise
            return -1, (f'The guide of the answer failed at position {row.position}: '
                        f'{type(error).__name__}: {error}.')
        return token_id, ''

    def _end(self, sequence: Sequence, token_id: int, num_generated: int) -> FinishReason | None:
        """How an answer ends with a token, if it does."""
        sampling, guide = sequence.request.sampling, sequence.request.guide
        own_stop = token_id in self._limits.stop_ids and not sampling.ignore_eos
        if own_stop or token_id in sampling.stop_ids or (guide is not None and guide.finished):
            return FinishReason.STOP
        return FinishReason.LENGTH if num_generated >= sampling.max_tokens else None

    def _guided(self, row: SampleRow, guide: Guide) -> SampleRow:
        """The row with what its guide allows. Where that are stop ids alone, min_tokens yields."""
        bits = guide.allowed()
        if bits is None:
            banned = np.array(guide.banned, np.int64)
            return replace(row, suppress_ids=np.union1d(row.suppress_ids, banned))
        allowed = _mask(bits, self._limits.vocab_size)
        suppress = row.suppress_ids
        if suppress.size > self._limits.suppressed.size and not np.delete(allowed, suppress).any():
            suppress = self._limits.suppressed
        return replace(row, allowed=allowed, suppress_ids=suppress)


@lru_cache(_CACHED_MASKS)
def _mask(bits: bytes, vocab_size: int) -> npt.NDArray[np.bool_]:
    """(V,) bool of a guide's bits, which may be fewer or more than V."""
    found = np.unpackbits(np.frombuffer(bits, np.uint8), count=vocab_size, bitorder='little')
    found.setflags(write=False)
    return found.view(np.bool_)
