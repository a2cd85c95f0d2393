# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Pieces to speak: where they are cut, what they say, and that they cover the text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.ros.sentences import FIRST_CHARS, MAX_CHARS, SentenceSplitter
from gemma_thor_ros.ros.spoken import spoken, tables


def pieces_of(text, size=0, **options):
    splitter = SentenceSplitter(**options)
    step = size or max(len(text), 1)
    pieces = []
    for start in range(0, len(text), step):
        pieces += splitter.push(text[start : start + step])
    return [*pieces, splitter.finish()]


def said(text):
    return [piece.text for piece in pieces_of(text) if piece.text]


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('Hello. I am here.', ['Hello.', 'I am here.']),
        ('Wait! Really? Yes.', ['Wait!', 'Really?', 'Yes.']),
        ('Dr. Smith, e.g. the one at St. Paul, agrees. Good.',
         ['Dr. Smith, e.g. the one at St. Paul,', 'agrees.', 'Good.']),
        ('J. R. Miller came. Fine.', ['J. R. Miller came.', 'Fine.']),
        ('It is at 5 p.m. The dock is free.', ['It is at 5 p.m.', 'The dock is free.']),
        ('At 5 p.m. tomorrow.', ['At 5 p.m. tomorrow.']),
        ('The U.S. Navy and a Ph.D. Student came. So did I.',
         ['The U.S. Navy and a Ph.D. Student came.', 'So did I.']),
        ('Version 3.5 is out. Ok.', ['Version 3.5 is out.', 'Ok.']),
        ('Well... let me see. Hm... Then go.', ['Well... let me see.', 'Hm...', 'Then go.']),
        ('He said "Stop." Then it did.', ['He said "Stop."', 'Then it did.']),
        ('First:\n1. Go left.\n2. Stop\n- a *big* box\n* [x] done',
         ['First:', '1. Go left.', '2. Stop', 'a big box', 'done']),
        ('# Plan\n\nGo **now**. Use `dock_id`!', ['Plan', 'Go now.', 'Use dock id!']),
        ('Look:\n```python\nprint(1.0)\n# no. no\n```\nDone.', ['Look:', 'Done.']),
        ('~~~\nopen code. Never said', []),
        ('| name | place |\n|---|:-:|\n| dock | hall |', ['name, place', 'dock, hall']),
        ('See [the map. Here](https://a.b/c) now.', ['See the map.', 'Here now.']),
        ('Go to https://example.org/a.b?c=d. Then stop.', ['Go to a link.', 'Then stop.']),
        ('> quoted words\n---\nend', ['quoted words', 'end']),
        ('好的。我去。', ['好的。', '我去。']),
        ('Great 🎉👍🏽 job ✔️!', ['Great job!']),
        ('<b>bold</b> and <br/> a <|tool_call> x', ['bold and a x']),
        ('', []),
        ('***\n\n ... \n', []),
    ],
)  # fmt: skip
def test_pieces(text, expected):
    assert said(text) == expected


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('It is 2.5 m away', 'It is 2.5 metres away'),
        ('1 m', '1 metre'),
        ('turn 90°', 'turn 90 degrees'),
        ('turn -90°, then +5 deg', 'turn minus 90 degrees, then plus 5 degrees'),
        ('0.5 m/s or 3 km/h', '0.5 metres per second or 3 kilometres per hour'),
        ('at 80%', 'at 80 percent'),
        ('$5, 1 €, £1,200.50', '5 dollars, 1 euro, 1,200.50 pounds'),
        ('21.5 °C', '21.5 degrees Celsius'),
        ('2-3 m, 2–3 boxes', '2 to 3 metres, 2 to 3 boxes'),
        ('9.8 m/s²', '9.8 metres per second squared'),
        ('3 * 4 = 12', '3 times 4 equals 12'),
        ('x < y and 5 > 4', 'x less than y and 5 more than 4'),
        ('~5 m, ±2 cm', 'about 5 metres, plus or minus 2 centimetres'),
        ('robot #3', 'robot number 3'),
        ('R2D2 and 3D and 5G', 'R2D2 and 3D and 5G'),
        ('a 5 mAh cell of 12 V', 'a 5 milliampere hours cell of 12 volts'),
        ('on 2024-05-01', 'on 2024-05-01'),
        ('salt & pepper', 'salt and pepper'),
        ('5 mice, 5 max', '5 mice, 5 max'),
    ],
)
def test_units_in_words(text, expected):
    assert spoken(text) == expected


@pytest.mark.parametrize(
    ('text', 'expected', 'as_written'),
    [
        ('2**3 is 8', '2 to the power of 3 is 8', '2^3 is 8'),
        ('x^2 and 2^{10}', 'x to the power of 2 and 2 to the power of 10', 'x^2 and 2^10'),
        ('10^-3 m', '10 to the power of minus 3 metres', '10^-3 m'),
        ('**Total** 2, **3**rd', 'Total 2, 3rd', 'Total 2, 3rd'),
        ('1[2] and 5`6`', '1 2 and 5 6', '1 2 and 5 6'),
        ('5~7', '5 to 7', '5 7'),
        ('3<4', '3 less than 4', '3 4'),
        ('$HOME_dir or ${TMP}', 'HOME dir or TMP', 'HOME dir or TMP'),
        ('R&amp;D, 1 &lt; 2', 'R and D, 1 less than 2', 'R&D, 1 2'),
        ('4 m3/h', '4 cubic metres per hour', '4 m3/h'),
        ('2-3 l/min', '2 to 3 litres per minute', '2-3 l/min'),
        ('1 N/m', '1 newton per metre', '1 N/m'),
        ('1.5e3 m', '1.5 times 10 to the power of 3 metres', '1.5e3 m'),
        ('2e-3 s', '2 times 10 to the power of minus 3 seconds', '2e-3 s'),
    ],
)  # fmt: skip
def test_no_number_is_changed(text, expected, as_written):
    assert spoken(text) == expected
    assert spoken(text, units=False) == as_written


@given(st.integers(0, 999), st.text('`*#<>[]{}~^´¨•', min_size=1, max_size=3),
       st.integers(0, 999), st.booleans())
@settings(max_examples=30, deadline=None)
def test_marks_between_two_numbers_never_make_one(left, marks, right, units):
    numbers = re.findall(r'\d+', spoken(f'at {left}{marks}{right} now', units=units))
    assert numbers in ([str(left), str(right)], [str(left)]), numbers


def test_units_can_be_left_as_they_are():
    assert spoken('**2,5 m** zu 80 % & $5', units=False) == '2,5 m zu 80 % & $5'


def test_the_first_piece_is_early():
    splitter = SentenceSplitter()
    text = 'I will drive to the kitchen now, and then I will look for the red cup'
    first = next(i for i in range(len(text)) if splitter.push(text[i]))
    assert text[: first + 1] == 'I will drive to the kitchen now, '


def test_a_number_stays_with_its_unit():
    text = 'word ' * 15 + 'and 12 m more words that go on'
    assert not any(piece.text.endswith('12') for piece in pieces_of(text))


def test_a_cut_answer_says_no_half_word_and_a_cancelled_one_nothing():
    splitter = SentenceSplitter()
    splitter.push('Go to the kit')
    assert splitter.finish(cut=True).text == 'Go to the'
    assert splitter.finish(silent=True).text == ''
    assert splitter.finish(silent=True).end == len('Go to the kit')


def test_a_round_ends_a_sentence():
    splitter = SentenceSplitter()
    assert splitter.push('I drive there') == []
    assert [p.text for p in splitter.end_round()] == ['I drive there']
    last = splitter.push('I am there. ') or [splitter.finish()]
    assert (last[0].text, last[0].start) == ('I am there.', len('I drive there'))


def test_the_documented_tables_are_those_of_the_code():
    page = Path(__file__).parents[3] / 'docs' / 'speech.md'
    assert tables() in page.read_text(encoding='utf-8')


WORDS = st.sampled_from([
    'go', 'Dr.', 'e.g.', '3.5', 'm', '5 m/s', '12', '90°', '%', '$5', '*bold*', '**b**', '`code`',
    '```', '~~~', '\n', '\n\n', '# ', '- ', '1. ', '| a | b |', '|---|', '[a](b)', '](', '[',
    'x_y', 'end.', 'wait...', '…', 'why?', '"no!"', '。', 'é', '🤖', '<b>', '<|turn>', '#', '^',
    '\\', '{', 'https://x.y/z.', ',', ':', ';', '\t', 'a' * 50,
])  # fmt: skip
TEXTS = st.one_of(
    st.lists(WORDS, max_size=60).map(' '.join), st.lists(WORDS, max_size=60).map(''.join),
    st.text(max_size=200),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 40))
def test_pieces_cover_the_text_whatever_it_is(text, size):
    pieces = pieces_of(text, size)
    assert pieces[0].start == 0 and pieces[-1].end == len(text)
    assert all(a.end == b.start for a, b in zip(pieces, pieces[1:], strict=False))
    assert all(piece.text and piece.end > piece.start for piece in pieces[:-1])
    assert pieces == pieces_of(text)  # however it came
    for piece in pieces:
        assert not re.search(r'[`*#<>|\[\]{}~^_\\\n\t\ufffd]', piece.text), piece
        assert piece.text == piece.text.strip()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text('abc', min_size=1, max_size=12), min_size=1, max_size=200))
def test_words_are_whole_and_pieces_short(words):
    pieces = [piece for piece in pieces_of(' '.join(words)) if piece.text]
    assert ' '.join(piece.text for piece in pieces) == ' '.join(words)
    assert len(pieces[0].text) <= FIRST_CHARS
    assert all(len(piece.text) <= MAX_CHARS for piece in pieces)
