# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
from gemma_thor_ros.ros.twins import TWINS_S, Twins


def test_one_that_is_started_anew_is_no_twin() -> None:
    twins = Twins()
    for start in range(20):
        for _ in range(3):
            assert not twins.hear(f'start {start}', 1.0)
    assert not twins.hear('', 1.0) and not twins.seen(1.0)


def test_two_that_take_turns_are_twins_until_one_has_gone() -> None:
    twins = Twins()
    assert not twins.hear('a', 1.0) and not twins.hear('b', 1.1) and not twins.seen(1.1)
    assert twins.hear('a', 1.2) and twins.hear('b', 1.3) and twins.seen(1.3)
    assert not twins.hear('b', 2.0) and twins.seen(2.0)
    assert not twins.seen(1.31 + TWINS_S)
