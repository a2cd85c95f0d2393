# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Sentences of several requests at once, and what a barge-in learns of them."""

from __future__ import annotations

import pytest

pytest.importorskip('gemma_thor_ros.msg')

from gemma_thor_ros.msg import TokenChunk
from gemma_thor_ros.ros.speech import MAX_ANSWERS, SpeechWriter


@pytest.fixture
def sent():
    return []


@pytest.fixture
def writer(sent):
    return SpeechWriter(sent.append, lambda: True)


def feed(writer, request_id, *texts, reason='stop', code=0, rounds=None):
    for i, text in enumerate(texts):
        last = i == len(texts) - 1
        writer.take(
            TokenChunk(
                request_id=request_id, session_id='s', sequence=i, text=text, last=last,
                reasoning='never said', round=rounds[i] if rounds else 0,
                finish_reason=reason if last else '', error_code=code if last else 0,
            )
        )  # fmt: skip


def test_sentences_of_two_requests_do_not_mix(writer, sent):
    writer.take(TokenChunk(request_id='a', text='One. Tw'))
    feed(writer, 'b', 'Other. ', 'Answer.')
    writer.take(TokenChunk(request_id='a', sequence=1, text='o.', last=True))
    for request_id, texts in (('a', ['One.', 'Two.']), ('b', ['Other.', 'Answer.'])):
        of_it = [s for s in sent if s.request_id == request_id]
        assert [s.text for s in of_it] == texts
        assert [s.sequence for s in of_it] == [0, 1]
        assert [s.last for s in of_it] == [False, True]
        assert of_it[0].text_end == of_it[1].text_start


def test_rounds_part_sentences_and_offsets_run_on(writer, sent):
    feed(writer, 'a', 'I drive', ' there', 'Done', '', rounds=[0, 0, 1, 1])
    assert [(s.text, s.text_start, s.text_end) for s in sent] == [
        ('I drive there', 0, 13), ('Done', 13, 17),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ('reason', 'code', 'last'), [('length', 0, 'and the'), ('cancelled', 5, ''), ('error', 6, '')]
)
def test_what_is_said_at_an_early_end(writer, sent, reason, code, last):
    feed(writer, 'a', 'First. and the ha', reason=reason, code=code)
    assert [s.text for s in sent] == ['First.', last] and sent[-1].last
    assert sent[-1].text_end == len('First. and the ha')


def test_spoken_characters_of_sentences(writer, sent):
    feed(writer, 'a', 'One. Two. Three.')
    answer = writer.answer('a')
    assert [answer.characters(n, -1) for n in (0, 1, 2, 3, 9)] == [0, 5, 10, 16, 16]
    assert [answer.characters(-1, n) for n in (0, 7, 99)] == [0, 7, 16]
    assert answer.characters(-1, -1) is None
    assert writer.answer('unknown') is None


def test_old_answers_are_forgotten_and_running_ones_are_not(writer, sent):
    writer.take(TokenChunk(request_id='running', text='I go'))
    for i in range(MAX_ANSWERS + 5):
        feed(writer, f'r{i}', 'Hi.')
    assert writer.answer('r0') is None and writer.answer(f'r{MAX_ANSWERS + 4}') is not None
    writer.take(TokenChunk(request_id='running', sequence=1, text=' on.', last=True))
    assert sent[-1].text == 'I go on.'


def test_an_id_may_be_used_again(writer, sent):
    feed(writer, 'a', 'First answer.')
    feed(writer, 'a', 'Second.')
    assert writer.answer('a').text == 'Second.' and sent[-1].sequence == 0
