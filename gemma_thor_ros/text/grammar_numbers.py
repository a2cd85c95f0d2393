# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers within bounds as regular expressions over their JSON spelling.

Lengths are bounded, so that no number goes on for ever, and so are the digits behind the point, so
that two different spellings on either side of a bound never round to one float64. Knows no schema
and no grammar.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import NamedTuple

_DIGITS = 15                       # decimal digits that float64 tells apart
_LARGEST = 10 ** _DIGITS - 1       # where a schema sets no bound
# Within these lengths a number can't become infinite: below 1e15 * 1e99.
ANY_NUMBER = r'-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+\-]?[0-9]{1,2})?'
ANY_INTEGER = r'-?(0|[1-9][0-9]{0,14})'


class Range(NamedTuple):
    """The numbers between two bounds; None is no bound, open leaves the bound itself out."""

    low: Decimal | None = None
    high: Decimal | None = None
    low_open: bool = False
    high_open: bool = False

    def within(self, other: Range) -> Range:
        """The numbers that are in both ranges."""
        low, low_open = _tighter((self.low, self.low_open), (other.low, other.low_open), 1)
        high, high_open = _tighter((self.high, self.high_open), (other.high, other.high_open), -1)
        return Range(low, high, low_open, high_open)

    def holds(self, number: float) -> bool:
        """Whether a number is in the range."""
        if not math.isfinite(number):
            return False
        value = Decimal(repr(number))
        above = self.low is None or value > self.low or (value == self.low and not self.low_open)
        return above and (self.high is None or value < self.high
                          or (value == self.high and not self.high_open))

    def integers(self) -> tuple[int | None, int | None]:
        """The least and the largest whole number in the range."""
        low = high = None
        if self.low is not None:
            low = int(self.low.to_integral_value('ROUND_CEILING'))
            low += self.low_open and low == self.low
        if self.high is not None:
            high = int(self.high.to_integral_value('ROUND_FLOOR'))
            high -= self.high_open and high == self.high
        return low, high


EVERYTHING = Range()


def integer_regex(numbers: Range) -> str | None:
    """Whole numbers of a range without point or exponent; None when there is none."""
    low, high = numbers.integers()
    if low is None and high is None:
        return ANY_INTEGER
    largest = max(_LARGEST, 10 * max(abs(low or 0), abs(high or 0)))
    low = -largest if low is None else low
    high = largest if high is None else high
    if low > high:
        return None
    parts = []
    if low < 0:
        parts.append(f'-({_whole(max(1, -high), -low)})')
    if high >= 0:
        parts.append(_whole(max(0, low), high))
    return _either(parts)


def number_regex(numbers: Range, max_fraction: int = _DIGITS) -> str | None:
    """Numbers of a range, with at most max_fraction digits behind the point; None when none."""
    low, high = numbers.low, numbers.high
    if low is None and high is None:
        if max_fraction >= _DIGITS:
            return ANY_NUMBER
        return ANY_INTEGER + (rf'(\.[0-9]{{1,{max_fraction}}})?' if max_fraction else '')
    whole_digits = max(len(str(abs(int(bound)))) for bound in (low, high) if bound is not None)
    num_digits = max(0, min(max_fraction, _DIGITS - whole_digits))
    largest = Decimal(max(_LARGEST, 10 ** (whole_digits + 1)))
    low = -largest if low is None else low
    high = largest if high is None else high
    zero = Decimal(0)
    parts = []
    if low < 0:
        below = (-high, numbers.high_open) if high <= 0 else (zero, False)
        parts += [f'-({part})' for part in
                  _decimals(below[0], below[1], -low, numbers.low_open, num_digits)]
    if high >= 0:
        above = (low, numbers.low_open) if low >= 0 else (zero, False)
        parts += _decimals(above[0], above[1], high, numbers.high_open, num_digits)
    return _either(parts) if parts else None


def _tighter(one: tuple[Decimal | None, bool], other: tuple[Decimal | None, bool],
             sign: int) -> tuple[Decimal | None, bool]:
    if one[0] is None or other[0] is None:
        return other if one[0] is None else one
    if one[0] == other[0]:
        return one[0], one[1] or other[1]
    return one if (one[0] - other[0]) * sign > 0 else other


def _whole(low: int, high: int) -> str:
    """Regular expression of the whole numbers 0 <= low .. high."""
    parts = []
    for length in range(len(str(low)), len(str(high)) + 1):
        least = max(low, 10 ** (length - 1) if length > 1 else 0)
        parts += _same_length(str(least), str(min(high, 10 ** length - 1)))
    return _either(parts)


def _same_length(low: str, high: str) -> list[str]:
    """Alternatives for the digit strings between two of the same length."""
    if not low:
        return ['']
    rest = len(low) - 1
    if low[1:] == '0' * rest and high[1:] == '9' * rest:
        return [_digit(low[0], high[0]) + _any_digits(rest, rest)]
    if low[0] == high[0]:
        return [low[0] + _group(_same_length(low[1:], high[1:]))]
    parts = [low[0] + _group(_same_length(low[1:], '9' * rest))]
    first, last = str(int(low[0]) + 1), str(int(high[0]) - 1)
    if first <= last:
        parts.append(_digit(first, last) + _any_digits(rest, rest))
    parts.append(high[0] + _group(_same_length('0' * rest, high[1:])))
    return parts


def _decimals(low: Decimal, low_open: bool, high: Decimal, high_open: bool,
              num_digits: int) -> list[str]:
    """Alternatives for the numbers between two non-negative bounds."""
    if low > high:
        return []
    (low_whole, low_digits), (high_whole, high_digits) = _split(low), _split(high)
    if low_whole == high_whole:
        return _with_fraction(str(low_whole),
                              _fraction(low_digits, low_open, high_digits, high_open, num_digits))
    parts = _with_fraction(str(low_whole), _fraction(low_digits, low_open, None, False,
                                                     num_digits))
    if high_whole - low_whole > 1:
        parts += _with_fraction(_group([_whole(low_whole + 1, high_whole - 1)]),
                                _fraction('', False, None, False, num_digits))
    return parts + _with_fraction(str(high_whole),
                                  _fraction('', False, high_digits, high_open, num_digits))


def _split(number: Decimal) -> tuple[int, str]:
    """Whole part, and the digits behind the point without zeros at the end."""
    whole = int(number)
    text = format(number - whole, 'f')
    return whole, text[2:].rstrip('0')


def _with_fraction(whole: str, fraction: tuple[bool, list[str]]) -> list[str]:
    may_be_empty, digits = fraction
    if not digits:
        return [whole] if may_be_empty else []
    return [rf'{whole}(\.{_group(digits)})' + ('?' if may_be_empty else '')]


def _fraction(low: str, low_open: bool, high: str | None, high_open: bool,
              room: int) -> tuple[bool, list[str]]:
    """Digit strings s of at most `room` digits with 0.low <= 0.s <= 0.high (None: below 1).

    Gives whether s may be empty, and alternatives for the others.
    """
    empty = not low and not low_open and not (high == '' and high_open)
    if high == '' and (low or low_open or high_open):
        return empty, []
    if room == 0:
        return empty, []
    if high is None and not low:
        if low_open:
            return False, [rf'0{{0,{room - 1}}}[1-9]' + _any_digits(0, room - 1)]
        return True, [_any_digits(1, room)]
    if high == '':
        return True, [f'0{{1,{room}}}']
    parts = []
    first, last = int(low[:1] or 0), int(high[:1]) if high else 9
    for digit in sorted({first, last} if high else {first}):
        if not first <= digit <= last:
            continue
        below = (low[1:], low_open) if digit == first else ('', False)
        above = (high[1:], high_open) if high and digit == last else (None, False)
        may_end, rest = _fraction(below[0], below[1], above[0], above[1], room - 1)
        if rest:
            parts.append(f'{digit}{_group(rest)}' + ('?' if may_end else ''))
        elif may_end:
            parts.append(str(digit))
    inner_last = last - 1 if high else 9
    if first + 1 <= inner_last:
        parts.append(_digit(str(first + 1), str(inner_last)) + _any_digits(0, room - 1))
    return empty, parts


def _digit(first: str, last: str) -> str:
    return first if first == last else f'[{first}-{last}]'


def _any_digits(least: int, most: int) -> str:
    if most == 0:
        return ''
    if (least, most) == (1, 1):
        return '[0-9]'
    return f'[0-9]{{{most}}}' if least == most else f'[0-9]{{{least},{most}}}'


def _group(parts: list[str]) -> str:
    if parts == ['']:
        return ''
    return f'({_either(parts)})'


def _either(parts: list[str]) -> str:
    return '|'.join(parts)
