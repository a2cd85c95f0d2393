# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Images in prompts: what the engine refuses, where chunks and prefixes may end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.engine.admission import Limits, check_request
from gemma_thor_ros.engine.page_pool import PageManager
from gemma_thor_ros.engine.plan import choose_rows
from gemma_thor_ros.engine.prefix_cache import Trail
from gemma_thor_ros.engine.sequence import Sequence
from gemma_thor_ros.schema import ErrorCode, PromptImage, Request, RequestError, SamplingParams

LIMITS = Limits(100, 1000, (1,), (), max_image_tokens=70)


def pages() -> PageManager:
    return PageManager(page_size=8, num_sliding_pages=200, num_full_pages=200, window=24,
                       max_rows=1, max_chunk=70)


def image(start: int, num_tokens: int, name: bytes = b'a') -> PromptImage:
    return PromptImage(start, num_tokens, name * 32, None, 1)


def asked(num_prompt: int, *images: PromptImage) -> Request:
    return Request('it', (7,) * num_prompt, SamplingParams(max_tokens=4), images=images)


def test_images_in_their_places_are_taken() -> None:
    for images in ((), (image(0, 70),), (image(30, 70),), (image(1, 9), image(10, 3))):
        check_request(asked(100, *images), LIMITS, pages())


@pytest.mark.parametrize(('images', 'words'), [
    ((image(5, 71),), 'images is 71; it must be at least 1 and at most 70'),
    ((image(5, 0),), 'images is 0; it must be at least 1'),
    ((image(-1, 9),), 'has the positions -1 to 7; it must begin at 0 or later'),
    ((image(35, 6),), 'has the positions 35 to 40; it must begin at 0 or later, and the prompt '
                      'has 40 tokens'),
    ((image(3, 6), image(8, 6)), 'has the positions 8 to 13; it must begin at 9 or later'),
    ((image(20, 6), image(3, 6)), 'it must begin at 26 or later'),
])
def test_images_out_of_place_are_refused(images: tuple[PromptImage, ...], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        check_request(asked(40, *images), LIMITS, pages())
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_REQUEST, 'images')


def test_a_model_without_sight_refuses_them() -> None:
    with pytest.raises(RequestError, match='takes no images') as caught:
        check_request(asked(40, image(3, 6)), replace(LIMITS, max_image_tokens=0), pages())
    assert caught.value.code is ErrorCode.UNSUPPORTED


IMAGES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), max_size=4)


def placed(gaps: list[tuple[int, int]], tail: int) -> Request:
    images, end = [], 0
    for index, (gap, size) in enumerate(gaps):
        images.append(image(end + gap, size, bytes([index])))
        end += gap + size
    return asked(end + tail, *images)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(IMAGES, st.integers(1, 30)), min_size=1, max_size=4),
       st.integers(1, 30))
def test_chunks_cut_no_image_and_move_on(prompts: list[tuple[list[tuple[int, int]], int]],
                                         chunk: int) -> None:
    running = [Sequence(placed(gaps, tail), 0.0) for gaps, tail in prompts]
    for _ in range(1000):
        left = [each for each in running if each.num_committed < each.num_prompt]
        if not left:
            break
        chosen = choose_rows(left, chunk, 16)
        assert chosen and chosen[0][0] is left[0], 'the first in order waits'
        rows = [num_rows for _, num_rows in chosen]
        # more than a chunk only for an image that is longer, alone
        assert sum(rows) <= chunk or len(rows) == 1
        for sequence, num_rows in chosen:
            start, end = sequence.num_committed, sequence.num_committed + num_rows
            assert all(end <= each.start or end >= each.stop or end == start
                       for each in sequence.request.images), (start, end)
            sequence.num_committed = end
    assert all(each.num_committed == each.num_prompt for each in running)


@settings(max_examples=150, deadline=None)
@given(IMAGES, st.integers(1, 30), st.lists(st.integers(0, 100), max_size=4),
       st.integers(1, 5), st.integers(1, 8))
def test_checkpoints_lie_in_no_image(gaps: list[tuple[int, int]], tail: int, marks: list[int],
                                     interval: int, page_size: int) -> None:
    request = placed(gaps, tail)
    ids = np.array(request.prompt_ids, np.int32)
    trail = Trail(ids, '', [min(mark, ids.size) for mark in marks], page_size, interval,
                  request.images)
    for depth in trail.wanted:
        assert 0 < depth * page_size <= ids.size and trail.resumable(depth)
    for depth in range(ids.size // page_size + 1):
        inside = any(each.start < depth * page_size < each.stop for each in request.images)
        assert trail.resumable(depth) is not inside


def test_the_content_of_a_page_names_every_image_on_it() -> None:
    ids = np.full(40, 7, np.int32)

    def keys(*images: PromptImage) -> list[bytes]:
        trail = Trail(ids, '', (), 8, 1, images)
        return [trail.key(page) for page in range(5)]

    plain = keys()
    one = keys(image(10, 12))
    assert [a != b for a, b in zip(plain, one, strict=True)] == [False, True, True, False, False]
    other = keys(image(10, 12, b'b'))
    assert [a != b for a, b in zip(one, other, strict=True)] == [False, True, True, False, False]
    two = keys(image(10, 4), image(14, 8, b'b'))
    assert [a != b for a, b in zip(one, two, strict=True)] == [False, True, True, False, False]
    assert keys(image(8, 8)) != keys(image(8, 8, b'b'))
