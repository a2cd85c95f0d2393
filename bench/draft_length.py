# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Replays acceptance traces through the draft length rule, against every fixed length.

    python bench/draft_length.py [--trace FILE] [--costs NAME] [--json FILE]
    python bench/draft_length.py --record FILE     # the demo model's own rounds, with all drafts

A trace is a list of rounds, each with the drafter's confidence and whether the draft at each
position equals the target's token; all lengths see the same rounds. Times come from a cost table
with noise, so that the rule has to learn costs too. test/unit/engine/test_draft_length.py holds it
to its limits.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemma_thor_ros.engine.acceptance import MAX_DRAFTS, KeptRate
from gemma_thor_ros.engine.draft_length import DraftLength
from gemma_thor_ros.engine.sequence import new_kept_rate
from gemma_thor_ros.engine.step_costs import StepCosts, distinct_experts

ROUNDS = 1500
_NOISE = 0.05                            # of a step's time, standard deviation


@dataclass(frozen=True)
class Costs:
    """A cost table: ms of a step by rows, and of drafts by their number."""

    verify_ms: Callable[[int], float]
    draft_ms: Callable[[int], float]
    num_experts: int = 0
    num_chosen: int = 0


def _moe_ms(num_rows: int) -> float:
    """26B-A4B by bytes: of 3.8 G active weights 1.4 G are experts, 8 of 128 a row and layer."""
    return 3.6 * (2.4 + 1.4 * distinct_experts(128, 8)(num_rows) / 8) / 3.8


COSTS = {
    'moe': Costs(_moe_ms, lambda count: 0.5, 128, 8),
    'moe-mtp': Costs(_moe_ms, lambda count: 0.25 * count, 128, 8),
    'dense': Costs(lambda rows: 12.0 + 0.1 * rows, lambda count: 1.0),
    # the demo model on one core (bench/LOG.md, 2026-11-30); its rows run one by one
    'cpu': Costs(lambda rows: 2.3 + 0.93 * rows, lambda count: 1.2),
}


@dataclass(frozen=True)
class Trace:
    """Rounds: (R, 15) confidence, and whether each draft is right, whatever came before it."""

    confidence: np.ndarray
    right: np.ndarray

    @property
    def num_right(self) -> list[int]:
        """Leading right drafts of each round."""
        wrong = np.concatenate((~self.right, np.ones((len(self.right), 1), bool)), axis=1)
        return [int(count) for count in wrong.argmax(axis=1)]


def falling(seed: int, rounds: int = ROUNDS) -> Trace:
    """Kept at position 1 in 0.78 of the rounds, falling to 0.2 at position 8; nothing told."""
    kept = np.interp(np.arange(MAX_DRAFTS), [0, 7, MAX_DRAFTS - 1], [0.78, 0.2, 0.02])
    chances = kept / np.concatenate(([1.0], kept[:-1]))
    rng = np.random.default_rng(seed)
    right = rng.random((rounds, MAX_DRAFTS)) < chances
    return Trace(np.full(right.shape, 0.8), right)


def telling(seed: int, rounds: int = ROUNDS) -> Trace:
    """Easy and hard rounds, which the drafter's confidence tells apart, though not exactly."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(0.9, 1.6, (rounds, 1)) - 0.12 * np.arange(MAX_DRAFTS)
    right = rng.random(odds.shape) < 1.0 / (1.0 + np.exp(-odds))
    said = odds + rng.normal(0.5, 0.7, odds.shape)       # noisy, and too sure of itself
    return Trace(1.0 / (1.0 + np.exp(-said)), right)


def constant(right: bool, rounds: int = ROUNDS) -> Trace:
    """Always right or always wrong, and sure of it."""
    shape = (rounds, MAX_DRAFTS)
    return Trace(np.full(shape, 0.9), np.full(shape, right))


def changing(seed: int, rounds: int = ROUNDS) -> Trace:
    """Stretches of 100 rounds in which nearly all or none of the drafts are right."""
    rng = np.random.default_rng(seed)
    good = np.repeat(rng.random(rounds // 100) < 0.5, 100)[:, None]
    right = rng.random((good.size, MAX_DRAFTS)) < np.where(good, 0.9, 0.05)
    return Trace(np.full(right.shape, 0.7), right)


def from_file(path: Path) -> Trace:
    """What `record` wrote: {"confidence": [[...], ...], "num_right": [...]}, repeated."""
    content = json.loads(path.read_text())
    told = np.array(content['confidence'])
    confidence = np.zeros((len(told), MAX_DRAFTS))
    confidence[:, :told.shape[1]] = told
    right = np.arange(MAX_DRAFTS) < np.array(content['num_right'])[:, None]
    order = np.random.default_rng(0).permutation(np.arange(ROUNDS) % len(told))
    return Trace(confidence[order], right[order])


def record(path: Path) -> None:
    """Write the rounds of the demo model with DFlash on some commands, all drafts verified."""
    from cpu_engine import COMMANDS, command, load

    runtime = load('dflash', 7)
    assert runtime.engine is not None
    rule = runtime.engine._speculation.rule              # type: ignore[union-attr]
    learn, confidences, counts = rule.learn, [], []

    def note(kept: KeptRate, confidence: Sequence[float], num_kept: int, num_seen: int) -> None:
        if len(confidence) == 7:
            confidences.append([round(value, 4) for value in confidence])
            counts.append(num_kept)
        learn(kept, confidence, num_kept, num_seen)
    rule.learn = note  # type: ignore[method-assign]
    for text in COMMANDS:
        command(runtime, text)
    runtime.stop()
    path.write_text(json.dumps({'confidence': confidences, 'num_right': counts}) + '\n')


def traces(seed: int) -> dict[str, Trace]:
    return {'falling': falling(seed), 'telling': telling(seed), 'right': constant(True),
            'wrong': constant(False), 'changing': changing(seed)}


def fixed_rate(trace: Trace, costs: Costs, count: int) -> float:
    """Tokens per ms with a fixed number of drafts."""
    tokens = sum(1 + min(count, right) for right in trace.num_right)
    return tokens / (len(trace.right) * (costs.verify_ms(1 + count)
                                         + (costs.draft_ms(count) if count else 0.0)))


@dataclass
class Replay:
    """What the rule made of a trace."""

    tokens: int = 0
    ms: float = 0.0
    drafted: int = 0
    plain: int = 0

    @property
    def rate(self) -> float:
        """Tokens per ms."""
        return self.tokens / self.ms


def replay(trace: Trace, costs: Costs, seed: int, rule: DraftLength | None = None,
           kept: KeptRate | None = None) -> Replay:
    """Run a trace through the rule as one sequence; it knows the costs of a few row counts."""
    if rule is None:
        step_costs = StepCosts(costs.num_experts, costs.num_chosen)
        step_costs.set({rows: costs.verify_ms(rows) for rows in (1, 2, 4, 8, 16)},
                       {count: costs.draft_ms(count) for count in (1, MAX_DRAFTS)})
        rule = DraftLength(step_costs)
    kept = kept or new_kept_rate()
    rng = np.random.default_rng(seed)
    done = Replay()
    for confidence, num_right in zip(trace.confidence.tolist(), trace.num_right, strict=True):
        asked = rule.ask([kept], [MAX_DRAFTS], 1, 0.0)[0]
        draft_ms, count = 0.0, 0
        if asked:
            draft_ms = costs.draft_ms(asked) * _noisy(rng)
            rule.costs.draft_done(1, asked, draft_ms)
            count = rule.keep([kept], [confidence[:asked]], 1, 0.0)[0]
        step_ms = costs.verify_ms(1 + count) * _noisy(rng)
        rule.costs.step_done(1 + count, step_ms)
        accepted = min(count, num_right)
        if count:
            rule.learn(kept, confidence, accepted, min(accepted + 1, count))
        else:
            rule.skipped(kept)
        rule.round_done(1, 1 + accepted, draft_ms + step_ms, plain=True)
        done.tokens += 1 + accepted
        done.ms += draft_ms + step_ms
        done.drafted += count
        done.plain += not count
    return done


def _noisy(rng: np.random.Generator) -> float:
    return math.exp(_NOISE * float(rng.standard_normal()))


def compare(trace: Trace, costs: Costs, seed: int) -> tuple[Replay, list[float]]:
    """The rule, and the rates of the fixed lengths 0 .. 15."""
    return replay(trace, costs, seed), [
        fixed_rate(trace, costs, count) for count in range(MAX_DRAFTS + 1)]


def mix_gain(found: Sequence[tuple[Replay, list[float]]]) -> float:
    """The rule's time for the same tokens of all traces, against that of 15 drafts always."""
    tokens = [replayed.tokens for replayed, _ in found]
    fixed_ms = sum(count / rates[-1] for count, (_, rates) in zip(tokens, found, strict=True))
    return fixed_ms / sum(replayed.ms for replayed, _ in found)


def main() -> int:
    parser = argparse.ArgumentParser(description='The draft length rule on acceptance traces.')
    parser.add_argument('--trace', type=Path, help='a recorded trace too')
    parser.add_argument('--costs', choices=sorted(COSTS), action='append', help='all by default')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', type=Path, help='write the records to this file too')
    parser.add_argument('--record', type=Path, help='record the demo model instead')
    options = parser.parse_args()
    if options.record:
        record(options.record)
        return 0
    wanted = traces(options.seed)
    if options.trace:
        wanted['recorded'] = from_file(options.trace)
    records = []
    for costs_name in options.costs or COSTS:
        costs = COSTS[costs_name]
        found = []
        for name, trace in wanted.items():
            replayed, rates = compare(trace, costs, options.seed)
            found.append((replayed, rates))
            best = int(np.argmax(rates))
            rounds = len(trace.right)
            print(f'{costs_name:<8}{name:<10}{replayed.rate:7.3f} tok/ms, '
                  f'{replayed.rate / rates[best]:.3f} of fixed {best:<2} '
                  f'{replayed.rate / rates[-1]:6.2f} of fixed 15, '
                  f'{replayed.drafted / rounds:5.2f} drafts a round, '
                  f'{replayed.plain} of {rounds} plain')
            records.append({'costs': costs_name, 'trace': name, 'best_fixed': best,
                            'of_best_fixed': round(replayed.rate / rates[best], 4),
                            'of_fixed_15': round(replayed.rate / rates[-1], 4)})
        print(f'{costs_name:<8}mix       {mix_gain(found):.3f} of fixed 15')
        records.append({'costs': costs_name, 'trace': 'mix', 'of_fixed_15': mix_gain(found)})
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + '\n', encoding='utf-8')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
