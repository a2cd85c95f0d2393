# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Answers under way in asyncio: wake-ups from the engine thread, server-sent events, clients that
go away or take nothing. Knows no OpenAI form.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gemma_thor_ros.chat_stream import ChatStream
from gemma_thor_ros.schema import ChatDelta, ChatResult

KEEP_ALIVE = ': keep-alive\n\n'


class Waker:
    """Wakes coroutines of one event loop from other threads: one call into the loop for all the
    streams that a step of the engine has fed.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def wake(self, callback: Callable[[], None]) -> None:
        """Have the loop call `callback`; from any thread."""
        self._woken.append(callback)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._woken.clear()

    def _run(self) -> None:
        self._scheduled = False  # before the look: what comes in from now on schedules anew
        while self._woken:
            self._woken.popleft()()


class Generation:
    """The answers to one HTTP request, one stream for each choice; for one coroutine.

    `on_step(seconds, tokens)` hears of each step after a choice's first.
    """

    def __init__(
        self,
        streams: Sequence[ChatStream],
        waker: Waker,
        on_step: Callable[[float, int], None] | None = None,
    ) -> None:
        self.streams = tuple(streams)
        self.done = False  # every stream has given its last delta
        self._on_step = on_step
        self._last = [0.0] * len(self.streams)
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[bool] | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._news = True  # something may wait in the streams
        self._left = False  # nobody reads any more
        self._open = list(range(len(self.streams)))
        for stream in self.streams:
            stream.on_ready(lambda: waker.wake(self._wake))

    async def next(self, timeout_s: float) -> list[tuple[int, ChatDelta]]:
        """Return the new deltas with their choice; none after `timeout_s` without any, and at the
        end.
        """
        while True:
            if self._news:
                self._news = False  # before the look: what comes in from now on wakes anew
                deltas = self._poll()
                if deltas or self.done:
                    return deltas
            if not self._news and not await self._wait(timeout_s):
                return []

    def ended(self) -> list[int]:
        """Return the choices that have ended since the last call."""
        ended = [choice for choice in self._open if self.streams[choice].done]
        for choice in ended:
            self._open.remove(choice)
        return ended

    def results(self) -> list[ChatResult]:
        """Return the results of a generation that is done."""
        return [stream.result(0.0) for stream in self.streams]

    def cancel(self) -> None:
        """End all choices at the next step border. What they still say is read and dropped: their
        ends have to be known to figures, audit and topics.
        """
        for stream in self.streams:
            if not stream.done:
                stream.cancel()
        self._left = True
        self._poll()

    def _poll(self) -> list[tuple[int, ChatDelta]]:
        deltas = []
        self.done = True
        for choice, stream in enumerate(self.streams):
            if stream.done:
                continue
            for delta in stream.poll():
                deltas.append((choice, delta))
                if self._on_step is not None and delta.token_ids and not self._left:
                    now = time.monotonic()
                    if self._last[choice]:
                        self._on_step(now - self._last[choice], len(delta.token_ids))
                    self._last[choice] = now
            self.done = self.done and stream.done
        if self.done and self._timer is not None:
            self._timer.cancel()
        return deltas

    async def _wait(self, timeout_s: float) -> bool:
        """Wait for news; False when the time ran out."""
        self._until = self._loop.time() + timeout_s
        self._waiting = self._loop.create_future()
        if self._timer is None:
            self._timer = self._loop.call_at(self._until, self._tick)
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def _tick(self) -> None:
        """End a wait that took too long. One timer runs over many waits: a step is no reason to
        make a new one.
        """
        self._timer = None
        if self._waiting is None:
            return
        if self._loop.time() >= self._until:
            self._settle(False)
        else:
            self._timer = self._loop.call_at(self._until, self._tick)

    def _wake(self) -> None:
        if self._left:
            self._poll()
        self._news = True
        self._settle(True)

    def _settle(self, news: bool) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(news)


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())['type'] != 'http.disconnect':
        pass


async def race(
    work: Coroutine[Any, Any, Any],
    cancel: Callable[[], Any],
    *ends: Coroutine[Any, Any, None],
) -> Any:
    """Return what `work` gives; when one of `ends` comes first, cancel both and return None."""
    task = asyncio.ensure_future(work)
    others = [asyncio.ensure_future(end) for end in ends]
    try:
        await asyncio.wait({task, *others}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        if not task.done():
            cancel()
            task.cancel()
        for other in others:
            other.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)


class EventStream(Response):
    """Server-sent events. When the client goes away, or takes nothing for `write_timeout_s`,
    `cancel` is called and the source is closed.
    """

    media_type = 'text/event-stream'

    def __init__(
        self, events: AsyncIterator[str], cancel: Callable[[], Any], write_timeout_s: float
    ) -> None:
        super().__init__(headers={'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no'})
        del self.headers['content-length']
        self._events = events
        self._cancel = cancel
        self._timeout_s = write_timeout_s
        self._sending_since = 0.0  # 0 = no send is under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await race(
                self._pump(send), self._cancel, until_disconnect(receive), self._until_stalled()
            )
        except OSError:  # the connection broke while sending
            self._cancel()

    async def _pump(self, send: Send) -> None:
        await send({'type': 'http.response.start', 'status': 200, 'headers': self.raw_headers})
        async for event in self._events:
            await self._send(send, event.encode(), True)
        await self._send(send, b'', False)

    async def _send(self, send: Send, body: bytes, more: bool) -> None:
        message: Message = {'type': 'http.response.body', 'body': body, 'more_body': more}
        self._sending_since = time.monotonic()
        await send(message)
        self._sending_since = 0.0

    async def _until_stalled(self) -> None:
        """Return when a send has been waiting for too long."""
        while True:
            await asyncio.sleep(self._timeout_s / 4)
            since = self._sending_since
            if since and time.monotonic() - since > self._timeout_s:
                return
