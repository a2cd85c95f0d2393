# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Images of chat messages: read and prepared for the model, and their tokens in a prompt.

A rendered prompt has one image token for an image; here it becomes the opener, as many image
tokens as the image has soft tokens, and the closer. chat.py is the only user. Knows no engine.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.image.decode import ImageLimits, decode_image, read_data_url
from gemma_thor_ros.image.prepare import BUDGETS, PreparedImage, prepare_image
from gemma_thor_ros.schema import ErrorCode, PromptImage, RequestError
from gemma_thor_ros.text.controls import IMAGE, IMAGE_BEGIN, IMAGE_END
from gemma_thor_ros.text.segments import Segment
from gemma_thor_ros.validate import IMAGE_PARTS

# Prepared images that are kept, for the next turns of their conversations.
KEPT_BYTES = 64 << 20
# Images that are decoded at one time: a file of the largest size is 200 MB while it is open.
_AT_ONCE = 2
_DETAILS = ('auto', 'low', 'high', 'original')


@dataclass(frozen=True)
class VisionInfo:
    """What a model reads of an image; patch_side 0: nothing, for `reason` where there is one."""

    patch_side: int = 0          # pixels
    soft_tokens: int = 0         # of an image, at most
    reason: str = ''

    @property
    def refusal(self) -> str | None:
        """Why images are refused, '' without a special reason; None: they are taken."""
        return None if self.patch_side else self.reason


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt whose image tokens are as many as its images have soft tokens."""

    segments: list[Segment]
    images: tuple[PreparedImage, ...] = ()

    def placed(self, token_ids: Sequence[int], image_id: int) -> tuple[PromptImage, ...]:
        """The images with their places among the prompt's token ids."""
        placed, start = [], 0
        for image in self.images:
            # no text becomes this id: the next one is the first of this image
            start = token_ids.index(image_id, start)
            placed.append(PromptImage(start, image.num_tokens, image.digest, image.patches,
                                      image.columns))
            start += image.num_tokens
        return tuple(placed)


class ImageReader:
    """Reads the images of messages for one model; safe to use from any thread."""

    def __init__(self, config: EngineConfig, vision: VisionInfo) -> None:
        self._vision = vision
        self._max_images: int = config['request.max_images']
        self._limits = ImageLimits(config['image.max_bytes'] << 20,
                                   config['image.max_pixels'] << 20, config['image.max_ratio'])
        self._kept: OrderedDict[bytes, PreparedImage] = OrderedDict()     # last used last
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._decoding = threading.Semaphore(_AT_ONCE)

    def read(self, messages: Sequence[Mapping[str, Any]], num_new: int,
             ) -> list[Mapping[str, Any]]:
        """The messages with a PreparedImage in each image part, under 'prepared'.

        The last `num_new` of them are the request's, which errors count from 0. Raises
        RequestError for an image that can't be read, or one too many.
        """
        count = count_images(messages)
        if count > self._max_images:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f'messages: {count} images, history included; at most {self._max_images} are '
                'taken (request.max_images)', 'messages')
        if not count:
            return list(messages)
        first = len(messages) - num_new
        return [{**message, 'content': [
            self._read_part(part, f'{_place(index, first)}.content[{number}]')
            for number, part in enumerate(message['content'])]}
            if any(map(_is_image, _parts(message))) else message
            for index, message in enumerate(messages)]

    def fit(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Tell whether messages have no more images than a request may have."""
        return count_images(messages) <= self._max_images

    def _read_part(self, part: Any, where: str) -> Any:
        if not _is_image(part):
            return part
        given = part.get('image_url')
        nested = isinstance(given, Mapping)
        url = given.get('url') if isinstance(given, Mapping) else given
        detail = given.get('detail') if isinstance(given, Mapping) else part.get('detail')
        if detail not in (None, *_DETAILS):
            raise RequestError(ErrorCode.INVALID_REQUEST, f'{where}: detail is {detail!r}, '
                               f'allowed are {", ".join(_DETAILS)}', where)
        if given is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, f'{where} has no image_url: images are '
                               'taken as data URLs (data:image/png;base64,...)', where)
        where = f'{where}.image_url{".url" if nested else ""}'
        budget = min(BUDGETS) if detail == 'low' else self._vision.soft_tokens
        return {'type': 'image', 'prepared': self._prepared(url, budget, where)}

    def _prepared(self, url: Any, budget: int, where: str) -> PreparedImage:
        key = hashlib.sha256(f'{budget}:{url}'.encode('utf-8', 'surrogatepass')).digest()
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        data = read_data_url(url, self._limits, where)
        with self._decoding:
            image = prepare_image(decode_image(data, self._limits, where), budget,
                                  self._vision.patch_side)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = image
                self._num_bytes += image.patches.nbytes
            while self._num_bytes > KEPT_BYTES and len(self._kept) > 1:
                self._num_bytes -= self._kept.popitem(last=False)[1].patches.nbytes
        return image


def with_soft_tokens(segments: Sequence[Segment], media: Sequence[Mapping[str, Any]]) -> Prompt:
    """The prompt in which each image has its tokens; `media` in the order of its image tokens."""
    images = tuple(part['prepared'] for part in media)
    waiting = iter(images)
    expanded: list[Segment] = []
    for segment in segments:
        if segment == Segment(IMAGE, True):
            image = next(waiting)
            expanded.append(Segment(IMAGE_BEGIN, True))
            expanded += [segment] * image.num_tokens
            expanded.append(Segment(IMAGE_END, True))
        else:
            expanded.append(segment)
    assert next(waiting, None) is None, 'an image has no token'
    return Prompt(expanded, images)


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get('content')
    return content if isinstance(content, (list, tuple)) else ()


def count_images(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many images messages have."""
    return sum(_is_image(part) for message in messages for part in _parts(message))


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get('type') in IMAGE_PARTS


def _place(index: int, first: int) -> str:
    return f'messages[{index - first}]' if index >= first else f'history[{index}]'
