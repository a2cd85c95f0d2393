# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the engine tells about itself: a snapshot for diagnostics, metrics and the audit.

Plain numbers; knows no request and no front end.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineStats:
    """One look at the engine. Counters run from its start; rates cover the last seconds."""

    state: str                           # 'new', 'running', 'stopped' or 'failed'
    running: int                         # sequences that have rows in the steps
    waiting: int                         # all others, preempted ones included
    sliding_pages_used: int              # held by sequences; cached ones are not counted
    sliding_pages_total: int
    full_pages_used: int
    full_pages_total: int
    steps: int
    decode_tokens_per_s: float           # generated tokens
    prefill_tokens_per_s: float          # prompt tokens
    decode_tokens: int
    prefill_tokens: int
    requests_finished: int               # of any outcome; cancelled and failed ones included
    requests_cancelled: int
    requests_failed: int                 # answered with an error
    last_step_ms: float
    sliding_pages_cached: int = 0        # kept for prefix reuse, in use beside that or not
    full_pages_cached: int = 0
    checkpoints: int = 0                 # prefixes that a prompt can go on from
    checkpoints_evicted: int = 0
    prompt_tokens: int = 0               # of the sequences that started
    cached_prompt_tokens: int = 0        # of these found in the prefix cache
    paused: int = 0                      # preempted sequences that hold pages
    preemptions: int = 0
    drops: int = 0                       # sequences that lost their pages and are computed again
    step_overdue_s: float = 0.0          # how long a hanging step has run; 0.0: none hangs
    drafter: str = ''                    # 'dflash', 'mtp' or 'scripted'; '': none
    draft_failure: str = ''              # why the drafter is left out; '': it is not
    draft_rounds: int = 0                # rounds of a sequence with drafts
    plain_rounds: int = 0                # rounds of a sequence in which the rule wanted none
    draft_trials: int = 0                # rounds that tried more drafts than seemed to pay
    drafted_tokens: int = 0
    accepted_tokens: int = 0             # without the bonus token of each round
    accepted_by_position: tuple[int, ...] = ()   # drafts kept at position 1, 2, ...
    draft_ms: float = 0.0                # time in the drafter


class RateMeter:
    """Events per second over the last full `window_s` seconds; one writer, any readers.

    Buckets of one second in a ring, so that memory and work stay constant.
    """

    def __init__(self, start: float, window_s: int = 5) -> None:
        self.total = 0
        self._start = start
        self._window_s = window_s
        self._counts = [0] * (window_s + 1)
        self._seconds = [-1] * (window_s + 1)

    def add(self, count: int, now: float) -> None:
        """Count events at a steady-clock time in seconds; times must not run backwards."""
        self.total += count
        second = int(now - self._start)
        slot = second % len(self._counts)
        if self._seconds[slot] != second:
            self._counts[slot] = 0
            self._seconds[slot] = second
        self._counts[slot] += count

    def rate(self, now: float) -> float:
        """Events per second over the window, or since the start if that is shorter."""
        elapsed = now - self._start
        oldest = int(elapsed) - self._window_s
        counts = list(zip(self._seconds, self._counts, strict=True))
        count = sum(count for second, count in counts if second >= max(oldest, 0))
        return count / max(min(elapsed, self._window_s + elapsed % 1.0), 1e-3)
