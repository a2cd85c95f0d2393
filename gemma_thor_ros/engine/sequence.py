# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A running request: its tokens, how many of them are committed to the cache, and its pages.

Tokens 0 .. num_prompt - 1 came with the request, the others were generated. `num_committed` of
them have K and V in the pages; a rollback only lowers it. Owned by the engine thread, except
`request` and `outbox`. Knows no model and no other sequence.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.engine.acceptance import DraftCounts, KeptRate
from gemma_thor_ros.engine.admission import Limits, id_array, suppressed_ids
from gemma_thor_ros.engine.outbox import Outbox
from gemma_thor_ros.engine.page_pool import PageTables
from gemma_thor_ros.engine.prefix_cache import Trail
from gemma_thor_ros.models.batch import Role
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings
from gemma_thor_ros.schema import ErrorCode, Request, SamplingParams, Timings, Usage

# A sequence's own rate of kept drafts: the engine's counts as so many rounds, and its own rounds
# are forgotten with a half-life of 14.
_KEPT_WEIGHT = 4.0
_KEPT_DECAY = 0.95


def new_kept_rate() -> KeptRate:
    """The rate of kept drafts of a new sequence."""
    return KeptRate(_KEPT_WEIGHT, _KEPT_DECAY)


class Sequence:
    """State of one request in the engine. `arrival` orders requests; times are steady-clock s."""

    def __init__(self, request: Request, now: float) -> None:
        self.request = request
        self.outbox = Outbox(request.request_id)
        self.arrival = 1 << 62                           # until it is counted: after all others
        self.num_prompt = len(request.prompt_ids)
        max_length = self.num_prompt + request.sampling.max_tokens
        self.max_positions = max_length - 1              # the last token is never an input
        self.token_ids = np.empty(max_length, np.int32)
        self.token_ids[:self.num_prompt] = request.prompt_ids
        self.num_tokens = self.num_prompt
        self.num_committed = 0
        self.scheduled = False                           # in one of the scheduler's queues
        self.pages: PageTables | None = None             # None while it waits, and at its end
        self.trail: Trail | None = None                  # its prompt's way through the cache
        self.cached_tokens = 0                           # found there when it first started
        self.history = TokenHistory(request)
        self.hidden: npt.NDArray[Any] | None = None      # what a drafter taps of its newest row
        self.draft_counts = DraftCounts()
        self.kept_rate = new_kept_rate()
        self.submitted = now
        self.admitted: float | None = None
        self.first_token = now
        self.last_token = now
        self.deadline = _after(now, request.deadline_s)
        self.limit = min(self.deadline, _after(now, request.first_token_s))

    @property
    def order(self) -> tuple[int, int]:
        """Sort key among waiting and running: higher priority first, then first come."""
        return -int(self.request.priority), self.arrival

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt

    @property
    def role(self) -> Role:
        """The role of the next uncommitted token."""
        return Role.PREFILL if self.num_committed < self.num_prompt else Role.DECODE

    def append(self, token_id: int, now: float) -> None:
        """Add a generated token, which the history has already.

        Its K and V follow with the step that takes it as input.
        """
        if self.num_tokens == self.num_prompt:
            self.first_token = now
        self.last_token = now
        self.limit = min(self.deadline, _after(now, self.request.token_gap_s))
        self.token_ids[self.num_tokens] = token_id
        self.num_tokens += 1

    def sample_row(self, limits: Limits, num_drawn: int = 0) -> SampleRow:
        """What the sampler needs for the next token, when the step has drawn num_drawn already.

        Those have to be in the history, but not among the tokens yet.
        """
        sampling = self.request.sampling
        num_generated = self.num_generated + num_drawn
        suppress = limits.suppressed
        if num_generated < sampling.min_tokens:
            suppress = id_array(suppressed_ids(limits, sampling, num_generated))
        return self.history.sample_row(self.num_tokens + num_drawn, suppress)

    def overdue(self, now: float) -> tuple[ErrorCode, str]:
        """Why a sequence whose `limit` has passed has to end."""
        request, num_generated = self.request, self.num_generated
        if now >= self.deadline:
            return ErrorCode.DEADLINE, (
                f'The deadline of {request.deadline_s:g} s passed after {num_generated} of at '
                f'most {request.sampling.max_tokens} tokens.')
        if num_generated == 0:
            return ErrorCode.TIMEOUT, (f'No token came within {request.first_token_s:g} s of the '
                                       'submission.')
        return ErrorCode.TIMEOUT, (f'No token came within {request.token_gap_s:g} s of token '
                                   f'{num_generated}.')

    def usage(self) -> Usage:
        """Token counts up to now."""
        return Usage(prompt_tokens=self.num_prompt, completion_tokens=self.num_generated,
                     cached_tokens=self.cached_tokens, rounds=self.draft_counts.rounds,
                     drafted_tokens=self.draft_counts.drafted,
                     accepted_tokens=self.draft_counts.accepted,
                     accepted_by_position=self.draft_counts.kept_by_position)

    def timings(self, now: float) -> Timings:
        """Durations up to now, in milliseconds."""
        total_ms = (now - self.submitted) * 1e3
        if self.admitted is None:
            return Timings(queued_ms=total_ms, total_ms=total_ms)
        queued_ms = (self.admitted - self.submitted) * 1e3
        if self.num_generated == 0:
            return Timings(queued_ms=queued_ms, prefill_ms=total_ms - queued_ms, total_ms=total_ms)
        decode = self.last_token - self.first_token
        return Timings(
            queued_ms=queued_ms, prefill_ms=(self.first_token - self.admitted) * 1e3,
            time_to_first_token_ms=(self.first_token - self.submitted) * 1e3,
            decode_ms=decode * 1e3, total_ms=total_ms,
            tokens_per_s=(self.num_generated - 1) / decode if decode > 0.0 else 0.0)


def _after(now: float, seconds: float) -> float:
    return now + seconds if seconds > 0.0 else math.inf


class TokenHistory:
    """What the penalties of one request need to know of its tokens, in the sampler's form."""

    def __init__(self, request: Request) -> None:
        sampling = request.sampling
        self.settings = sample_settings(sampling, request.choice)
        self._counts: dict[int, int] = {}                # generated token id -> how often
        self._tracks_counts = (sampling.presence_penalty != 0.0
                               or sampling.frequency_penalty != 0.0)
        self._seen: set[int] | None = None
        if sampling.repetition_penalty != 1.0:
            self._seen = set(request.prompt_ids)

    def append(self, token_id: int) -> None:
        """Count a generated token."""
        if self._seen is not None:
            self._seen.add(token_id)
        if self._tracks_counts:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1

    def sample_row(self, position: int, suppress_ids: np.ndarray[tuple[int], np.dtype[np.int64]],
                   ) -> SampleRow:
        """What the sampler needs to choose the token at an absolute position."""
        if self._seen is None and not self._counts:
            return SampleRow(self.settings, position, suppress_ids)
        seen = np.fromiter(self._seen or (), np.int64)
        counted = np.fromiter(self._counts, np.int64)
        counts = np.fromiter(self._counts.values(), np.float32)
        return SampleRow(self.settings, position, suppress_ids, seen, counted, counts)


def sample_settings(sampling: SamplingParams, choice: int) -> SampleSettings:
    """The sampler's form of a request's settings; a repeated logit_bias id adds up."""
    bias: dict[int, float] = {}
    for token_id, value in sampling.logit_bias:
        bias[token_id] = bias.get(token_id, 0.0) + value
    return SampleSettings(
        temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        min_p=sampling.min_p, repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty, frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed, choice=choice, bias_ids=np.fromiter(bias, np.int64),
        bias_values=np.fromiter(bias.values(), np.float32))
