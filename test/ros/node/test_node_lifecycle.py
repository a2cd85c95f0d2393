# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Lifecycle: load in the background, refusals, deactivate, cleanup, parameters, signals."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.error
import urllib.request

import pytest
from action_msgs.msg import GoalStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import GetState
from rcl_interfaces.msg import ParameterDescriptor
from rcl_interfaces.srv import DescribeParameters, SetParameters
from rclpy.parameter import Parameter

from gemma_thor_ros.msg import ChatMessage, EngineState, ErrorCode, SamplingParams
from gemma_thor_ros.srv import Ask, GetModelInfo, RenderPrompt, Tokenize

WORDS = ' '.join(f'word{i}' for i in range(300))
SHORT = SamplingParams(max_tokens=4)
HTTP = {'http.enabled': True, 'http.port': 0}
SCRIPT = {'model.script': [WORDS + '<turn|>'], 'model.script_delay': 0.005}


@pytest.fixture
def peer(fresh_peer):
    return fresh_peer


def set_parameter(peer, name, value):
    parameters = [Parameter(name, value=value).to_parameter_msg()]
    return peer.call(SetParameters, 'set_parameters', parameters=parameters).results[0]


def test_while_loading_all_answer_at_once_and_nothing_is_served(peer, start_node):
    states = peer.engine_states()
    process = start_node({**SCRIPT, **HTTP, 'model.script_load': 60.0})
    loading = peer.wait_engine(states, EngineState.LOADING)
    assert loading.stage

    latencies = []
    for _ in range(50):
        start = time.monotonic()
        state = peer.call(GetState, 'get_state').current_state.label
        latencies.append(time.monotonic() - start)
    assert state == 'inactive' and max(latencies) < 0.1, max(latencies)

    status, result = peer.run_goal()
    assert (status, result.error_code) == (GoalStatus.STATUS_ABORTED, ErrorCode.NOT_READY)
    assert 'loading' in result.error_msg and '%' in result.error_msg
    assert peer.call(Ask, 'ask', prompt='x').error_code == ErrorCode.NOT_READY
    assert peer.call(Tokenize, 'tokenize', text='x').error_code == ErrorCode.NOT_READY
    info = peer.call(GetModelInfo, 'get_model_info')
    assert info.error_code == ErrorCode.NOT_READY and info.state.state == EngineState.LOADING
    assert http_status(process, '/health') == 503
    assert not peer.change_state(Transition.TRANSITION_ACTIVATE)
    assert peer.state() == 'inactive'

    peer.until(lambda: len({s.progress for s in states}) >= 3, 5.0)
    progress = [s.progress for s in states if s.state == EngineState.LOADING]
    assert progress == sorted(progress)


def http_status(process, path, body=None):
    port = process.log.split('http://127.0.0.1:')[1].split()[0].rstrip('/')
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f'http://127.0.0.1:{port}{path}', data, {'Content-Type': 'application/json'}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            response.read()
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:  # the connection was cut
        return 0


def test_life_by_hand(peer, start_node):
    """configure, activate, deactivate in mid-generation, activate, cleanup, and once more."""
    states = peer.engine_states()
    process = start_node({**SCRIPT, **HTTP, 'ros.autostart': False, 'model.script_load': 0.3})
    assert peer.state() == 'unconfigured'
    result = peer.run_goal()[1]
    assert result.error_code == ErrorCode.NOT_READY and 'unconfigured' in result.error_msg
    assert set_parameter(peer, 'engine.max_sequences', 3).successful

    start = time.monotonic()
    assert peer.change_state(Transition.TRANSITION_CONFIGURE)
    assert time.monotonic() - start < 1.0
    peer.wait_engine(states, EngineState.READY)
    refused = set_parameter(peer, 'engine.max_sequences', 4)
    assert not refused.successful and 'clean the node up first' in refused.reason
    inactive = peer.run_goal()[1]
    assert inactive.error_code == ErrorCode.NOT_READY and 'inactive' in inactive.error_msg
    chat = {'model': 'scripted', 'max_tokens': 4, 'messages': [{'role': 'user', 'content': 'x'}]}
    assert http_status(process, '/v1/chat/completions', chat) == 503

    assert peer.change_state(Transition.TRANSITION_ACTIVATE)
    assert http_status(process, '/v1/chat/completions', chat) == 200
    assert http_status(process, '/health') == 200
    info = peer.call(GetModelInfo, 'get_model_info')
    assert info.max_sequences == 3

    flowing = threading.Event()
    handle = peer.send_goal(feedback=lambda _: flowing.set())
    long_chat, answers = {**chat, 'max_tokens': 500}, []
    client = threading.Thread(
        target=lambda: answers.append(http_status(process, '/v1/chat/completions', long_chat))
    )
    client.start()
    assert flowing.wait(5.0)
    peer.until(lambda: peer.call(GetModelInfo, 'get_model_info').state.running == 2, 3.0)
    start = time.monotonic()
    assert peer.change_state(Transition.TRANSITION_DEACTIVATE)
    answer = peer.wait(handle.get_result_async())
    client.join(5.0)
    assert time.monotonic() - start < 1.0 and answers
    assert answer.status == GoalStatus.STATUS_ABORTED
    assert answer.result.error_code == ErrorCode.CANCELLED
    assert 'deactivated' in answer.result.error_msg
    assert peer.run_goal()[1].error_code == ErrorCode.NOT_READY

    assert peer.change_state(Transition.TRANSITION_ACTIVATE)
    assert peer.run_goal(sampling=SHORT)[1].error_code == 0
    assert peer.change_state(Transition.TRANSITION_DEACTIVATE)
    assert peer.change_state(Transition.TRANSITION_CLEANUP)
    peer.wait_engine(states, EngineState.UNLOADED, 3.0)
    assert set_parameter(peer, 'engine.max_sequences', 2).successful
    assert peer.change_state(Transition.TRANSITION_CONFIGURE)
    peer.wait_engine(states, EngineState.READY)
    assert peer.change_state(Transition.TRANSITION_ACTIVATE)
    assert peer.run_goal(sampling=SHORT)[1].error_code == 0
    assert peer.call(GetModelInfo, 'get_model_info').max_sequences == 2
    assert peer.change_state(Transition.TRANSITION_ACTIVE_SHUTDOWN)
    assert peer.state() == 'finalized'
    refused = peer.run_goal()[1]
    assert refused.error_code == ErrorCode.NOT_READY
    assert 'finalized' in refused.error_msg and 'to be configured' not in refused.error_msg


def test_parameters(peer, start_node):
    process = start_node({**SCRIPT, 'engine.contxt_length': 5, 'ros.system_prompt': 'Be kind.'})
    peer.wait_active(process)
    assert 'did you mean engine.context_length?' in process.log
    names = ['sampling.temperature', 'engine.max_sequences', 'http.port']
    described = peer.call(DescribeParameters, 'describe_parameters', names=names).descriptors
    assert all(isinstance(d, ParameterDescriptor) and d.description for d in described)
    assert described[0].floating_point_range[0].to_value == 10.0
    assert described[1].integer_range[0].to_value == 64
    assert [d.read_only for d in described] == [False, False, True]

    user, system = (ChatMessage(role=role, content=role) for role in ('user', 'system'))
    assert 'Be kind.' in peer.call(RenderPrompt, 'render_prompt', messages=[user]).text
    own = peer.call(RenderPrompt, 'render_prompt', messages=[system, user]).text
    assert 'Be kind.' not in own

    assert set_parameter(peer, 'sampling.max_tokens', 3).successful
    assert len(peer.run_goal()[1].token_ids) == 3
    for name, value, words in [
        ('sampling.temperature', 11.0, ['11', '10']),
        ('sampling.top_p', float('nan'), ['sampling.top_p']),
        ('engine.max_sequences', 3, ['fixed']),
        ('http.port', 1, ['read-only']),
    ]:
        refused = set_parameter(peer, name, value)
        assert not refused.successful
        for word in words:
            assert word in refused.reason


def test_a_wrong_parameter_at_the_start_is_named_and_ends_the_process(start_node):
    process = start_node({'engine.max_sequences': 1000})
    assert process.process.wait(20.0) == 2
    assert 'engine.max_sequences is 1000, allowed are 1 to 64' in process.log


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('phase', ['idle', 'generating', 'loading'])
def test_a_signal_ends_the_process_cleanly(peer, start_node, number, phase):
    states = peer.engine_states()
    load_s = 60.0 if phase == 'loading' else 0.0
    process = start_node({**SCRIPT, **HTTP, 'model.script_load': load_s})
    handle = None
    if phase == 'loading':
        peer.wait_engine(states, EngineState.LOADING)
    else:
        peer.wait_active(process)
    if phase == 'generating':
        flowing = threading.Event()
        handle = peer.send_goal(feedback=lambda _: flowing.set())
        result = handle.get_result_async()
        assert flowing.wait(5.0)
        body = {'messages': [{'role': 'user', 'content': 'x'}], 'stream': True}
        stream = threading.Thread(
            target=http_status, args=(process, '/v1/chat/completions', body), daemon=True
        )
        stream.start()
        running = lambda: peer.call(GetModelInfo, 'get_model_info').state.running  # noqa: E731
        peer.until(lambda: running() == 2, 3.0)
    code, seconds = process.signal_and_wait(number, 10.0)
    assert code == 0, process.log
    assert seconds < 2.0
    assert 'Traceback' not in process.log
    if handle is not None:
        answer = peer.wait(result)
        assert answer.result.error_code == ErrorCode.CANCELLED
        assert 'shutting down' in answer.result.error_msg
        stream.join(5.0)
        assert not stream.is_alive()
