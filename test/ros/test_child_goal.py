# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A child goal whose server does not acknowledge it, or leaves.

No processes; the clock is the test's.
"""

from __future__ import annotations

from typing import Any

from rclpy.task import Future

from gemma_thor_ros.action import Drive
from gemma_thor_ros.ros.child_goal import ChildEnd, ChildGoal, Limits, Order

GOAL_ID = bytes(range(16))


class Handle:
    """What rclpy gives for an accepted goal."""

    def __init__(self) -> None:
        self.accepted = True
        self.cancels = 0
        self.result: Future[Any] = Future()

    def cancel_goal_async(self) -> Future[Any]:
        self.cancels += 1
        return Future()

    def get_result_async(self) -> Future[Any]:
        return self.result


class Client:
    """What a child goal needs of an ActionClient."""

    def __init__(self) -> None:
        self.answer: Future[Any] = Future()
        self.ready = True
        self.feedback: Any = None

    def server_is_ready(self) -> bool:
        return self.ready

    def send_goal_async(self, goal: Any, feedback_callback: Any, goal_uuid: Any) -> Future[Any]:
        self.feedback = feedback_callback
        return self.answer


class Bench:
    """A goal that has been sent to the server 'a' at the time 0."""

    def __init__(self) -> None:
        self.client: Any = Client()
        self.now = 0.0
        self.servers = frozenset((b'a',))
        self.told: list[ChildEnd] = []
        self.log: list[str] = []
        order = Order(GOAL_ID, 'r', 'c', 'drive', '/drive', True, None, 2.0, 60.0)
        self.goal = ChildGoal(
            order, self.client, Limits(), 0.0, check=lambda: '', report=self.told.append,
            feedback=lambda status, payload: None, log=self.log.append,
            clock=lambda: self.now, servers=lambda: self.servers)
        self.tick(0.0)

    def tick(self, now: float) -> None:
        self.now = now
        self.goal.tick(now)


def acknowledge(bench: Bench) -> Handle:
    """Answer the goal: the server takes it."""
    handle = Handle()
    bench.client.answer.set_result(handle)       # calls the goal back, as there is no executor
    return handle


def test_a_silent_server_is_waited_for_after_the_node_has_been_told() -> None:
    bench = Bench()
    bench.tick(1.9)
    assert not bench.told
    bench.tick(2.1)
    assert [end.status for end in bench.told] == ['unavailable'] and not bench.goal.ended
    bench.tick(30.0)
    assert not bench.goal.ended
    handle = acknowledge(bench)
    assert handle.cancels == 1 and 'had been given up' in bench.log[-1]
    assert len(bench.told) == 1


def test_when_another_server_has_the_name_the_goal_is_over() -> None:
    bench = Bench()
    bench.servers = frozenset((b'a', b'b'))      # the old one may still be there
    bench.tick(2.1)
    assert bench.told[0].status == 'unavailable' and not bench.goal.ended
    bench.servers = frozenset((b'b',))
    bench.tick(2.2)
    assert bench.goal.ended and len(bench.told) == 1


def test_a_goal_that_is_never_acknowledged_holds_no_place_but_stays_ours() -> None:
    bench = Bench()
    bench.tick(2.1)
    bench.tick(29.0)
    assert not bench.goal.ended
    bench.tick(31.0)
    assert bench.goal.ended and 'has not acknowledged a goal for 30 s' in bench.log[-1]
    assert acknowledge(bench).cancels == 1


def executing() -> tuple[Bench, Handle]:
    """Return a goal that its server has begun, and its handle."""
    bench = Bench()
    return bench, acknowledge(bench)


def leave(bench: Bench) -> None:
    """Take the server off the graph."""
    bench.servers, bench.client.ready = frozenset(), False


def run(bench: Bench, until: float, step: Any = None) -> None:
    """Tick as the guard does, 50 times a second."""
    while bench.now < until:
        bench.tick(bench.now + 0.02)
        if step is not None:
            step()


def test_a_server_that_leaves_in_mid_goal_ends_it_soon_and_may_still_be_moving() -> None:
    bench, handle = executing()
    run(bench, 5.0)
    assert not bench.told                        # a quiet server on the graph is waited for
    leave(bench)
    run(bench, 5.7)
    assert not bench.told
    run(bench, 6.5)                              # the time limit of the goal is 60 s
    assert [end.status for end in bench.told] == ['unknown']
    assert 'left the graph in the middle of the goal' in bench.told[0].reason
    assert bench.goal.escalated and not bench.goal.ended     # so motion is inhibited
    cancels = handle.cancels
    run(bench, 20.0)
    assert handle.cancels > cancels >= 1         # it may come back


def test_another_server_under_the_name_ends_a_goal_of_the_one_that_left() -> None:
    bench, handle = executing()
    bench.servers = frozenset((b'b',))
    run(bench, 1.5)
    assert bench.goal.ended and not bench.goal.escalated and handle.cancels == 0
    assert [end.status for end in bench.told] == ['unknown']


def test_a_server_that_is_back_within_a_moment_keeps_its_goal() -> None:
    bench, _ = executing()
    leave(bench)
    run(bench, 0.8)
    bench.servers, bench.client.ready = frozenset((b'a',)), True
    run(bench, 3.0)
    assert not bench.told


def test_a_server_that_is_heard_is_there_whatever_the_graph_says() -> None:
    bench, _ = executing()

    def hear() -> None:
        bench.client.feedback(Drive.Impl.FeedbackMessage())

    leave(bench)
    run(bench, 3.0, hear)
    assert not bench.told
    run(bench, 4.5)
    assert [end.status for end in bench.told] == ['unknown']
