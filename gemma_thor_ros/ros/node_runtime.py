# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The runtime as the HTTP endpoint may see it: closed while the node is not active.

HTTP shares the node's engine, so it shares its life: no chat before activate, and deactivate ends
what HTTP has running, as it does for ROS.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, cast

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.chat_stream import ChatStream
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ChatRequest, ErrorCode, RequestError


class NodeRuntime(Runtime):
    """A Runtime whose `require_chat` refuses until `open()` and after `close()`."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._open = False
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[ChatStream] = weakref.WeakSet()

    def require_chat(self) -> Chat:
        """Return the chat for HTTP; its requests end when the node is deactivated.

        Raises:
            RequestError: NOT_READY with the reason.
        """
        chat = super().require_chat()
        if not self._open:
            raise RequestError(ErrorCode.NOT_READY, 'the node is inactive: it has to be activated')
        return cast(Chat, _TrackedChat(chat, self))

    def node_chat(self) -> Chat:
        """Return the chat for the node itself, which keeps its own list of requests.

        Raises:
            RequestError: NOT_READY with the reason.
        """
        return super().require_chat()

    def open(self) -> None:
        """Serve requests from now on."""
        self._open = True

    def close(self) -> None:
        """Serve no more requests and end those under way."""
        self._open = False
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()

    def track(self, stream: ChatStream) -> None:
        """Remember a stream for `close`."""
        with self._lock:
            self._streams.add(stream)
        if not self._open:
            stream.cancel()


class _TrackedChat:
    """A Chat that tells the runtime about its streams."""

    def __init__(self, chat: Chat, runtime: NodeRuntime) -> None:
        self._chat = chat
        self._runtime = runtime

    def submit(self, request: ChatRequest) -> ChatStream:
        stream = self._chat.submit(request)
        self._runtime.track(stream)
        return stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)
