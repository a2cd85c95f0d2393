# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers and quantities as people say and type them, with the number that is meant.

The numbers with two and more digits are split in two by a checksum of their text: `held=True` draws
only from those that training never sees.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from demo_model.phrasing import TrainDraws, pick

Number = int | float

_ONES = (
    'zero',
    'one',
    'two',
    'three',
    'four',
    'five',
    'six',
    'seven',
    'eight',
    'nine',
    'ten',
    'eleven',
    'twelve',
    'thirteen',
    'fourteen',
    'fifteen',
    'sixteen',
    'seventeen',
    'eighteen',
    'nineteen',
)
_TENS = ('', '', 'twenty', 'thirty', 'forty', 'fifty', 'sixty', 'seventy', 'eighty', 'ninety')


def is_held(text: str) -> bool:
    """Whether a number of two and more digits is kept out of training (1 of 8)."""
    return sum(char.isdigit() for char in text) >= 2 and zlib.crc32(text.encode()) % 8 == 0


def spell(value: int, rng: random.Random, inner: bool = False) -> str:
    """An integer from 0 to 9999 in words; `inner`: thousands stand before it."""
    if value < 20:
        return _ONES[value]
    if value < 100:
        ten, one = divmod(value, 10)
        return _TENS[ten] + (('-' if rng.random() < 0.3 else ' ') + _ONES[one] if one else '')
    if value < 1000:
        hundred, rest = divmod(value, 100)
        short = hundred == 1 and rng.random() < 0.4 and not inner
        head = 'a hundred' if short else _ONES[hundred] + ' hundred'
        joint = ' and ' if rng.random() < 0.6 else ' '
        return head + (joint + spell(rest, rng) if rest else '')
    if value % 100 == 0 and value % 1000 and rng.random() < 0.4:
        return spell(value // 100, rng) + ' hundred'
    thousand, rest = divmod(value, 1000)
    head = 'a thousand' if thousand == 1 and rng.random() < 0.4 else _ONES[thousand] + ' thousand'
    joint = ' and ' if 0 < rest < 100 or rng.random() < 0.3 else ' '
    return head + (joint + spell(rest, rng, True) if rest else '')


def digits(rng: random.Random, held: bool = False) -> tuple[Number, str]:
    """A number in digits: value and text; the value prints as the text does."""
    while True:
        draw = rng.random()
        if draw < 0.2:
            text = str(rng.randint(1, 9))
        elif draw < 0.4:
            text = str(rng.randint(10, 99))
        elif draw < 0.46:
            text = str(rng.randint(1, 30) * 5)
        elif draw < 0.56:
            text = str(rng.randint(100, 999))
        elif draw < 0.62:
            text = str(rng.randint(1000, 9999))
        elif draw < 0.76:
            text = f'{rng.randint(0, 20)}.{rng.randint(1, 9)}'
        elif draw < 0.88:
            text = f'{rng.randint(0, 9)}.{rng.randint(0, 9)}{rng.randint(1, 9)}'
        elif draw < 0.93:
            text = f'{rng.randint(10, 99)}.{rng.randint(1, 9)}'
        elif draw < 0.96:
            text = f'{rng.randint(0, 9)}.{rng.randint(0, 99):02d}{rng.randint(1, 9)}'
        elif draw < 0.98:
            text = f'{rng.randint(100, 999)}.{rng.randint(1, 9)}'
        else:
            text = f'{rng.randint(1, 30)}.0'
        if is_held(text) == (held and len(text) > 1):
            break
        if held and len(text) == 1 and rng.random() < 0.5:
            break
    value: Number = float(text) if '.' in text else int(text)
    if text.startswith('0.') and rng.random() < 0.12:
        text = text[1:]
    return value, text


def words(rng: random.Random, held: bool = False) -> tuple[Number, str]:
    """A number in words: value and text."""
    while True:
        draw = rng.random()
        if isinstance(rng, TrainDraws) and draw < 0.04:
            draw = 0.85                  # thousands in words
        if draw < 0.4:
            value: Number = rng.randint(1, 12)
        elif draw < 0.66:
            value = rng.randint(10, 99)
        elif draw < 0.74:
            value = rng.randint(1, 36) * 5
        elif draw < 0.84:
            value = rng.randint(100, 999)
        elif draw < 0.86:
            value = rng.randint(1000, 9999)
        else:
            whole = rng.randint(0, 12) if rng.random() < 0.85 else rng.randint(13, 99)
            places = 1 if rng.random() < 0.7 else 2
            fraction = [rng.randint(0, 9) for _ in range(places - 1)] + [rng.randint(1, 9)]
            value = float(f'{whole}.' + ''.join(map(str, fraction)))
            if is_held(str(value)) != held:
                continue
            head = spell(whole, rng) + ' ' if whole or rng.random() < 0.7 else ''
            tail = ' '.join(_ONES[digit] for digit in fraction)
            if places == 2 and fraction[0] and rng.random() < 0.5:
                tail = spell(fraction[0] * 10 + fraction[1], rng)
            return value, f'{head}point {tail}'
        if is_held(str(value)) == held or (held and value < 10 and rng.random() < 0.3):
            return value, spell(int(value), rng)


@dataclass(frozen=True)
class Quantity:
    """What is said and what is meant: 'two and a half feet', 2.5, 'ft'."""

    value: Number
    unit: str
    text: str


# unit key: (singular forms, plural forms, short forms)
UNITS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    'm': (
        ('metre', 'meter'),
        ('metres', 'meters', 'metres', 'meters', 'metre', 'meter'),
        ('m', 'm', 'm', 'mtr', 'mtrs'),
    ),
    'cm': (
        ('centimetre', 'centimeter'),
        ('centimetres', 'centimeters', 'centimeter'),
        ('cm', 'cm', 'cm', 'cms'),
    ),
    'mm': (('millimetre', 'millimeter'), ('millimetres', 'millimeters'), ('mm', 'mm', 'mms')),
    'ft': (('foot',), ('feet', 'feet', 'foot'), ('ft', 'ft', 'ft.')),
    'in': (('inch',), ('inches', 'inches', 'inch'), ('in', 'in.', '"')),
    'deg': (('degree',), ('degrees', 'degrees', 'degree'), ('deg', 'degs', '°', '°')),
    'rad': (('radian',), ('radians', 'radians', 'radian'), ('rad', 'rad', 'rads')),
}
LENGTHS = ('m', 'm', 'm', 'm', 'cm', 'cm', 'cm', 'mm', 'ft', 'ft', 'in')
ANGLES = ('deg', 'deg', 'deg', 'deg', 'rad')
_AND_A_HALF = 0.97                       # training says 'two metres and a half' more often
_HALVES = (
    (0.5, 'a half'),
    (0.25, 'a quarter'),
    (0.75, 'three quarters'),
    (0.5, 'one half'),
    (0.25, 'one quarter'),
)


def _fraction(rng: random.Random, unit: str, held: bool) -> Quantity:
    """Halves and quarters in all their orders: 'half a metre', 'a metre and a half'."""
    single = pick(rng, UNITS[unit][0])
    plural = pick(rng, UNITS[unit][1][:4])
    article = 'an' if single[0] in 'aeiou' else 'a'
    draw = rng.random()
    if draw < 0.3:
        part, name = rng.choice(
            (
                (0.5, 'half'),
                (0.5, 'half'),
                (0.25, 'a quarter'),
                (0.25, 'quarter'),
                (0.75, 'three quarters'),
                (0.75, 'three-quarters'),
                (0.1, 'a tenth'),
            )
        )
        if name == 'half':
            text = pick(
                rng,
                [
                    f'half {article} {single}',
                    f'half {article} {single}',
                    f'half {single}',
                    f'{article} half {single}',
                    f'one half {single}',
                ],
            )
        elif name == 'a tenth':
            text = f'a tenth of {article} {single}'
        else:
            text = pick(
                rng,
                [
                    f'{name} of {article} {single}',
                    f'{name} of {article} {single}',
                    f'{name} {single}',
                ],
            )
        return Quantity(part, unit, text)
    if draw < 0.36:
        return Quantity(
            *rng.choice(
                (
                    (0.5, unit, f'1/2 {single}'),
                    (0.25, unit, f'1/4 {single}'),
                    (0.75, unit, f'3/4 {single}'),
                    (1.5, unit, f'1 1/2 {plural}'),
                    (2.5, unit, f'2 1/2 {plural}'),
                    (0.5, unit, f'½ {single}'),
                    (1.5, unit, f'1½ {plural}'),
                )
            )
        )
    whole = rng.randint(1, 12) if rng.random() < 0.8 else rng.randint(10, 99)
    part, name = _HALVES[int(rng.random() * len(_HALVES))]
    if rng.random() < 0.5:
        part, name = 0.5, 'a half'
    spelled = spell(whole, rng) if rng.random() < 0.8 else str(whole)
    if draw < 0.44:
        if whole == 1:
            return Quantity(1 + part, unit, f'{pick(rng, [article, "one"])} {single} and {name}')
        return Quantity(whole + part, unit, f'{spelled} {plural} and {name}')
    if draw < 0.5:
        name = name.split()[-1]
        part = {'half': 0.5, 'quarter': 0.25, 'quarters': 0.75}[name]
        if name == 'quarters':
            name = 'three quarters'
    return Quantity(whole + part, unit, f'{spelled} and {name} {plural}')


_ROUND = (10, 20, 25, 30, 40, 50, 60, 75, 80, 100, 150, 200, 250, 300, 400, 500, 600, 700, 750, 800, 900, 1000, 1100, 1200, 1250, 1500, 1800, 2000, 2500, 3000, 4000, 5000, 8000, 10000, 100000)
_ODD_SHARE = 0.09                        # of amounts in training: in the forms of _odd


def _odd(rng: random.Random, unit: str) -> Quantity:
    """Round numbers of many zeros, commas for points, feet by their mark, 'one metre 50'."""
    single, plural, short = UNITS[unit]
    number: Number
    draw = rng.random()
    if unit == 'm' and draw < 0.4:
        while True:
            whole, rest = rng.randint(1, 12), rng.randint(5, 99)
            value = float(f'{whole}.{rest:02d}')
            if not is_held(str(value)) and not is_held(str(rest)):
                break
        word = pick(rng, single if whole == 1 else plural[:4])
        told = spell(whole, rng) if rng.random() < 0.2 else str(whole)
        tail = f'{rest:02d}'
        return Quantity(value, unit, pick(rng, (
            f'{told} {word} {tail}', f'{told} m {tail}', f'{whole}m{tail}', f'{told} {word} and {rest} {pick(rng, UNITS["cm"][1])}',
            f'{told} {word} {rest} {pick(rng, UNITS["cm"][1])}', f'{whole} m {rest} cm', f'{whole}m {rest}cm', f'{told} m and {rest} cm')))
    if unit in ('mm', 'cm') and draw < 0.08:      # '1e3 mm'
        while True:
            head, power = rng.choice((1, 1, 1, 2, 3, 4, 5, 1.5, 2.5)), rng.choice((1, 2, 3))
            number = int(head * 10**power)
            if not is_held(str(number)):
                break
        return Quantity(number, unit, f'{head}e{power}{pick(rng, (" ", ""))}{pick(rng, short[:2])}')
    if unit == 'ft' and draw < 0.6:
        whole = rng.randint(1, 20)
        if draw < 0.3:
            return Quantity(whole, unit, f"{whole}'" if not is_held(str(whole)) else f'{spell(whole, rng)} {plural[0]}')
        inches = rng.choice((3, 6, 6, 6, 9))
        told = spell(whole, rng)
        plainly = told if is_held(str(whole)) else str(whole)
        return Quantity(whole + inches / 12, unit, pick(rng, (
            f'{told} {single[0] if whole == 1 else plural[0]} {inches}', f'{told} ft {inches} in', f'{told} {single[0] if whole == 1 else plural[0]} {spell(inches, rng)} inches',
            f'{told} {single[0] if whole == 1 else plural[0]} and {inches} inches', f'{plainly} {pick(rng, plural)} {inches} {pick(rng, UNITS["in"][1])}', f'{plainly} feet {inches} inches', f'{plainly} ft {inches} in')))
    while True:
        if draw > 0.75:
            text = f'{rng.randint(0, 20)},{rng.randint(1, 9)}' if rng.random() < 0.7 else f'{rng.randint(0, 9)},{rng.randint(1, 9)}{rng.choice((0, 5))}'
            number = float(text.replace(',', '.'))
            kept = is_held(text.replace(',', '.')) or is_held(str(number)) or is_held(text)
        else:
            number = rng.choice(_ROUND)
            text = str(number)
            kept = is_held(text)
            if number >= 1000 and rng.random() < 0.3:
                text = f'{number:,}'
        if not kept:
            break
    form = pick(rng, short) if rng.random() < 0.6 else pick(rng, plural)
    return Quantity(number, unit, text + ('' if form in ('"', '°') or rng.random() < 0.4 else ' ') + form)


def quantity(rng: random.Random, kinds: tuple[str, ...], held: bool = False) -> Quantity:
    """A length or an angle in one of the units of `kinds`, in words or digits."""
    unit = pick(rng, kinds)
    if isinstance(rng, TrainDraws) and rng.random() < _ODD_SHARE:
        return _odd(rng, unit)
    single, plural, short = UNITS[unit]
    draw = rng.random()
    if isinstance(rng, TrainDraws) and draw > _AND_A_HALF:
        whole = rng.randint(1, 12) if rng.random() < 0.8 else rng.randint(13, 99)
        part, name = _HALVES[int(rng.random() * len(_HALVES))]
        form = pick(rng, single) if whole == 1 else pick(rng, plural)
        told = spell(whole, rng) if rng.random() < 0.6 else str(whole)
        return Quantity(whole + part, unit, f'{told} {form} and {name}')
    if draw < 0.16:
        return _fraction(rng, unit, held)
    if draw < 0.22:
        value: Number = 1
        word = pick(rng, single)
        text = (
            'an ' if word[0] in 'aeiou' else pick(rng, ['a ', 'a ', 'one ', 'a single '])
        ) + word
        return Quantity(value, unit, text)
    if draw < 0.25:
        return rng.choice(
            (
                Quantity(2, unit, 'a couple of ' + pick(rng, plural[:2])),
                Quantity(12, unit, 'a dozen ' + pick(rng, plural[:2])),
            )
        )
    if draw < 0.6:
        value, text = words(rng, held)
        form = pick(rng, single) if value == 1 else pick(rng, plural)
        return Quantity(value, unit, f'{text} {form if rng.random() < 0.9 else pick(rng, short)}')
    value, text = digits(rng, held)
    if rng.random() < 0.5:
        form = pick(rng, single) if value == 1 else pick(rng, plural)
        return Quantity(value, unit, text + (' ' if rng.random() < 0.93 else '') + form)
    form = pick(rng, short)
    tight = form in ('"', '°') or rng.random() < 0.5
    return Quantity(value, unit, text + ('' if tight else ' ') + form)


def bare_number(rng: random.Random, held: bool = False) -> tuple[Number, str]:
    """A number without a unit."""
    return digits(rng, held) if rng.random() < 0.6 else words(rng, held)


NUMBER_WORDS = frozenset(
    (
        *_ONES,
        *_TENS,
        'hundred',
        'thousand',
        'point',
        'half',
        'quarter',
        'quarters',
        'third',
        'tenth',
        'couple',
        'dozen',
        'three-quarters',
    )
) - {''}
