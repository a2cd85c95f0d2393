# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Images of messages: what is taken, with the same pixels; what is refused, with the numbers."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import CompressedImage, Image

from gemma_thor_ros.ros import images
from gemma_thor_ros.schema import ErrorCode, RequestError


def unpacked(png):
    """Read a PNG of ours: every chunk's checksum, then the rows, whose filter must be none."""
    assert png[:8] == b'\x89PNG\r\n\x1a\n'
    at, chunks = 8, {}
    while at < len(png):
        size = int.from_bytes(png[at:at + 4], 'big')
        name, data = png[at + 4:at + 8], png[at + 8:at + 8 + size]
        assert int.from_bytes(png[at + 8 + size:at + 12 + size], 'big') == zlib.crc32(name + data)
        chunks[name] = data
        at += 12 + size
    assert list(chunks) == [b'IHDR', b'IDAT', b'IEND']
    width, height, depth, colour, *rest = struct.unpack('>IIBBBBB', chunks[b'IHDR'])
    assert depth == 8 and rest == [0, 0, 0]
    channels = {0: 1, 2: 3}[colour]
    rows = np.frombuffer(zlib.decompress(chunks[b'IDAT']), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


ORDER = {'rgb8': 'rgb', 'bgr8': 'bgr', 'rgba8': 'rgba', 'bgra8': 'bgra', 'mono8': 'g'}


@settings(max_examples=40)
@given(st.sampled_from(sorted(ORDER)), st.integers(1, 9), st.integers(1, 9), st.integers(0, 5),
       st.integers(0, 2**32 - 1))
def test_every_encoding_keeps_its_pixels(encoding, width, height, padding, seed):
    order = ORDER[encoding]
    step = width * len(order) + padding
    rows = np.random.default_rng(seed).integers(0, 256, (height, step), np.uint8)
    image = Image(width=width, height=height, encoding=encoding, step=step, data=rows.tobytes())
    picture = images.picture_from_image(image, 'it')
    assert (picture.kind, picture.width, picture.height) == ('png', width, height)
    pixels = rows[:, :width * len(order)].reshape(height, width, -1)
    wanted = [pixels[:, :, order.index(colour)] for colour in ('g' if order == 'g' else 'rgb')]
    assert np.array_equal(unpacked(picture.data), np.stack(wanted, axis=-1))
    url = picture.part()['image_url']['url']
    assert base64.b64decode(url.removeprefix('data:image/png;base64,')) == picture.data


def raw(**fields):
    values = {'width': 4, 'height': 2, 'encoding': 'rgb8', 'step': 12, 'data': bytes(24), **fields}
    return Image(**values)


@pytest.mark.parametrize('image,words', [
    (raw(encoding='yuv422'), ["'yuv422'", 'rgb8, bgr8, rgba8, bgra8, mono8']),
    (raw(encoding='16UC1'), ["'16UC1'"]),
    (raw(step=11), ['step of 11', '4 pixels of rgb8 need 12']),
    (raw(data=bytes(23)), ['23 bytes', '2 rows of 12 bytes are 24']),
    (raw(data=bytes(25)), ['25 bytes']),
    (raw(width=0, step=0, data=b''), ['0 x 2 pixels']),
    (raw(width=9000, step=27000, data=b''), ['9000 x 2 pixels', '8192']),
])  # fmt: skip
def test_what_is_no_image_is_refused_with_the_numbers(image, words):
    with pytest.raises(RequestError) as caught:
        images.picture_from_image(image, 'messages[0].images[1]')
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.message.startswith('messages[0].images[1] ')
    for word in words:
        assert word in caught.value.message


def png(width=5, height=3):
    pixels = np.zeros((height, width * 3), np.uint8)
    return images.picture_from_image(
        Image(width=width, height=height, encoding='rgb8', step=width * 3, data=pixels.tobytes()),
        'it').data


def jpeg(width=640, height=480, marker=0xC0):
    """The segments of a JPEG file up to its size: JFIF, a table, padding, the frame."""
    table = b'\xff\xdb\x00\x05\x00\x01\x02'
    frame = struct.pack('>BBHBHHB', 0xFF, marker, 8, 8, height, width, 0)
    return b'\xff\xd8\xff\xe0\x00\x04ab' + table + b'\xff' + frame + b'\xff\xd9'


@pytest.mark.parametrize('data,kind,size', [
    (png(), 'png', (5, 3)), (jpeg(), 'jpeg', (640, 480)), (jpeg(marker=0xC2), 'jpeg', (640, 480)),
])  # fmt: skip
def test_files_are_taken_as_they_are(data, kind, size):
    compressed = CompressedImage(format='bgr8; jpeg compressed bgr8', data=data)
    picture = images.picture_from_compressed(compressed, 'it')
    assert (picture.kind, (picture.width, picture.height)) == (kind, size)
    assert picture.data == data


@pytest.mark.parametrize('data,word', [
    (b'', 'no JPEG and no PNG'), (b'RIFF....WEBP', 'no JPEG and no PNG'),
    (png()[:20], 'damaged PNG'), (jpeg()[:12], 'damaged JPEG'),
    (jpeg(marker=0xC4), 'damaged JPEG'), (jpeg(width=0), '0 x 480 pixels'),
    (jpeg(height=9000), '640 x 9000 pixels'),
])  # fmt: skip
def test_other_files_are_refused(data, word):
    with pytest.raises(RequestError) as caught:
        images.picture_from_compressed(CompressedImage(format='x', data=data), 'it')
    assert caught.value.code is ErrorCode.INVALID_REQUEST and word in caught.value.message


@settings(max_examples=100)
@given(st.binary(max_size=60), st.sampled_from([b'', b'\xff\xd8', png()[:12]]))
def test_no_file_breaks_the_reader(data, start):
    try:
        images.picture_from_compressed(CompressedImage(data=start + data), 'it')
    except RequestError as error:
        assert error.code is ErrorCode.INVALID_REQUEST
