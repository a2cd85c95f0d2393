# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The images of a ChatMessage: those it carries, and the newest ones of the topics it names.

A topic is subscribed to while a request waits for it and not longer, since a camera that nobody
needs costs a core. Runs in the request's thread; every wait is bounded.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import Any

from rclpy.action.server import RCLError
from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

import gemma_thor_ros.msg as msg
from gemma_thor_ros.chat import Chat, ModelInfo
from gemma_thor_ros.ros.conversions import duration_from_ros
from gemma_thor_ros.ros.images import (
    MAX_IMAGES,
    Picture,
    picture_from_compressed,
    picture_from_image,
)
from gemma_thor_ros.schema import ErrorCode, RequestError

FIND_S = 1.0                     # to find a topic's publisher and hear it, over the age limit
_NANO = 1e-9
_KINDS: dict[str, tuple[Any, Callable[[Any, str], Picture]]] = {
    'sensor_msgs/msg/Image': (Image, picture_from_image),
    'sensor_msgs/msg/CompressedImage': (CompressedImage, picture_from_compressed)}
# Best effort and volatile hears every kind of publisher.
_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)


class _Feed:
    """The images of one topic as they come."""

    def __init__(self, where: str, convert: Callable[[Any, str], Picture]) -> None:
        self.images: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._where = where
        self._convert = convert

    def picture(self, limit: float, max_age_s: float, age_of: Callable[[Any], float]) -> Picture:
        """Return the first image that is young enough; `limit` on the steady clock."""
        age_s = 0.0
        while True:
            try:
                image = self.images.get(timeout=max(limit - time.monotonic(), 1e-3))
            except queue.Empty:
                break
            age_s = age_of(image)
            if age_s <= max_age_s:
                return self._convert(image, self._where)
            if time.monotonic() > limit:
                break
        if age_s:
            raise _invalid(f'the images of {self._where} are too old: {age_s:.2f} s when they '
                           f'arrive, the limit is {max_age_s:g} s', self._where)
        raise _invalid(f'no image came on {self._where} within {max_age_s + FIND_S:g} s',
                       self._where)


class ImageSource:
    """Reads the images of messages. Safe to use from any thread but those that spin the node.

    Args:
        node: subscribes to the topics that clients name.
        max_age_s: the age limit of a message that names none.
        chat: gives the chat whose model is to see the images.
        group: of the subscriptions, whose callbacks only store.
    """

    def __init__(self, node: Node, max_age_s: Callable[[], float], chat: Callable[[], Chat],
                 group: CallbackGroup) -> None:
        self._node = node
        self._max_age_s = max_age_s
        self._chat = chat
        self._group = group

    def parts(self, message: msg.ChatMessage, where: str) -> list[dict[str, Any]]:
        """Return the content parts of a message's images, in the order of ChatMessage.msg.

        Raises:
            RequestError: INVALID_REQUEST for an image that can't be read or is too old,
                UNSUPPORTED when all could be read and the model takes none.
        """
        pictures = self._pictures(message, where)
        if pictures:
            self._check_model(pictures, where)
        return [picture.part() for picture in pictures]

    def _pictures(self, message: msg.ChatMessage, where: str) -> list[Picture]:
        topics = list(message.image_topics)
        count = len(message.images) + len(message.compressed_images) + len(topics)
        if count > MAX_IMAGES:
            raise _invalid(f'{where} has {count} images, at most {MAX_IMAGES} are taken', where)
        max_age_s = duration_from_ros(message.image_max_age, f'{where}.image_max_age')
        max_age_s = max_age_s or self._max_age_s()
        carried = [
            *(picture_from_image(image, f'{where}.images[{i}]')
              for i, image in enumerate(message.images)),
            *(picture_from_compressed(image, f'{where}.compressed_images[{i}]')
              for i, image in enumerate(message.compressed_images))]
        places = [f'{where}.image_topics[{i}]' for i in range(len(topics))]
        with contextlib.ExitStack() as subscriptions:
            # All at once, so that many topics take no longer than one.
            heard = [self._subscribe(*pair, subscriptions)
                     for pair in zip(topics, places, strict=True)]
            limit = time.monotonic() + max_age_s + FIND_S
            return carried + [feed.picture(limit, max_age_s, self._age_s) for feed in heard]

    def _subscribe(self, topic: str, where: str, subscriptions: contextlib.ExitStack) -> _Feed:
        name, kind = self._find(topic, where)
        message_class, convert = _KINDS[kind]
        feed = _Feed(f'{where} ({name})', convert)
        subscription = self._node.create_subscription(
            message_class, name, feed.images.put, _QOS, callback_group=self._group)
        subscriptions.callback(self._node.destroy_subscription, subscription)
        return feed

    def _find(self, topic: str, where: str) -> tuple[str, str]:
        """Return the resolved name and the type of a topic that is on the graph."""
        try:
            name = self._node.resolve_topic_name(topic)
        except RCLError as error:
            reason = str(error).splitlines()[0].partition(', at ')[0]
            raise _invalid(f'{where} is {topic[:100]!r}, which is no topic name: {reason}',
                           where) from error
        found = {info.topic_type for info in self._node.get_publishers_info_by_topic(name)}
        if not found:
            raise _invalid(f'{where} is {name}, which nobody publishes', where)
        if len(found) > 1 or not found <= set(_KINDS):
            raise _invalid(f'{where} is {name} of type {", ".join(sorted(found))}, taken are '
                           f'{" and ".join(_KINDS)}', where)
        return name, found.pop()

    def _age_s(self, image: Any) -> float:
        """Return how old an image is by its stamp; one without a stamp was sent just now."""
        stamp = image.header.stamp
        if not (stamp.sec or stamp.nanosec):
            return 0.0
        now = self._node.get_clock().now().nanoseconds
        return max(float(now * _NANO - (stamp.sec + stamp.nanosec * _NANO)), 0.0)

    def _check_model(self, pictures: list[Picture], where: str) -> None:
        info: ModelInfo = self._chat().model_info()
        refusal = info.vision.refusal
        if refusal is not None:
            sizes = ', '.join(f'{p.width} x {p.height}' for p in pictures)
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                f'{where} has images ({sizes} pixels): the model {info.name} takes text only'
                + (f' ({refusal})' if refusal else ''), where)


def _invalid(message: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, param)
