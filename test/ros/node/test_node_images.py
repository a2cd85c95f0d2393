# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Images of a goal and of topics: fetched, checked, and then refused with the model's name."""

from __future__ import annotations

import time

import pytest
from builtin_interfaces.msg import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from gemma_thor_ros.msg import ChatMessage, ErrorCode
from gemma_thor_ros.srv import Chat, RenderPrompt

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
HALF = Duration(nanosec=500_000_000)


def picture(**fields):
    return Image(**{'width': 4, 'height': 2, 'encoding': 'rgb8', 'step': 12, 'data': bytes(24),
                    **fields})


@pytest.fixture(scope='module')
def camera(peer, start_module_node):
    """A node, and publishers of this process at 20 Hz: fresh, old and odd images."""
    process = start_module_node(**{'model.script': ['I see.<turn|>']})
    peer.wait_active(process)
    ages = {'cam/new': 0.0, 'cam/unstamped': None, 'cam/old': 3.0}
    publishers = {name: peer.node.create_publisher(Image, name, 1) for name in ages}
    publishers['cam/late'] = peer.node.create_publisher(Image, 'cam/late', LATCHED)
    publishers['cam/odd'] = peer.node.create_publisher(Image, 'cam/odd', 1)
    publishers['cam/files'] = peer.node.create_publisher(CompressedImage, 'cam/files', 1)
    publishers['cam/text'] = peer.node.create_publisher(String, 'cam/text', 1)
    publishers['cam/late'].publish(picture())        # once, long ago

    def publish():
        now = peer.node.get_clock().now()
        for name, age in ages.items():
            image = picture()
            if age is not None:
                stamp = now.nanoseconds - int(age * 1e9)
                image.header.stamp.sec, image.header.stamp.nanosec = divmod(stamp, 10**9)
            publishers[name].publish(image)
        publishers['cam/odd'].publish(picture(encoding='yuv422'))
        publishers['cam/files'].publish(CompressedImage(format='png', data=b'\x89PNG\r\n\x1a\n'))

    timer = peer.make(lambda: peer.node.create_timer(0.05, publish))
    yield process
    peer.node.destroy_timer(timer)


def ask(peer, **fields):
    message = ChatMessage(role='user', content='What is there?', **fields)
    started = time.monotonic()
    result = peer.run_goal(messages=[message])[1]
    return result, time.monotonic() - started


@pytest.mark.parametrize('fields,words', [
    ({'images': [picture()]}, ['messages[0] has images (4 x 2 pixels)']),
    ({'image_topics': ['cam/new']}, ['(4 x 2 pixels)']),
    ({'image_topics': ['/cam/new', 'cam/unstamped'], 'images': [picture(width=3)]},
     ['(3 x 2, 4 x 2, 4 x 2 pixels)']),
])  # fmt: skip
def test_a_good_image_is_refused_by_the_name_of_the_model(peer, camera, fields, words):
    result, _ = ask(peer, **fields)
    assert result.error_code == ErrorCode.UNSUPPORTED
    for word in [*words, 'the model scripted takes text only']:
        assert word in result.error_msg


@pytest.mark.parametrize('fields,words', [
    ({'images': [picture(encoding='16UC1')]}, ["images[0] has the encoding '16UC1'"]),
    ({'compressed_images': [CompressedImage(format='webp', data=b'RIFF')]}, ["'webp'"]),
    ({'image_topics': ['cam/odd']}, ["encoding 'yuv422'", 'image_topics[0] (/cam/odd)']),
    ({'image_topics': ['cam/files']}, ['damaged PNG']),
    ({'image_topics': ['cam/text']}, ['/cam/text of type std_msgs/msg/String']),
    ({'image_topics': ['cam/nowhere']}, ['/cam/nowhere, which nobody publishes']),
    ({'image_topics': ['no topic']}, ["'no topic', which is no topic name"]),
    ({'image_topics': ['cam/old']}, ['too old', 'the limit is 0.5 s']),
    ({'image_topics': ['cam/late'], 'image_max_age': HALF}, ['no image came', 'within 1.5 s']),
    ({'image_max_age': Duration(sec=-1), 'images': [picture()]}, ['image_max_age is -1 s']),
    ({'images': [picture()] * 17}, ['17 images, at most 16']),
])  # fmt: skip
def test_what_is_no_fresh_image_is_refused_within_its_limit(peer, camera, fields, words):
    result, took_s = ask(peer, **fields)
    assert result.error_code == ErrorCode.INVALID_REQUEST and took_s < 5.0
    for word in words:
        assert word in result.error_msg


def test_an_old_image_is_taken_where_the_message_allows_it(peer, camera):
    result, _ = ask(peer, image_topics=['cam/old'], image_max_age=Duration(sec=60))
    assert result.error_code == ErrorCode.UNSUPPORTED, result.error_msg


def test_services_read_them_too_and_nobody_keeps_listening(peer, camera):
    message = ChatMessage(role='user', content='x', image_topics=['cam/new'])
    for kind, name in ((Chat, 'chat_once'), (RenderPrompt, 'render_prompt')):
        answer = peer.call(kind, name, messages=[message])
        assert answer.error_code == ErrorCode.UNSUPPORTED
    peer.until(lambda: peer.node.count_subscribers('/cam/new') == 0, 5.0)
    assert peer.run_goal()[1].text == 'I see.'
