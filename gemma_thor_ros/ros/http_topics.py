# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Answers of HTTP requests on ~/tokens, while they are written; only with ros.publish_http.

Looks on: the endpoint reads the stream, and each delta that it takes is shown here too. Knows
nothing of HTTP. HTTP is never spoken (~/sentences): the robot says what it was asked by voice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from builtin_interfaces.msg import Time

import gemma_thor_ros.msg as msg
from gemma_thor_ros.chat import Chat
from gemma_thor_ros.chat_stream import ChatStream
from gemma_thor_ros.ros.token_topic import ChunkWriter
from gemma_thor_ros.schema import ChatDelta, ChatRequest, ChatResult

_log = logging.getLogger(__name__)


class HttpTopics:
    """Shows a chat's HTTP answers.

    Args:
        publish: puts a chunk on ~/tokens.
        rate: messages a second and request at most.
        stamp: the node's present time.
    """

    def __init__(self, publish: Callable[[msg.TokenChunk], None], rate: Callable[[], float],
                 stamp: Callable[[], Time]) -> None:
        self._publish = publish
        self._rate = rate
        self._stamp = stamp

    def watch(self, chat: Chat) -> None:
        """Show the HTTP answers of a chat from now on."""
        chat.on_stream(self._begin)

    def _begin(self, request: ChatRequest, stream: ChatStream) -> None:
        if request.front_end != 'http':
            return
        writer = ChunkWriter(stream.request_id, request.session_id, self._publish, self._rate,
                             self._stamp)

        def show(deltas: Sequence[ChatDelta], result: ChatResult | None) -> None:
            try:
                for delta in deltas:
                    writer.add(delta, 0)
                if result is not None:
                    writer.finish(result.finish_reason, result.code)
            except Exception:  # noqa: BLE001 (who looks on must not break the answer)
                _log.exception('request %s could not be shown on ~/tokens', stream.request_id)

        stream.watch(show)
