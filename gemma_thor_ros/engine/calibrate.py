# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Times steps and drafts before the first request, so that the length rule starts with facts.

Runs generated rows of random token ids on pages that nobody holds yet; in a mixture of experts
such rows touch as many experts as rows can. Knows no request and no schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gemma_thor_ros.engine.device_runner import Chooser
from gemma_thor_ros.models.batch import Batch, Role, Span
from gemma_thor_ros.models.drafter import Drafter, DraftSpan, Taps
from gemma_thor_ros.ops.sample import SampleRow, SampleSettings

_ROWS = (1, 2, 4, 8, 16, 32)
_SPAN_ROWS = 16
_REPEATS = 3
_GREEDY = SampleSettings(temperature=0.0)


def measure(model: Any, target_cache: Any, drafter: Drafter, cache: Any, *, page_size: int,
            num_pages: int) -> tuple[dict[int, float], dict[int, float]]:
    """Least milliseconds by rows of a step, and by drafts of a call for one sequence.

    num_pages: pages 0 .. num_pages - 1 of both geometries may be written.
    """
    by_rows: dict[int, float] = {}
    layers = drafter.config.taps
    hidden = np.zeros((len(layers), 1, 0), np.float32)

    def step(batch: Batch) -> None:
        nonlocal hidden
        if isinstance(model, Chooser) and not layers:        # logits would go to the host else
            model.choose(batch, target_cache, [SampleRow(_GREEDY, int(position) + 1)
                                               for position in batch.positions],
                         run_ahead=False, logits_of=())
            return
        taps = Taps(layers)
        model.forward(batch, target_cache, *([taps] if layers else []))
        hidden = taps.hidden(batch.token_ids.size)
        drafter.absorb(batch, hidden, cache)

    for num_rows in _ROWS:
        batch = _batch(num_rows, page_size, num_pages, model.vocab_size)
        if batch is not None:
            by_rows[num_rows] = _best(lambda batch=batch: step(batch))  # type: ignore[misc]
    by_drafts: dict[int, float] = {}
    context = _batch(_SPAN_ROWS, page_size, num_pages, model.vocab_size)
    if context is not None:
        step(context)
        table = context.spans[0].full_pages
        for count in sorted({1, drafter.config.max_drafts}):
            span = DraftSpan(5, _SPAN_ROWS, count, table, table, hidden[:, -1],
                             SampleRow(_GREEDY, _SPAN_ROWS + 1))
            by_drafts[count] = _best(
                lambda span=span: drafter.draft([span], cache, target_cache))  # type: ignore[misc]
    return by_rows, by_drafts


def _best(run: Callable[[], object]) -> float:
    """The least time of some runs in ms: what disturbs a run only adds to it."""
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def _batch(num_rows: int, page_size: int, num_pages: int, vocab_size: int) -> Batch | None:
    """Spans of up to 16 rows from position 0 on, each on pages of its own; None: too few pages."""
    per_span = -(-(2 * _SPAN_ROWS) // page_size)         # room for the block of drafts behind it
    spans = []
    for index, start in enumerate(range(0, num_rows, _SPAN_ROWS)):
        pages = np.arange(index * per_span, (index + 1) * per_span, dtype=np.int32)
        if pages[-1] >= num_pages:
            return None
        spans.append(Span(Role.DECODE, start, min(_SPAN_ROWS, num_rows - start), 0, pages, pages))
    rng = np.random.default_rng(num_rows)
    token_ids = rng.integers(0, vocab_size, num_rows).astype(np.int32)
    positions = np.concatenate([np.arange(span.num_rows, dtype=np.int32) for span in spans])
    return Batch(token_ids, positions, tuple(spans), np.arange(num_rows, dtype=np.int32))
