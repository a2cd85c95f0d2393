# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Answers of /v1/responses that a later request may go on with, in memory and bounded.

The least recently used ones go first. Used by the event loop's thread alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from gemma_thor_ros.server.openai_types import JsonObject
from gemma_thor_ros.server.response_types import ResponseOut
from gemma_thor_ros.server.words import dumps

MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Stored:
    """An answer and the whole conversation up to it, instructions left out."""

    response: ResponseOut
    messages: tuple[JsonObject, ...]
    num_bytes: int


class ResponseStore:
    """Stored answers by id. A conversation counts in full for each of its answers, though they
    share their messages: the true memory is below the bound.
    """

    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, Stored] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, response_id: str) -> Stored | None:
        """Return an answer, or None when it was never stored, deleted or pushed out."""
        entry = self._entries.get(response_id)
        if entry is not None:
            self._entries.move_to_end(response_id)
        return entry

    def put(
        self, response: ResponseOut, before: Stored | None, messages: Sequence[JsonObject]
    ) -> None:
        """Keep an answer: `messages` are what it adds to the conversation `before`."""
        earlier = before.messages if before is not None else ()
        size = len(dumps(list(messages))) + len(response.model_dump_json())
        size += before.num_bytes if before is not None else 0
        if size > self._max_bytes or not self._max_entries:
            return
        self._entries[response.id] = Stored(response, (*earlier, *messages), size)
        self.num_bytes += size
        while len(self._entries) > self._max_entries or self.num_bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= oldest.num_bytes

    def delete(self, response_id: str) -> bool:
        """Forget an answer; False when it is not there."""
        entry = self._entries.pop(response_id, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes
        return entry is not None
