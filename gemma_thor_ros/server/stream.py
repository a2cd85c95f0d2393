# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A chat stream in asyncio: wake-ups from the engine thread, server-sent events, clients that go
away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gemma_thor_ros.chat_stream import ChatStream
from gemma_thor_ros.schema import ChatDelta


class AsyncStream:
    """The deltas of one ChatStream for a coroutine."""

    def __init__(self, stream: ChatStream) -> None:
        self.stream = stream
        self._ready = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._ready.set)

        stream.on_ready(wake)

    async def next(self, timeout_s: float) -> list[ChatDelta]:
        """Return the new deltas; an empty list after `timeout_s` without any or at the end."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            self._ready.clear()
            deltas = self.stream.poll()
            if deltas or self.stream.done:
                return deltas
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return []
            try:
                await asyncio.wait_for(self._ready.wait(), left)
            except TimeoutError:
                return []


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())['type'] != 'http.disconnect':
        pass


async def race(work: Awaitable[Any], receive: Receive, cancel: Callable[[], Any]) -> Any:
    """Return what `work` gives; when the client goes away first, cancel both and return None."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        if not task.done():
            cancel()
            task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream(Response):
    """Server-sent events; when the client goes away the source is closed and `cancel` is
    called.
    """

    media_type = 'text/event-stream'

    def __init__(
        self, events: AsyncIterator[str], cancel: Callable[[], Any], headers: dict[str, str]
    ) -> None:
        super().__init__(
            headers={'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no', **headers}
        )
        del self.headers['content-length']
        self._events = events
        self._cancel = cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({'type': 'http.response.start', 'status': 200, 'headers': self.raw_headers})

        async def pump() -> None:
            async for event in self._events:
                await send(
                    {'type': 'http.response.body', 'body': event.encode(), 'more_body': True}
                )
            await send({'type': 'http.response.body', 'body': b'', 'more_body': False})

        try:
            await race(pump(), receive, self._cancel)
        except OSError:  # the connection broke while sending
            self._cancel()
