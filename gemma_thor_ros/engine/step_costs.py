# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What a step and a draft cost in milliseconds, measured at load and refreshed from each step.

In a mixture of experts a row costs the experts that it adds: between two measured row counts the
cost follows the number of distinct experts that so many rows are expected to touch. Knows numbers
alone: no model, no drafter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping

_POINTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
_WEIGHT = 0.1                            # of the newest measurement
_OUTLIER = 2.0                           # a time further off than this factor counts as this far
_FLOOR = 0.2                             # no count costs less than this share of the least one
_GUESS_MS = 1.0                          # of one row, until something is measured
_GUESS_ROW = 0.1                         # of that, for each further row


class CostCurve:
    """Milliseconds as a function of a count from 1 on, between and beyond some points.

    `spread(count)` is what the cost is linear in between two points.
    """

    def __init__(self, spread: Callable[[int], float] = float) -> None:
        self._spread = spread
        self._ms = [_GUESS_MS * (1.0 + _GUESS_ROW * (count - 1)) for count in _POINTS]
        self._places: dict[int, tuple[int, float]] = {}

    def set(self, measured: Mapping[int, float]) -> None:
        """Take measured points (at least one); the others follow the two next to them."""
        counts = sorted(measured)
        if len(counts) == 1:
            self._ms = [measured[counts[0]]] * len(_POINTS)
            return
        for index, point in enumerate(_POINTS):
            at = min(max(1, bisect_left(counts, point)), len(counts) - 1)
            low, high = measured[counts[at - 1]], measured[counts[at]]
            ms = low + self._share(counts[at - 1], counts[at], point) * (high - low)
            self._ms[index] = max(ms, _FLOOR * measured[counts[0]])

    def ms(self, count: int) -> float:
        """The cost of a count."""
        index, share = self._place(count)
        return self._ms[index] + share * (self._ms[index + 1] - self._ms[index])

    def observe(self, count: int, ms: float) -> None:
        """Learn from a measurement; points far from it stay as they are."""
        index, share = self._place(count)
        ratio = min(_OUTLIER, max(1.0 / _OUTLIER, ms / max(self.ms(count), 1e-6))) - 1.0
        self._ms[index] *= 1.0 + _WEIGHT * max(0.0, 1.0 - share) * ratio
        self._ms[index + 1] *= 1.0 + _WEIGHT * min(1.0, share) * ratio

    def _place(self, count: int) -> tuple[int, float]:
        """The point at or below a count, and how far it is to the next one."""
        place = self._places.get(count)
        if place is None:
            index = min(max(0, bisect_left(_POINTS, count + 1) - 1), len(_POINTS) - 2)
            place = index, self._share(_POINTS[index], _POINTS[index + 1], count)
            self._places[count] = place
        return place

    def _share(self, low: int, high: int, count: int) -> float:
        width = self._spread(high) - self._spread(low)
        if count > high or width <= 0.0:                 # beyond: linear, and all experts touched
            return (count - low) / (high - low)
        return (self._spread(count) - self._spread(low)) / width


class StepCosts:
    """The costs of one engine: verify_ms by rows of a step, draft_ms by sequences and drafts."""

    def __init__(self, num_experts: int = 0, num_chosen: int = 0) -> None:
        self._rows = CostCurve(distinct_experts(num_experts, num_chosen))
        self._drafts = CostCurve()
        self._sequences: dict[int, float] = {}           # how many times dearer than for one

    def set(self, by_rows: Mapping[int, float], by_drafts: Mapping[int, float]) -> None:
        """Take what was measured at load: ms by rows, and by drafts for one sequence."""
        if by_rows:
            self._rows.set(by_rows)
        if by_drafts:
            self._drafts.set(by_drafts)

    def verify_ms(self, num_rows: int) -> float:
        """A step of so many generated rows, without prompt rows."""
        return self._rows.ms(num_rows)

    def draft_ms(self, num_sequences: int, num_drafts: int) -> float:
        """Drafts for some sequences, the longest of num_drafts."""
        if not num_sequences or not num_drafts:
            return 0.0
        factor = self._sequences.get(num_sequences, 1.0 + 0.5 * (num_sequences - 1))
        return factor * self._drafts.ms(num_drafts)

    def step_done(self, num_rows: int, ms: float) -> None:
        """Learn from a step without prompt rows."""
        self._rows.observe(num_rows, ms)

    def draft_done(self, num_sequences: int, num_drafts: int, ms: float) -> None:
        """Learn from a call of the drafter."""
        if num_sequences == 1:
            self._drafts.observe(num_drafts, ms)
            return
        ratio = ms / max(self._drafts.ms(num_drafts), 1e-6)
        old = self._sequences.get(num_sequences, ratio)
        self._sequences[num_sequences] = old + _WEIGHT * (min(ratio, _OUTLIER * old) - old)


def distinct_experts(num_experts: int, num_chosen: int) -> Callable[[int], float]:
    """How many experts some rows are expected to touch, each choosing num_chosen at random.

    Without experts: the number of rows.
    """
    if num_experts <= 0:
        return float
    stays = 1.0 - num_chosen / num_experts
    return lambda num_rows: num_experts * (1.0 - stays ** num_rows)
