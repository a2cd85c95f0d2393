# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""200 requests from 16 clients on the demo model, 2,000 with --grid (and by bench/soak.py).

No page is leaked, no answer mixed up, no request left without an end, memory stays flat. Planted
errors of each kind are caught.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import soak

from gemma_thor_ros.engine import open_requests, page_pool, runner
from gemma_thor_ros.models.gemma4 import Gemma4


@cache
def model() -> Gemma4:
    return soak.demo_model()


def test_requests_from_16_clients(grid: bool) -> None:
    number = 2000 if grid else 200
    report = soak.soak(model(), number)
    assert report.problems == []
    assert report.requests + report.refused['DEADLINE'] == number
    assert all(report.ends[end] > 0 for end in ('stop', 'length', 'cancelled', 'engine')), report
    assert all(report.faults[kind] > 0 for kind in ('raise', 'hang')), report
    assert report.preemptions > 10 and report.drops > 0, report
    assert 0 < report.cached_tokens < report.prompt_tokens
    middle = len(report.rss_mb) // 2
    assert report.rss_mb[-1] - report.rss_mb[middle] < 8.0, report.rss_mb
    assert report.objects[-1] < 1.1 * report.objects[middle], report.objects


class TestPlantedErrors:
    """In a run that has no problem without them."""

    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody waits for long for what will not come."""
        monkeypatch.setattr(soak, 'WAIT_S', 8.0)

    def run(self) -> list[str]:
        return soak.soak(model(), 32, num_clients=8, pool_size=6, fault_every=0).problems

    def test_a_page_is_leaked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cancelled request forgets the page that it had just been given."""
        right = page_pool.PageManager.release

        def wrong(self: page_pool.PageManager, tables: Any) -> None:
            if tables.num_given < len(tables.full) and tables.num_given > 5:
                tables.num_given -= 1
            right(self, tables)
        monkeypatch.setattr(page_pool.PageManager, 'release', wrong)
        assert any('left behind' in line or 'books' in line for line in self.run())

    def test_answers_are_mixed_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two requests of a step get one another's token, now and then."""
        right, calls = runner.Runner.run, []

        def wrong(self: runner.Runner, plan: Any, *rest: Any) -> Any:
            choices = right(self, plan, *rest)
            calls.append(None)
            wanted = [i for i, choice in enumerate(choices) if choice is not None]
            if len(wanted) >= 2 and len(calls) % 20 == 0:
                one, other = wanted[0], wanted[-1]
                choices[one], choices[other] = choices[other], choices[one]
            return choices
        monkeypatch.setattr(runner.Runner, 'run', wrong)
        assert any('instead of' in line for line in self.run())

    def test_a_request_without_an_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right, calls = open_requests.OpenRequests.answer, []

        def wrong(self: Any, sequence: Any, end: Any, **options: Any) -> bool:
            calls.append(None)
            return len(calls) != 30 and right(self, sequence, end, **options)
        monkeypatch.setattr(open_requests.OpenRequests, 'answer', wrong)
        assert any('TimeoutError' in line for line in self.run())
