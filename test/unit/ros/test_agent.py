# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The agent loop on scripted rounds and a pretended bridge: what is asked, run, summed."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip('gemma_thor_ros.msg')

from builtin_interfaces.msg import Time

from gemma_thor_ros.ros.agent import Acting, Generation
from gemma_thor_ros.ros.running import RunningRequests
from gemma_thor_ros.ros.token_topic import ChunkWriter
from gemma_thor_ros.ros.verdict import CallEvent, Outcome, Step, Verdict
from gemma_thor_ros.schema import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    ErrorCode,
    FinishReason,
    RequestError,
    Timings,
    ToolCall,
    Usage,
)

TOOL = {'type': 'function', 'function': {'name': 'drive'}}


def calls(*names, repaired=False):
    return tuple(ToolCall(f'c{i}', n, {'d': 1}, repaired, '{"d": 1}') for i, n in enumerate(names))


def round_of(text='', tool_calls=(), reason=None, code=ErrorCode.NONE):
    reason = reason or (FinishReason.TOOL_CALLS if tool_calls else FinishReason.STOP)
    usage = Usage(prompt_tokens=10, completion_tokens=5)
    timings = Timings(1.0, 2.0, 3.0, 4.0, 10.0, 1000.0)
    return ChatResult('', text, '', tool_calls, reason, usage, timings, (1, 2), code=code)


class Stream:
    """Gives its text in one delta, then ends; or waits for a cancel."""

    def __init__(self, result, hangs):
        self._result = result
        self._hangs = hangs
        self.done = False
        self._cancelled = threading.Event()

    def wait(self, timeout_s):
        if self._hangs:
            return self._cancelled.wait(timeout_s)
        return True

    def poll(self):
        if self._hangs and not self._cancelled.is_set():
            return []
        self.done = True
        if self._cancelled.is_set():
            self._result = ChatResult(
                '', '', '', (), FinishReason.CANCELLED, Usage(), Timings(), (),
                code=ErrorCode.CANCELLED,
            )
        return [ChatDelta(0, self._result.text)]

    def result(self, timeout_s=None):
        return self._result

    def cancel(self):
        self._cancelled.set()


class Bench:
    """A request with scripted rounds; remembers what was asked and run."""

    def __init__(self, *rounds, hangs=(), timeout_s=10.0, bridge_cancels=False, tool_s=0.0):
        self.rounds = list(rounds)
        self.hangs = hangs
        self.asked = []
        self.ran = []
        self.events = []
        self.chunks = []
        self.tool_s = tool_s
        self.bridge_cancels = bridge_cancels
        requests = RunningRequests(4)
        requests.open()
        self.running = requests.begin('id', '')
        writer = ChunkWriter('id', '', self.chunks.append, lambda: 0.0, Time)
        self.generation = Generation(self.submit, self.running, writer, timeout_s)

    def submit(self, request):
        self.asked.append(request)
        result = self.rounds[len(self.asked) - 1]
        if isinstance(result, RequestError):
            raise result
        return Stream(result, len(self.asked) - 1 in self.hangs)

    def tools(self):
        return [TOOL]

    def run_turn(self, calls, **options):
        return [self.run(call, **options) for call in calls]

    def run(self, call, *, request_id, turn, on_event, cancel, dry_run):
        self.ran.append((call.name, turn.finish_reason, dry_run, request_id))
        on_event(CallEvent(Step.PROPOSED, call.call_id, call.name, '{}'))
        if self.bridge_cancels:
            self.running.cancel('enough')
        cancel.wait(self.tool_s)
        acted = turn.finish_reason is FinishReason.TOOL_CALLS and not call.repaired
        outcome = Outcome.EXECUTED if acted else Outcome.REFUSED_REPAIRED
        return Verdict(call.call_id, call.name, '{}', call.repaired, True, outcome, 'x',
                       result_json=f'{{"told": "{call.name}"}}')

    def go(self, max_rounds=6, dry_run=False, **fields):
        fields.setdefault('messages', ({'role': 'user', 'content': 'go'},))
        acting = Acting(self, max_rounds, dry_run, lambda e, r: self.events.append((e.call_id, r)))
        return self.generation.run(ChatRequest(request_id='id', **fields), acting)


def test_a_request_without_tools_is_one_round():
    bench = Bench(round_of('hello'))
    request = ChatRequest(({'role': 'user', 'content': 'x'},), request_id='id')
    answer = bench.generation.run(request)
    assert (answer.result.text, answer.rounds, answer.verdicts) == ('hello', 1, [])
    assert [c.text for c in bench.chunks] == ['hello']
    assert answer.new_messages == [{'role': 'assistant', 'content': 'hello'}]


def test_results_come_back_as_history():
    bench = Bench(round_of('I drive.', calls('drive', 'turn')), round_of('Done.'))
    answer = bench.go()
    first, second = bench.asked
    assert first.tools == (TOOL,) and second.tools == (TOOL,)
    assert first.request_id == 'id' and second.request_id != 'id'
    assert [m['role'] for m in second.messages] == ['user', 'assistant', 'tool', 'tool']
    assistant = second.messages[1]
    assert [c['id'] for c in assistant['tool_calls']] == ['c0', 'c1']
    assert assistant['tool_calls'][0]['function'] == {'name': 'drive', 'arguments': '{"d": 1}'}
    assert [(m['tool_call_id'], m['content']) for m in second.messages[2:]] == [
        ('c0', '{"told": "drive"}'), ('c1', '{"told": "turn"}'),
    ]
    assert (answer.result.text, answer.rounds) == ('Done.', 2)
    assert answer.result.request_id == 'id'
    assert [r[0] for r in bench.ran] == ['drive', 'turn'] and bench.ran[0][3] == 'id'
    assert bench.events == [('c0', 0), ('c1', 0)]
    assert [m['role'] for m in answer.new_messages] == ['assistant', 'tool', 'tool', 'assistant']
    assert [c.round for c in bench.chunks] == [0, 1]


def test_a_session_is_sent_only_what_it_lacks():
    bench = Bench(round_of('', calls('drive')), round_of('', calls('turn')), round_of('Done.'))
    bench.go(session_id='s')
    assert [[m['role'] for m in asked.messages] for asked in bench.asked] == [
        ['user'], ['tool'], ['tool'],
    ]


def test_without_a_session_the_history_grows():
    bench = Bench(round_of('', calls('drive')), round_of('', calls('turn')), round_of('Done.'))
    bench.go()
    assert [[m['role'] for m in asked.messages] for asked in bench.asked] == [
        ['user'], ['user', 'assistant', 'tool'],
        ['user', 'assistant', 'tool', 'assistant', 'tool'],
    ]
    assert len({asked.request_id for asked in bench.asked}) == 3


def test_usage_is_summed_and_time_covers_the_tools():
    bench = Bench(round_of('', calls('drive')), round_of('Done.'), tool_s=0.1)
    result = bench.go().result
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (20, 10)
    assert result.timings.decode_ms == 8.0 and result.timings.tokens_per_s == 1000.0
    assert result.timings.time_to_first_token_ms == 3.0
    assert result.timings.total_ms >= 100.0


@pytest.mark.parametrize('reason', [FinishReason.LENGTH, FinishReason.STOP, FinishReason.ERROR])
def test_a_cut_turn_ends_the_loop_with_refused_calls(reason):
    bench = Bench(round_of('', calls('drive'), reason))
    answer = bench.go()
    assert answer.rounds == 1 and len(bench.asked) == 1
    assert [v.outcome for v in answer.verdicts] == [Outcome.REFUSED_REPAIRED]


def test_a_repaired_call_is_told_to_the_model():
    bench = Bench(round_of('', calls('drive', repaired=True)), round_of('Sorry.'))
    answer = bench.go()
    assert answer.rounds == 2 and answer.verdicts[0].outcome is Outcome.REFUSED_REPAIRED


def test_rounds_are_bounded():
    bench = Bench(*[round_of('', calls('drive'))] * 5)
    answer = bench.go(max_rounds=3)
    assert answer.rounds == 3 and len(answer.verdicts) == 3
    assert answer.result.finish_reason is FinishReason.TOOL_CALLS


def test_a_wanted_call_is_wanted_in_the_first_round_alone():
    bench = Bench(round_of('', calls('drive')), round_of('done'))
    bench.go(tool_choice='required', tool_names=('drive',), parallel_tool_calls=False)
    assert [(r.tool_choice, r.tool_names) for r in bench.asked] == [
        ('required', ('drive',)), ('auto', ()),
    ]  # fmt: skip
    assert [r.parallel_tool_calls for r in bench.asked] == [False, False]


def test_dry_run_is_handed_on():
    bench = Bench(round_of('', calls('drive')), round_of('Done.'))
    bench.go(dry_run=True)
    assert bench.ran[0][2] is True


def test_cancel_while_a_tool_runs():
    bench = Bench(round_of('', calls('drive')), bridge_cancels=True)
    result = bench.go().result
    assert (result.code, result.message) == (ErrorCode.CANCELLED, 'enough')
    assert result.finish_reason is FinishReason.CANCELLED and len(bench.asked) == 1


def test_cancel_while_tokens_flow():
    bench = Bench(round_of('never'), hangs=(0,))
    threading.Timer(0.05, bench.running.cancel, ('stop it',)).start()
    start = time.monotonic()
    result = bench.go().result
    assert time.monotonic() - start < 0.4  # woken, not polled
    assert (result.code, result.message) == (ErrorCode.CANCELLED, 'stop it')


def test_the_time_limit_covers_tools():
    bench = Bench(round_of('', calls('drive')), timeout_s=0.1, tool_s=5.0)
    start = time.monotonic()
    result = bench.go().result
    assert time.monotonic() - start < 2.0
    assert result.code is ErrorCode.TIMEOUT and result.finish_reason is FinishReason.ERROR
    assert '0.1 s' in result.message


def test_each_round_gets_the_time_that_is_left():
    bench = Bench(round_of('', calls('drive')), round_of('Done.'), timeout_s=10.0, tool_s=0.2)
    bench.go()
    assert 9.9 < bench.asked[0].timeout_s <= 10.0 and bench.asked[1].timeout_s <= 9.81


def test_a_deadline_covers_tools_and_all_rounds():
    bench = Bench(round_of('', calls('drive')), round_of('Done.'), tool_s=0.2)
    assert bench.go(deadline_s=5.0).result.text == 'Done.'
    assert bench.asked[0].deadline_s == 5.0 and 4.0 < bench.asked[1].deadline_s <= 4.81
    bench = Bench(round_of('', calls('drive')), round_of('Done.'), tool_s=5.0)
    begin = time.monotonic()
    answer = bench.go(deadline_s=0.1)
    assert time.monotonic() - begin < 2.0 and len(bench.asked) == 1
    assert answer.result.code is ErrorCode.DEADLINE
    assert answer.result.message == 'the deadline of 0.1 s has passed'


def test_a_refusal_of_the_first_round_is_raised():
    error = RequestError(ErrorCode.CONTEXT_LENGTH, 'too long')
    with pytest.raises(RequestError):
        Bench(error).go()


def test_a_refusal_of_a_later_round_keeps_what_was_done():
    error = RequestError(ErrorCode.CONTEXT_LENGTH, 'too long')
    answer = Bench(round_of('', calls('drive')), error).go()
    assert (answer.result.code, answer.result.message) == (ErrorCode.CONTEXT_LENGTH, 'too long')
    assert len(answer.verdicts) == 1 and answer.result.finish_reason is FinishReason.ERROR


def test_round_ids_fit_the_limit_whatever_the_client_chose():
    bench = Bench(round_of('', calls('drive')), round_of('Done.'))
    bench.running.request_id = 'x' * 64
    bench.go()
    assert len(bench.asked[1].request_id) <= 64
