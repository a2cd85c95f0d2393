# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from gemma_thor_ros.ros.confirmations import Approvals
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.schema import ConfigError


def test_an_approval_lapses_with_its_session() -> None:
    now = [0.0]
    approvals = Approvals(10.0, lambda: now[0])
    approvals.add('s', 'drive')
    approvals.add('', 'drive')
    assert not approvals.holds('', 'drive') and not approvals.holds('s', 'turn')
    now[0] = 9.0
    assert approvals.holds('s', 'drive')          # used now: lasts until 19
    now[0] = 18.0
    assert approvals.holds('s', 'drive')
    now[0] = 28.5
    assert not approvals.holds('s', 'drive')
    now[0] = 28.6
    assert not approvals.holds('s', 'drive')


def test_approvals_without_an_end_are_forgotten_on_request() -> None:
    approvals = Approvals()
    for session in ('s', 't', 'u'):
        approvals.add(session, 'drive')
    approvals.forget('s')
    assert not approvals.holds('s', 'drive') and approvals.holds('t', 'drive')
    approvals.forget()
    assert not approvals.holds('t', 'drive') and not approvals.holds('u', 'drive')


def test_the_policy_names_when_to_ask() -> None:
    text = ('version: 1\ntools:\n  go:\n    description: Go.\n    motion: true\n'
            '    action: {name: go, type: demo_msgs/action/Go}\n    timeout_s: 1\n')
    tool = parse_policy(text).tools['go']
    assert (tool.confirm, tool.confirm_timeout_s) == ('never', 30.0)
    asks = parse_policy(text + '    confirm: once_per_session\n    confirm_timeout_s: 5\n')
    assert (asks.tools['go'].confirm, asks.tools['go'].confirm_timeout_s) == (
        'once_per_session', 5.0)
    with pytest.raises(ConfigError, match=r'^policy:8: .*must be never, once_per_session, always'):
        parse_policy(text + '    confirm: sometimes\n')
