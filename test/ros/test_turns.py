# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Several calls in one turn: in order or together, and what a failure does to the others."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from bridge_rig import Rig, in_thread

from gemma_thor_ros.ros.checks import TurnContext
from gemma_thor_ros.ros.verdict import CallEvent, Outcome, Verdict
from gemma_thor_ros.schema import FinishReason, ToolCall


@pytest.fixture(scope='module')
def rig(module_client: Any, module_processes: Any) -> Iterator[Rig]:
    made = Rig(module_client, module_processes, {'succeed': 0.3, 'abort': 0.05, 'never': 0})
    made.wait_allowed()
    for name in ('succeed', 'abort', 'never'):
        made.run(name)                   # until guard and server have found each other
    yield made
    made.close()


@pytest.fixture(autouse=True)
def fresh_policy(rig: Rig) -> Iterator[None]:
    policy = rig.bridge.policy
    yield
    rig.bridge.policy = policy


def change(rig: Rig, **fields: Any) -> None:
    rig.bridge.policy = dataclasses.replace(rig.bridge.policy, **fields)


def run(rig: Rig, *calls: tuple[str, float], **options: Any) -> list[Verdict]:
    """Run drives (server, distance) as one turn, and a sentence last where the name is say."""
    made = [ToolCall(f'c{index}', 'say', {'text': 'x'}) if name == 'say' else
            ToolCall(f'c{index}', f'drive_{name}', {'distance': distance})
            for index, (name, distance) in enumerate(calls)]
    return rig.bridge.run_turn(made, request_id='r', turn=TurnContext(FinishReason.TOOL_CALLS),
                               **options)


def goals(rig: Rig) -> list[str]:
    return [line.split()[2] for line in rig.server.lines()
            if len(line.split()) > 2 and line.split()[2].startswith(('goal', 'ended'))]


def test_in_order_the_next_begins_when_the_one_before_has_ended(rig: Rig) -> None:
    before = len(goals(rig))
    verdicts = run(rig, ('succeed', 1), ('succeed', 2))
    assert [v.succeeded for v in verdicts] == [True, True]
    assert [v.call_id for v in verdicts] == ['c0', 'c1']
    assert goals(rig)[before:] == ['goal(1)', 'ended', 'goal(2)', 'ended']


def test_after_a_motion_that_failed_no_other_is_sent(rig: Rig) -> None:
    before = len(goals(rig))
    verdicts = run(rig, ('abort', 1), ('succeed', 2), ('say', 0))
    assert verdicts[0].status == 'aborted'
    assert verdicts[1].outcome is Outcome.REFUSED_PRECONDITION
    assert verdicts[1].reason == 'drive_abort before it in this turn did not succeed'
    assert verdicts[2].outcome is Outcome.UNAVAILABLE    # no motion: it was tried
    assert goals(rig)[before:] == ['goal(1)', 'ended']
    refused = run(rig, ('succeed', 50), ('succeed', 2))
    assert [v.outcome for v in refused] == [Outcome.REFUSED_RANGE, Outcome.REFUSED_PRECONDITION]
    # The next turn begins anew; a refused repetition is no failure.
    again = run(rig, ('succeed', 1), ('succeed', 1), ('succeed', 2))
    assert [v.outcome for v in again] == [
        Outcome.EXECUTED, Outcome.REFUSED_DUPLICATE, Outcome.EXECUTED]


def test_a_policy_may_go_on_after_a_failure(rig: Rig) -> None:
    change(rig, after_failure='go_on')
    assert [v.status for v in run(rig, ('abort', 1), ('succeed', 2))] == ['aborted', 'succeeded']


def test_together_all_begin_at_once_and_events_come_one_at_a_time(rig: Rig) -> None:
    change(rig, calls='together')
    before = len(goals(rig))
    inside, overlaps, calls = threading.Lock(), [], []

    def on_event(event: CallEvent) -> None:
        if not inside.acquire(blocking=False):
            overlaps.append(event)
            return
        calls.append(event.call_id)
        time.sleep(0.001)
        inside.release()

    verdicts = run(rig, ('succeed', 1), ('abort', 2), ('succeed', 3), ('succeed', 3),
                   on_event=on_event)
    assert [v.call_id for v in verdicts] == ['c0', 'c1', 'c2', 'c3']
    outcomes = [v.outcome for v in verdicts]
    assert outcomes[:2] == [Outcome.EXECUTED, Outcome.EXECUTED]
    assert sorted(outcomes[2:]) == [Outcome.EXECUTED, Outcome.REFUSED_DUPLICATE]
    assert sorted(goals(rig)[before:before + 3]) == ['goal(1)', 'goal(2)', 'goal(3)']
    assert not overlaps and set(calls) == {'c0', 'c1', 'c2', 'c3'}


@pytest.mark.parametrize('mode', ['in_order', 'together'])
def test_a_cancel_ends_the_whole_turn(rig: Rig, mode: str) -> None:
    change(rig, calls=mode)
    cancel = threading.Event()
    executing = len(rig.times_of('never', 'executing'))
    thread, verdicts = in_thread(
        lambda: run(rig, ('never', 1), ('never', 2), cancel=cancel))
    wanted = executing + (1 if mode == 'in_order' else 2)
    rig.wait_for('never', 'executing', wanted)
    cancel.set()
    thread.join(3.0)
    statuses = [v.status for v in verdicts[0]]
    assert statuses == (['canceled', 'refused'] if mode == 'in_order' else ['canceled'] * 2)
    rig.wait_for('never', 'canceled', wanted, 3.0)
    assert len(rig.times_of('never', 'executing')) == wanted


@pytest.mark.parametrize('mode', ['in_order', 'together'])
def test_a_dry_run_of_a_turn_sends_nothing(rig: Rig, mode: str) -> None:
    change(rig, calls=mode)
    before = len(goals(rig))
    verdicts = run(rig, ('succeed', 1), ('succeed', 50), ('succeed', 2), ('say', 0), dry_run=True)
    assert [v.outcome for v in verdicts] == [
        Outcome.DRY_RUN, Outcome.REFUSED_RANGE,
        Outcome.REFUSED_PRECONDITION if mode == 'in_order' else Outcome.DRY_RUN, Outcome.DRY_RUN]
    assert len(goals(rig)) == before
