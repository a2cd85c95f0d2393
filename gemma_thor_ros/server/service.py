# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What all generating routes share: submit, stream or collect, cancel when the client has gone.

A `Form` writes the answers of one request in the words of its route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.chat_stream import ChatStream
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    ErrorCode,
    RequestError,
)
from gemma_thor_ros.server.errors import ModelNotFound
from gemma_thor_ros.server.stream import (
    KEEP_ALIVE,
    EventStream,
    Generation,
    Waker,
    race,
    until_disconnect,
)

_POLL_S = 60.0  # between looks at an answer that is wanted whole; each step wakes earlier
_GONE = 499


class Form(Protocol):
    """Writes one answer: server-sent events, or the whole body."""

    def begin(self) -> str:
        """Return the events to send at once."""

    def delta(self, choice: int, delta: ChatDelta) -> str:
        """Return the events of a step; '' when it shows nothing."""

    def finished(self, choice: int, result: ChatResult) -> str:
        """Return the events at the end of a choice."""

    def end(self, results: Sequence[ChatResult]) -> str:
        """Return the last events."""

    def failed(self, code: ErrorCode, message: str) -> str:
        """Return the last events of a stream that breaks off."""

    def collect(self, choice: int, delta: ChatDelta) -> None:
        """Take a step of an answer that is not streamed."""

    def whole(self, results: Sequence[ChatResult]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""


class Service:
    """The chat behind the routes, and how its answers reach HTTP clients."""

    def __init__(
        self,
        runtime: Runtime,
        config: EngineConfig,
        on_step: Callable[[float, int], None] | None = None,
    ) -> None:
        self.runtime = runtime
        self.config = config
        self.started = int(time.time())
        self._on_step = on_step
        self._waker: Waker | None = None

    def chat(self) -> Chat:
        """Return the chat.

        Raises:
            RequestError: NOT_READY with the reason.
        """
        return self.runtime.require_chat()

    def model(self, asked: str) -> str:
        """Return the served model's name, which the client may have left out.

        Raises:
            ModelNotFound: it asked for another one. RequestError: NOT_READY.
        """
        name = self.chat().model_info().name
        if asked and asked != name:
            raise ModelNotFound(asked, name)
        return name

    async def generate(
        self, requests: Sequence[ChatRequest], client: Request | None = None
    ) -> Generation:
        """Queue requests, all or none, and return their streams.

        `client` is what the requests came in; the audit names its address.

        Raises:
            RequestError: one of them can't run.
        """
        chat = self.chat()
        address = client.client.host if client is not None and client.client else ''
        streams: list[ChatStream] = []

        def submit() -> None:
            for request in requests:
                streams.append(chat.submit(replace(request, client=address)))

        if self._waker is None:
            self._waker = Waker()
        try:
            await asyncio.to_thread(submit)
        except BaseException:
            Generation(streams, self._waker).cancel()
            raise
        return Generation(streams, self._waker, self._on_step)

    async def answer(
        self, request: Request, generation: Generation, form: Form, stream: bool
    ) -> Response:
        """Return the HTTP answer of a generation.

        Raises:
            RequestError: it failed before anything of it was sent.
        """
        if stream:
            return EventStream(
                self._events(generation, form),
                generation.cancel,
                self.config['http.write_timeout'],
            )
        body = await race(
            self._whole(generation, form), generation.cancel, until_disconnect(request.receive)
        )
        return Response(status_code=_GONE) if body is None else JSONResponse(body)

    async def _whole(self, generation: Generation, form: Form) -> dict[str, Any]:
        while not generation.done:
            for choice, delta in await generation.next(_POLL_S):
                form.collect(choice, delta)
            for choice in generation.ended():
                result = generation.streams[choice].result(0.0)
                if _is_failure(result):
                    generation.cancel()
                    raise RequestError(result.code, result.message)
        return form.whole(generation.results())

    async def _events(self, generation: Generation, form: Form) -> AsyncIterator[str]:
        keep_alive_s = self.config['http.keep_alive']
        yield form.begin()
        sent = time.monotonic()
        while not generation.done:
            deltas = await generation.next(keep_alive_s)
            parts = [form.delta(choice, delta) for choice, delta in deltas]
            for choice in generation.ended():
                result = generation.streams[choice].result(0.0)
                if _is_failure(result):
                    generation.cancel()
                    yield ''.join(parts) + form.failed(result.code, result.message)
                    return
                parts.append(form.finished(choice, result))
            events = ''.join(parts)
            now = time.monotonic()
            if not events and now - sent >= 0.99 * keep_alive_s:
                events = KEEP_ALIVE
            if events:
                yield events
                sent = now
        yield form.end(generation.results())


def _is_failure(result: ChatResult) -> bool:
    # What a cancelled answer holds is given out: an operator or a barge-in ended it on purpose.
    return result.code not in (ErrorCode.NONE, ErrorCode.CANCELLED)

