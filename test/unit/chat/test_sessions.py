# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Sessions: one request at a time, age, room, reset while busy, turns that stay whole."""

from __future__ import annotations

import pytest

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.sessions import SessionStore, first_turn_size

USER = {'role': 'user', 'content': 'hi'}
ANSWER = {'role': 'assistant', 'content': 'hello'}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_history_grows_by_committed_turns() -> None:
    store = SessionStore(0.0, 4)
    assert store.begin('s', 'ros', 'r1') == []
    store.commit('s', 'r1', [USER, ANSWER], 12)
    assert store.begin('s', 'ros', 'r2') == [USER, ANSWER]
    view, = store.views()
    assert (view.num_messages, view.num_tokens, view.busy) == (2, 12, True)


def test_a_session_has_one_system_message() -> None:
    """A client that sends its system message with every turn does not pile them up."""
    store = SessionStore(0.0, 4)
    old, new = ({'role': 'system', 'content': text} for text in ('old', 'new'))
    store.begin('s', 'http', 'r1')
    store.commit('s', 'r1', [old, USER, ANSWER], 12)
    store.begin('s', 'http', 'r2')
    store.commit('s', 'r2', [new, USER, ANSWER], 24)
    assert store.history('s') == [new, USER, ANSWER, USER, ANSWER]


def test_second_request_of_a_busy_session_is_refused_by_name() -> None:
    store = SessionStore(0.0, 4)
    store.begin('s', 'ros', 'r1')
    with pytest.raises(RequestError, match='r1') as error:
        store.begin('s', 'http', 'r2')
    assert error.value.code is ErrorCode.BUSY
    store.abandon('s', 'r1')
    store.begin('s', 'http', 'r2')


def test_reset_while_busy_drops_what_the_running_request_still_commits() -> None:
    store = SessionStore(0.0, 4)
    store.begin('s', 'ros', 'r1')
    assert store.reset('s') == ['r1']
    store.commit('s', 'r1', [USER, ANSWER], 12)
    assert store.history('s') == []


def test_unused_sessions_expire_and_busy_ones_stay() -> None:
    clock = Clock()
    store = SessionStore(10.0, 4, clock)
    store.begin('old', 'ros', 'r1')
    store.commit('old', 'r1', [USER, ANSWER], 1)
    store.begin('busy', 'ros', 'r2')
    clock.now += 11.0
    assert [view.session_id for view in store.views()] == ['busy']


def test_room_is_made_by_the_least_recently_used_idle_session() -> None:
    clock = Clock()
    store = SessionStore(0.0, 2, clock)
    for name in ('a', 'b'):
        clock.now += 1.0
        store.begin(name, 'ros', name)
        store.commit(name, name, [USER, ANSWER], 1)
    clock.now += 1.0
    store.begin('c', 'ros', 'c')
    assert {view.session_id for view in store.views()} == {'b', 'c'}
    store.begin('b', 'ros', 'b2')
    with pytest.raises(RequestError, match='all 2 sessions are busy'):
        store.begin('d', 'ros', 'd')


def test_unknown_and_overlong_ids() -> None:
    store = SessionStore(0.0, 2)
    with pytest.raises(RequestError) as error:
        store.reset('nobody')
    assert error.value.code is ErrorCode.UNKNOWN_SESSION
    with pytest.raises(RequestError, match='129 characters'):
        store.begin('x' * 129, 'ros', 'r')


def test_a_turn_keeps_a_call_with_its_result() -> None:
    call = {'role': 'assistant', 'tool_calls': []}
    tool = {'role': 'tool', 'content': '{}'}
    system = {'role': 'system', 'content': 's'}
    assert first_turn_size([system, USER, call, tool, ANSWER, USER, ANSWER]) == 4
    assert first_turn_size([USER, ANSWER, USER]) == 2
    assert first_turn_size([USER, call, tool]) == 0
    assert first_turn_size([]) == 0


def said(text: str, **more: object) -> dict[str, object]:
    return {'role': 'assistant', 'content': text, **more}


CALLS = [{'id': 'c', 'type': 'function', 'function': {'name': 'drive', 'arguments': {}}}]
RESULT = {'role': 'tool', 'tool_call_id': 'c', 'content': '{}'}


def test_a_held_session_is_reserved_between_two_rounds() -> None:
    store = SessionStore(0.0, 2)
    store.hold('s', 'ros', 'goal')
    assert store.views()[0].busy
    for round_id in ('goal', 'goal.1'):
        store.begin('s', 'ros', round_id, 'goal')
        with pytest.raises(RequestError, match='goal') as error:
            store.begin('s', 'http', 'other')
        assert error.value.code is ErrorCode.BUSY
        store.commit('s', round_id, [USER, ANSWER], 1)
        with pytest.raises(RequestError, match='goal'):
            store.hold('s', 'http', 'other')
    store.release('s', 'goal')
    assert not store.views()[0].busy
    store.begin('s', 'http', 'other')


def test_a_hold_outlives_an_abandoned_round_and_leaves_no_empty_session() -> None:
    store = SessionStore(0.0, 2)
    store.hold('s', 'ros', 'goal')
    store.begin('s', 'ros', 'goal', 'goal')
    store.abandon('s', 'goal')
    assert store.views()[0].busy
    store.release('s', 'goal')
    assert store.views() == []


def test_a_round_of_a_session_that_was_reset_is_refused() -> None:
    store = SessionStore(0.0, 2)
    store.hold('s', 'ros', 'goal')
    store.reset('s')
    with pytest.raises(RequestError) as error:
        store.begin('s', 'ros', 'goal.1', 'goal')
    assert error.value.code is ErrorCode.UNKNOWN_SESSION
    store.begin('s', 'http', 'other')
    store.release('s', 'goal')  # it has none any more
    assert store.views()[0].busy


def test_a_held_session_neither_ages_nor_makes_room() -> None:
    clock = Clock()
    store = SessionStore(10.0, 1, clock)
    store.hold('s', 'ros', 'goal')
    clock.now += 100.0
    assert len(store.views()) == 1
    with pytest.raises(RequestError, match='busy'):
        store.begin('t', 'ros', 'r')


@pytest.mark.parametrize(
    ('characters', 'left'),
    [
        (99, [USER, said('I go. '), USER, said('I drive', tool_calls=CALLS), RESULT, said(' ok')]),
        (8, [USER, said('I go. '), USER, said('I drive', tool_calls=CALLS), RESULT, said('')]),
        (3, [USER, said('I go. '), USER, said('I d', tool_calls=CALLS), RESULT]),
        (2, [USER, said('I go. '), USER, said('I', tool_calls=CALLS), RESULT]),
        (0, [USER, said('I go. '), USER, said('', tool_calls=CALLS), RESULT]),
    ],
)
def test_an_answer_is_cut_over_all_its_rounds(characters: int, left: list[object]) -> None:
    store = SessionStore(0.0, 2)
    store.begin('s', 'ros', 'before')
    store.commit('s', 'before', [USER, said('I go. ')], 1)
    store.hold('s', 'ros', 'goal')
    store.begin('s', 'ros', 'goal', 'goal')
    store.commit('s', 'goal', [USER, said('I drive', tool_calls=CALLS)], 2)
    store.begin('s', 'ros', 'goal.1', 'goal')
    store.commit('s', 'goal.1', [RESULT, said(' ok')], 3)
    with pytest.raises(RequestError, match='busy'):
        store.cut('s', 'goal', 0)
    store.release('s', 'goal')
    with pytest.raises(RequestError) as error:
        store.cut('s', 'before', 0)
    assert error.value.code is ErrorCode.UNKNOWN_REQUEST
    store.cut('s', 'goal', characters)
    expected = [m for m in left if m != said('')]
    assert store.history('s') == expected
    assert store.last_turn('s') == 'goal'


def test_a_turn_of_which_nothing_was_said_is_forgotten() -> None:
    store = SessionStore(0.0, 2)
    for request_id in ('a', 'b'):
        store.begin('s', 'ros', request_id)
        store.commit('s', request_id, [USER, ANSWER], 1)
    store.cut('s', 'b', 0)
    assert store.history('s') == [USER, ANSWER]
    store.begin('t', 'ros', 'c')
    store.commit('t', 'c', [USER, ANSWER], 1)
    store.cut('t', 'c', 0)
    assert [view.session_id for view in store.views()] == ['s']
    store.cut('t', 'c', 0)  # gone: nothing to cut


def test_trimming_moves_the_start_of_the_turn() -> None:
    store = SessionStore(0.0, 2)
    store.begin('s', 'ros', 'a')
    store.commit('s', 'a', [{'role': 'system', 'content': 'x'}, USER, ANSWER], 1)
    store.begin('s', 'ros', 'b')
    store.trim('s', 'b', 2)
    store.commit('s', 'b', [USER, said('one two')], 1)
    store.cut('s', 'b', 3)
    assert store.history('s') == [{'role': 'system', 'content': 'x'}, USER, said('one')]
