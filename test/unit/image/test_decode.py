# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Image files from untrusted hands: what is read, what is refused, and in which words."""

from __future__ import annotations

import base64
import io
import itertools
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gemma_thor_ros.image.decode import MAX_SCANS, ImageLimits, decode_image, read_data_url
from gemma_thor_ros.schema import ErrorCode, RequestError

LIMITS = ImageLimits(max_bytes=4000, max_pixels=2000, max_ratio=8.0)
WHERE = 'messages[0].content[1]'
PIXELS = (np.arange(20 * 30 * 3, dtype=np.uint32) * 7 % 256).astype(np.uint8).reshape(20, 30, 3)


def encoded(pixels: Any = PIXELS, kind: str = 'PNG', **options: Any) -> bytes:
    out = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(('kind', 'options'), [
    ('PNG', {}), ('WEBP', {'lossless': True}), ('JPEG', {'quality': 100, 'subsampling': 0})])
def test_formats(kind: str, options: dict[str, Any]) -> None:
    found = decode_image(encoded(kind=kind, **options), LIMITS, WHERE)
    assert found.shape == (20, 30, 3) and found.dtype == np.uint8
    assert np.abs(found.astype(int) - PIXELS).max() <= (0 if kind != 'JPEG' else 255)
    assert np.abs(found.astype(int) - PIXELS).mean() < (1e-9 if kind != 'JPEG' else 8)


def test_other_modes_become_rgb() -> None:
    grey = decode_image(encoded(PIXELS[..., 0]), LIMITS, WHERE)
    assert (grey == PIXELS[..., :1]).all()
    alpha = np.concatenate([PIXELS, PIXELS[..., :1]], axis=-1)
    assert (decode_image(encoded(alpha), LIMITS, WHERE) == PIXELS).all()
    palette = Image.fromarray(PIXELS // 128 * 128).quantize(8)
    seen = decode_image(encoded(palette), LIMITS, WHERE)
    assert seen.shape == (20, 30, 3)
    with warnings.catch_warnings():                      # Pillow has one for such a palette
        warnings.simplefilter('error')
        clear = encoded(palette, transparency=bytes([0, 128, 255, 0, 7]))
        assert (decode_image(clear, LIMITS, WHERE) == seen).all()


@pytest.mark.parametrize('kind', ['PNG', 'WEBP'])
def test_of_an_animation_the_first_picture(kind: str) -> None:
    others = [Image.fromarray(255 - PIXELS), Image.fromarray(PIXELS // 2)]
    data = encoded(kind=kind, save_all=True, append_images=others, lossless=True)
    assert (decode_image(data, LIMITS, WHERE) == PIXELS).all()


def test_exif_turns_the_image() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6                                     # shown turned a quarter clockwise
    found = decode_image(encoded(exif=exif.tobytes()), LIMITS, WHERE)
    assert (found == np.rot90(PIXELS, -1)).all()


def header(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG of a size without the pixels that it promises."""
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack('>I', len(data)) + name + data + struct.pack(
            '>I', zlib.crc32(name + data))
    head = struct.pack('>IIBBBBB', width, height, depth, colour, 0, 0, 0)
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head)
            + chunk(b'IDAT', zlib.compress(bytes(10))) + chunk(b'IEND', b''))


@pytest.mark.parametrize(('data', 'words'), [
    (b'', 'is no PNG, JPEG or WebP file (0 bytes)'),
    (b'GIF89a' + bytes(40), 'is no PNG, JPEG or WebP file (46 bytes)'),
    (encoded(kind='GIF'), 'is no PNG, JPEG or WebP file'),
    (bytes(4001), 'has 4,001 bytes, at most 4,000 are taken'),
    (header(60, 40), 'is 60 x 40, 2,400 pixels; at most 2,000 are taken'),
    (header(30000, 30000), 'more pixels than the 2,000 that are taken'),
    (header(90, 10), 'its sides stand 9 to 1, at most 8 to 1 is taken'),
    (header(20, 20), 'is a damaged image file'),
    (encoded()[:120], 'is a damaged image file'),
    (encoded(np.zeros((4, 4), np.uint16)), '8 bits a channel are taken'),
    (header(20, 20, 16), 'has 16 bits a channel: 8 are taken'),
    (header(20, 20, 16, 6), 'has 16 bits a channel: 8 are taken'),
])
def test_what_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_image(data, LIMITS, WHERE)
    assert caught.value.code is ErrorCode.INVALID_REQUEST and caught.value.param == WHERE
    assert caught.value.message.startswith(WHERE) and words in caught.value.message


# colour type, bits a channel, interlaced, bytes of all rows of 13 x 5 pixels
@pytest.mark.parametrize(('colour', 'depth', 'interlaced', 'size'), [
    (2, 8, 0, 200), (6, 8, 0, 265), (0, 1, 0, 15), (3, 4, 0, 40), (0, 8, 1, 76), (2, 8, 1, 206)])
def test_a_png_with_too_few_rows_is_refused(colour: int, depth: int, interlaced: int,
                                            size: int) -> None:
    """Its packed data are whole, so that a decoder has no reason to wait for more."""
    def file(count: int, parts: int) -> bytes:
        head = struct.pack('>IIBBBBB', 13, 5, depth, colour, 0, 0, interlaced)
        packed = zlib.compress(bytes(count))
        pieces = [(b'IHDR', head), (b'PLTE', bytes(48))] if colour == 3 else [(b'IHDR', head)]
        cuts = [part * len(packed) // parts for part in range(parts + 1)]
        pieces += [(b'IDAT', packed[start:end]) for start, end in itertools.pairwise(cuts)]
        return b'\x89PNG\r\n\x1a\n' + b''.join(
            struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name + data))
            for name, data in [*pieces, (b'IEND', b'')])
    for parts in (1, 3):
        assert decode_image(file(size, parts), LIMITS, WHERE).shape == (5, 13, 3)
        with pytest.raises(RequestError, match=f'a PNG with {size - 1} of the {size} bytes'):
            decode_image(file(size - 1, parts), LIMITS, WHERE)


def test_a_jpeg_of_many_scans_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a pass over all pixels for a few bytes: 300 kB of them took 43 s."""
    good = encoded(kind='JPEG', progressive=True)
    scans = [at for at in range(len(good)) if good[at:at + 2] == b'\xff\xda']
    assert 5 < len(scans) < 20
    again = good[scans[0]:scans[1]]                     # a later one anew would need more bits
    most = good[:scans[1]] + again * (MAX_SCANS - len(scans)) + good[scans[1]:]
    limits = ImageLimits(max_bytes=1 << 20, max_pixels=2000, max_ratio=8.0)
    assert decode_image(most, limits, WHERE).shape == (20, 30, 3)
    monkeypatch.setattr('PIL.ImageFile.ImageFile.load', lambda *_: pytest.fail('decoded'))
    with pytest.raises(RequestError, match='a JPEG file of 101 scans, at most 100 are taken'):
        decode_image(most[:scans[1]] + again + most[scans[1]:], limits, WHERE)


@pytest.mark.parametrize('options', [
    {}, {'progressive': True}, {'restart_marker_blocks': 3}, {'subsampling': 2, 'optimize': True},
    {'progressive': True, 'restart_marker_blocks': 7}])
@pytest.mark.parametrize('grey', [False, True])
def test_a_jpeg_whose_data_end_early_is_refused(options: dict[str, Any], grey: bool) -> None:
    """An end marker in the middle: the decoder only warns, and leaves the rest grey."""
    limits = ImageLimits(max_bytes=1 << 20, max_pixels=1 << 16, max_ratio=8.0)
    noise = np.random.default_rng(4).integers(0, 256, (90, 120, 3), np.uint8)
    pixels = noise[..., 0] if grey else noise
    for quality in (1, 60, 100):
        good = encoded(pixels, 'JPEG', quality=quality, **options)
        first = good.index(b'\xff\xda')
        scan = good.find(b'\xff\xc4', first)
        end = scan if scan > 0 else len(good) - 2        # of the first scan
        assert decode_image(good, limits, WHERE).shape == (90, 120, 3)
        assert decode_image(good[:-2] + b'\x00\x11' + good[-2:], limits, WHERE).shape[0] == 90
        cut = first + (end - first) * 2 // 3
        with pytest.raises(RequestError, match='a JPEG whose data end early, at least'):
            decode_image(good[:cut - (good[cut - 1] == 0xff)] + b'\xff\xd9', limits, WHERE)


def test_a_header_above_the_limits_is_refused_undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> None:
        raise AssertionError('decoded before it was checked')
    monkeypatch.setattr('PIL.ImageFile.ImageFile.load', load)
    for data in (header(60, 40), header(90, 10)):
        with pytest.raises(RequestError):
            decode_image(data, LIMITS, WHERE)
    with pytest.raises(AssertionError):                  # the check above can fail
        decode_image(encoded(), LIMITS, WHERE)


def seeds() -> list[bytes]:
    """Small files of many forms."""
    image = Image.fromarray(PIXELS)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, 'words'
    return [
        encoded(kind='JPEG', exif=exif.tobytes()), encoded(kind='JPEG', progressive=True),
        encoded(image.convert('CMYK'), 'JPEG'), encoded(exif=exif.tobytes()),
        encoded(image.convert('P'), transparency=3), encoded(image.convert('1')),
        encoded(image.convert('LA')), encoded(kind='WEBP', exif=exif.tobytes()),
        encoded(save_all=True, append_images=[image]),
        encoded(image.convert('RGBA'), 'WEBP'), encoded(kind='WEBP', save_all=True,
                                                        append_images=[image])]


@pytest.mark.filterwarnings('ignore::UserWarning')       # Pillow's, of damaged EXIF
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(seeds()), st.data())
def test_damage_is_an_error_with_a_sentence_or_an_image(seed: bytes, data: st.DataObject) -> None:
    good = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    try:
        found = decode_image(bytes(good[:cut] if cut % 3 == 0 else good), LIMITS, WHERE)
        assert found.dtype == np.uint8 and found.ndim == 3 and found.shape[2] == 3
    except RequestError as error:
        assert error.message.startswith(WHERE)


def url(data: bytes = b'abc', head: str = 'data:image/png;base64,') -> str:
    return head + base64.b64encode(data).decode()


def test_data_urls() -> None:
    assert read_data_url(url(), LIMITS, WHERE) == b'abc'
    assert read_data_url(url(head='DATA:image/png;name=a;BASE64,'), LIMITS, WHERE) == b'abc'
    assert len(read_data_url(url(bytes(4000)), LIMITS, WHERE)) == 4000


@pytest.mark.parametrize(('given_url', 'code', 'words'), [
    ('https://example.org/a.png', ErrorCode.UNSUPPORTED, "begins with 'https:'"),
    ('HTTP://example.org/a.png', ErrorCode.UNSUPPORTED, 'nothing is fetched'),
    ('file:///etc/passwd', ErrorCode.UNSUPPORTED, "'file:'"),
    ('abc', ErrorCode.UNSUPPORTED, "'abc'"),
    (7, ErrorCode.INVALID_REQUEST, 'must be a URL as text, found int'),
    ('data:image/png,abc', ErrorCode.INVALID_REQUEST, 'without ";base64,"'),
    ('data:image/png;base64', ErrorCode.INVALID_REQUEST, 'without ";base64,"'),
    ('data:image/png;base64,a$b=', ErrorCode.INVALID_REQUEST, 'holds no base64'),
    ('data:image/png;base64,YWJj\xe9', ErrorCode.INVALID_REQUEST, 'holds no base64'),
    (url(bytes(4500)), ErrorCode.INVALID_REQUEST, 'at most 4,000 are taken'),
])
def test_urls_that_are_refused(given_url: Any, code: ErrorCode, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_data_url(given_url, LIMITS, WHERE)
    assert caught.value.code is code and words in caught.value.message
