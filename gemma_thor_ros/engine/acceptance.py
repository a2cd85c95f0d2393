# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How often drafts were kept: by position, for the reports and for the draft length rule.

Positions count from 0 here: draft i is the token i + 1 places after the newest one. Knows no
drafter, no model and no request.
"""

from __future__ import annotations

MAX_DRAFTS = 15                          # with the newest token 16 rows, the tile of the kernels


class DraftCounts:
    """Rounds, drafts and kept drafts; a round verifies at least one draft."""

    def __init__(self) -> None:
        self.rounds = 0
        self.drafted = 0
        self.accepted = 0                # without the bonus token of each round
        self.by_position = [0] * MAX_DRAFTS

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """Count one round."""
        self.rounds += 1
        self.drafted += num_drafts
        self.accepted += num_accepted
        for position in range(num_accepted):
            self.by_position[position] += 1

    @property
    def kept_by_position(self) -> tuple[int, ...]:
        """Drafts kept at positions 0, 1, ... up to the last one that ever was."""
        last = max((i for i, count in enumerate(self.by_position) if count), default=-1)
        return tuple(self.by_position[:last + 1])


class KeptRate:
    """The chance that draft i is kept when those before it were: a decaying count by position.

    Starts at what it is given (`prior`, worth `weight` observations) and forgets by `decay` each
    time that a position is seen.
    """

    def __init__(self, weight: float, decay: float) -> None:
        self._weight = weight
        self._decay = decay
        self._kept = [0.0] * MAX_DRAFTS
        self._seen = [0.0] * MAX_DRAFTS

    def observe(self, num_kept: int, num_seen: int) -> None:
        """The first num_kept of num_seen drafts were kept; at most one more was seen."""
        for position in range(num_seen):
            self.observe_at(position, position < num_kept)

    def observe_at(self, position: int, kept: bool) -> None:
        """One draft was kept or not."""
        self._kept[position] = self._kept[position] * self._decay + kept
        self._seen[position] = self._seen[position] * self._decay + 1.0

    def fade(self, share: float) -> None:
        """Keep so much of what was seen: it grows stale while nothing new is seen."""
        self._kept = [count * share for count in self._kept]
        self._seen = [count * share for count in self._seen]

    def chance(self, position: int, prior: float) -> float:
        """The estimate for one position."""
        return ((self._kept[position] + self._weight * prior)
                / (self._seen[position] + self._weight))
