# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""When a tool may act: rates, what was read before, and how a policy writes it down."""

from typing import Any

import pytest

from gemma_thor_ros.ros.checks import TurnContext, check_call
from gemma_thor_ros.ros.policy import parse_policy
from gemma_thor_ros.ros.provenance import NOTHING_READ, Reads, reads_of
from gemma_thor_ros.ros.rates import RateLimits
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome, Verdict
from gemma_thor_ros.schema import ConfigError, FinishReason, ToolCall

POLICY = """\
version: 1
preconditions:
  charged:
    topic: battery
    type: sensor_msgs/msg/BatteryState
    field: percentage
    min: 0.2
    max_age_s: 5
    otherwise: the battery is low
  localized: {topic: pose, type: geometry_msgs/msg/PoseStamped, max_age_s: 2, stamp: true}
tools:
  go:
    description: Go.
    motion: true
    action: {name: go, type: demo_msgs/action/Go}
    timeout_s: 1
    requires: [charged, localized]
    rate: {calls: 2, period_s: 10}
    trusts: [go]
  careful:
    description: Go.
    motion: true
    action: {name: go, type: demo_msgs/action/Go}
    timeout_s: 1
    after_reading: refuse
  look:
    description: Look.
    motion: false
    action: {name: look, type: demo_msgs/action/Look}
    timeout_s: 1
"""
TOOLS = parse_policy(POLICY).tools


def test_a_rate_counts_what_was_sent() -> None:
    now = [100.0]
    rates = RateLimits(lambda: now[0])
    go = TOOLS['go']
    for _ in range(9):
        rates.check(go)                  # checks alone cost nothing
    rates.take(go)
    now[0] = 104.0
    rates.take(go)
    now[0] = 105.0
    for refuse in (rates.check, rates.take):
        with pytest.raises(CallRefusedError) as caught:
            refuse(go)
        assert caught.value.outcome is Outcome.REFUSED_RATE
        assert caught.value.reason == 'go may act 2 times in 10 s; it may again in 5.0 s'
    rates.take(TOOLS['look'])
    now[0] = 110.0
    rates.take(go)
    with pytest.raises(CallRefusedError):
        rates.take(go)


def verdict(name: str, outcome: Outcome = Outcome.EXECUTED) -> Verdict:
    return Verdict('c', name, '{}', False, True, outcome, 'succeeded')


def message(role: str, **fields: Any) -> dict[str, Any]:
    return {'role': role, 'content': '', **fields}


PICTURE = message('user', content=[{'type': 'text', 'text': 'see'}, {'type': 'image'}])


@pytest.mark.parametrize(('messages', 'in_session', 'reads'), [
    ([message('user')], False, NOTHING_READ),
    ([message('user')], True, NOTHING_READ),
    ([message('tool', name='look'), message('user')], True, NOTHING_READ),
    ([message('user'), message('assistant'), message('tool', name='look')], False,
     Reads(frozenset({'look'}))),
    ([message('user'), message('tool')], False, Reads(frozenset({''}))),
    ([message('tool', name='look')], True, Reads(frozenset({'look', ''}))),
    ([message('system')], False, NOTHING_READ),
    ([PICTURE], False, Reads(images=True)),
    ([PICTURE, message('assistant'), message('tool', name='a')], False,
     Reads(frozenset({'a'}), True)),
    ([PICTURE, message('user')], False, NOTHING_READ),
    ([message('user', content=[{'type': 'text', 'text': 'x'}])], False, NOTHING_READ),
])
def test_what_was_read_since_the_users_last_words(
        messages: Any, in_session: bool, reads: Reads) -> None:
    assert reads_of(messages, in_session) == reads


def test_results_of_calls_that_were_sent_count_as_read() -> None:
    reads = NOTHING_READ.after([verdict('look'), verdict('go', Outcome.REFUSED_RANGE)])
    assert reads.tools == {'look'}
    assert reads.untrusted(['go']) == 'results of look'
    assert reads.untrusted(['go', 'look']) == ''
    assert Reads(frozenset({'', 'b', 'a'}), True).untrusted(['b']) == (
        'results of an unknown tool, a and images')


def test_a_motion_that_may_not_follow_results_is_refused() -> None:
    policy = parse_policy(POLICY)

    def check(name: str, *read: str) -> None:
        turn = TurnContext(FinishReason.TOOL_CALLS, reads=Reads(frozenset(read)))
        check_call(policy, ToolCall('c', name, {}), turn)

    check('careful')
    check('look', 'look', 'go')
    check('go', 'look')                  # asks a person: test/ros/test_rules.py
    with pytest.raises(CallRefusedError) as caught:
        check('careful', 'look')
    assert caught.value.outcome is Outcome.REFUSED_PROVENANCE
    assert 'after reading results of look' in caught.value.reason


@pytest.mark.parametrize(('old', 'new', 'line', 'words'), [
    ('requires: [charged, localized]', 'requires: [charged, warm]', 17,
     "no precondition 'warm'"),
    ('trusts: [go]', 'trusts: [went]', 19, "no tool 'went'"),
    ('motion: false', 'motion: false\n    after_reading: allow', 29, 'motion: true alone'),
    ('motion: false', 'motion: false\n    trusts: [go]', 29, 'motion: true alone'),
    ('calls: 2, ', '', 18, 'lacks calls'),
    ('calls: 2', 'calls: 0', 18, 'calls'),
    ('    max_age_s: 5\n', '', 3, 'charged needs max_age_s'),
    ('max_age_s: 2, ', '', 10, 'localized needs max_age_s'),
    ('    field: percentage\n', '', 3, 'needs a field and one of min, max and equals'),
    ('    min: 0.2\n', '', 3, 'needs a field and one of min, max and equals'),
    ('    min: 0.2\n', '    min: 0.9\n    max: 0.2\n', 8,
     'max of charged, 0.2, is below its min, 0.9'),
    ('    min: 0.2\n', '    min: 0.2\n    equals: 1\n', 8, 'either equals or min and max'),
    ('sensor_msgs/msg/BatteryState', 'sensor_msgs/BatteryState', 5, 'type'),
])
def test_faults_name_their_line(old: str, new: str, line: int, words: str) -> None:
    assert POLICY.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        parse_policy(POLICY.replace(old, new), 'p.yaml')
    text = str(caught.value)
    assert text.startswith(f'p.yaml:{line}: ') and words in text, text
