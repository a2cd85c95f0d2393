# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Images of messages on their way into a prompt: read, counted, placed; and what is refused."""

from __future__ import annotations

import base64
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gemma_thor_ros import prompt_images
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.prompt_images import ImageReader, Prompt, VisionInfo, with_soft_tokens
from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.prompt import render, render_with_media
from gemma_thor_ros.text.segments import encode_segments
from gemma_thor_ros.text.tokenizer import Tokenizer

TOWER = VisionInfo(16, 70)


def url(seed: int = 0, height: int = 60, width: int = 90) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, 'PNG')
    return 'data:image/png;base64,' + base64.b64encode(out.getvalue()).decode()


def image(seed: int = 0, **fields: Any) -> dict[str, Any]:
    return {'type': 'image_url', 'image_url': {'url': url(seed), **fields}}


def text(words: str) -> dict[str, Any]:
    return {'type': 'text', 'text': words}


def user(*parts: Any) -> dict[str, Any]:
    return {'role': 'user', 'content': list(parts)}


def reader(vision: VisionInfo = TOWER, **settings: Any) -> ImageReader:
    return ImageReader(EngineConfig.from_mapping(
        {name.replace('__', '.'): value for name, value in settings.items()}), vision)


def prompt_of(messages: list[dict[str, Any]], **options: Any) -> Prompt:
    read = reader().read(messages, len(messages))
    return with_soft_tokens(*render_with_media(read, **options))


def test_an_image_becomes_opener_soft_tokens_and_closer() -> None:
    tokenizer = Tokenizer.from_folder(DEMO_FOLDER)
    messages = [user(text('before'), image(1), text('after'), image(2))]
    prompt = prompt_of(messages)
    ids = encode_segments(prompt.segments, tokenizer)
    controls = tokenizer.controls
    whole = encode_segments(render(messages), tokenizer)
    for shown in (60, 60):
        at = whole.index(controls.image)
        whole[at:at + 1] = [controls.image_begin, *[-1] * shown, controls.image_end]
    assert [controls.image if each == -1 else each for each in whole] == ids
    placed = prompt.placed(ids, controls.image)
    assert [(each.num_tokens, each.columns) for each in placed] == [(60, 30), (60, 30)]
    for each in placed:
        assert ids[each.start - 1] == controls.image_begin and ids[each.stop] == controls.image_end
        assert set(ids[each.start:each.stop]) == {controls.image}
    assert [each.digest for each in placed] == [each.digest for each in prompt.images]
    assert placed[0].digest != placed[1].digest


def test_images_follow_their_tokens_where_the_template_moves_messages() -> None:
    """A late tool result is rendered behind its call, before the user's own image."""
    calls = [{'id': name, 'type': 'function', 'function': {'name': name, 'arguments': {}}}
             for name in ('look', 'see')]
    messages: list[dict[str, Any]] = [
        user(text('look')), {'role': 'assistant', 'content': None, 'tool_calls': calls},
        {'role': 'tool', 'tool_call_id': 'see', 'content': [text('see'), image(5)]},
        {'role': 'tool', 'tool_call_id': 'look', 'content': [text('look'), image(6)]},
        user(image(7))]
    alone = {seed: prompt_of([user(image(seed))]).images[0].digest for seed in (5, 6, 7)}
    assert [each.digest for each in prompt_of(messages).images] == [
        alone[5], alone[6], alone[7]]
    late = [messages[0], messages[1], messages[2], messages[4], messages[3]]
    assert [each.digest for each in prompt_of(late).images] == [alone[5], alone[6], alone[7]]


@pytest.mark.parametrize('part', [
    {'type': 'image_url', 'image_url': url(3)}, {'type': 'image', 'image_url': url(3)},
    {'type': 'input_image', 'image_url': url(3), 'detail': 'auto'}, image(3, detail='high')])
def test_forms_of_an_image_part(part: dict[str, Any]) -> None:
    assert prompt_of([user(part)]).images[0].digest == prompt_of([user(image(3))]).images[0].digest


def test_detail_low_takes_the_least_tokens() -> None:
    wide = reader(VisionInfo(16, 1120))
    counts = [wide.read([user(image(1, detail=detail))], 1)[0]['content'][0]['prepared'].num_tokens
              for detail in ('low', 'auto', 'high', 'original')]
    assert counts[0] <= 70 and counts[1] == counts[2] == counts[3] > 1000


@pytest.mark.parametrize(('messages', 'num_new', 'words'), [
    ([user(image(detail='most'))], 1, "messages[0].content[0]: detail is 'most', allowed are"),
    ([user(text('x'), {'type': 'image'})], 1, 'messages[0].content[1] has no image_url: images'),
    ([user(text('x'), {'type': 'image', 'image_url': 7})], 1,
     'messages[0].content[1].image_url must be a URL'),
    ([user(text('x')), user({'type': 'image_url', 'image_url': {'url': 'https://a/b.png'}})], 2,
     "messages[1].content[0].image_url.url begins with 'https:'"),
    ([user(text('x')), user({'type': 'image_url', 'image_url': {'url': 'http://a'}})], 1,
     "messages[0].content[0].image_url.url begins with 'http:'"),
    ([user({'type': 'image_url', 'image_url': 'x'}), user(text('x'))], 1, 'history[0].content[0]'),
    ([user({'type': 'image_url', 'image_url': 'data:image/png;base64,QUJD'})], 1,
     'is no PNG, JPEG or WebP file (3 bytes)'),
])
def test_images_that_are_refused(messages: list[Any], num_new: int, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        reader().read(messages, num_new)
    assert words in caught.value.message


def test_limits_are_settings() -> None:
    for settings, words in (
            ({'image__max_ratio': 1.2}, 'its sides stand 1.5 to 1, at most 1.2 to 1'),
            ({'request__max_images': 1}, 'messages: 2 images, history included; at most 1')):
        with pytest.raises(RequestError, match=words) as caught:
            reader(**settings).read([user(image(1)), user(image(2))], 1)
        assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert len(reader(request__max_images=2).read([user(image(1)), user(image(2))], 1)) == 2


def test_prepared_images_are_kept_as_far_as_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    right = prompt_images.decode_image
    monkeypatch.setattr(prompt_images, 'decode_image', lambda *args: decoded.append(1) or right(
        *args))
    one = reader()
    for seed in (1, 2, 1, 2):
        one.read([user(image(seed))], 1)
    assert len(decoded) == 2
    one.read([user(image(1, detail='low'))], 1)          # as many tokens here: the same budget
    assert len(decoded) == 2
    monkeypatch.setattr(prompt_images, 'KEPT_BYTES', 1)
    small = reader()
    for seed in (1, 2, 2, 1):
        small.read([user(image(seed))], 1)
    assert len(decoded) == 2 + 3


def test_few_images_are_decoded_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    right, lock = prompt_images.decode_image, threading.Lock()
    now, most = [0], [0]

    def slow(*args: Any) -> Any:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        found = right(*args)
        with lock:
            now[0] -= 1
        return found
    monkeypatch.setattr(prompt_images, 'decode_image', slow)
    one = reader()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda seed: one.read([user(image(seed))], 1), range(6)))
    assert most[0] == 2


def test_messages_without_images_stay_as_they_are() -> None:
    messages = [user(text('x')), {'role': 'assistant', 'content': 'y'}]
    assert reader().read(messages, 1) == messages
    prompt = with_soft_tokens(*render_with_media(messages))
    assert prompt.images == () and prompt.segments == render(messages)


def test_text_that_looks_like_an_image_token_stays_text() -> None:
    tokenizer = Tokenizer.from_folder(DEMO_FOLDER)
    prompt = prompt_of([user(text('<|image|><|image>'), image(1))])
    ids = encode_segments(prompt.segments, tokenizer)
    (placed,) = prompt.placed(ids, tokenizer.controls.image)
    assert ids.count(tokenizer.controls.image) == placed.num_tokens == 60
