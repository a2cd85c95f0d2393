# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The demo tokenizer, and that training sees exactly what a server sends."""

from __future__ import annotations

import random

import pytest

from demo_model.dialogue import draw_dialogue
from demo_model.encode import Encoder
from demo_model.train_tokenizer import LOW, MEDIA, NEWLINE_ID, ROLE_WORDS, VOCAB_SIZE, train


@pytest.fixture(scope='module')
def encoder() -> Encoder:
    return Encoder()


def test_low_ids_are_the_released_ones(encoder: Encoder) -> None:
    tokenizer = encoder.tokenizer
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert {tokenizer.control_id(text): text for text in LOW.values()} == LOW
    assert [tokenizer.control_id(text) for text in MEDIA] == list(
        range(VOCAB_SIZE - len(MEDIA), VOCAB_SIZE))
    assert tokenizer.encode('\n') == [NEWLINE_ID]
    assert tokenizer.encode('\n\n\n') == [NEWLINE_ID + 2]
    assert tokenizer.encode('日') == [238 + byte for byte in '日'.encode()]


def test_role_words_are_one_token(encoder: Encoder) -> None:
    assert [word for word in ROLE_WORDS if len(encoder.tokenizer.encode(word)) != 1] == []


def test_blanks_digits_and_marks_stand_alone(encoder: Encoder) -> None:
    tokenizer = encoder.tokenizer
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode('go  12.50 m, "now"_x')]
    assert pieces[1:9] == [' ', ' ', '1', '2', '.', '5', '0', ' ']
    for piece in pieces:
        assert len(piece) == 1 or piece.isalpha()


@pytest.mark.parametrize('word', ['forward', 'zorblax', 'kitchen', 'Quendle'])
def test_a_word_is_the_same_anywhere(encoder: Encoder, word: str) -> None:
    ids = encoder.tokenizer.encode(word)
    for frame in (f' {word} ', f'"{word}"', f'1{word}2', f'{word}.'):
        found = encoder.tokenizer.encode(frame)
        assert ids == found[len(found) - len(ids) - len(frame.rpartition(word)[2]):][:len(ids)]


def test_training_prompts_are_the_served_ones(encoder: Encoder) -> None:
    for seed in range(300):
        dialogue = draw_dialogue(random.Random(seed))
        encoded = encoder.dialogue(dialogue)
        prompt = encoder.prompt(dialogue.messages[:-1], dialogue.tools, dialogue.thinking,
                                dialogue.variant)
        assert encoded.ids[:encoded.answer_start].tolist() == prompt
        assert encoded.learn[encoded.answer_start:].all()
        assert encoded.ids[-1] in (106, 50)


def test_only_model_turns_are_learnt(encoder: Encoder) -> None:
    for seed in range(200):
        dialogue = draw_dialogue(random.Random(seed))
        encoded = encoder.dialogue(dialogue)
        learnt = encoder.tokenizer.decode(encoded.ids[encoded.learn].tolist())
        assert '<|turn>' not in learnt
        assert '<tool_response|>' not in learnt
        assert 'declaration:' not in learnt


def test_tokenizer_training_is_a_function_of_its_seed() -> None:
    first, second = train(seed=2, dialogues=150), train(seed=2, dialogues=150)
    assert first == second
    assert len(first['model']['vocab']) == VOCAB_SIZE
