# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""TokenChunks of running requests -> Sentence messages, and what has been sent for whom.

A barge-in asks here which characters its spoken sentences stand for, also when the answer is
whole. Knows no request and no session; where to cut is sentences.py's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import gemma_thor_ros.msg as msg
from gemma_thor_ros.ros.sentences import Piece, SentenceSplitter
from gemma_thor_ros.schema import ErrorCode, FinishReason

# Answers kept for a barge-in, running ones included, of which there are fewer.
MAX_ANSWERS = 256


@dataclass
class SpokenAnswer:
    """What has been sent of an answer; the text is that of all rounds."""

    session_id: str
    splitter: SentenceSplitter
    text: str = ''
    ends: list[int] = field(default_factory=list)
    round_index: int = 0
    done: bool = False

    def characters(self, sentences: int, characters: int) -> int | None:
        """Return how many characters were spoken; None when nobody says so.

        Args:
            sentences: pieces spoken to their end; negative = go by `characters`.
            characters: of the text; negative = not known. More than there are means all.
        """
        if sentences >= 0:
            spoken = self.ends[: min(sentences, len(self.ends))]
            return spoken[-1] if spoken else 0
        return min(characters, len(self.text)) if characters >= 0 else None


class SpeechWriter:
    """Publishes the sentences of all requests; safe to use from any thread.

    Args:
        publish: takes each message as it is ready.
        units: whether units are said in words; read at the start of each answer.
    """

    def __init__(self, publish: Callable[[msg.Sentence], None], units: Callable[[], bool]) -> None:
        self._publish = publish
        self._units = units
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, SpokenAnswer] = OrderedDict()

    def take(self, chunk: msg.TokenChunk) -> None:
        """Publish what a chunk completes; chunks of one request come from one thread."""
        answer = self._answer(chunk)
        if chunk.round != answer.round_index:
            answer.round_index = chunk.round
            self._send(chunk, answer, answer.splitter.end_round())
        answer.text += chunk.text
        self._send(chunk, answer, answer.splitter.push(chunk.text))
        if chunk.last:
            piece = answer.splitter.finish(
                cut=chunk.finish_reason == FinishReason.LENGTH,
                silent=chunk.error_code != ErrorCode.NONE,
            )
            self._send(chunk, answer, [piece], last=True)
            answer.done = True

    def answer(self, request_id: str) -> SpokenAnswer | None:
        """Return what was sent for a request, if it is not too long ago."""
        with self._lock:
            return self._answers.get(request_id)

    def _answer(self, chunk: msg.TokenChunk) -> SpokenAnswer:
        with self._lock:
            if chunk.sequence == 0:  # the id may have been used before
                self._forget_oldest()
                self._answers.pop(chunk.request_id, None)
                splitter = SentenceSplitter(units=self._units())
                self._answers[chunk.request_id] = SpokenAnswer(chunk.session_id, splitter)
            return self._answers[chunk.request_id]

    def _forget_oldest(self) -> None:
        if len(self._answers) >= MAX_ANSWERS:
            oldest = next((i for i, answer in self._answers.items() if answer.done), None)
            if oldest is not None:
                del self._answers[oldest]

    def _send(
        self, chunk: msg.TokenChunk, answer: SpokenAnswer, pieces: list[Piece], last: bool = False
    ) -> None:
        for piece in pieces:
            self._publish(
                msg.Sentence(
                    stamp=chunk.stamp,
                    request_id=chunk.request_id,
                    session_id=chunk.session_id,
                    sequence=len(answer.ends),
                    text=piece.text,
                    text_start=piece.start,
                    text_end=piece.end,
                    last=last,
                )
            )
            answer.ends.append(piece.end)
