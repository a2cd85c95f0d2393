# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""ChatClient against a running node: blocking, streamed, async, spun by others and by itself."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from gemma_thor_ros.client import ChatClient, ChatError
from gemma_thor_ros.msg import ChatMessage, ErrorCode, SamplingParams, TokenChunk

WORDS = ' '.join(f'word{i}' for i in range(30))
SHORT = SamplingParams(max_tokens=6)
# Goes on for 3 s or more: time to act in the middle of it.
LONG = SamplingParams(max_tokens=800, ignore_eos=True)


@pytest.fixture(scope='module')
def running(peer, start_module_node):
    process = start_module_node(**{
        'model.script': [WORDS + '<turn|>'], 'model.script_delay': 0.004,
    })
    peer.wait_active(process)
    return process


@pytest.fixture(scope='module')
def client(peer, running):
    """A client on a node that an executor spins in another thread."""
    client = ChatClient(peer.node)
    assert client.wait_for_node(10.0)
    yield client
    client.destroy()


def test_ask(client):
    assert client.ask('hello') == WORDS


def test_chat(client):
    result = client.chat('hello', sampling=SHORT)
    assert WORDS.startswith(result.text) and result.finish_reason == 'length'


def test_messages_may_be_given_whole(client):
    messages = [ChatMessage(role='system', content='s'), ChatMessage(role='user', content='u')]
    assert client.chat(messages, sampling=SHORT).usage.prompt_tokens > 5
    assert client.chat(messages[1], sampling=SHORT).error_code == 0


def test_stream_gives_everything_as_it_comes(client):
    start = time.monotonic()
    pieces = [(time.monotonic() - start, chunk.text) for chunk in client.stream('hello')]
    assert ''.join(text for _, text in pieces) == WORDS
    assert len(pieces) > 3 and pieces[0][0] < pieces[-1][0] / 2


def test_streams_side_by_side_do_not_mix(client):
    answers = {}

    def read(name):
        answers[name] = ''.join(chunk.text for chunk in client.stream(name))

    threads = [threading.Thread(target=read, args=(f'{i}',)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert answers == {f'{i}': WORDS for i in range(4)}


def test_lost_chunks_are_filled_in_from_the_result(client):
    call = client.start('hello')
    take = call.take_chunk
    call.take_chunk = lambda chunk: None if chunk.sequence == 2 else take(chunk)
    texts = [chunk.text for chunk in call]
    assert ''.join(texts) == WORDS and len(texts) >= 3


def test_a_stream_that_is_left_is_cancelled(client, peer):
    tokens = []
    subscription = peer.node.create_subscription(
        TokenChunk, '/llm_node/tokens', tokens.append, 100
    )
    peer.until(lambda: peer.node.count_publishers('/llm_node/tokens') > 0)
    time.sleep(0.2)
    stream = client.stream('hello', request_id='left', sampling=LONG)
    next(stream)
    stream.close()
    peer.until(lambda: any(c.last and c.request_id == 'left' for c in tokens), 3.0)
    peer.node.destroy_subscription(subscription)
    assert tokens[-1].finish_reason == 'cancelled'


def test_async(client):
    done = threading.Event()
    future = client.chat_async('hello', sampling=SHORT)
    future.add_done_callback(lambda _: done.set())
    assert done.wait(10.0) and WORDS.startswith(future.result().text)


def test_cancel(client):
    call = client.start('hello', sampling=LONG)
    next(iter(call))
    call.cancel()
    with pytest.raises(ChatError) as caught:
        call.result()
    assert caught.value.code == ErrorCode.CANCELLED and caught.value.result.text


def test_errors_carry_code_and_sentence(client):
    for call in (lambda: client.ask(''), lambda: client.chat([]),
                 lambda: list(client.stream('x', request_id='y' * 65))):
        with pytest.raises(ChatError) as caught:
            call()
        assert caught.value.code == ErrorCode.INVALID_REQUEST and caught.value.message


def test_result_with_a_limit(client):
    call = client.start('hello')
    with pytest.raises(TimeoutError):
        call.result(timeout_s=0.05)
    assert call.result().text == WORDS


def test_time_limit_of_the_request(client):
    with pytest.raises(ChatError) as caught:
        client.chat('hello', timeout_s=0.1)
    assert caught.value.code == ErrorCode.TIMEOUT


@pytest.fixture
def lone_node(running):
    context = rclpy.Context()
    context.init(args=[])
    node = Node('lone', context=context, use_global_arguments=False)
    yield node
    node.destroy_node()
    context.try_shutdown()


def test_without_an_executor_the_client_spins(lone_node):
    client = ChatClient(lone_node)
    assert client.wait_for_node(10.0)
    assert client.ask('hello') == WORDS
    assert ''.join(chunk.text for chunk in client.stream('hello')) == WORDS
    client.destroy()


def test_an_executor_may_take_over_later(lone_node):
    client = ChatClient(lone_node)
    assert client.wait_for_node(10.0)
    executor = SingleThreadedExecutor(context=lone_node.context)
    executor.add_node(lone_node)
    thread = threading.Thread(target=executor.spin, daemon=True)
    thread.start()
    assert client.chat('hello', sampling=SHORT).error_code == 0
    executor.shutdown()
    thread.join(5.0)


def test_a_node_that_is_not_there_is_said_so(lone_node):
    client = ChatClient(lone_node, 'nobody')
    assert not client.wait_for_node(0.1)
    start = time.monotonic()
    for call in (lambda: client.ask('x'), lambda: client.chat('x')):
        with pytest.raises(ChatError) as caught:
            call()
        assert caught.value.code == ErrorCode.NOT_READY and 'not there' in caught.value.message
    assert time.monotonic() - start < 10.0


def test_the_client_loads_no_engine(tmp_path):
    program = (
        'import sys, gemma_thor_ros.client\n'
        'ours = [n for n in sys.modules if n.startswith("gemma_thor_ros.")]\n'
        'wrong = [n for n in ours if n.split(".")[1] not in ("client", "goal_client", "msg",\n'
        '         "srv", "action", "gemma_thor_ros_s__rosidl_typesupport_c")]\n'
        'sys.exit(repr(wrong) if wrong else 0)\n'
    )
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
                          timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


TALK = {'model.script': [' '.join(['word'] * 2000) + '<turn|>'], 'model.script_delay': 0.01}


@pytest.fixture
def talking(fresh_peer, start_node):
    """A node of its own that talks for 20 s, and a client that has heard its heartbeat."""
    process = start_node(TALK)
    fresh_peer.wait_active(process)
    client = ChatClient(fresh_peer.node)
    assert client.wait_for_node(10.0)
    fresh_peer.until(lambda: client.pulse.instance_id)
    return process, client


def test_a_killed_node_is_noticed_in_all_ways_of_asking(talking):
    process, client = talking
    done = threading.Event()
    later = client.chat_async('later')
    later.add_done_callback(lambda _: done.set())
    call = client.start('now')
    stream = iter(call)
    next(stream)
    errors = {}

    def ask():
        try:
            client.ask('asked')
        except ChatError as error:
            errors['ask'] = (error.code, time.monotonic())

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.3)              # for the question to reach the node
    killed = time.monotonic()
    process.process.kill()
    with pytest.raises(ChatError, match='silent for 2 s') as caught:
        list(stream)
    noticed = time.monotonic() - killed
    assert caught.value.code == ErrorCode.NOT_READY
    assert 1.5 < noticed < 5.0, noticed
    assert done.wait(2.0)
    with pytest.raises(ChatError, match='silent'):
        later.result()
    asking.join(5.0)
    assert errors['ask'][0] == ErrorCode.NOT_READY and errors['ask'][1] - killed < 5.0


def test_a_client_that_did_not_listen_takes_no_silence_for_death(talking, fresh_peer):
    _, client = talking
    call = client.start('go on', sampling=SamplingParams(max_tokens=500))
    next(iter(call))
    # The executor is held up, so that no heartbeat can come in; the node lives.
    fresh_peer.wait(fresh_peer.executor.create_task(lambda: time.sleep(3.0)))
    assert call.result(20.0).finish_reason == 'length'


def test_a_node_that_was_started_anew_answers_no_old_request(talking, fresh_peer, start_node):
    process, client = talking
    call = client.start('go on')
    next(iter(call))
    old = client.pulse.instance_id
    process.process.kill()
    process.process.wait()
    fresh_peer.wait_active(start_node({'model.script': ['I am new.<turn|>']}))
    with pytest.raises(ChatError, match=r'started anew|silent'):
        call.result(10.0)
    fresh_peer.until(lambda: client.pulse.instance_id != old)
    assert client.chat('hello').text == 'I am new.'
