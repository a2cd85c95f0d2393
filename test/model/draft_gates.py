# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""drafted == plain as functions, for any model and drafter: each gives the differences it found.

The plain answer of each request is that of a run alone without drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from engine_gates import Answer, Job, differences, run, solo

from gemma_thor_ros.models.scripted_drafter import ScriptedDrafter
from gemma_thor_ros.schema import Request

MakeDrafter = Callable[[dict[str, Answer], Sequence[Job]], Any]


class Oracle:
    """Knows the plain answers: what comes after a history of one of them."""

    def __init__(self, answers: dict[str, Answer], jobs: Sequence[Job]) -> None:
        self.whole = [np.array((*job.request.prompt_ids, *answers[
            job.request.request_id].token_ids), np.int32) for job in jobs]

    def __call__(self, history: np.ndarray, generated: np.ndarray) -> Sequence[int]:
        for tokens in self.whole:
            if np.array_equal(tokens[:history.size], history):
                rest: list[int] = tokens[history.size:].tolist()
                return rest
        return ()


def scripted(right: float, window: int = 24, **options: Any) -> MakeDrafter:
    """A drafter that is right so often."""
    def make(answers: dict[str, Answer], jobs: Sequence[Job]) -> ScriptedDrafter:
        return ScriptedDrafter(Oracle(answers, jobs), 96, right=right, window=window, **options)
    return make


def drafted_gate(model: Any, make_jobs: Callable[[], Sequence[Job]], make_drafter: MakeDrafter, *,
                 num_drafts: int | None = None, reference: Any = None,
                 expect: Callable[[dict[str, Answer]], bool] = lambda answers: True,
                 **options: Any) -> list[str]:
    """The jobs with drafts against each of them alone without.

    make_jobs gives the same jobs at each call, with guides of their own. `expect` tells from the
    answers whether it happened as the gate means it. A drafter that fails is an AssertionError.
    """
    fixed = {name: options[name] for name in ('page_size', 'stop_ids', 'suppress_tokens',
                                              'max_image_tokens') if name in options}
    jobs = make_jobs()
    whole = solo(reference or model, jobs, **fixed)
    jobs = make_jobs()
    found = run(model, jobs, drafter=make_drafter(whole, jobs), num_drafts=num_drafts,
                **{'max_rows': 16, 'prefill_chunk': 23, **options})
    lines = differences(found, whole, jobs)
    for job in jobs:
        answer, name = found[job.request.request_id], job.request.request_id
        usage = answer.usage
        if len(answer.token_ids) != usage.completion_tokens or usage.prompt_tokens != len(
                job.request.prompt_ids):
            lines.append(f'{name}: {len(answer.token_ids)} tokens came, {usage}')
        if usage.accepted_tokens > usage.drafted_tokens or sum(
                usage.accepted_by_position) != usage.accepted_tokens:
            lines.append(f'{name}: the counts contradict each other: {usage}')
    if not expect(found):
        lines.append(f'not as meant: {[answer.usage for answer in found.values()]}')
    return lines


def kept_some(answers: dict[str, Answer]) -> bool:
    """Several tokens at once, and some drafts that were refused."""
    usages = [answer.usage for answer in answers.values()]
    accepted = sum(usage.accepted_tokens for usage in usages)
    return 3 <= accepted < sum(usage.drafted_tokens for usage in usages)


class ParityGuide:
    """After an even id an odd one may come and the other way round; ends behind `length` tokens.

    Refuses what it did not allow, as real guides do.
    """

    banned = ()

    def __init__(self, vocab_size: int, length: int) -> None:
        self._size = vocab_size
        self._length = length
        self._tokens: list[int] = []

    @property
    def finished(self) -> bool:
        return len(self._tokens) >= self._length

    def allowed(self) -> bytes:
        last = self._tokens[-1] if self._tokens else 0
        bits = np.arange(self._size) % 2 != last % 2
        return np.packbits(bits, bitorder='little').tobytes()

    def accept(self, token_id: int) -> None:
        last = self._tokens[-1] if self._tokens else 0
        if token_id % 2 == last % 2:
            raise ValueError(f'{token_id} behind {last}')
        self._tokens.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        del self._tokens[len(self._tokens) - num_tokens:]


def with_guide(request: Request, vocab_size: int, length: int) -> Request:
    return replace(request, guide=ParityGuide(vocab_size, length))
