# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The registry of running requests: unique ids, limits, cancels that come at any moment."""

from __future__ import annotations

import threading

import pytest

from gemma_thor_ros.ros.running import RunningRequests
from gemma_thor_ros.schema import ErrorCode, RequestError


class Work:
    def __init__(self):
        self.cancels = 0

    def cancel(self):
        self.cancels += 1


def opened(limit=4):
    requests = RunningRequests(limit)
    requests.open()
    return requests


def refusal(call):
    with pytest.raises(RequestError) as caught:
        call()
    return caught.value


def test_closed_refuses_with_the_reason():
    requests = RunningRequests(4)
    requests.close('the node is inactive: the model is loading, 40 % done')
    error = refusal(lambda: requests.begin('', ''))
    assert error.code is ErrorCode.NOT_READY and '40 %' in error.message


def test_an_id_is_unique_while_it_runs():
    requests = opened()
    running = requests.begin('a', '')
    assert refusal(lambda: requests.begin('a', '')).code is ErrorCode.INVALID_REQUEST
    requests.end(running)
    assert requests.begin('a', '').request_id == 'a'


def test_made_ids_differ():
    requests = opened()
    assert requests.begin('', '').request_id != requests.begin('', '').request_id


def test_one_too_many_is_busy_with_both_numbers():
    requests = opened(2)
    requests.begin('', '')
    requests.begin('', '')
    error = refusal(lambda: requests.begin('', ''))
    assert error.code is ErrorCode.BUSY and '2 requests' in error.message


def test_cancel_reaches_the_work_of_now():
    requests = opened()
    running = requests.begin('a', 's')
    first, second = Work(), Work()
    running.attach(first)
    running.attach(second)
    assert requests.cancel('a', reason='no') == ['a']
    assert (first.cancels, second.cancels) == (0, 1) and running.reason == 'no'


def test_cancel_before_there_is_work_is_remembered():
    running = opened().begin('a', '')
    running.cancel('early')
    work = Work()
    running.attach(work)
    assert work.cancels == 1


def test_the_first_reason_counts():
    running = opened().begin('a', '')
    running.cancel('slow', ErrorCode.TIMEOUT)
    running.cancel('late', ErrorCode.CANCELLED)
    assert (running.reason, running.code) == ('slow', ErrorCode.TIMEOUT)


def test_cancel_by_session_and_of_all():
    requests = opened()
    for name, session in (('a', 's'), ('b', 's'), ('c', 't')):
        requests.begin(name, session)
    assert sorted(requests.cancel(session_id='s')) == ['a', 'b']
    assert sorted(requests.cancel()) == ['a', 'b', 'c']
    assert requests.cancel('unknown') == []


def test_wait_idle():
    requests = opened()
    running = requests.begin('a', '')
    assert not requests.wait_idle(0.01)
    threading.Timer(0.05, lambda: requests.end(running)).start()
    assert requests.wait_idle(5.0)


def test_a_stop_ends_what_may_act_and_nothing_else():
    requests = opened()
    acting, work = requests.begin('a', 's', acting=True), Work()
    acting.attach(work)
    talking = requests.begin('b', 's')
    assert requests.stop('stop pressed') == [acting]
    assert (acting.reason, acting.code) == ('stop pressed', ErrorCode.STOPPED)
    assert work.cancels == 1 and not talking.cancelled.is_set()
