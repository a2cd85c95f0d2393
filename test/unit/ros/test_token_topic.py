# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Chunks of a request: rate, order, offsets, rounds, the last one. Needs the interfaces."""

from __future__ import annotations

import pytest

pytest.importorskip('gemma_thor_ros.msg')

from builtin_interfaces.msg import Time
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.ros.token_topic import TOKENS_QOS, ChunkWriter
from gemma_thor_ros.schema import ChatDelta, ErrorCode, FinishReason, ToolCallDelta


class Bench:
    """A writer with a hand-turned clock; `sent` holds (time, chunk)."""

    def __init__(self, rate: float = 20.0) -> None:
        self.now = 100.0
        self.rate = rate
        self.sent = []
        self.writer = ChunkWriter(
            'r', 's', lambda chunk: self.sent.append((self.now, chunk)), lambda: self.rate, Time,
            lambda: self.now,
        )


def delta(text='', reasoning='', ids=(), calls=()):
    return ChatDelta(0, text, reasoning, tuple(calls), tuple(ids))


def test_first_token_goes_out_at_once_and_the_next_wait_for_the_rate():
    bench = Bench(rate=20.0)
    bench.writer.add(delta('a', ids=[1]), 0)
    assert [chunk.text for _, chunk in bench.sent] == ['a']
    bench.now += 0.01
    bench.writer.add(delta('b', ids=[2]), 0)
    bench.writer.add(delta('c', ids=[3]), 0)
    assert len(bench.sent) == 1 and bench.writer.due_s() == pytest.approx(0.04)
    bench.now += bench.writer.due_s()
    bench.writer.flush_due()
    assert bench.sent[1][1].text == 'bc' and list(bench.sent[1][1].token_ids) == [2, 3]
    assert bench.writer.due_s() is None


def test_rate_zero_sends_every_delta():
    bench = Bench(rate=0.0)
    for _ in range(5):
        bench.writer.add(delta('x'), 0)
    assert len(bench.sent) == 5


def test_a_changed_rate_acts_at_the_next_message():
    bench = Bench(rate=1.0)
    bench.writer.add(delta('a'), 0)
    bench.rate = 1000.0
    bench.now += 1.0
    bench.writer.add(delta('b'), 0)
    bench.now += 0.002
    bench.writer.add(delta('c'), 0)
    assert len(bench.sent) == 3


def test_a_chunk_never_holds_two_rounds():
    bench = Bench(rate=1.0)
    bench.writer.add(delta('a'), 0)
    bench.writer.add(delta('b'), 0)
    bench.writer.add(delta('c'), 1)
    bench.writer.finish(FinishReason.STOP)
    assert [(c.round, c.text) for _, c in bench.sent] == [(0, 'a'), (0, 'b'), (1, 'c')]


def test_last_message_carries_what_was_held_and_how_it_ended():
    bench = Bench()
    bench.writer.add(delta('a'), 0)
    bench.writer.add(delta('b', calls=[ToolCallDelta(0, 'c1', 'drive', '{}')]), 0)
    bench.writer.finish(FinishReason.CANCELLED, ErrorCode.CANCELLED)
    last = bench.sent[-1][1]
    assert last.last and last.text == 'b' and last.finish_reason == 'cancelled'
    assert last.error_code == ErrorCode.CANCELLED and last.tool_calls[0].name == 'drive'
    assert not bench.sent[0][1].last and bench.sent[0][1].finish_reason == ''


def test_a_request_without_tokens_has_a_last_message_too():
    bench = Bench()
    bench.writer.finish(FinishReason.ERROR, ErrorCode.ENGINE)
    assert [(c.sequence, c.last, c.error_code) for _, c in bench.sent] == [(0, True, 10)]


TEXT = st.text(max_size=6)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(TEXT, TEXT, st.floats(0.0, 0.2), st.integers(0, 1)), max_size=30),
    st.sampled_from([0.0, 1.0, 20.0, 1000.0]),
)
def test_nothing_is_lost_whatever_the_pace(pieces, rate):
    bench = Bench(rate)
    round_index = 0
    for text, reasoning, pause, step in pieces:
        bench.now += pause
        bench.writer.flush_due()
        round_index += step
        bench.writer.add(delta(text, reasoning, [7]), round_index)
    bench.writer.finish(FinishReason.STOP)
    chunks = [chunk for _, chunk in bench.sent]
    assert [c.sequence for c in chunks] == list(range(len(chunks)))
    text = reasoning = ''
    for chunk in chunks:
        assert (chunk.text_offset, chunk.reasoning_offset) == (len(text), len(reasoning))
        text += chunk.text
        reasoning += chunk.reasoning
    plain = ''.join(p[0] for p in pieces)
    assert len(text) == len(plain) and sum(len(c.token_ids) for c in chunks) == len(pieces)
    assert [c.last for c in chunks] == [False] * (len(chunks) - 1) + [True]
    if rate:
        changes = sum(p[3] for p in pieces)
        span = bench.sent[-1][0] - 100.0
        # One at once, then the rate; a change of round and the end may come early.
        assert len(chunks) <= span * rate + 2 + changes + 1


def test_the_topic_keeps_a_burst():
    assert TOKENS_QOS.depth >= 1000
