# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Images of ROS messages -> image files in memory, in the OpenAI form of message content.

Pure functions: what an image may be (encoding, size, layout) is checked here, before anything is
copied. Where images come from is image_source.py's, what a model does with them chat.py's.
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemma_thor_ros.schema import ErrorCode, RequestError

MAX_SIDE = 8192                  # pixels
MAX_BYTES = 64 * 1024 * 1024     # of one image's data
MAX_IMAGES = 16                  # in one message
# encoding -> (bytes per pixel, which of them are red, green, blue; one alone is grey)
ENCODINGS: dict[str, tuple[int, tuple[int, ...]]] = {
    'rgb8': (3, (0, 1, 2)), 'bgr8': (3, (2, 1, 0)), 'rgba8': (4, (0, 1, 2)),
    'bgra8': (4, (2, 1, 0)), 'mono8': (1, (0,))}
_PNG_START = b'\x89PNG\r\n\x1a\n'
# JPEG markers that carry the size: SOF0 to SOF15 but DHT, JPG and DAC.
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True)
class Picture:
    """An image file: `kind` is png or jpeg; sizes in pixels."""

    kind: str
    data: bytes
    width: int
    height: int

    def part(self) -> dict[str, Any]:
        """Return the part of a message's content that holds it."""
        text = base64.b64encode(self.data).decode('ascii')
        return {'type': 'image_url', 'image_url': {'url': f'data:image/{self.kind};base64,{text}'}}


def picture_from_image(image: Any, where: str) -> Picture:
    """Return a sensor_msgs/Image as PNG; an alpha channel is dropped.

    Raises:
        RequestError: encoding, size or layout is none that is taken; names the numbers.
    """
    known = ENCODINGS.get(image.encoding)
    if known is None:
        raise _invalid(f'{where} has the encoding {image.encoding!r}, taken are '
                       f'{", ".join(ENCODINGS)}', where)
    size, channels = known
    _check_size(image.width, image.height, where)
    if image.step < image.width * size:
        raise _invalid(f'{where} has a step of {image.step} bytes, {image.width} pixels of '
                       f'{image.encoding} need {image.width * size}', where)
    wanted, given = image.step * image.height, len(image.data)
    if given != wanted:
        raise _invalid(f'{where} has {given} bytes of data, {image.height} rows of {image.step} '
                       f'bytes are {wanted}', where)
    _check_bytes(given, where)
    rows = np.frombuffer(image.data, np.uint8).reshape(image.height, image.step)
    pixels = rows[:, :image.width * size].reshape(image.height, image.width, size)
    return Picture('png', _png(pixels[:, :, list(channels)]), image.width, image.height)


def picture_from_compressed(image: Any, where: str) -> Picture:
    """Return a sensor_msgs/CompressedImage as it is, when it is a JPEG or PNG file.

    Raises:
        RequestError: it is another format, or its size can't be read or is none that is taken.
    """
    _check_bytes(len(image.data), where)
    data = bytes(image.data)
    # image_transport writes 'rgb8; jpeg compressed bgr8', others 'jpeg': the data decide.
    if data.startswith(_PNG_START):
        kind, size = 'png', _png_size(data)
    elif data.startswith(b'\xff\xd8'):
        kind, size = 'jpeg', _jpeg_size(data)
    else:
        raise _invalid(f'{where} with the format {image.format[:64]!r} is no JPEG and no PNG file',
                       where)
    if size is None:
        raise _invalid(f'{where} is a damaged {kind.upper()} file: it does not say its size',
                       where)
    _check_size(*size, where)
    return Picture(kind, data, *size)


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return (height, width, 1 or 3) bytes as a PNG file, packed lightly."""
    height, width, channels = pixels.shape
    # Each row begins with its filter; 0 is none.
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = pixels.reshape(height, width * channels)
    header = struct.pack('>IIBBBBB', width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    return (_PNG_START + _png_chunk(b'IHDR', header)
            + _png_chunk(b'IDAT', zlib.compress(rows.tobytes(), 1)) + _png_chunk(b'IEND', b''))


def _png_chunk(name: bytes, data: bytes) -> bytes:
    return (struct.pack('>I', len(data)) + name + data
            + struct.pack('>I', zlib.crc32(name + data)))


def _png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 24 or data[12:16] != b'IHDR':
        return None
    width, height = struct.unpack('>II', data[16:24])
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walk the segments to the one that has the size."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _JPEG_SIZES:
            height, width = struct.unpack('>HH', data[at + 5:at + 9])
            return width, height
        if marker == 0xFF:               # padding
            at += 1
        elif 0xD0 <= marker <= 0xD9 or marker == 0x01:
            at += 2                      # no length
        else:
            at += 2 + int.from_bytes(data[at + 2:at + 4], 'big')
    return None


def _check_size(width: int, height: int, where: str) -> None:
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise _invalid(f'{where} is {width} x {height} pixels, allowed is 1 to {MAX_SIDE} each '
                       'way', where)


def _check_bytes(given: int, where: str) -> None:
    if given > MAX_BYTES:
        raise _invalid(f'{where} has {given} bytes, at most {MAX_BYTES} are taken', where)


def _invalid(message: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, param)
