# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A drafter that is as right as it is told to be: for tests, and beside the scripted model.

What it keeps of each row are the token and a hash, in pages like the scripted model's; it knows
the history only from there. So pages that were freed too early, rows that it was not shown and
refused drafts that stayed end in `PageFault`. Knows no weights, no text and no request.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch, Int32, Role, Span
from gemma_thor_ros.models.drafter import Drafts, DraftSpan
from gemma_thor_ros.models.scripted import ScriptedKVCache, read_pages, write_pages

Continue = Callable[[Int32, npt.NDArray[np.bool_]], Sequence[int]]


@dataclass(frozen=True)
class ScriptedDrafterConfig:
    """See drafter.DrafterConfig. It keeps 12 or 13 bytes of a row."""

    max_drafts: int
    window: int
    name: str = 'scripted'
    taps: tuple[int, ...] = ()

    def bytes_per_page(self, page_size: int) -> tuple[int, int]:
        """Bytes beside a sliding page and beside a full page."""
        return 12 * page_size, 13 * page_size


class ScriptedDrafter:
    """Drafts `answer(history, generated)`, each token of it right with a chance of `right`.

    answer: the tokens after a history (n,), of which `generated` marks the decode-role part; where
    it gives fewer than wanted, the others are wrong. A wrong token is the right one plus 1. Which
    ones are wrong depends on the seed and the history alone. confidence: what it reports for every
    draft; None: `right`. delay_s: time of one call.
    """

    def __init__(self, answer: Continue, vocab_size: int, *, right: float = 1.0,
                 max_drafts: int = 15, window: int = 1024, confidence: float | None = None,
                 seed: int = 0, delay_s: float = 0.0) -> None:
        self.config = ScriptedDrafterConfig(max_drafts, window)
        self.num_calls = 0
        self._answer = answer
        self._vocab_size = vocab_size
        self._right = right
        self._confidence = right if confidence is None else confidence
        self._seed = seed
        self._delay_s = delay_s

    def new_cache(self, num_sliding_pages: int, num_full_pages: int, page_size: int,
                  ) -> ScriptedKVCache:
        """Empty pages; all of them poisoned until they are written."""
        return ScriptedKVCache(num_sliding_pages, num_full_pages, page_size)

    def absorb(self, batch: Batch, hidden: npt.NDArray[Any], cache: ScriptedKVCache) -> None:
        """Write the rows to their pages. Raises PageFault."""
        for span in batch.spans:
            write_pages(span, batch, cache)

    def draft(self, spans: Sequence[DraftSpan], cache: ScriptedKVCache,
              target_cache: Any) -> Drafts:
        """Guess, after a check of everything that it kept of these sequences. Raises PageFault."""
        self.num_calls += 1
        if self._delay_s > 0.0:
            time.sleep(self._delay_s)
        longest = max(span.num_drafts for span in spans)
        token_ids = np.zeros((len(spans), longest), np.int32)
        for row, span in zip(token_ids, spans, strict=True):
            history, generated = read_pages(
                Span(Role.DECODE, 0, 0, span.position, span.sliding_pages, span.full_pages),
                cache, self.config.window)
            history = np.append(history, np.int32(span.token_id))
            row[:] = self._guess(history, np.append(generated, True), longest)
        return Drafts(token_ids, np.full(token_ids.shape, self._confidence, np.float32))

    def _guess(self, history: Int32, generated: npt.NDArray[np.bool_], count: int) -> Int32:
        answer = list(self._answer(history, generated))[:count]
        ids = np.zeros(count, np.int32)
        ids[:len(answer)] = answer
        rng = np.random.default_rng([self._seed, zlib.crc32(history.tobytes())])
        wrong = rng.random(count) >= self._right
        wrong[len(answer):] = False
        return np.where(wrong, (ids + 1) % self._vocab_size, ids).astype(np.int32)
