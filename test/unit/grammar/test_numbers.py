# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Expressions of number ranges against decimal arithmetic, and against float64's rounding."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.text.grammar_numbers import (
    ANY_INTEGER,
    ANY_NUMBER,
    EVERYTHING,
    Range,
    integer_regex,
    number_regex,
)

BOUNDS = st.none() | st.decimals(-10_000, 10_000, places=3) | st.integers(-300, 300).map(Decimal)
STEPS = tuple(map(Decimal, ('0', '1', '-1', '0.1', '-0.1', '0.001', '-0.001', '0.5', '1E-7',
                            '-1E-7', '9', '-9')))


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    low, high = draw(BOUNDS), draw(BOUNDS)
    if low is not None and high is not None and low > high:
        low, high = high, low
    return Range(low, high, draw(st.booleans()), draw(st.booleans()))


def spellings(numbers: Range, seed: int) -> set[str]:
    """Numbers at the bounds, near them, and anywhere."""
    rng = random.Random(seed)
    values = [bound + step for bound in (numbers.low, numbers.high, Decimal(0), Decimal(100))
              if bound is not None for step in STEPS]
    values += [Decimal(rng.randint(-10 ** 6, 10 ** 6)) / 10 ** rng.randint(0, 4)
               for _ in range(60)]
    return {format(value, 'f') for value in values}


def inside(numbers: Range, value: Decimal) -> bool:
    low, high = numbers.low, numbers.high
    above = low is None or value > low or (value == low and not numbers.low_open)
    below = high is None or value < high or (value == high and not numbers.high_open)
    return above and below


@settings(deadline=None, max_examples=300)
@given(ranges(), st.integers(0, 99))
def test_an_expression_has_the_numbers_of_its_range(numbers: Range, seed: int) -> None:
    for regex, whole in ((integer_regex(numbers), True), (number_regex(numbers), False)):
        pattern = re.compile(regex) if regex is not None else None
        for text in spellings(numbers, seed):
            if whole and ('.' in text or text == '-0'):
                continue
            matched = bool(pattern and pattern.fullmatch(text))
            assert matched == inside(numbers, Decimal(text)), (regex, text)
            if matched:
                assert numbers.holds(json.loads(text))


@settings(deadline=None, max_examples=200)
@given(ranges(), st.integers(0, 10 ** 9))
def test_no_spelling_rounds_over_an_open_bound(numbers: Range, seed: int) -> None:
    """With as many digits as are let through, next to the bound."""
    regex = number_regex(numbers)
    if regex is None:
        return
    rng = random.Random(seed)
    for bound in (numbers.low, numbers.high):
        if bound is None:
            continue
        for digits in range(4, 18):
            for sign in (1, -1):
                text = format(bound + sign * Decimal(rng.randint(1, 9)).scaleb(-digits), 'f')
                if re.fullmatch(regex, text):
                    value = float(text)
                    assert numbers.low is None or not numbers.low_open \
                        or value > float(numbers.low)
                    assert numbers.high is None or not numbers.high_open \
                        or value < float(numbers.high)


@pytest.mark.parametrize('text', ['0', '-0', '12', '-12', '1.50', '0.000000000000001',
                                  '999999999999999', '1e5', '1E-07', '-2.5e+10'])
def test_numbers_without_bounds_are_those_of_json(text: str) -> None:
    assert re.fullmatch(ANY_NUMBER, text)
    assert number_regex(EVERYTHING) == ANY_NUMBER
    assert integer_regex(EVERYTHING) == ANY_INTEGER


@pytest.mark.parametrize('text', ['01', '.5', '1.', '+1', '1e', '1' * 16, '1e999', '--1', '',
                                  'NaN', 'Infinity', '0x1', '1' + '.' + '1' * 16])
def test_others_are_none_and_none_goes_on_for_ever(text: str) -> None:
    assert not re.fullmatch(ANY_NUMBER, text)


def test_empty_ranges() -> None:
    one = Decimal(1)
    assert integer_regex(Range(Decimal('0.2'), Decimal('0.8'))) is None
    assert integer_regex(Range(one, one, low_open=True)) is None
    assert number_regex(Range(one, one, high_open=True)) is None
    assert number_regex(Range(one, one)) is not None


def test_ranges_tighten_each_other() -> None:
    outer, inner = Range(Decimal(0), Decimal(5), True, False), Range(Decimal(0), Decimal(4))
    assert outer.within(inner) == Range(Decimal(0), Decimal(4), True, False)
    assert outer.within(EVERYTHING) == outer == EVERYTHING.within(outer)
    assert outer.within(Range(Decimal(2))).integers() == (2, 5)


def test_large_bounds_keep_their_digits() -> None:
    regex = integer_regex(Range(Decimal(0), Decimal(2 ** 63 - 1)))
    assert regex is not None
    for text, fits in ((str(2 ** 63 - 1), True), (str(2 ** 63), False), ('9' * 18, True)):
        assert bool(re.fullmatch(regex, text)) == fits
    least = [Decimal(10) ** k for k in range(0, 25, 4)]
    for low, _ in pairwise(least):
        open_end = integer_regex(Range(low=low))
        assert open_end is not None
        assert re.fullmatch(open_end, str(int(low)))
        assert re.fullmatch(open_end, str(int(low) + 7))
