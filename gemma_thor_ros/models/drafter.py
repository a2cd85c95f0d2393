# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The seam between the engine and what drafts for it: dflash.py, mtp.py and scripted_drafter.py.

A drafter sees each step's rows after the target has run them (`absorb`) and guesses the tokens
that come next (`draft`). No answer depends on it: a draft is kept only when it equals the token
that the target itself draws, so that a wrong or missing state costs acceptance, never tokens.
Knows no request, no schedule and no acceptance.

Rules for an implementation:
- What it keeps of a row goes to the page and slot of the target's own K and V (span.sliding_pages
  or span.full_pages). Then rollback, prefix cache, trim, drop and recompute need nothing of it.
- `draft` reads keys of positions below span.position alone: slots from there on may hold rejected
  tokens, and the newest token itself is not in any cache yet.
- The target's table, head and final norm are handed to its constructor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.models.batch import Batch, Int32
from gemma_thor_ros.ops.sample import SampleError, SampleRow, sample_row

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DraftSpan:
    """One sequence to draft for.

    `position` is that of the newest token, whose K and V are not in the cache yet; it equals the
    number of committed keys. Draft i (from 0) is the token at position + 1 + i. `first` is what
    the target's sampler will use for draft 0: settings, ids that are out, history; see
    `pick_drafts`.
    """

    token_id: int                # the newest token
    position: int
    num_drafts: int              # at least 1, at most max_drafts
    sliding_pages: Int32         # (max_pages,) as in batch.Span
    full_pages: Int32            # (max_pages,)
    hidden: Array | None         # (len(taps), H) tapped features of the row at position - 1
    first: SampleRow


@dataclass(frozen=True)
class Drafts:
    """Guesses of B sequences. Entries past a span's num_drafts (N is the largest) mean nothing.

    `confidence` is the drafter's own probability of each draft given those before it. The engine
    learns how far it can be trusted, so that it need not be calibrated; NaN: not known.
    """

    token_ids: Int32             # (B, N)
    confidence: Float32          # (B, N), 0 .. 1


class DrafterConfig(Protocol):
    """What is known of a drafter before its weights are: for admission and the memory plan."""

    @property
    def name(self) -> str:
        """'dflash', 'mtp' or 'scripted'."""

    @property
    def max_drafts(self) -> int:
        """The most drafts of one call, at most 15."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers, ascending, whose output after layer_scalar it reads; may be empty."""

    @property
    def window(self) -> int:
        """Keys that the newest row sees in what the drafter keeps in sliding pages, itself
        included; the engine keeps pages for the larger one of this and the target's. 0: none.
        """

    def bytes_per_page(self, page_size: int) -> tuple[int, int]:
        """Bytes that the drafter keeps beside a sliding page and beside a full page."""


class Drafter(Protocol):
    """Guesses the next tokens of sequences; called by the engine thread alone."""

    @property
    def config(self) -> DrafterConfig:
        """Its shape."""

    def new_cache(self, num_sliding_pages: int, num_full_pages: int, page_size: int) -> Any:
        """Static memory for what it keeps of each row."""

    def absorb(self, batch: Batch, hidden: Array, cache: Any) -> None:
        """Keep what it needs of every row of a target step: hidden (len(taps), T, H).

        Rows of rejected drafts are among them; later steps write over these.
        """

    def draft(self, spans: Sequence[DraftSpan], cache: Any, target_cache: Any) -> Drafts:
        """Guess the next tokens of B sequences."""


class Taps:
    """Collects the outputs of some layers during one forward: it is Gemma4.forward's `tap`."""

    def __init__(self, layers: Collection[int]) -> None:
        self.layers = frozenset(layers)
        self._found: list[Array] = []

    def __call__(self, layer: int, hidden: Array) -> None:
        """Take the output (T, H) of a layer, an array of the tap's own."""
        if layer in self.layers:
            self._found.append(hidden)

    def hidden(self, num_rows: int) -> Array:
        """The outputs (len(layers), T, H), layers ascending; (0, T, 0) without layers."""
        if not self.layers:
            return np.zeros((0, num_rows, 0), np.float32)
        assert len(self._found) == len(self.layers), (len(self._found), sorted(self.layers))
        return np.stack(self._found)


def pick_drafts(logits: Array, span: DraftSpan, start: int = 0) -> tuple[Int32, Float32]:
    """Drafts start .. start + N - 1 from their logits (N, V): ids (N,) and probabilities (N,).

    The rule is the target's own, noise of the same key included: at temperature 0 the largest
    logit; above it the drafter's and the target's draw then agree as often as their distributions
    allow, far more often than the likeliest token would be drawn. The history of the penalties is
    that of draft 0. Probabilities are of softmax(logits / temperature), at 0 of softmax(logits).
    """
    ids = np.zeros(logits.shape[0], np.int32)
    confidence = np.zeros(logits.shape[0], np.float32)
    temperature = max(span.first.settings.temperature or 1.0, 1e-6)      # a float32 above 0
    for index, row in enumerate(logits):
        try:
            ids[index] = sample_row(row, replace(
                span.first, position=span.position + 1 + start + index))
        except SampleError:                              # nothing to choose: a draft that fails
            continue
        scaled = (row.astype(np.float32, copy=False) - row.max()) / np.float32(temperature)
        masses = np.exp(scaled)                          # a report: no token depends on it
        confidence[index] = masses[ids[index]] / masses.sum()
    return ids, confidence
