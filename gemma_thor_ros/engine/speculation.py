# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Drafts for the running sequences: asks the drafter, and shows it what each step has run.

A drafter that fails is left out from then on, with a message in the log and in the statistics: no
answer depends on it. Acceptance is the runner's, the number of drafts draft_length's. Knows the
drafter and its cache, no queue and no outbox.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.engine.acceptance import MAX_DRAFTS, DraftCounts
from gemma_thor_ros.engine.admission import Limits
from gemma_thor_ros.engine.draft_length import DraftLength
from gemma_thor_ros.engine.forecast import Forecast
from gemma_thor_ros.engine.plan import Part, Plan, tables_of
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.models.batch import Role
from gemma_thor_ros.models.drafter import Drafter, Drafts, DraftSpan
from gemma_thor_ros.schema import DeviceError

if TYPE_CHECKING:
    from gemma_thor_ros.engine.runner import Choice

_LOG = logging.getLogger(__name__)
_REST = 4                                # rounds


class Speculation:
    """The drafting side of one engine; called by the engine thread alone.

    max_rows: the most rows of a sequence in a step, its newest token's included.
    """

    def __init__(self, drafter: Drafter, cache: Any, target_cache: Any, rule: DraftLength,
                 limits: Limits, forecast: Forecast, max_rows: int) -> None:
        self.rule = rule
        self.layers = drafter.config.taps
        self.counts = DraftCounts()
        self.num_plain = 0               # rows that could have had drafts and had none
        self.draft_ms = 0.0              # time in the drafter so far
        self.failure = ''                # why it is left out
        self.max_drafts = min(drafter.config.max_drafts, max_rows - 1, MAX_DRAFTS)
        self._drafter = drafter
        self._cache = cache
        self._target_cache = target_cache
        self._limits = limits
        self._forecast = forecast
        self._confidence: dict[Sequence, list[float]] = {}       # of the drafts under way
        self._begun = 0.0
        self._last_draft_ms = 0.0
        self._num_rounds_without = 0

    @property
    def resting(self) -> bool:
        """Whether no drafts were wanted for some rounds: then the next one hardly has any."""
        return bool(self.failure) or self._num_rounds_without >= _REST

    def figures(self) -> dict[str, Any]:
        """The fields of EngineStats that tell of drafts."""
        counts = self.counts
        return {
            'drafter': self._drafter.config.name, 'draft_failure': self.failure,
            'draft_rounds': counts.rounds, 'plain_rounds': self.num_plain,
            'draft_trials': self.rule.num_trials, 'drafted_tokens': counts.drafted,
            'accepted_tokens': counts.accepted, 'draft_ms': self.draft_ms,
            'accepted_by_position': counts.kept_by_position}

    def propose(self, chosen: Seq[tuple[Sequence, int]]) -> dict[Sequence, tuple[int, ...]]:
        """Drafts for some of a step's sequences, which come with the rows that they have anyway.

        Only behind a single newest token; never more than the sequence has positions for.
        """
        self._begun = time.perf_counter()
        self._last_draft_ms = 0.0
        self._num_rounds_without += 1
        self._confidence = {}
        if self.failure:
            return {}
        ready, num_rows, num_prompt_rows = [], 0, 0
        for sequence, num_own in chosen:
            if sequence.role is Role.PREFILL:
                num_prompt_rows += num_own
                continue
            num_rows += num_own
            room = min(self.max_drafts, sequence.max_positions - sequence.num_tokens)
            if room > 0 and sequence.num_committed + 1 == sequence.num_tokens:
                ready.append((sequence, room))
        if not ready:
            return {}
        beside_ms = num_prompt_rows * self._forecast.prompt_token_s * 1e3
        asked = self.rule.ask([sequence.kept_rate for sequence, _ in ready],
                              [room for _, room in ready], num_rows, beside_ms)
        wanted = [(sequence, count) for (sequence, _), count in zip(ready, asked, strict=True)
                  if count]
        if wanted:
            self._num_rounds_without = 0
        drafts = self._draft(wanted)
        if drafts is None:
            return {}
        values = [drafts.confidence[b, :count].tolist() for b, (_, count) in enumerate(wanted)]
        kept = self.rule.keep([sequence.kept_rate for sequence, _ in wanted], values, num_rows,
                              beside_ms)
        found = {}
        for b, ((sequence, _), count) in enumerate(zip(wanted, kept, strict=True)):
            ids = drafts.token_ids[b, :count].tolist()
            if ids:
                found[sequence] = tuple(ids)
                self._confidence[sequence] = values[b]
        return found

    def step_done(self, plan: Plan, choices: Seq[Choice | None],
                  hidden: npt.NDArray[Any]) -> None:
        """Show the drafter the rows of a step, hidden (len(layers), T, H), and learn from it."""
        if not self.failure:
            try:
                self._drafter.absorb(plan.batch, hidden, self._cache)
            except DeviceError:
                raise
            except Exception as error:  # noqa: BLE001 - no answer depends on a drafter
                self._fail(error)
        num_tokens = num_rows = num_own = 0
        for part, span, choice in zip(plan.parts, plan.batch.spans, choices, strict=True):
            if part.role is Role.DECODE:
                num_rows += part.num_rows
                num_own += part.num_rows - len(part.drafts)
            if choice is None:
                continue
            num_tokens += len(choice.token_ids) * (part.role is Role.DECODE)
            newest = span.start_row + part.num_rows - len(part.drafts) - 1
            row = newest + max(0, len(choice.token_ids) - 1)
            part.sequence.hidden = hidden[:, row].copy()
            if part.role is Role.DECODE:
                self._count(part, choice)
        now = time.perf_counter()
        prompt_rows = plan.batch.token_ids.size - num_rows
        total_ms = (now - self._begun) * 1e3
        if not prompt_rows:
            self.rule.costs.step_done(num_rows, total_ms - self._last_draft_ms)
        if num_own:
            self.rule.round_done(num_own, num_tokens, total_ms, plain=not prompt_rows)

    def _draft(self, wanted: Seq[tuple[Sequence, int]]) -> Drafts | None:
        if not wanted:
            return None
        spans = []
        for sequence, count in wanted:
            tables, newest = tables_of(sequence), sequence.num_tokens - 1
            spans.append(DraftSpan(
                int(sequence.token_ids[newest]), newest, count, tables.sliding, tables.full,
                sequence.hidden, sequence.sample_row(self._limits)))
        begin = time.perf_counter()
        try:
            drafts = self._drafter.draft(spans, self._cache, self._target_cache)
            self._check(drafts, wanted)
        except DeviceError:
            raise
        except Exception as error:  # noqa: BLE001 - no answer depends on a drafter
            self._fail(error)
            return None
        self._last_draft_ms = (time.perf_counter() - begin) * 1e3
        self.draft_ms += self._last_draft_ms
        self.rule.costs.draft_done(len(spans), max(count for _, count in wanted),
                                   self._last_draft_ms)
        return drafts

    def _check(self, drafts: Drafts, wanted: Seq[tuple[Sequence, int]]) -> None:
        longest = max(count for _, count in wanted)
        shape = drafts.token_ids.shape
        if shape != drafts.confidence.shape or shape[0] != len(wanted) or shape[1] < longest:
            raise ValueError(f'drafts of shape {shape} and {drafts.confidence.shape} for '
                             f'{len(wanted)} sequences and {longest} drafts')
        for ids, (_, count) in zip(drafts.token_ids, wanted, strict=True):
            if not np.all((ids[:count] >= 0) & (ids[:count] < self._limits.vocab_size)):
                raise ValueError(f'draft ids {ids[:count].tolist()} with a vocabulary of '
                                 f'{self._limits.vocab_size}')

    def _count(self, part: Part, choice: Choice) -> None:
        """Count a sequence's round. A draft behind the end of the answer was not looked at."""
        if not part.drafts:
            self.num_plain += 1
            self.rule.skipped(part.sequence.kept_rate)
            return
        num_drawn = len(choice.token_ids)
        num_kept = sum(draft == token for draft, token in zip(
            part.drafts, choice.token_ids, strict=False))
        num_seen = min(num_drawn, len(part.drafts))
        self.rule.learn(part.sequence.kept_rate, self._confidence[part.sequence], num_kept,
                        num_seen)
        for counts in (self.counts, part.sequence.draft_counts):
            counts.count(len(part.drafts), max(0, num_drawn - 1))

    def _fail(self, error: Exception) -> None:
        self.failure = f'{type(error).__name__}: {error}'
        _LOG.exception('the drafter failed; the engine goes on without drafts')
