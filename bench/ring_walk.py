# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A random walk over what may be chosen for several things at once; of step_rings.py.

Knows nothing of devices: it is given what can be chosen, what times some choices by turns, and
what tells whether something can run by now.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import ne
from typing import Any

_LOSS = 0.004                            # a variant that lost so much is tried half as often
_FAR = 0.3                               # of variants with one more constant changed
_DRAWS = 12
_PAUSE = 2e-4                            # seconds, where nothing is ready
_HOPELESS = 0.006                        # of a step: no more replays
_MOST_FAILED = 200
_WARM = 0.003                            # of a step, that a change may cost when a walk begins

Shape = tuple[Any, ...]                  # what has a choice
Variant = tuple[tuple[str, int], ...]    # constants, by name
Choice = dict[Shape, Variant]            # of each shape


class Walk:
    """A random walk over the variants of all shapes."""

    def __init__(self, variants: Mapping[Shape, Iterable[Variant]], served: Choice,
                 times: Callable[[Sequence[Choice], int], list[list[float]]],
                 ready: Callable[[Shape, Variant], bool], seed: int = 0) -> None:
        """times: microseconds of choices by turns; ready: whether a variant can run by now."""
        self.served = served
        self.best = dict(served)
        self.first = dict(served)        # where the first walk begins
        self.num_trials = self._num_failed = 0
        self._times, self._ready, self._random = times, ready, random.Random(seed)
        self._variants = {shape: list(found) for shape, found in variants.items()}
        self._losses: dict[tuple[Shape, Variant], float] = {}
        self._near: dict[tuple[Shape, Variant], tuple[list[Variant], list[float]]] = {}
        self._told = 1.0                 # what the best takes, when that was printed last

    def compare(self, a: Choice, b: Choice, turns: int) -> float:
        """How long b takes, a being 1."""
        of_a, of_b = self._times([a, b], turns)
        return statistics.median(of_b) / statistics.median(of_a)

    def _drop(self, changed: Choice, current: Choice) -> None:
        """Try no more what does not run."""
        self._num_failed += 1
        differ = [shape for shape in changed if changed[shape] != current[shape]]
        if len(differ) == 1:
            self._variants[differ[0]].remove(changed[differ[0]])
            self._near = {}

    def _another(self, shape: Shape, own: Variant) -> Variant | None:
        """Rather a variant that differs in few constants; seldom one that lost."""
        if (shape, own) not in self._near:
            options = [one for one in self._variants[shape] if one != own]
            weights = [_FAR ** sum(map(ne, one, own)) for one in options]
            self._near[shape, own] = options, list(accumulate(weights))
        options, sums = self._near[shape, own]
        if not options:
            return None
        for found in self._random.choices(options, cum_weights=sums, k=_DRAWS):
            loss = self._losses.get((shape, found), 0.0)
            if self._random.random() < 1 / (1 + (loss / _LOSS) ** 2):
                return found if self._ready(shape, found) else None
        return None

    def _proposal(self, current: Choice) -> Choice | None:
        count = 1 if self._random.random() < 0.7 else 2
        shapes = self._random.sample(list(self._variants), min(count, len(self._variants)))
        changed = {shape: self._another(shape, current[shape]) for shape in shapes}
        found = {shape: one for shape, one in changed.items() if one is not None}
        return {**current, **found} if found else None

    def _try(self, current: Choice, changed: Choice, warmth: float) -> bool:
        """Whether the change is kept."""
        ratio = self.compare(current, changed, 2)
        differ = [shape for shape in changed if changed[shape] != current[shape]]
        if ratio <= 1 + _HOPELESS + warmth:
            ratio = self.compare(current, changed, 7)
        for shape in differ:
            of = shape, changed[shape]
            loss = max(0.0, ratio - 1)
            self._losses[of] = min(loss, self._losses[of]) if of in self._losses else loss
        return ratio <= 1 + warmth * (self._random.random() - 0.3)

    def run(self, seconds: float, now: Callable[[], float] = time.monotonic,
            walks: int = 3, tell: Callable[[], None] = lambda: None) -> None:
        """Some walks of equal length, each colder towards its end, and told of then.

        The first begins with `first`, the others with the best so far.
        """
        begin = now()
        for walk in range(walks):
            current = dict(self.best if walk else self.first)
            start = now()
            end = begin + seconds * (walk + 1) / walks
            while (at := now()) < end:
                warmth = _WARM * (1 - (at - start) / (end - start)) ** 2
                changed = self._proposal(current)
                if changed is None:
                    time.sleep(_PAUSE)
                    continue
                self.num_trials += 1
                try:
                    kept = self._try(current, changed, warmth)
                except Exception as error:  # a variant that asks for too much
                    print(f'left out: {error}'[:160], flush=True)
                    if self._num_failed > _MOST_FAILED:
                        raise
                    self._drop(changed, current)
                    continue
                if kept:
                    current = changed
                    self._best_yet(current, f'{walk} {at - begin:6.1f} s')
            tell()

    def _best_yet(self, current: Choice, words: str) -> None:
        ratio = self.compare(self.best, current, 9)
        if ratio < 0.998 or (ratio < 0.9995 and self.compare(self.best, current, 15) < 0.9995):
            self.best = dict(current)
            served, best = (statistics.median(one) for one in self._times(
                [self.served, self.best], 5))
            if best < self._told * served:
                self._told = best / served - 0.001
                print(f'walk {words}, {self.num_trials} trials: {best:9.2f} us, served '
                      f'{served:9.2f}', flush=True)

    def prune(self, turns: int = 25) -> None:
        """Give back what gains nothing."""
        for shape in [one for one in self.best if self.best[one] != self.served[one]]:
            less = {**self.best, shape: self.served[shape]}
            ratio = self.compare(self.best, less, turns)
            print(f'without {shape}: {ratio:.4f}', flush=True)
            if ratio < 1.0004:
                self.best = less
