# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Deltas of one request -> TokenChunk messages: first token at once, then coalesced, nothing lost.

The same chunks go out on ~/tokens and as feedback of the chat action. Knows neither the action nor
the engine: it is given a function that publishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from builtin_interfaces.msg import Time
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

import gemma_thor_ros.msg as msg
from gemma_thor_ros.ros.answers import tool_call_delta_to_ros
from gemma_thor_ros.ros.conversions import ros_text
from gemma_thor_ros.schema import ChatDelta, ErrorCode, FinishReason

# A reader that asks for as much keeps every chunk of a burst; one with the default depth of 10
# keeps up with the default rate. Depth 10 here lost 1,784 of 2,000 messages of a burst.
TOKENS_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1000,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.VOLATILE,
)


class ChunkWriter:
    """Makes the chunks of one request; used by one thread at a time.

    Args:
        publish: takes each message as it is ready.
        rate: messages a second at most; read at each delta, so that a change acts at once. 0 = no
            coalescing.
        stamp: the node's present time.
        clock: steady seconds.
    """

    def __init__(
        self,
        request_id: str,
        session_id: str,
        publish: Callable[[msg.TokenChunk], None],
        rate: Callable[[], float],
        stamp: Callable[[], Time],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request_id = request_id
        self._session_id = session_id
        self._publish = publish
        self._rate = rate
        self._stamp = stamp
        self._clock = clock
        self._sequence = 0
        self._text_offset = 0
        self._reasoning_offset = 0
        self._round = 0
        self._held: list[ChatDelta] = []
        self._next_s = 0.0  # when the next message may go out

    def add(self, delta: ChatDelta, round_index: int) -> None:
        """Take what a request has produced; publish now if the rate allows, else hold it."""
        if self._held and round_index != self._round:
            self._send(self._chunk())
        self._round = round_index
        self._held.append(delta)
        self.flush_due()

    def due_s(self) -> float | None:
        """Return seconds until held content may go out; None when nothing is held."""
        return max(self._next_s - self._clock(), 0.0) if self._held else None

    def flush_due(self) -> None:
        """Publish held content if its time has come."""
        if self._held and self._clock() >= self._next_s:
            self._send(self._chunk())

    def finish(self, reason: FinishReason, code: ErrorCode = ErrorCode.NONE) -> None:
        """Publish the last message of the request, with whatever is still held."""
        chunk = self._chunk()
        chunk.last = True
        chunk.finish_reason = str(reason)
        chunk.error_code = int(code)
        self._send(chunk)

    def _chunk(self) -> msg.TokenChunk:
        held, self._held = self._held, []
        text = ros_text(''.join(delta.text for delta in held))
        reasoning = ros_text(''.join(delta.reasoning for delta in held))
        chunk = msg.TokenChunk(
            stamp=self._stamp(),
            request_id=self._request_id,
            session_id=self._session_id,
            round=self._round,
            sequence=self._sequence,
            text=text,
            text_offset=self._text_offset,
            reasoning=reasoning,
            reasoning_offset=self._reasoning_offset,
            tool_calls=[tool_call_delta_to_ros(c) for d in held for c in d.tool_calls],
            token_ids=[token_id for delta in held for token_id in delta.token_ids],
        )
        self._sequence += 1
        self._text_offset += len(text)
        self._reasoning_offset += len(reasoning)
        return chunk

    def _send(self, chunk: msg.TokenChunk) -> None:
        rate = self._rate()
        self._next_s = self._clock() + (1.0 / rate if rate > 0.0 else 0.0)
        self._publish(chunk)
