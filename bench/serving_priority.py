# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The part `priority` of serving.py: an operator's first token while background requests decode.

Knows the engine alone; serving.py hands it the bed that the parts share.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gemma_thor_ros.engine.engine import Engine
from gemma_thor_ros.engine.outbox import Outbox
from gemma_thor_ros.schema import Priority, Request, SamplingParams

SHORT = 48                               # tokens of a short prompt, and of the background's
MAX_TOKENS = 2048                        # of a background answer: none ends while it is measured
MAX_STEPS_BEFORE = 2                     # an operator waits so many besides its own prefill
FIRST_ID = 512                           # ordinary tokens from here on
TIMEOUT_S = 120.0
_numbers = itertools.count()


def priority(bed: Any, context_length: int) -> None:
    """Short and long prompts of an operator, alone and beside background requests."""
    lengths = (SHORT, bed.options.prompt_tokens)
    for length in lengths:               # what only the first one does
        first_token(bed.engine, prompt(bed, length))
    for count in (0, *bed.options.background):
        with background(bed, count, context_length) as boxes:
            for length in lengths:
                found = [first_token(bed.engine, prompt(bed, length))
                         for _ in range(bed.options.rounds)]
                own = -(-length // bed.config['engine.prefill_chunk'])
                if any(box.finished for box in boxes):
                    raise RuntimeError('a background request ended before it was measured')
                record(bed, found, own, background=count, prompt_tokens=length)


def record(bed: Any, found: Sequence[tuple[float, int]], own: int, **context: Any) -> None:
    """Note (seconds, steps) of some first tokens; a fault where one came too late."""
    context |= {'path': 'engine', 'priority': 'operator', 'prefill_steps': own}
    bed.add('ttft_ms', [seconds * 1e3 for seconds, _ in found], 'ms', **context)
    bed.add('ttft_steps', [float(steps) for _, steps in found], 'steps', **context)
    most = max(steps for _, steps in found)
    if most > own + MAX_STEPS_BEFORE:
        bed.faults.append(f'an operator waited {most} steps for a token, {own} of them its own')


def first_token(engine: Engine, ids: tuple[int, ...]) -> tuple[float, int]:
    """Seconds and steps from an operator's submission to its token."""
    seen: list[tuple[float, int]] = []
    done = threading.Event()

    def ready() -> None:                 # in the engine's thread, so the count is exact
        seen.append((time.perf_counter(), engine.stats().steps))
        done.set()

    steps, begin = engine.stats().steps, time.perf_counter()
    outbox = submit(engine, ids, 1, Priority.OPERATOR)
    outbox.on_ready(ready)
    if not done.wait(TIMEOUT_S):
        raise TimeoutError(f'no token within {TIMEOUT_S:g} s')
    outbox.collect(TIMEOUT_S)
    return seen[0][0] - begin, seen[0][1] - steps


@contextmanager
def background(bed: Any, count: int, context_length: int) -> Iterator[list[Outbox]]:
    """So many requests of the lowest class that all decode."""
    max_tokens = min(MAX_TOKENS, context_length - SHORT)
    boxes = [submit(bed.engine, prompt(bed, SHORT), max_tokens, Priority.BACKGROUND)
             for _ in range(count)]
    try:
        for box in boxes:
            if not box.wait(TIMEOUT_S):
                raise TimeoutError(f'no token within {TIMEOUT_S:g} s')
        yield boxes
    finally:
        for box in boxes:
            bed.engine.cancel(box.request_id)
        for box in boxes:
            box.collect(TIMEOUT_S)


def submit(engine: Engine, ids: tuple[int, ...], max_tokens: int, of: Priority) -> Outbox:
    """Open a greedy request of so many tokens."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return engine.submit(Request(f'priority-{next(_numbers)}', ids, sampling, of))


def prompt(bed: Any, length: int) -> tuple[int, ...]:
    """A prompt that begins like no other, so that nothing of it is cached."""
    ids = np.random.default_rng(next(_numbers)).integers(FIRST_ID, bed.model.vocab_size, length)
    return tuple(ids.tolist())
