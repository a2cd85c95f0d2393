# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A Runner for models that choose tokens where the logits are: one small copy back a step.

The same tokens as Runner draws from the logits on the host; it falls back to that where a draft's
row depends on the drafts before it. Knows no device.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.engine.admission import Limits
from gemma_thor_ros.engine.plan import Part, Plan
from gemma_thor_ros.engine.runner import Choice, Model, Runner
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.engine.speculation import Speculation
from gemma_thor_ros.models.batch import Batch, Role
from gemma_thor_ros.models.drafter import Taps
from gemma_thor_ros.ops.sample import SampleError, SampleRow, check_tokens


class Tokens(Protocol):
    """What a step of a Chooser gives: tokens (R,), and the logits (V,) that were asked for."""

    @property
    def tokens(self) -> npt.NDArray[np.int32]: ...
    @property
    def logits(self) -> dict[int, npt.NDArray[Any]]: ...


@runtime_checkable
class Chooser(Protocol):
    """What a model has besides that chooses tokens itself: models/cuda_step.CudaGemma4."""

    def choose(self, batch: Batch, kv_cache: Any, rows: Seq[SampleRow], *, run_ahead: bool,
               logits_of: Collection[int], draft_ahead: bool = False) -> Tokens: ...


@dataclass(frozen=True)
class _Drawn:
    """A row whose token has been chosen."""

    token_id: int
    logits: npt.NDArray[Any] | None
    guide_error: str


def make_runner(model: Model, kv_cache: Any, limits: Limits,
                speculation: Speculation | None) -> Runner:
    """The runner that fits the model."""
    if isinstance(model, Chooser):
        return DeviceRunner(model, kv_cache, limits, speculation)
    return Runner(model, kv_cache, limits, speculation)


class DeviceRunner(Runner):
    """A Runner whose model is a Chooser too."""

    def run(self, plan: Plan, run_ahead: bool = False) -> list[Choice | None]:
        """As Runner.run. Run-ahead only for plain steps that do not end an answer by length.

        A drafter takes the rows on the device itself, in the model's shadow, and its next drafts
        start behind a step that had some; while none pay, plain steps run ahead as without it.
        """
        speculation = self._speculation
        if (speculation is not None and speculation.layers) or any(
                _depends(part) for part in plan.parts):
            return super().run(plan)
        model = self._model
        assert isinstance(model, Chooser)
        rows: list[SampleRow] = []
        errors: dict[int, str] = {}
        logits_of: list[int] = []
        for part in plan.parts:
            if part.logit_row < 0:
                continue
            for index in range(1 + len(part.drafts)):
                if part.sequence.request.sampling.logprobs >= 0:
                    logits_of.append(len(rows))
                row, error = self._row(part, index)
                if error:
                    errors[len(rows)] = error
                rows.append(row)
        quiet = speculation is None or speculation.resting
        step = model.choose(self._with_images(plan), self._kv_cache, rows,
                            run_ahead=run_ahead and quiet and all(map(_goes_on, plan.parts)),
                            logits_of=logits_of,
                            **({} if speculation is None else {'draft_ahead': _drafted(plan)}))
        drawn: Any = [_Drawn(int(token), step.logits.get(index), errors.get(index, ''))
                      for index, token in enumerate(step.tokens)]
        choices = [None if part.logit_row < 0 else self._draw(drawn, part)
                   for part in plan.parts]
        if speculation is not None:
            speculation.step_done(plan, choices, Taps(()).hidden(plan.batch.token_ids.size))
        return choices

    def _row(self, part: Part, index: int) -> tuple[SampleRow, str]:
        """What the sampler needs for a row, and what went wrong in its guide."""
        sequence, guide = part.sequence, part.sequence.request.guide
        row = sequence.sample_row(self._limits, index)
        try:
            return (row if guide is None else self._guided(row, guide)), ''
        except Exception as error:  # noqa: BLE001 - a guide's fault is its request's alone
            return row, (f'The guide of the answer failed at position {row.position}: '
                         f'{type(error).__name__}: {error}.')

    def _values(self, row: Any) -> npt.NDArray[Any]:
        values = row.logits if isinstance(row, _Drawn) else row
        assert values is not None, 'these logits were not asked for'
        return super()._values(values)

    def _choose(self, logits: Any, sequence: Sequence, num_drawn: int) -> tuple[int, str]:
        if not isinstance(logits, _Drawn):
            return super()._choose(logits, sequence, num_drawn)
        if logits.guide_error:
            return -1, logits.guide_error
        position = sequence.num_tokens + num_drawn
        guide = sequence.request.guide
        try:
            check_tokens(np.array([logits.token_id], np.int32))
            if guide is not None:
                guide.accept(logits.token_id)
        except SampleError as error:
            return -1, f'No token could be chosen at position {position}: {error}.'
        except Exception as error:                       # a guide's fault is its request's alone
            if guide is None:
                raise
            return -1, (f'The guide of the answer failed at position {position}: '
                        f'{type(error).__name__}: {error}.')
        return logits.token_id, ''


def _depends(part: Part) -> bool:
    """Whether rows of a part depend on which of its drafts are kept."""
    return bool(part.drafts) and (part.sequence.request.guide is not None
                                  or _is_penalised(part.sequence))


def _drafted(plan: Plan) -> bool:
    """Whether a step verifies drafts alone, so that its tokens say where the next ones start."""
    return any(part.drafts for part in plan.parts) and all(
        part.role is Role.DECODE and part.num_rows == 1 + len(part.drafts)
        and not _is_penalised(part.sequence) for part in plan.parts)


def _goes_on(part: Part) -> bool:
    """Whether a part wants one token and will want another one, whatever comes."""
    sequence = part.sequence
    return (part.logit_row >= 0 and not part.drafts and sequence.request.guide is None
            and not _is_penalised(sequence)
            and sequence.num_generated + 1 < sequence.request.sampling.max_tokens)


def _is_penalised(sequence: Sequence) -> bool:
    sampling = sequence.request.sampling
    return (sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0)
