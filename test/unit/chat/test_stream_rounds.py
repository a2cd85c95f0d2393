# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Answers whose steps give several tokens read as if each had come alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gemma_thor_ros.chat_stream import ChatStream
from gemma_thor_ros.engine.outbox import Outbox
from gemma_thor_ros.load import DEMO_FOLDER
from gemma_thor_ros.schema import (
    ChatResult,
    FinishEvent,
    FinishReason,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from gemma_thor_ros.stops import StopFilter
from gemma_thor_ros.text.raw_output import RawOutput
from gemma_thor_ros.text.tokenizer import Tokenizer


@pytest.fixture(scope='module')
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(DEMO_FOLDER)


def read(tokenizer: Tokenizer, runs: Sequence[Sequence[int]], stops: Sequence[str],
         ) -> tuple[ChatResult, list[int], list[int], list[str]]:
    """The result, the ids and the logprobs' ids of all deltas, and the cancelled requests."""
    outbox = Outbox('r')
    cancelled: list[str] = []
    stream = ChatStream(outbox, RawOutput(tokenizer), StopFilter(stops),
                        lambda name: not cancelled.append(name), lambda result: None)
    for run in runs:
        outbox.put(TokenEvent(tuple(run), tuple(TokenLogprob(i, -1.0) for i in run)))
    count = sum(map(len, runs))
    outbox.put(FinishEvent(FinishReason.LENGTH, Usage(3, count, rounds=2)))
    deltas = stream.poll()
    ids = [i for delta in deltas for i in delta.token_ids]
    logprobs = [x.token_id for delta in deltas for x in delta.logprobs]
    return stream.result(), ids, logprobs, cancelled


def test_what_follows_a_stop_string_in_the_same_round_is_dropped(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode('Drive on. STOP and then some more words')
    single = read(tokenizer, [[i] for i in ids], ['STOP'])
    for size in (2, 3, 5, len(ids)):
        runs = [ids[start:start + size] for start in range(0, len(ids), size)]
        assert read(tokenizer, runs, ['STOP']) == single, size
    result, shown, logprobs, cancelled = single
    assert result.text == 'Drive on.' and result.finish_reason is FinishReason.STOP
    assert 0 < len(shown) < len(ids) and cancelled == ['r']
    assert shown == logprobs == list(result.token_ids) == ids[:len(shown)]
    assert result.usage.completion_tokens == len(shown)


def test_without_a_stop_string_all_of_a_round_counts(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode('Drive on. Go and then some more words')
    result, shown, logprobs, cancelled = read(tokenizer, [ids[:4], ids[4:]], ['STOP'])
    assert shown == logprobs == ids and not cancelled
    assert result.usage.completion_tokens == len(ids)
