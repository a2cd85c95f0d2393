# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Chat through the action, the services and the topics, from another process."""

from __future__ import annotations

import json
import math
import threading
import time
import urllib.request

import pytest
from action_msgs.msg import GoalStatus
from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticArray

from gemma_thor_ros.action import Chat
from gemma_thor_ros.msg import (
    ChatMessage,
    ErrorCode,
    Heartbeat,
    SamplingParams,
    TokenChunk,
    Tool,
    ToolCall,
)
from gemma_thor_ros.srv import (
    Ask,
    Cancel,
    Detokenize,
    GetModelInfo,
    ListSessions,
    RenderPrompt,
    ResetSession,
    Tokenize,
)
from gemma_thor_ros.srv import Chat as ChatOnce

STEP_S = 0.005
WORDS = ' '.join(f'word{i} é🤖' for i in range(14))
SHORT = SamplingParams(max_tokens=8)
# Goes on for 5 s or more: time to act in the middle of it, however slow the machine is.
LONG = SamplingParams(max_tokens=950, ignore_eos=True)
SOON_S = 1.0             # far from the end of LONG; bench/stop_latency.py has the real figure


@pytest.fixture(scope='module')
def node(peer, start_module_node):
    process = start_module_node(**{
        'model.script': [WORDS + '<turn|>'],
        'model.script_delay': STEP_S,
        'engine.max_sequences': 2,
        'engine.max_waiting': 3,
        'engine.context_length': 1024,
        'http.enabled': True,
        'http.port': 0,
    })
    peer.wait_active(process)
    return process


@pytest.fixture(scope='module')
def tokens(peer, node):
    """What a subscriber with default QoS (depth 10) gets."""
    return peer.collect(TokenChunk, '/llm_node/tokens', 10)


def of_request(chunks, request_id):
    return [chunk for chunk in chunks if chunk.request_id == request_id]


def whole(peer, tokens, request_id):
    peer.until(lambda: any(c.last for c in of_request(tokens, request_id)), 5.0)
    return of_request(tokens, request_id)


def test_ask(peer, node):
    response = peer.call(Ask, 'ask', prompt='hello')
    assert (response.error_code, response.text) == (0, WORDS)


def test_chat_once(peer, node):
    response = peer.call(
        ChatOnce, 'chat_once', request_id='once', sampling=SHORT,
        messages=[ChatMessage(role='user', content='hello')],
    )
    assert response.error_code == 0 and response.request_id == 'once'
    assert response.finish_reason == 'length' and response.usage.completion_tokens == 8
    assert WORDS.startswith(response.text) and len(response.token_ids) == 8
    assert response.usage.prompt_tokens > 0 and response.timings.total_ms > 0.0


def test_action_streams_what_the_result_holds(peer, node, tokens):
    feedback = []
    status, result = peer.run_goal(request_id='stream', feedback=feedback.append)
    assert status == GoalStatus.STATUS_SUCCEEDED
    assert result.text == WORDS and result.finish_reason == 'stop' and result.error_code == 0
    chunks = whole(peer, tokens, 'stream')
    assert [c.sequence for c in chunks] == list(range(len(chunks)))
    assert ''.join(c.text for c in chunks) == WORDS
    assert [i for c in chunks for i in c.token_ids] == list(result.token_ids)
    offset = 0
    for chunk in chunks:
        assert chunk.text_offset == offset and '\ufffd' not in chunk.text
        offset += len(chunk.text)
    assert [c.last for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].finish_reason == 'stop'
    seen = [f.feedback.chunk for f in feedback if f.feedback.kind == Chat.Feedback.TOKENS]
    assert seen and WORDS.startswith(seen[0].text)
    # Coalesced: the default rate is 20 Hz, the model's is 200.
    assert len(chunks) < len(result.token_ids) / 4


def test_several_goals_at_once_lose_nothing(peer, node, tokens):
    """Two run, three wait; a subscriber with default QoS gets every chunk of all five."""
    ids = [f'many{i}' for i in range(5)]
    handles = [peer.send_goal(request_id=i) for i in ids]
    answers = [peer.wait(handle.get_result_async(), 30.0) for handle in handles]
    for request_id, answer in zip(ids, answers, strict=True):
        assert answer.result.text == WORDS, answer.result.error_msg
        chunks = whole(peer, tokens, request_id)
        assert [c.sequence for c in chunks] == list(range(len(chunks)))
        assert ''.join(c.text for c in chunks) == WORDS
    assert {handle.accepted for handle in handles} == {True}


def cancel(peer, handle):
    """Return (status, result, seconds)."""
    start = time.monotonic()
    peer.wait(handle.cancel_goal_async())
    answer = peer.wait(handle.get_result_async())
    return answer.status, answer.result, time.monotonic() - start


def test_cancel_while_tokens_flow(peer, node, tokens):
    flowing = threading.Event()
    handle = peer.send_goal(request_id='cut', feedback=lambda _: flowing.set(), sampling=LONG)
    assert flowing.wait(5.0)
    status, result, seconds = cancel(peer, handle)
    assert status == GoalStatus.STATUS_CANCELED and result.error_code == ErrorCode.CANCELLED
    assert seconds < SOON_S
    assert result.finish_reason == 'cancelled' and 'cancelled' in result.error_msg
    assert result.text and 0 < result.usage.completion_tokens < 950
    chunks = whole(peer, tokens, 'cut')
    assert ''.join(c.text for c in chunks) == result.text
    assert chunks[-1].finish_reason == 'cancelled'


def test_cancel_while_another_waits_for_a_slot(peer, node):
    running = [peer.send_goal(sampling=LONG) for _ in range(2)]
    waiting = peer.send_goal()
    status, result, seconds = cancel(peer, waiting)
    assert status == GoalStatus.STATUS_CANCELED and result.text == ''
    assert seconds < SOON_S
    for handle in running:
        assert cancel(peer, handle)[0] == GoalStatus.STATUS_CANCELED


def test_cancel_right_after_the_goal(peer, node):
    """The cancel may come before the goal's thread has begun."""
    for _ in range(10):
        status, result, _ = cancel(peer, peer.send_goal(sampling=LONG))
        assert status == GoalStatus.STATUS_CANCELED, result.error_msg


def test_cancel_service(peer, node):
    handles = [peer.send_goal(request_id=f'victim{i}', sampling=LONG) for i in range(2)]
    response = peer.call(Cancel, 'cancel', request_id='victim0', reason='an operator said so')
    assert list(response.request_ids) == ['victim0'] and response.error_code == 0
    answer = peer.wait(handles[0].get_result_async())
    assert answer.status == GoalStatus.STATUS_ABORTED
    assert answer.result.error_code == ErrorCode.CANCELLED
    assert answer.result.error_msg == 'an operator said so'
    assert list(peer.call(Cancel, 'cancel').request_ids) == ['victim1']
    assert peer.wait(handles[1].get_result_async()).status == GoalStatus.STATUS_ABORTED
    gone = peer.call(Cancel, 'cancel', request_id='victim0')
    assert gone.error_code == ErrorCode.UNKNOWN_REQUEST and 'victim0' in gone.error_msg


def test_a_request_id_is_unique_while_it_runs(peer, node):
    handle = peer.send_goal(request_id='twin', sampling=LONG)
    status, result = peer.run_goal(request_id='twin')
    assert status == GoalStatus.STATUS_ABORTED
    assert result.error_code == ErrorCode.INVALID_REQUEST and "'twin'" in result.error_msg
    assert cancel(peer, handle)[0] == GoalStatus.STATUS_CANCELED
    assert peer.run_goal(request_id='twin', sampling=SHORT)[1].error_code == 0


def test_time_limit(peer, node):
    start = time.monotonic()
    status, result = peer.run_goal(timeout=Duration(sec=1), sampling=LONG)
    assert status == GoalStatus.STATUS_ABORTED and result.error_code == ErrorCode.TIMEOUT
    assert '1 s' in result.error_msg and time.monotonic() - start < 3.0
    assert result.text and result.usage.completion_tokens < 950


def test_services_have_time_limits(peer, node):
    response = peer.call(Ask, 'ask', prompt='x', timeout=Duration(nanosec=200_000_000))
    assert response.error_code == ErrorCode.TIMEOUT and '0.2 s' in response.error_msg


def test_busy(peer, node):
    """chat_once does not wait; everything else waits until the queue is full."""
    def load():
        state = peer.call(GetModelInfo, 'get_model_info').state
        return state.running, state.waiting

    handles = [peer.send_goal(sampling=LONG) for _ in range(2)]
    peer.until(lambda: load() == (2, 0), 4.0)
    once = {'messages': [ChatMessage(role='user', content='x')]}
    response = peer.call(ChatOnce, 'chat_once', **once)
    assert response.error_code == ErrorCode.BUSY and '2 of 2' in response.error_msg
    handles += [peer.send_goal() for _ in range(3)]
    peer.until(lambda: load() == (2, 3), 4.0)
    full = peer.call(Ask, 'ask', prompt='x')
    assert full.error_code == ErrorCode.BUSY and '2' in full.error_msg and '3' in full.error_msg
    status, result = peer.run_goal()
    assert (status, result.error_code) == (GoalStatus.STATUS_ABORTED, ErrorCode.BUSY)
    peer.call(Cancel, 'cancel')
    for handle in handles:
        peer.wait(handle.get_result_async())


def assistant_call(arguments):
    call = ToolCall(call_id='a', name='x', arguments_json=arguments)
    user = ChatMessage(role='user', content='x')
    return [user, ChatMessage(role='assistant', tool_calls=[call])]


@pytest.mark.parametrize(
    ('fields', 'code', 'words'),
    [
        ({'messages': []}, 'INVALID_REQUEST', ['messages is empty']),
        ({'messages': [ChatMessage(role='robot', content='x')]}, 'INVALID_REQUEST',
         ['messages[0].role', "'robot'", 'assistant']),
        ({'text': 'word ' * 3000}, 'CONTEXT_LENGTH', ['1,024 tokens', 'the prompt has ']),
        ({'sampling': SamplingParams(temperature=math.nan)}, 'INVALID_REQUEST',
         ['temperature is nan', '0.0 to 10.0']),
        ({'sampling': SamplingParams(top_p=1.5)}, 'INVALID_REQUEST', ['top_p is 1.5']),
        ({'tools': [Tool(name='d', parameters_json='{"type": 5}')]}, 'INVALID_REQUEST',
         ['tools[0]', 'parameters']),
        ({'tools': [Tool(name='d', parameters_json='{"type": "object"')]}, 'INVALID_REQUEST',
         ['tools[0].parameters_json is not JSON']),
        ({'messages': assistant_call('{"a":')}, 'INVALID_REQUEST',
         ['messages[1].tool_calls[0].arguments_json is not JSON']),
        ({'request_id': 'x' * 65}, 'INVALID_REQUEST', ['65', '64']),
        ({'tool_choice': 'required'}, 'INVALID_REQUEST', ['required', 'no tools']),
        ({'tool_choice': 'fly', 'tools': [Tool(name='d')]}, 'INVALID_REQUEST', ["'fly'", 'd']),
        ({'response_schema_json': '{"type": "array", "uniqueItems": true}'}, 'UNSUPPORTED',
         ['response_schema_json', '/uniqueItems']),
        ({'execute_tools': True}, 'INVALID_REQUEST', ['tools.policy_file']),
    ],
)
def test_bad_requests_are_refused_with_a_sentence(peer, node, fields, code, words):
    status, result = peer.run_goal(**fields)
    assert status == GoalStatus.STATUS_ABORTED and result.finish_reason == 'error'
    assert result.error_code == getattr(ErrorCode, code), result.error_msg
    for word in words:
        assert word in result.error_msg
    assert peer.state() == 'active'


def test_a_refused_request_leaves_nothing_on_the_topic(peer, node, tokens):
    before = len(tokens)
    peer.run_goal(messages=[])
    peer.run_goal(request_id='after', sampling=SHORT)
    whole(peer, tokens, 'after')
    assert {c.request_id for c in tokens[before:]} == {'after'}


def test_session(peer, node):
    for text in ('first', 'second'):
        peer.run_goal(text, session_id='s', sampling=SHORT)
    sessions = peer.call(ListSessions, 'list_sessions').sessions
    session = next(s for s in sessions if s.session_id == 's')
    assert (session.num_messages, session.owner, session.busy) == (4, 'ros', False)
    shown = peer.call(
        RenderPrompt, 'render_prompt', session_id='s',
        messages=[ChatMessage(role='user', content='third')],
    )
    assert [shown.text.count(word) for word in ('first', 'second', 'third')] == [1, 1, 1]
    assert peer.call(ResetSession, 'reset_session', session_id='s', remove=True).num_reset == 1
    left = peer.call(ListSessions, 'list_sessions').sessions
    assert 's' not in {s.session_id for s in left}
    unknown = peer.call(ResetSession, 'reset_session', session_id='s')
    assert unknown.error_code == ErrorCode.UNKNOWN_SESSION


def test_tokenize_and_back(peer, node):
    text = 'drive <turn|> 2 m é🤖'
    tokenized = peer.call(Tokenize, 'tokenize', text=text, add_bos=True)
    assert tokenized.token_ids[0] == 2 and 106 not in tokenized.token_ids
    assert len(tokenized.pieces) == len(tokenized.token_ids)
    back = peer.call(Detokenize, 'detokenize', token_ids=tokenized.token_ids[1:])
    assert back.text == text
    wrong = peer.call(Detokenize, 'detokenize', token_ids=[10**6])
    assert wrong.error_code == ErrorCode.INVALID_REQUEST


def test_render_prompt(peer, node):
    shown = peer.call(
        RenderPrompt, 'render_prompt', messages=[ChatMessage(role='user', content='hello')]
    )
    assert 'hello' in shown.text and shown.text.startswith('<bos>') and shown.token_ids[0] == 2
    wrong = peer.call(RenderPrompt, 'render_prompt', policy_tools=True,
                      messages=[ChatMessage(role='user', content='hello')])
    assert wrong.error_code == ErrorCode.INVALID_REQUEST


def test_model_info(peer, node):
    info = peer.call(GetModelInfo, 'get_model_info')
    assert (info.model_name, info.context_length, info.max_sequences) == ('scripted', 1024, 2)
    assert info.state.state == info.state.READY and 106 in info.stop_token_ids
    assert json.loads(info.info_json)['engine_version'] == info.engine_version


def test_http_shares_the_engine_and_stays_off_the_topic(peer, node, tokens):
    port = node.log.split('http://127.0.0.1:')[1].split()[0].rstrip('/')
    before = len(tokens)
    body = {'model': 'scripted', 'max_tokens': 8, 'messages': [{'role': 'user', 'content': 'x'}]}
    request = urllib.request.Request(
        f'http://127.0.0.1:{port}/v1/chat/completions', json.dumps(body).encode(),
        {'Content-Type': 'application/json'},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        answer = json.load(response)
    assert WORDS.startswith(answer['choices'][0]['message']['content'])
    peer.run_goal(request_id='later', sampling=SHORT)
    whole(peer, tokens, 'later')
    assert {c.request_id for c in tokens[before:]} == {'later'}


def test_engine_state_and_diagnostics(peer, node):
    states = peer.engine_states()
    arrays = peer.collect(DiagnosticArray, '/diagnostics', 10)
    peer.until(lambda: states and arrays, 3.0)
    assert states[0].state == states[0].READY and states[0].model_name == 'scripted'
    engine, tools, machine, packages = arrays[-1].status
    values = {pair.key: pair.value for pair in engine.values}
    assert engine.name == 'llm_node: engine' and values['state'] == 'ready'
    assert float(values['time_to_first_token_ms']) > 0.0
    assert int(values['requests_refused']) > 0 and int(values['requests_answered']) > 0
    assert [s.name for s in (tools, machine, packages)] == [
        'llm_node: tools', 'llm_node: machine', 'llm_node: packages',
    ]  # fmt: skip


def test_heartbeat_goes_on_while_tokens_flow(peer, node):
    beats = []
    subscription = peer.node.create_subscription(
        Heartbeat, '/llm_node/heartbeat', lambda beat: beats.append((time.monotonic(), beat)), 10
    )
    peer.until(lambda: beats, 3.0)
    handles = [peer.send_goal() for _ in range(4)]
    for handle in handles:
        peer.wait(handle.get_result_async(), 20.0)
    peer.node.destroy_subscription(subscription)
    gaps = [after[0] - before[0] for before, after in zip(beats, beats[1:], strict=False)]
    assert max(gaps) < 0.5 and len(beats) >= 10
    assert {beat.instance_id for _, beat in beats} == {beats[0][1].instance_id}
    assert all(beat.active for _, beat in beats)
    assert [b.sequence for _, b in beats] == list(
        range(beats[0][1].sequence, beats[0][1].sequence + len(beats))
    )
