# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Images of goals, services and topics, seen by a tiny model: the answers are those of HTTP."""

from __future__ import annotations

import base64
import io
import json
import shutil
import urllib.request

import numpy as np
import pytest
from PIL import Image as Picture
from sensor_msgs.msg import CompressedImage, Image

from gemma_thor_ros.cli.main import main
from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.msg import ChatMessage, ErrorCode, SamplingParams
from gemma_thor_ros.srv import Chat, GetModelInfo, RenderPrompt

HEIGHT, WIDTH, SOFT_TOKENS = 60, 90, 60


def pixels(seed):
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def png(seed):
    out = io.BytesIO()
    Picture.fromarray(pixels(seed)).save(out, 'PNG')
    return out.getvalue()


def raw(seed, encoding='rgb8'):
    shown = pixels(seed) if encoding == 'rgb8' else pixels(seed)[..., ::-1]
    return Image(width=WIDTH, height=HEIGHT, encoding=encoding, step=3 * WIDTH,
                 data=shown.tobytes())


@pytest.fixture(scope='module')
def sighted(peer, start_module_node, tmp_path_factory):
    folder = tmp_path_factory.mktemp('sighted') / 'tiny'
    assert main(['synth', str(folder), '--preset', 'tiny-vision', '--format', 'bf16']) == 0
    shutil.copy(DEMO_FOLDER / 'tokenizer.json', folder)
    process = start_module_node(**{'model.path': str(folder), 'http.enabled': True,
                                   'http.port': 0})
    peer.wait_active(process)
    return process


def ask(peer, **fields):
    message = ChatMessage(role='user', content='What is there?', **fields)
    result = peer.run_goal(messages=[message],
                           sampling=SamplingParams(temperature=0.0, max_tokens=6, seed=1))[1]
    assert result.error_code == ErrorCode.NONE, result.error_msg
    return result


def test_every_way_of_an_image_gives_one_answer(peer, sighted):
    first = ask(peer, images=[raw(1)])
    assert first.usage.prompt_tokens > SOFT_TOKENS
    for fields in ({'images': [raw(1, 'bgr8')]},
                   {'compressed_images': [CompressedImage(format='png', data=png(1))]}):
        again = ask(peer, **fields)
        assert again.text == first.text
        assert again.usage.cached_tokens > SOFT_TOKENS           # the same image by its pixels
    assert ask(peer, images=[raw(2)]).usage.cached_tokens < SOFT_TOKENS


def test_the_newest_image_of_a_topic_is_seen(peer, sighted):
    publisher = peer.node.create_publisher(Image, 'cam/seen', 1)
    timer = peer.make(lambda: peer.node.create_timer(0.05, lambda: publisher.publish(raw(1))))
    try:
        assert ask(peer, image_topics=['cam/seen']).text == ask(peer, images=[raw(1)]).text
    finally:
        peer.node.destroy_timer(timer)


def test_services_see_too(peer, sighted):
    assert peer.call(GetModelInfo, 'get_model_info').vision
    message = ChatMessage(role='user', content='What is there?', images=[raw(1)])
    answer = peer.call(Chat, 'chat_once', messages=[message],
                       sampling=SamplingParams(temperature=0.0, max_tokens=6, seed=1))
    assert answer.error_code == ErrorCode.NONE, answer.error_msg
    assert answer.text == ask(peer, images=[raw(1)]).text
    shown = peer.call(RenderPrompt, 'render_prompt', messages=[message])
    assert list(shown.token_ids).count(4091) == SOFT_TOKENS


def test_ros_equals_http(peer, sighted):
    url = sighted.log.rpartition('http://127.0.0.1:')[2].split()[0].strip('/,.')
    body = {'temperature': 0, 'max_tokens': 6, 'messages': [{'role': 'user', 'content': [
        {'type': 'image_url', 'image_url': {
            'url': 'data:image/png;base64,' + base64.b64encode(png(1)).decode()}},
        {'type': 'text', 'text': 'What is there?'}]}]}
    request = urllib.request.Request(
        f'http://127.0.0.1:{url}/v1/chat/completions', json.dumps(body).encode(),
        {'Content-Type': 'application/json'})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20.0) as answer:
        found = json.load(answer)
    ours = ask(peer, images=[raw(1)])
    assert found['choices'][0]['message']['content'] == ours.text
    assert found['usage']['prompt_tokens'] == ours.usage.prompt_tokens
