# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The audit of a running node: ROS and HTTP requests in the file, those of ROS on ~/requests."""

from __future__ import annotations

import json
import re
import urllib.request

from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter

from gemma_thor_ros.audit import read_records
from gemma_thor_ros.msg import RequestRecord, SamplingParams, Sentence, TokenChunk


def ask_http(port):
    """Return the id of an answer."""
    body = {'model': 'scripted', 'messages': [{'role': 'user', 'content': 'From HTTP?'}]}
    request = urllib.request.Request(
        f'http://127.0.0.1:{port}/v1/chat/completions', json.dumps(body).encode(),
        {'Content-Type': 'application/json'},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=10.0) as answer:
        return json.load(answer)['id'].removeprefix('chatcmpl-')


def test_requests_of_ros_and_http_are_recorded(peer, start_module_node, tmp_path):
    path = tmp_path / 'audit.jsonl'
    node = start_module_node(**{
        'model.script': ['I am here.<turn|>'],
        'http.enabled': True,
        'http.port': 0,
        'audit.enabled': True,
        'audit.file': str(path),
    })  # fmt: skip
    peer.wait_active(node)
    heard = peer.collect(RequestRecord, '/llm_node/requests', 100)
    chunks = peer.collect(TokenChunk, '/llm_node/tokens', 100)
    _, result = peer.run_goal(
        'Where are you?', request_id='asked', session_id='s',
        sampling=SamplingParams(seed=11, max_tokens=9),
    )  # fmt: skip
    peer.until(lambda: heard, 5.0)
    port = re.search(r'http://127\.0\.0\.1:(\d+)', node.log)[1]
    http_id = ask_http(port)
    peer.until(lambda: len(path.read_text().splitlines()) == 2, 5.0)
    of_ros, of_http = read_records(path)
    assert of_ros['request_id'] == 'asked' and of_ros['front_end'] == 'ros'
    assert of_http['front_end'] == 'http' and of_http['request_id'].endswith(http_id)
    assert (of_ros['client'], of_http['client']) == ('~/chat', '127.0.0.1')
    assert of_ros['sampling']['seed'] == 11 and of_ros['sampling']['max_tokens'] == 9
    assert of_ros['completion_ids'] == list(result.token_ids)
    assert of_ros['text'] == result.text and of_ros['template_hash']
    assert [r.request_id for r in heard] == ['asked']
    assert {c.request_id for c in chunks} == {'asked'}
    assert json.loads(heard[0].sampling_json)['seed'] == 11
    # What is recorded is a person's decision, made when the node starts.
    client = peer.node.create_client(SetParameters, '/llm_node/set_parameters')
    off = Parameter('audit.enabled', value=False).to_parameter_msg()
    assert client.wait_for_service(5.0)
    answer = peer.wait(client.call_async(SetParameters.Request(parameters=[off])))
    assert not answer.results[0].successful


def test_http_appears_on_the_topics_when_it_is_published(fresh_peer, start_node):
    peer = fresh_peer
    node = start_node({
        'model.script': ['I am here.<turn|>'],
        'http.enabled': True,
        'http.port': 0,
        'audit.enabled': True,
        'ros.publish_http': True,
    })
    peer.wait_active(node)
    chunks = peer.collect(TokenChunk, '/llm_node/tokens', 1000)
    records = peer.collect(RequestRecord, '/llm_node/requests', 100)
    spoken = peer.collect(Sentence, '/llm_node/sentences', 100)
    http_id = ask_http(re.search(r'http://127\.0\.0\.1:(\d+)', node.log)[1])
    peer.until(lambda: records and chunks and chunks[-1].last, 5.0)
    assert ''.join(chunk.text for chunk in chunks) == 'I am here.'
    assert chunks[-1].finish_reason == 'stop'
    (record,) = records
    assert record.front_end == 'http' and {c.request_id for c in chunks} == {record.request_id}
    assert record.request_id.endswith(http_id)
    assert peer.run_goal()[1].text == 'I am here.'
    peer.until(lambda: spoken, 5.0)
    assert all(sentence.request_id != record.request_id for sentence in spoken)
