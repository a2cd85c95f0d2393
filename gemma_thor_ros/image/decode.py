# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Image files from untrusted hands to pixels: data URLs, limits before any decoding, Pillow.

Everything that is wrong with a file is a RequestError that names the field and the numbers. Knows
no model and no message format.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from gemma_thor_ros.schema import ErrorCode, RequestError

Pixels = npt.NDArray[np.uint8]           # (height, width, 3)

FORMATS = ('PNG', 'JPEG', 'WEBP')
# Modes with 8 bits a channel; what else Pillow reads (16-bit grey, float) has no agreed range.
_MODES = ('1', 'L', 'LA', 'La', 'P', 'PA', 'RGB', 'RGBA', 'RGBa', 'RGBX', 'CMYK', 'YCbCr')
_PNG_DEPTH = 24                          # the header's byte that has the bits of a channel
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}           # by colour type
# Passes of an interlaced PNG: first column and row, steps between them.
_PNG_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
               (0, 1, 1, 2))
# Passes over a JPEG's pixels; encoders write about ten, and each costs time but hardly any bytes.
MAX_SCANS = 100
_JPEG = b'\xff\xd8'
_SCAN = b'\xff\xda'                      # the marker of one, which no compressed data contain
# Markers of JPEG files (ITU-T T.81, table B.1): frames of other codes than Huffman's.
_OTHER_FRAMES = (0xc3, 0xc5, 0xc6, 0xc7, 0xc9, 0xca, 0xcb, 0xcd, 0xce, 0xcf)
_RESTARTS = range(0xd0, 0xd8)
_EOI, _SOS, _DRI = 0xd9, 0xda, 0xdd
_FILL_BYTES = re.compile(rb'\xff+(?=\xff)')
_AFTER_SCAN = re.compile(rb'\xff[^\x00\xd0-\xd7]', re.DOTALL)
_FILLER = bytes((0x5a, 0xa5, 0x96, 0x3c)) * 1024         # codes of no meaning, and no marker
_MOST_SEGMENTS = 10_000                  # are looked through
_MOST_FILLED = 0.01                      # of the pixels may depend on what lies behind the data
# What Pillow raises for damaged files.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError,
           struct.error, zlib.error)


@dataclass(frozen=True)
class ImageLimits:
    """What is refused before it costs memory: bytes of the file, its pixels, long : short side."""

    max_bytes: int = 64 << 20
    max_pixels: int = 1 << 25
    max_ratio: float = 64.0


def read_data_url(url: Any, limits: ImageLimits, where: str) -> bytes:
    """The bytes of a data URL (base64).

    Raises RequestError: UNSUPPORTED for any other URL, since the robot fetches nothing for its
    clients; INVALID_REQUEST for what is no base64 or too large.
    """
    if not isinstance(url, str):
        raise _invalid(f'{where} must be a URL as text, found {type(url).__name__}', where)
    scheme, colon, rest = url.partition(':')
    if scheme.lower() != 'data' or not colon:
        shown = f'{scheme[:20]}:' if colon else url[:20]
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f'{where} begins with {shown!r}: images are taken as data URLs alone '
            '(data:image/png;base64,...), nothing is fetched', where)
    kind, comma, text = rest.partition(',')
    if not comma or not kind.lower().endswith(';base64'):
        raise _invalid(f'{where} is a data URL without ";base64,": found {kind[:40]!r}', where)
    if len(text) // 4 * 3 - 2 > limits.max_bytes:
        raise _too_large(len(text) // 4 * 3, limits, where)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _invalid(f'{where} holds no base64: {error}', where) from error


def decode_image(data: bytes, limits: ImageLimits, where: str) -> Pixels:
    """The pixels of a PNG, JPEG or WebP file, turned as its EXIF says; alpha is dropped.

    (height, width, 3) uint8; of an animation the first picture. Raises RequestError before
    decoding for a file above the limits, and for one that is damaged, of another format, or has
    more than 8 bits a channel.
    """
    if len(data) > limits.max_bytes:
        raise _too_large(len(data), limits, where)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check(image, limits, where)
            if image.format == 'PNG' and data[_PNG_DEPTH] > 8:     # Pillow would cut it to 8
                raise _invalid(f'{where} has {data[_PNG_DEPTH]} bits a channel: 8 are taken',
                               where)
            if image.format == 'PNG':
                _check_rows(data, where)
            if data.startswith(_JPEG) and data.count(_SCAN) > MAX_SCANS:
                raise _invalid(f'{where} is a JPEG file of {data.count(_SCAN):,} scans, at most '
                               f'{MAX_SCANS} are taken', where)
            if data.startswith(_JPEG):
                _check_blocks(image, data, where)
            turned = ImageOps.exif_transpose(image)
            turned.info.pop('transparency', None)        # it is dropped; Pillow warns of some
            return np.array(turned.convert('RGB'), np.uint8)
    except Image.DecompressionBombError as error:
        raise _invalid(f'{where} has more pixels than the {limits.max_pixels:,} that are taken',
                       where) from error
    except UnidentifiedImageError as error:
        raise _invalid(f'{where} is no PNG, JPEG or WebP file ({len(data):,} bytes)',
                       where) from error
    except _DAMAGE as error:
        raise _invalid(f'{where} is a damaged image file: {type(error).__name__}: {error}'[:300],
                       where) from error


def _check(image: Image.Image, limits: ImageLimits, where: str) -> None:
    """Refuse by the header alone: nothing is decoded yet."""
    width, height = image.size
    if width < 1 or height < 1:
        raise _invalid(f'{where} is {width} x {height} pixels', where)
    if width * height > limits.max_pixels:
        raise _invalid(f'{where} is {width} x {height}, {width * height:,} pixels; at most '
                       f'{limits.max_pixels:,} are taken', where)
    ratio = max(width, height) / min(width, height)
    if ratio > limits.max_ratio:
        raise _invalid(f'{where} is {width} x {height} pixels: its sides stand {ratio:.4g} to 1, '
                       f'at most {limits.max_ratio:g} to 1 is taken', where)
    if image.mode not in _MODES:
        raise _invalid(f'{where} has pixels of the kind {image.mode!r}: 8 bits a channel are '
                       'taken', where)


def _check_rows(data: bytes, where: str) -> None:
    """Refuse a PNG whose compressed rows end early: Pillow would leave the rest black."""
    needed, found, at = _row_bytes(data), 0, 8
    unpacker = zlib.decompressobj()
    inside = False
    while at + 8 <= len(data) and found < needed and not unpacker.eof:
        size, kind = struct.unpack_from('>I4s', data, at)
        if kind != b'IDAT' and inside:
            break                        # what comes later Pillow does not read
        if kind == b'IDAT':
            inside, packed = True, data[at + 8:at + 8 + size]
            while packed and found < needed and not unpacker.eof:
                found += len(unpacker.decompress(packed, 1 << 16))
                packed = unpacker.unconsumed_tail
        at += 12 + size
    if found < needed:
        raise _invalid(f'{where} is a damaged image file: a PNG with {found:,} of the {needed:,} '
                       'bytes that its rows have', where)


def _row_bytes(data: bytes) -> int:
    """Bytes of all rows of a PNG, each with its filter's number, before they are packed."""
    width, height, depth, colour, _, _, interlaced = struct.unpack_from('>IIBBBBB', data, 16)
    bits = depth * _PNG_CHANNELS[colour]
    total = 0
    for left, top, right, down in _PNG_PASSES if interlaced else ((0, 0, 1, 1),):
        columns, rows = -((left - width) // right), -((top - height) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total


def _check_blocks(image: Image.Image, data: bytes, where: str) -> None:
    """Refuse a JPEG whose scans end early: Pillow would leave the rest grey.

    A decoder that has all blocks of a scan skips what lies in front of the next marker; one that
    waits for more reads it. So the file is decoded once more with filler there.
    """
    filled = _filled(data)
    if filled is None:
        return
    with Image.open(io.BytesIO(filled), formats=FORMATS) as other:
        difference = ImageChops.difference(image, other)
    if difference.getbbox() is None:
        return
    values = np.asarray(difference)
    changed = np.count_nonzero(values) / values.size
    if changed > _MOST_FILLED:
        raise _invalid(f'{where} is a damaged image file: a JPEG whose data end early, at least '
                       f'{100 * changed:.0f} % of it lacks its pixels', where)


def _filled(data: bytes) -> bytes | None:
    """A JPEG with filler at the end of each scan; None where its codes aren't Huffman's."""
    parts: list[bytes] = []
    at, start, restarts = 2, 0, False
    for _ in range(_MOST_SEGMENTS):
        if at + 4 > len(data) or data[at] != 0xff or data[at + 1] == _EOI:
            break
        if data[at + 1] == 0xff:                         # fill bytes
            run = _FILL_BYTES.match(data, at)
            at = run.end() if run else at + 1
            continue
        kind = data[at + 1]
        if kind in _OTHER_FRAMES:
            return None                                  # arithmetic codes may end early
        segment = data[at + 4:at + 2 + int.from_bytes(data[at + 2:at + 4], 'big')]
        at += 4 + len(segment)
        if kind == _DRI:
            restarts = any(segment)
        if kind != _SOS:
            continue
        found = _AFTER_SCAN.search(data, at)
        if found is None:
            return None                                  # no marker: Pillow sees that itself
        at, begin = found.start(), at
        parts += [data[start:at], _FILLER]
        if restarts:                                     # intervals that may lack as well
            seen = sum(data.count(bytes((0xff, kind)), begin, at) for kind in _RESTARTS)
            parts += [bytes((0xff, _RESTARTS[(seen + i) % 8])) + _FILLER[:64] for i in range(64)]
        start = at
    return b''.join([*parts, data[start:]]) if parts else None


def _too_large(size: int, limits: ImageLimits, where: str) -> RequestError:
    return _invalid(f'{where} has {size:,} bytes, at most {limits.max_bytes:,} are taken', where)


def _invalid(message: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, param)
