# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Spoken answers, barge-in, ~/prompt, the queue and saved sessions, from another process."""

from __future__ import annotations

import threading

import pytest
from action_msgs.msg import GoalStatus
from std_msgs.msg import String

from gemma_thor_ros.action import Chat
from gemma_thor_ros.msg import ChatMessage, ErrorCode, Sentence, TokenChunk
from gemma_thor_ros.srv import (
    Ask,
    BargeIn,
    ListSessions,
    RenderPrompt,
    ResetSession,
    RestoreSession,
    SaveSession,
)

ANSWER = 'I see **two** boxes. The dock is 2.5 m away. The battery is at 80%, so I can go there.'
SPOKEN = [
    'I see two boxes.', 'The dock is 2.5 metres away.',
    'The battery is at 80 percent, so I can go there.',
]  # fmt: skip
STEP_S = 0.04            # an answer takes a second: time to act in the middle of it


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('sessions')


@pytest.fixture(scope='module')
def node(peer, start_module_node, folder):
    process = start_module_node(**{
        'model.script': [ANSWER + '<turn|>'],
        'model.script_delay': STEP_S,
        'engine.max_sequences': 1,
        'session.folder': str(folder),
        'ros.prompt_policy': 'interrupt',
        'ros.system_prompt_file': str(folder / 'system.txt'),
    })  # fmt: skip
    (folder / 'system.txt').write_text('You are a robot.\n')
    peer.wait_active(process)
    return process


@pytest.fixture(scope='module')
def sentences(peer, node):
    return peer.collect(Sentence, '/llm_node/sentences', 10)


def of(messages, request_id):
    return [message for message in messages if message.request_id == request_id]


def ended(peer, messages, request_id):
    peer.until(lambda: any(m.last for m in of(messages, request_id)), 5.0)
    return of(messages, request_id)


def history(peer, session_id):
    """What the model would be shown of a session."""
    again = [ChatMessage(role='user', content='again')]
    response = peer.call(RenderPrompt, 'render_prompt', session_id=session_id, messages=again)
    assert response.error_code == 0, response.error_msg
    return response.text


def begin(peer, request_id, session_id, sentences, count):
    """Send a goal and return its handle once so many sentences have been heard."""
    handle = peer.send_goal(request_id=request_id, session_id=session_id)
    peer.until(lambda: len(of(sentences, request_id)) >= count, 5.0)
    return handle


def test_an_answer_is_spoken_in_pieces(peer, node, sentences):
    _, result = peer.run_goal(request_id='whole')
    pieces = ended(peer, sentences, 'whole')
    assert [p.text for p in pieces] == SPOKEN and result.text == ANSWER
    assert [p.sequence for p in pieces] == [0, 1, 2]
    assert [p.last for p in pieces] == [False, False, True]
    assert pieces[0].text_start == 0 and pieces[-1].text_end == len(ANSWER)
    assert ANSWER[pieces[1].text_start : pieces[1].text_end] == 'The dock is 2.5 m away. '


def test_the_first_piece_comes_long_before_the_end(peer, node, sentences):
    handle = begin(peer, 'early', '', sentences, 1)
    assert not any(s.last for s in of(sentences, 'early'))
    peer.wait(handle.get_result_async())


def test_barge_in_ends_the_answer_and_cuts_the_history(peer, node, sentences):
    handle = begin(peer, 'interrupted', 'kitchen', sentences, 2)
    response = peer.call(BargeIn, 'barge_in', session_id='kitchen', spoken_sentences=1)
    assert (response.error_code, response.kept_text) == (0, 'I see **two** boxes.')
    answer = peer.wait(handle.get_result_async())
    assert answer.status == GoalStatus.STATUS_ABORTED
    assert answer.result.error_code == ErrorCode.CANCELLED
    assert 'interrupted' in answer.result.error_msg
    last = ended(peer, sentences, 'interrupted')[-1]
    assert last.text == '' and last.text_end == len(answer.result.text)
    shown = history(peer, 'kitchen')
    assert 'You are a robot.' in shown and 'boxes' in shown and 'dock' not in shown


def test_barge_in_when_the_answer_is_whole(peer, node, sentences):
    peer.run_goal(request_id='first', session_id='hall')
    peer.run_goal(request_id='second', session_id='hall')
    response = peer.call(
        BargeIn, 'barge_in', request_id='second', session_id='hall', spoken_sentences=2
    )
    assert response.kept_text == 'I see **two** boxes. The dock is 2.5 m away.'
    shown = history(peer, 'hall')
    assert shown.count('boxes') == 2 and shown.count('battery') == 1
    again = peer.call(BargeIn, 'barge_in', session_id='hall', spoken_characters=5)
    assert again.kept_text == 'I see'
    shown = history(peer, 'hall')
    assert shown.count('I see') == 2 and shown.count('boxes') == 1
    late = peer.call(BargeIn, 'barge_in', request_id='first', spoken_sentences=0)
    assert late.error_code == ErrorCode.UNKNOWN_REQUEST and 'first' in late.error_msg


def test_barge_in_before_anything_was_said_forgets_the_turn(peer, node, sentences):
    handle = begin(peer, 'unsaid', 'attic', sentences, 1)
    response = peer.call(BargeIn, 'barge_in', request_id='unsaid', spoken_sentences=0)
    assert (response.error_code, response.kept_text) == (0, '')
    peer.wait(handle.get_result_async())
    names = [s.session_id for s in peer.call(ListSessions, 'list_sessions').sessions]
    assert 'attic' not in names


def test_barge_in_without_figures_cuts_nothing(peer, node):
    peer.run_goal(request_id='uncut', session_id='cellar')
    response = peer.call(BargeIn, 'barge_in', request_id='uncut')
    assert response.kept_text == ANSWER and 'go there' in history(peer, 'cellar')


@pytest.mark.parametrize(
    ('fields', 'code'),
    [
        ({}, ErrorCode.INVALID_REQUEST),
        ({'session_id': 'hall', 'spoken_sentences': -5}, ErrorCode.INVALID_REQUEST),
        ({'session_id': 'hall', 'spoken_characters': -2}, ErrorCode.INVALID_REQUEST),
        ({'session_id': 'hall', 'spoken_characters': 4}, ErrorCode.INVALID_REQUEST),
        ({'request_id': 'nobody'}, ErrorCode.UNKNOWN_REQUEST),
        ({'session_id': 'nowhere'}, ErrorCode.UNKNOWN_SESSION),
    ],
)
def test_barge_in_at_nothing_is_answered_with_a_code(peer, node, fields, code):
    response = peer.call(BargeIn, 'barge_in', **{'spoken_sentences': 1, **fields})
    assert response.error_code == code and response.error_msg
    wrong = [name for name, value in fields.items() if name.startswith('spoken')]
    assert all(name in response.error_msg for name in wrong)


def test_a_waiting_goal_is_told_its_position(peer, node):
    feedback, begun = [], []
    first = peer.send_goal(request_id='runs', feedback=begun.append)
    peer.until(lambda: begun, 5.0)
    second = peer.send_goal(request_id='waits', feedback=feedback.append)
    for handle in (first, second):
        assert peer.wait(handle.get_result_async()).result.text == ANSWER
    queued = [f.feedback for f in feedback if f.feedback.kind == Chat.Feedback.QUEUED]
    assert queued, feedback
    assert queued[0].queue_position == 1 and queued[0].expected_wait_s >= 0.0
    kinds = [f.feedback.kind for f in feedback]
    assert kinds[: len(queued)] == [Chat.Feedback.QUEUED] * len(queued)


def test_a_prompt_interrupts_the_one_before(peer, node, sentences):
    publisher = peer.node.create_publisher(String, '/llm_node/prompt', 10)
    chunks = peer.collect(TokenChunk, '/llm_node/tokens', 1000)
    peer.until(lambda: publisher.get_subscription_count() == 1)
    publisher.publish(String(data='first'))
    peer.until(lambda: any(c.session_id == 'prompt' for c in chunks), 5.0)
    publisher.publish(String(data='second'))
    peer.until(lambda: sum(c.session_id == 'prompt' and c.last for c in chunks) == 2, 5.0)
    ends = [c for c in chunks if c.session_id == 'prompt' and c.last]
    assert [c.error_code for c in ends] == [ErrorCode.CANCELLED, ErrorCode.NONE]
    assert ''.join(c.text for c in of(chunks, ends[1].request_id)) == ANSWER
    assert [s.text for s in ended(peer, sentences, ends[1].request_id)] == SPOKEN
    publisher.publish(String(data=''))
    peer.until(lambda: chunks[-1].error_code == ErrorCode.INVALID_REQUEST, 5.0)
    assert chunks[-1].last and chunks[-1].finish_reason == 'error'


def test_a_saved_session_outlives_the_node(peer, node, folder, start_module_node):
    peer.call(Ask, 'ask', prompt='Where is the dock?', session_id='stay')
    saved = peer.call(SaveSession, 'save_session', session_id='stay', name='monday')
    assert (saved.error_code, saved.name) == (0, 'monday') and saved.num_bytes > 0
    warm = peer.call(SaveSession, 'save_session', session_id='stay', with_cache=True)
    assert (warm.error_code, warm.error_msg) == (0, '') and warm.num_bytes > saved.num_bytes
    for name in ('../monday', 'a/b', '.hidden', 'x' * 200):
        refused = peer.call(SaveSession, 'save_session', session_id='stay', name=name)
        assert refused.error_code == ErrorCode.INVALID_REQUEST, name
    taken = peer.call(RestoreSession, 'restore_session', name='monday')
    assert taken.error_code == ErrorCode.INVALID_REQUEST
    node.end()
    peer.wait_active(start_module_node(**{
        'model.script': ['Second.<turn|>'], 'session.folder': str(folder),
    }))  # fmt: skip
    assert not peer.call(ListSessions, 'list_sessions').sessions
    back = peer.call(RestoreSession, 'restore_session', name='monday', session_id='new')
    assert back.error_code == 0 and back.session.session_id == 'new'
    assert back.session.num_messages == 3 and back.session.owner == 'ros'
    shown = history(peer, 'new')
    assert 'You are a robot.' in shown and 'Where is the dock?' in shown and '2.5 m' in shown
    unknown = peer.call(RestoreSession, 'restore_session', name='tuesday')
    assert unknown.error_code == ErrorCode.UNKNOWN_SESSION
    assert peer.call(Ask, 'ask', prompt='go on', session_id='new').text == 'Second.'
    assert back.cached_tokens == 0
    warm = peer.call(RestoreSession, 'restore_session', name='stay')
    assert (warm.error_code, warm.error_msg) == (0, '') and warm.cached_tokens >= 16
    assert peer.call(Ask, 'ask', prompt='go on', session_id='stay').text == 'Second.'
    (folder / 'stay.kv').write_bytes(b'torn')
    torn = peer.call(RestoreSession, 'restore_session', name='stay', replace=True)
    assert (torn.error_code, torn.cached_tokens) == (0, 0)
    assert torn.error_msg.startswith('stay.kv is not used')
    for name in ('new', 'stay'):
        gone = peer.call(ResetSession, 'reset_session', session_id=name, remove=True)
        assert gone.num_reset == 1


def test_asks_of_one_session_take_turns_or_are_refused(peer, node):
    """Runs last, on the second node, which answers at once."""
    answers = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(peer.call(Ask, 'ask', prompt='hi', session_id='shared'))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    codes = {a.error_code for a in answers}
    assert len(answers) == 4 and codes <= {0, int(ErrorCode.BUSY)} and 0 in codes
    sessions = peer.call(ListSessions, 'list_sessions').sessions
    assert [s.session_id for s in sessions] == ['shared'] and not sessions[0].busy
    assert sessions[0].num_messages == 2 * sum(a.error_code == 0 for a in answers)
