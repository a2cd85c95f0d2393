# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How long a prompt, an answer or a wait will take, learnt from the steps that were run.

Estimates only: they refuse a deadline that can't be met and tell a client how long it will wait;
no token depends on them. The engine thread writes, any thread reads.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.schema import ErrorCode, RequestError

# Weights of the newest figure in the moving averages: the last 20 steps, the last 8 answers.
_STEP_WEIGHT = 0.05
_ANSWER_WEIGHT = 0.125


@dataclass(frozen=True)
class Work:
    """What a sequence has yet to do."""

    prompt_tokens: int
    tokens: int
    image_tokens: int = 0                # those of the prompt tokens that are of images


class Forecast:
    """Moving averages of one engine; 0.0 stands for a figure that is not known yet.

    token_s: seconds of a step without prompt rows, that is of one token of each sequence.
    prompt_token_s: seconds of one prompt row, from steps whose chunk was at least half full.
    image_token_s: seconds of a soft token besides, from steps with images: they are encoded there.
    answer_tokens: the usual length of an answer.
    """

    def __init__(self, prefill_chunk: int) -> None:
        self.token_s = 0.0
        self.prompt_token_s = 0.0
        self.image_token_s = 0.0
        self.answer_tokens = 0.0
        self._enough_rows = (prefill_chunk + 1) // 2

    def step_done(self, num_prompt_rows: int, num_decode_rows: int, seconds: float,
                  num_image_rows: int = 0) -> None:
        """Learn from a step; num_image_rows of its prompt rows are soft tokens."""
        if num_prompt_rows == 0:
            self.token_s = _mean(self.token_s, seconds, _STEP_WEIGHT)
            return
        alone = max(0.0, seconds - (self.token_s if num_decode_rows else 0.0))
        if num_image_rows:               # a tower may take far longer than all rows of text
            besides = max(0.0, alone - num_prompt_rows * self.prompt_token_s)
            self.image_token_s = _mean(self.image_token_s, besides / num_image_rows, _STEP_WEIGHT)
        elif num_prompt_rows >= self._enough_rows:
            self.prompt_token_s = _mean(self.prompt_token_s, alone / num_prompt_rows,
                                        _STEP_WEIGHT)

    def answer_done(self, num_tokens: int) -> None:
        """Learn from an answer that ended by itself."""
        self.answer_tokens = _mean(self.answer_tokens, float(num_tokens), _ANSWER_WEIGHT)

    def work(self, sequence: Sequence) -> Work:
        """What a sequence has yet to do, if its answer is of the usual length."""
        usual = max(1.0, min(self.answer_tokens, sequence.request.sampling.max_tokens))
        return Work(max(0, sequence.num_prompt - sequence.num_committed),
                    max(1, round(usual) - sequence.num_generated),
                    _image_tokens(sequence, sequence.num_committed))

    def duration_s(self, work: Work) -> float:
        """Seconds for a piece of work that is running."""
        return self._prompt_s(work) + work.tokens * self.token_s

    def _prompt_s(self, work: Work) -> float:
        return (work.prompt_tokens * self.prompt_token_s
                + work.image_tokens * self.image_token_s)

    def wait_s(self, ahead: Iterable[Work], num_slots: int) -> float:
        """Seconds until a slot is free for one more, with the work ahead of it in order."""
        ends: list[float] = []
        for work in ahead:
            start = heapq.heappop(ends) if len(ends) >= num_slots else 0.0
            heapq.heappush(ends, start + self.duration_s(work))
        return ends[0] if len(ends) >= num_slots else 0.0

    def check_deadline(self, sequence: Sequence, num_cached: int, wait_s: float) -> None:
        """Raise RequestError DEADLINE when a new request can't end in time.

        Its least work: the prompt beyond the cached part, and as many tokens as it must have.
        """
        request, sampling = sequence.request, sequence.request.sampling
        if request.deadline_s <= 0.0:
            return
        least = sampling.max_tokens if sampling.ignore_eos and not sampling.stop_ids else max(
            1, sampling.min_tokens)
        work = Work(sequence.num_prompt - num_cached, least, _image_tokens(sequence, num_cached))
        needed_s = wait_s + self.duration_s(work)
        if needed_s <= request.deadline_s:
            return
        raise RequestError(
            ErrorCode.DEADLINE,
            f'The deadline of {request.deadline_s:g} s can not be met: about {needed_s:.3g} s are '
            f'needed, {wait_s:.3g} s to wait, '
            f'{self._prompt_s(work):.3g} s for {work.prompt_tokens} prompt tokens ('
            + (f'{work.image_tokens} of images, ' if work.image_tokens else '')
            + f'{num_cached} more are cached) and {work.tokens * self.token_s:.3g} s for an '
            f'answer of at least {least} tokens.', 'deadline')


def _image_tokens(sequence: Sequence, start: int) -> int:
    """Soft tokens of the prompt from a position on; an image is computed whole."""
    return sum(image.num_tokens for image in sequence.request.images if image.start >= start)


def _mean(old: float, new: float, weight: float) -> float:
    return new if old == 0.0 else old + weight * (new - old)
