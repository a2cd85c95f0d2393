# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How many tokens to draft and how many of the drafts to verify: as many as pay.

A round is worth its tokens and costs its time. With `rate`, the tokens per millisecond of the last
rounds, a draft is worth verifying when the chance that it is kept exceeds rate times what its row
adds to the step; drafting at all, when this holds for the drafter's own time as well. The chances
come from the drafter's confidence and from what became of drafts before; the costs are measured
(step_costs). Where drafting does not pay it stops, and is tried again now and then. Knows numbers
alone: no model, no pages, no requests. bench/draft_length.py replays traces through it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from gemma_thor_ros.engine.acceptance import KeptRate
from gemma_thor_ros.engine.step_costs import StepCosts

_PRIOR = 0.7                             # of a draft about which nothing is known
_FORGET = 0.995                          # global counts: a half-life of 140 rounds
_RATE_WEIGHT = 0.02                      # of the newest round in tokens and in ms
_FADE = 0.97                             # a sequence's own counts, each round without drafts
_TRIAL_SHARE = 0.01                      # of the time, at most, for more drafts than seem to pay
_TRIAL_DRAFTS = 2                        # so many more; the first one where none seemed to
_MORE_FOR = 0.03                         # of a round: further drafts that cost less come too
_BINS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_BIN_WEIGHT = 8.0
_MAX_SHIFT = 2.0                         # of log odds, by which one sequence is unlike the others

Chances = list[float]                    # that draft i is kept, given that those before it were


class DraftLength:
    """The rule of one engine. `fixed` drafts a round, as far as there is room; None: what pays.

    A round: `ask` for each sequence that could have drafts, the drafter, `keep`, the step, and
    then `learn` for each sequence and `round_done`.
    """

    def __init__(self, costs: StepCosts, fixed: int | None = None) -> None:
        self.costs = costs
        self.fixed = fixed
        self.num_trials = 0
        self._kept = KeptRate(6.0, _FORGET)
        self._bins = [KeptRate(_BIN_WEIGHT, _FORGET) for _ in range(len(_BINS) + 2)]
        self._all = [_Mean() for _ in range(len(_BINS) + 2)]
        self._rates: dict[int, _Rate] = {}
        self._credit_ms = 0.0            # for trials
        self._num_lucky = 0              # trials in a row whose drafts were all kept
        self._next_trial = 0
        self._trial: tuple[KeptRate, int] | None = None

    def ask(self, sequences: Sequence[KeptRate], rooms: Sequence[int], num_rows: int,
            beside_ms: float) -> list[int]:
        """How many drafts to ask for, for each of some sequences.

        rooms: the most that each may have. num_rows: generated rows of the step without drafts;
        beside_ms: what its prompt rows cost.
        """
        if self.fixed is not None:
            return [min(self.fixed, room) for room in rooms]
        rate = self._rate(num_rows, beside_ms)
        asked = [self._worth(kept, room, num_rows, rate)
                 for kept, room in zip(sequences, rooms, strict=True)]
        self._try_more(sequences, asked, rooms, num_rows)
        return asked

    def keep(self, sequences: Sequence[KeptRate], confidence: Sequence[Sequence[float]],
             num_rows: int, beside_ms: float) -> list[int]:
        """How many of its drafts to verify, for each sequence: the first ones.

        confidence: of each sequence's drafts, as many as were asked for; NaN: not known.
        """
        if self.fixed is not None:
            return [len(values) for values in confidence]
        gains: list[tuple[float, int]] = []
        for index, (kept, values) in enumerate(zip(sequences, confidence, strict=True)):
            chance = 1.0
            for each in self.chances(kept, values):
                chance *= each
                gains.append((chance, index))
        counts = [0] * len(sequences)
        if self._trial is not None and self._trial[0] in sequences:
            index = sequences.index(self._trial[0])
            counts[index] = len(confidence[index])
            num_rows += counts[index]
            gains = [gain for gain in gains if gain[1] != index]
        gains.sort(key=lambda gain: -gain[0])            # stable: the order of one's own stays
        rate = self._rate(num_rows, beside_ms)
        best, best_value, value = 0, -rate * self.costs.verify_ms(num_rows), 0.0
        for count, (chance, _) in enumerate(gains, 1):
            value += chance
            total = value - rate * self.costs.verify_ms(num_rows + count)
            if total > best_value:
                best, best_value = count, total
        for _, index in gains[:best]:
            counts[index] += 1
        return counts

    def chances(self, kept: KeptRate, confidence: Sequence[float]) -> Chances:
        """What the drafter's confidence means, here and for this sequence."""
        found = []
        for position, value in enumerate(confidence):
            among = self._kept.chance(position, _PRIOR)
            own = kept.chance(position, among)
            bin_number = _bin(value)
            expected = among if math.isnan(value) else min(0.98, max(0.02, value))
            everywhere = self._all[bin_number].value(expected, _BIN_WEIGHT)
            here = self._bins[bin_number].chance(position, everywhere)
            shift = min(_MAX_SHIFT, max(-_MAX_SHIFT, _log_odds(own) - _log_odds(among)))
            found.append(1.0 / (1.0 + math.exp(-_log_odds(here) - shift)))
        return found

    def learn(self, kept: KeptRate, confidence: Sequence[float], num_kept: int,
              num_seen: int) -> None:
        """What became of a sequence's verified drafts: num_kept of num_seen, at most one more.

        A draft behind the first one that was refused tells nothing.
        """
        if self._trial is not None and self._trial[0] is kept:
            lucky = num_kept >= self._trial[1]
            self._num_lucky = self._num_lucky + 1 if lucky else 0
            self._trial = None
        kept.observe(num_kept, num_seen)
        self._kept.observe(num_kept, num_seen)
        for position in range(num_seen):
            bin_number = _bin(confidence[position])
            was_kept = position < num_kept
            self._bins[bin_number].observe_at(position, was_kept)
            self._all[bin_number].add(was_kept)

    def skipped(self, kept: KeptRate) -> None:
        """A sequence had no drafts in this round: its bad luck of old counts for less by now."""
        kept.fade(_FADE)

    def round_done(self, num_sequences: int, num_tokens: int, ms: float, *, plain: bool) -> None:
        """Learn from a whole round: the tokens that it gave and its time, drafting included.

        plain: no prompt rows stood beside.
        """
        self._credit_ms += _TRIAL_SHARE * ms
        if plain:
            rate = self._rates.get(num_sequences)
            if rate is None:
                rate = self._rates[num_sequences] = _Rate(float(num_tokens), ms)
            rate.add(num_tokens, ms)

    def _rate(self, num_rows: int, beside_ms: float) -> float:
        """Tokens per ms that time is worth: that of plain decoding, or better where we are."""
        plain = num_rows / (self.costs.verify_ms(num_rows) + beside_ms)
        rate = self._rates.get(num_rows)
        return plain if rate is None or beside_ms > 0.0 else max(plain, rate.value)

    def _worth(self, kept: KeptRate, room: int, num_rows: int, rate: float) -> int:
        """How many drafts to ask for, by what is known before they are there; 0: none pays."""
        plain_ms = self.costs.verify_ms(num_rows)
        plain_rate = num_rows / plain_ms
        gain, chance, best, best_value, pays = 0.0, 1.0, 0, 0.0, False
        for position in range(room):
            chance *= kept.chance(position, self._kept.chance(position, _PRIOR))
            gain += chance
            count = position + 1
            extra_ms = (self.costs.verify_ms(num_rows + count) - plain_ms
                        + self.costs.draft_ms(1, count))
            pays = pays or gain > plain_rate * extra_ms
            if gain - rate * extra_ms > best_value or best == 0:
                best, best_value = count, gain - rate * extra_ms
        if not pays:
            return 0
        affordable = self.costs.draft_ms(1, best) + _MORE_FOR * plain_ms
        while best < room and self.costs.draft_ms(1, best + 1) <= affordable:
            best += 1
        return best

    def _try_more(self, sequences: Sequence[KeptRate], asked: list[int], rooms: Sequence[int],
                  num_rows: int) -> None:
        """Let one sequence have more drafts than seem to pay, when that costs little of the time.

        Without trials a run of bad luck would stay the last word. One that succeeds is followed by
        another at once.
        """
        self._trial = None
        if not asked:
            return
        index = self._next_trial % len(asked)
        count = asked[index] + (_TRIAL_DRAFTS if asked[index] else 1 + self._num_lucky)
        count = min(count, rooms[index])
        if count <= asked[index]:
            self._next_trial += 1
            return
        before, after = num_rows + asked[index], num_rows + count
        extra_ms = (self.costs.verify_ms(after) - self.costs.verify_ms(before)
                    + self.costs.draft_ms(1, count) - self.costs.draft_ms(1, asked[index]))
        if extra_ms > self._credit_ms and not self._num_lucky:
            return
        self.num_trials += 1
        self._next_trial += not self._num_lucky
        self._credit_ms = max(0.0, self._credit_ms - extra_ms)
        self._trial = sequences[index], count
        asked[index] = count


class _Rate:
    """Tokens per ms of the last rounds with one number of sequences."""

    def __init__(self, tokens: float, ms: float) -> None:
        self._tokens = tokens
        self._ms = ms

    @property
    def value(self) -> float:
        return self._tokens / max(self._ms, 1e-6)

    def add(self, tokens: int, ms: float) -> None:
        ms = min(ms, 4.0 * self._ms)                     # a hiccup is not what rounds cost
        self._tokens += _RATE_WEIGHT * (tokens - self._tokens)
        self._ms += _RATE_WEIGHT * (ms - self._ms)


class _Mean:
    """A decaying mean of hits."""

    def __init__(self) -> None:
        self._hits = 0.0
        self._count = 0.0

    def add(self, hit: bool) -> None:
        self._hits = self._hits * _FORGET + hit
        self._count = self._count * _FORGET + 1.0

    def value(self, prior: float, weight: float) -> float:
        return (self._hits + weight * prior) / (self._count + weight)


def _bin(confidence: float) -> int:
    return len(_BINS) + 1 if math.isnan(confidence) else bisect_right(_BINS, confidence)


def _log_odds(chance: float) -> float:
    chance = min(0.999, max(0.001, chance))
    return math.log(chance / (1.0 - chance))
