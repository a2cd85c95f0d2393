# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Rates over the last seconds, against a count of the same events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.engine.stats import RateMeter


def test_rate_since_the_start_then_over_the_window() -> None:
    meter = RateMeter(100.0, window_s=5)
    assert meter.rate(100.0) == 0.0
    for second in range(3):
        meter.add(10, 100.5 + second)
    assert meter.rate(103.0) == pytest.approx(10.0)
    assert meter.total == 30
    assert meter.rate(107.0) == pytest.approx(10 / 5), 'only the third second is in the window'
    assert meter.rate(108.0) == 0.0
    meter.add(50, 120.0)
    assert meter.rate(120.999) == pytest.approx(50 / 5.999)
    assert meter.total == 80


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 9)), max_size=40),
       st.floats(0.0, 9.0))
@settings(max_examples=60, deadline=None)
def test_against_a_plain_count(steps: list[tuple[float, int]], idle: float) -> None:
    meter, now, events = RateMeter(7.0, window_s=4), 7.0, []
    for wait, count in steps:
        now += wait
        meter.add(count, now)
        events.append((now, count))
    now += idle
    elapsed = now - 7.0
    oldest = 7.0 + max(0, int(elapsed) - 4)
    expected = sum(count for at, count in events if at >= oldest) / max(now - oldest, 1e-3)
    assert meter.rate(now) == pytest.approx(expected)
