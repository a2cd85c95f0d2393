# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The draft length rule on traces, against the best fixed length; its costs and its estimates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gemma_thor_ros.engine import draft_length
from gemma_thor_ros.engine.acceptance import DraftCounts, KeptRate
from gemma_thor_ros.engine.draft_length import DraftLength
from gemma_thor_ros.engine.sequence import new_kept_rate
from gemma_thor_ros.engine.step_costs import CostCurve, StepCosts, distinct_experts

sys.path.append(str(Path(__file__).resolve().parents[3] / 'bench'))
import draft_length as replays

ROUNDS = 1000
BEST, MIX = 0.97, 1.15                   # the limits
# bench/draft_length.py --record: the demo model with its DFlash drafter
DEMO_TRACE = Path(__file__).resolve().parents[2] / 'data' / 'draft_trace.json'


def costs_of(table: str) -> StepCosts:
    costs, given = StepCosts(), replays.COSTS[table]
    costs.set({rows: given.verify_ms(rows) for rows in range(1, 17)},
              {count: given.draft_ms(count) for count in (1, 15)})
    return costs


class TestReplay:

    @pytest.mark.parametrize('table', sorted(replays.COSTS))
    def test_as_good_as_the_best_fixed_length(self, table: str, grid: bool) -> None:
        for seed in range(20 if grid else 1):
            found = {name: replays.compare(trace, replays.COSTS[table], seed) for name, trace in (
                ('falling', replays.falling(seed, ROUNDS)),
                ('telling', replays.telling(seed, ROUNDS)),
                ('right', replays.constant(True, ROUNDS)),
                ('wrong', replays.constant(False, ROUNDS)),
                ('demo', replays.from_file(DEMO_TRACE)),
                ('changing', replays.changing(seed, ROUNDS)))}
            shares = {name: replay.rate / max(rates) for name, (replay, rates) in found.items()}
            changing = shares.pop('changing')            # it has to notice each time
            assert min(shares.values()) >= BEST and changing >= 0.9, (seed, shares, changing)
            if table != 'dense':         # where rows are nearly free, 15 drafts are nearly right
                gain = replays.mix_gain([found[name] for name in (
                    'falling', 'right', 'wrong', 'demo')])
                assert gain >= MIX, (seed, gain)

    def test_it_uses_what_the_confidence_tells(self) -> None:
        trace, costs = replays.telling(3, ROUNDS), replays.COSTS['moe']
        deaf = replays.Trace(trace.confidence * 0 + 0.8, trace.right)
        assert (replays.replay(trace, costs, 3).rate
                > 1.1 * replays.replay(deaf, costs, 3).rate)

    def test_always_wrong_ends_in_plain_decoding(self) -> None:
        found = replays.replay(replays.constant(False, ROUNDS), replays.COSTS['cpu'], 1)
        assert found.plain > 0.95 * ROUNDS and found.drafted > 0

    @pytest.mark.parametrize('fault', ['dear trials', 'learns nothing', 'tries nothing again'])
    def test_planted_rules_fall_below_the_limit(self, fault: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
        if fault == 'dear trials':
            monkeypatch.setattr(draft_length, '_TRIAL_SHARE', 0.2)
        elif fault == 'learns nothing':
            monkeypatch.setattr(KeptRate, 'chance', lambda self, position, prior: prior)
        else:
            monkeypatch.setattr(draft_length, '_TRIAL_SHARE', 0.0)
            monkeypatch.setattr(draft_length, '_FADE', 1.0)
        with pytest.raises(AssertionError):
            for table in ('moe', 'moe-mtp', 'cpu'):
                self.test_as_good_as_the_best_fixed_length(table, False)

    def test_fixed_lengths_are_kept(self) -> None:
        rule = DraftLength(costs_of('moe'), fixed=4)
        kept = [new_kept_rate(), new_kept_rate()]
        assert rule.ask(kept, [15, 2], 2, 0.0) == [4, 2]
        assert rule.keep(kept, [[0.0] * 4, [0.0] * 2], 2, 0.0) == [4, 2]


class TestSeveralSequences:

    def test_rows_go_to_the_likelier_drafts(self) -> None:
        rule = DraftLength(costs_of('cpu'))
        kept = [new_kept_rate() for _ in range(3)]
        counts = rule.keep(kept, [[0.97] * 8, [0.75] * 8, [0.03] * 8], 3, 0.0)
        assert counts[0] > counts[1] > counts[2] == 0

    def test_each_learns_of_its_own(self) -> None:
        rule = DraftLength(costs_of('cpu'))
        good, bad = new_kept_rate(), new_kept_rate()
        for _ in range(60):
            rule.learn(good, [0.7] * 4, 4, 4)
            rule.learn(bad, [0.7] * 4, 0, 1)
        rule._trial = None
        asked = rule.ask([good, bad], [15, 15], 2, 0.0)
        assert asked[0] >= 4 and asked[1] == 0

    def test_beside_a_long_prompt_drafts_pay_more(self) -> None:
        """The step's price is paid anyway, so that a further row is cheap beside it."""
        rule = DraftLength(costs_of('cpu'))
        kept = [new_kept_rate()]
        alone = rule.keep(kept, [[0.6] * 15], 1, 0.0)[0]
        beside = rule.keep(kept, [[0.6] * 15], 1, 200.0)[0]
        assert beside > alone


class TestCosts:

    def test_between_two_points_cost_follows_the_experts(self) -> None:
        curve = CostCurve(distinct_experts(128, 8))
        curve.set({rows: replays.COSTS['moe'].verify_ms(rows) for rows in (1, 2, 4, 8, 16)})
        for rows in range(1, 17):
            assert curve.ms(rows) == pytest.approx(replays.COSTS['moe'].verify_ms(rows), rel=1e-3)
        straight = CostCurve()
        straight.set({rows: replays.COSTS['moe'].verify_ms(rows) for rows in (1, 16)})
        assert straight.ms(4) < 0.9 * curve.ms(4)

    def test_beyond_the_last_point_it_goes_on(self) -> None:
        curve = CostCurve()
        curve.set({1: 3.0, 16: 18.0})
        assert curve.ms(32) == pytest.approx(34.0) and curve.ms(2000) > 1000.0

    def test_it_follows_what_steps_cost_later(self) -> None:
        costs = StepCosts()
        costs.set({1: 3.0, 16: 18.0}, {1: 1.0, 15: 1.0})
        for _ in range(100):
            costs.step_done(8, 20.0)
            costs.draft_done(1, 8, 3.0)
            costs.draft_done(3, 8, 6.0)
        assert costs.verify_ms(8) == pytest.approx(20.0, rel=0.01)
        assert costs.verify_ms(1) == pytest.approx(3.0)
        assert costs.draft_ms(1, 8) == pytest.approx(3.0, rel=0.01)
        assert costs.draft_ms(3, 8) == pytest.approx(6.0, rel=0.05)

    def test_one_hiccup_changes_little(self) -> None:
        costs = StepCosts()
        costs.set({1: 3.0, 16: 18.0}, {1: 1.0})
        costs.step_done(1, 3000.0)
        assert costs.verify_ms(1) < 3.4

    def test_one_measured_point_is_all_there_is(self) -> None:
        curve = CostCurve()
        curve.set({1: 2.0})
        assert curve.ms(1) == curve.ms(15) == 2.0

    def test_rows_without_experts_count_as_they_are(self) -> None:
        assert distinct_experts(0, 0)(7) == 7
        assert distinct_experts(128, 8)(1) == pytest.approx(8.0)
        assert distinct_experts(128, 8)(1000) == pytest.approx(128.0)


def test_counts_by_position() -> None:
    counts = DraftCounts()
    counts.count(4, 2)
    counts.count(4, 0)
    counts.count(3, 3)
    assert (counts.rounds, counts.drafted, counts.accepted) == (3, 11, 5)
    assert counts.kept_by_position == (2, 2, 1)
    assert DraftCounts().kept_by_position == ()


def test_a_rate_starts_at_its_prior_and_forgets() -> None:
    rate = KeptRate(4.0, 0.9)
    assert rate.chance(0, 0.7) == pytest.approx(0.7)
    for _ in range(100):
        rate.observe(1, 2)
    assert rate.chance(0, 0.7) > 0.9 and rate.chance(1, 0.7) < 0.25
    assert rate.chance(2, 0.7) == pytest.approx(0.7)
    for _ in range(100):
        rate.observe(0, 1)
    assert rate.chance(0, 0.7) < 0.25
