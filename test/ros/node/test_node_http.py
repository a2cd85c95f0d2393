# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""ROS and HTTP on one engine: the same request and seed give the same answer through both."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

from gemma_thor_ros.msg import SamplingParams, Tool

PARAMETERS = {'type': 'object', 'properties': {'text': {'type': 'string'}}, 'required': ['text']}
CASES = [('what can you do?', 7, 1.6), ('say hello to everybody here', 3, 0.0),
         ('drive around the table twice', 9, 1.2)]


@pytest.fixture(scope='module')
def node(peer, start_module_node):
    process = start_module_node(**{'model.path': 'demo', 'http.enabled': True, 'http.port': 0,
                                   'engine.context_length': 1024})
    peer.wait_active(process, 60.0)
    return process


def post(node, body):
    port = re.search(r'serving on http://127\.0\.0\.1:(\d+)', node.log)[1]
    request = urllib.request.Request(
        f'http://127.0.0.1:{port}/v1/chat/completions', json.dumps(body).encode(),
        {'Content-Type': 'application/json'})
    with urllib.request.urlopen(request, timeout=60.0) as answer:
        return answer.read().decode()


def joined(stream):
    """(text, arguments of the calls, finish reason, usage) of server-sent events."""
    text, arguments, finish, usage = '', '', None, None
    for line in stream.split('\n\n'):
        if not line.startswith('data: {'):
            continue
        event = json.loads(line[6:])
        usage = event.get('usage') or usage
        for choice in event['choices']:
            text += choice['delta'].get('content') or ''
            finish = choice['finish_reason'] or finish
            arguments += ''.join(piece['function']['arguments']
                                 for piece in choice['delta'].get('tool_calls', ()))
    return text, arguments, finish, usage['completion_tokens']


@pytest.mark.parametrize(('prompt', 'seed', 'temperature'), CASES)
def test_ros_equals_http(node, peer, prompt, seed, temperature):
    tool = Tool(name='say', description='Speak a sentence aloud.',
                parameters_json=json.dumps(PARAMETERS))
    sampling = SamplingParams(max_tokens=40, seed=seed, temperature=temperature)
    _, by_ros = peer.run_goal(prompt, limit_s=60.0, tools=[tool], sampling=sampling)
    body = {
        'messages': [{'role': 'user', 'content': prompt}], 'max_tokens': 40, 'seed': seed,
        'temperature': temperature, 'tools': [{'type': 'function', 'function': {
            'name': 'say', 'description': 'Speak a sentence aloud.', 'parameters': PARAMETERS}}]}
    whole = json.loads(post(node, body))
    choice = whole['choices'][0]
    calls = choice['message'].get('tool_calls', [])
    wanted = (choice['message']['content'] or '',
              ''.join(call['function']['arguments'] for call in calls),
              choice['finish_reason'], whole['usage']['completion_tokens'])
    streamed = post(node, {**body, 'stream': True, 'stream_options': {'include_usage': True}})
    assert joined(streamed) == wanted
    assert (by_ros.text, ''.join(call.arguments_json for call in by_ros.tool_calls),
            by_ros.finish_reason, by_ros.usage.completion_tokens) == wanted
