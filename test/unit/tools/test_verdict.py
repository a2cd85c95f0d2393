# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
import json

from gemma_thor_ros.ros.verdict import Outcome, Verdict, cut, result_text


def test_result_texts_are_what_the_demo_model_was_taught() -> None:
    assert result_text('succeeded', values={'distance_m': 2.0, 'x': 2.0, 'y': 0.0}) == (
        '{"status":"succeeded","distance_m":2.0,"x":2.0,"y":0.0}')
    assert result_text('aborted', 'path blocked') == (
        '{"status":"aborted","reason":"path blocked"}')


def test_a_long_reason_is_cut_visibly() -> None:
    told = json.loads(result_text('aborted', 'x' * 1000))
    assert told['reason'].startswith('x' * 300) and '(700 more characters)' in told['reason']
    assert cut('short', 10) == 'short'


def test_only_an_executed_success_counts_as_success() -> None:
    def verdict(outcome: Outcome, status: str) -> Verdict:
        return Verdict('c', 'drive', '{}', False, True, outcome, status)

    assert verdict(Outcome.EXECUTED, 'succeeded').succeeded
    assert not verdict(Outcome.EXECUTED, 'aborted').succeeded
    assert not verdict(Outcome.DRY_RUN, 'succeeded').succeeded
