# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Written text -> words to say: no markdown, no symbols, units and currencies in words.

Pure functions on text, by the rules of docs/speech.md; English. Knows nothing of pieces, streams
or ROS.
"""

from __future__ import annotations

import html
import re
import unicodedata

# Unit as written behind a number -> (one, many).
UNITS: dict[str, tuple[str, str]] = {
    'km': ('kilometre', 'kilometres'),
    'm': ('metre', 'metres'),
    'cm': ('centimetre', 'centimetres'),
    'mm': ('millimetre', 'millimetres'),
    'm²': ('square metre', 'square metres'),
    'm2': ('square metre', 'square metres'),
    'm^2': ('square metre', 'square metres'),
    'm³': ('cubic metre', 'cubic metres'),
    'm3': ('cubic metre', 'cubic metres'),
    'm^3': ('cubic metre', 'cubic metres'),
    'm/s': ('metre per second', 'metres per second'),
    'cm/s': ('centimetre per second', 'centimetres per second'),
    'km/h': ('kilometre per hour', 'kilometres per hour'),
    'mph': ('mile per hour', 'miles per hour'),
    'm/s²': ('metre per second squared', 'metres per second squared'),
    'm/s2': ('metre per second squared', 'metres per second squared'),
    'm/s^2': ('metre per second squared', 'metres per second squared'),
    'rad': ('radian', 'radians'),
    'rad/s': ('radian per second', 'radians per second'),
    '°': ('degree', 'degrees'),
    'deg': ('degree', 'degrees'),
    '°/s': ('degree per second', 'degrees per second'),
    'deg/s': ('degree per second', 'degrees per second'),
    '°C': ('degree Celsius', 'degrees Celsius'),
    '°F': ('degree Fahrenheit', 'degrees Fahrenheit'),
    'kg': ('kilogram', 'kilograms'),
    'g': ('gram', 'grams'),
    'mg': ('milligram', 'milligrams'),
    'l': ('litre', 'litres'),
    'L': ('litre', 'litres'),
    'ml': ('millilitre', 'millilitres'),
    'mL': ('millilitre', 'millilitres'),
    'h': ('hour', 'hours'),
    'min': ('minute', 'minutes'),
    's': ('second', 'seconds'),
    'ms': ('millisecond', 'milliseconds'),
    'µs': ('microsecond', 'microseconds'),
    'Hz': ('hertz', 'hertz'),
    'kHz': ('kilohertz', 'kilohertz'),
    'MHz': ('megahertz', 'megahertz'),
    'GHz': ('gigahertz', 'gigahertz'),
    'V': ('volt', 'volts'),
    'mV': ('millivolt', 'millivolts'),
    'A': ('ampere', 'amperes'),
    'mA': ('milliampere', 'milliamperes'),
    'Ah': ('ampere hour', 'ampere hours'),
    'mAh': ('milliampere hour', 'milliampere hours'),
    'W': ('watt', 'watts'),
    'kW': ('kilowatt', 'kilowatts'),
    'Wh': ('watt hour', 'watt hours'),
    'kWh': ('kilowatt hour', 'kilowatt hours'),
    'N': ('newton', 'newtons'),
    'Nm': ('newton metre', 'newton metres'),
    'N·m': ('newton metre', 'newton metres'),
    'Pa': ('pascal', 'pascals'),
    'kPa': ('kilopascal', 'kilopascals'),
    'dB': ('decibel', 'decibels'),
    'rpm': ('revolution per minute', 'revolutions per minute'),
    'fps': ('frame per second', 'frames per second'),
    'KB': ('kilobyte', 'kilobytes'),
    'MB': ('megabyte', 'megabytes'),
    'GB': ('gigabyte', 'gigabytes'),
    'GiB': ('gibibyte', 'gibibytes'),
    '%': ('percent', 'percent'),
    '‰': ('per mille', 'per mille'),
}
CURRENCIES: dict[str, tuple[str, str]] = {
    '$': ('dollar', 'dollars'),
    '€': ('euro', 'euros'),
    '£': ('pound', 'pounds'),
    '¥': ('yen', 'yen'),
}
# What is left of these after units and markdown is said in words, or not at all.
SYMBOLS: dict[str, str] = {
    '°': ' degrees ',
    '%': ' percent ',
    '&': ' and ',
    '=': ' equals ',
    '×': ' times ',
    '÷': ' divided by ',
    '±': ' plus or minus ',
    '≈': ' about ',
    '≤': ' at most ',
    '≥': ' at least ',
    '≠': ' is not ',
    '→': ' to ',
    '√': ' square root of ',
    'π': ' pi ',
    '€': ' euros ',
    '£': ' pounds ',
    '¥': ' yen ',
    '$': ' dollars ',
    '_': ' ',
    '|': ', ',
    '\\': ' ',
}
_SILENT = '`*#<>[]{}~•▪◦‣'

_UNIT = '|'.join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_NUMBER = r'\d+(?:,\d{3})*(?:\.\d+)?'
_WITH_UNIT = re.compile(rf'(?<![\w.,])({_NUMBER})[  ]?({_UNIT})(?:/({_UNIT}))?(?![\w/°²³^])')
_RANGE = re.compile(
    rf'(?<![\w.,–-])({_NUMBER}) ?[-–] ?'
    rf'(?={_NUMBER}[  ]?(?:{_UNIT})(?:/(?:{_UNIT}))?(?![\w/]))'
)
_SPAN = re.compile(r'(?<=\d) ?– ?(?=\d)')
_MINUS = re.compile(r'(?<![\w.,)°%])[-−](?=\d)')
_PLUS = re.compile(r'(?<![\w.,)])\+(?=\d)')
_MONEY = '[' + ''.join(re.escape(sign) for sign in CURRENCIES) + ']'
_MONEY_BEFORE = re.compile(rf'({_MONEY}) ?({_NUMBER})')
_MONEY_BEHIND = re.compile(rf'(?<![\w.,])({_NUMBER})[  ]?({_MONEY})')
_IMAGE = re.compile(r'!\[([^\]\n]*)\]\([^)\n]*\)')
_LINK = re.compile(r'\[([^\]\n]*)\]\([^)\n]*\)')
_LINK_REST = re.compile(r'\]\([^)\n]*\)?')
_ADDRESS = re.compile(r'<?\bhttps?://[^\s<>]*[^\s<>.,;:!?)\]*_`\'"]>?')
_TAG = re.compile(r'</?[A-Za-z][^<>\n]*>|<\|?/?[A-Za-z_]+\|?>')
_NUMBERED = re.compile(r'#(?=\d)')
_ABOUT = re.compile(r'(?<!~)~(?=\d)')
_TIMES = re.compile(r'(?<=\d) ?\* ?(?=\d)')
_ADDED = re.compile(r'(?<=\d) \+ (?=\d)')
_LESS = re.compile(r'(?<=[\w)]) < (?=\w)|(?<=\d)<(?=\d)')
_MORE = re.compile(r'(?<=[\w)]) > (?=\w)|(?<=\d)>(?=\d)')
_SCIENTIFIC = re.compile(r'(?<![\w.,])(\d+(?:\.\d+)?)[eE]([-−+]?)(\d+)(?!\w|\.\w)')
_POWER = re.compile(
    r'(?<=[\w)])\^\{?(?=[-−+]?[\w(])'
    r'|(?:(?<=[\d)])|(?<=(?<![\w*])[A-Za-z])) ?\*\* ?(?=[-−]?[\d(])'
)
_ENTITY = re.compile(r'&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{1,30});')
_VARIABLE = re.compile(r'(?<!\w)\$\{?(?=[A-Za-z_])')
_UNTIL = re.compile(r'(?<=\d)~(?=\d)')
# Of two numbers with silent marks between them there must not become one.
_APART = re.compile(rf'(?<=\d)[{re.escape(_SILENT)}´¨]+(?=\d)')
_QUOTE = re.compile(r'^\s*(?:>\s?)+')
_HEADING = re.compile(r'^\s*#{1,6}(?:\s+|$)')
_BULLET = re.compile(r'^\s*[-*+•▪◦‣]\s+(?:\[[ xX]\]\s+)?')
_RULE = re.compile(r'^\s*(?:(?:[-*_=]\s*){3,}|[|:\-\s]*\|[|:\-\s]*)$')
_SPACES = re.compile(r'\s+')
_BEFORE_MARK = re.compile(r' +([,.;:!?])')
_REPEATED = re.compile(r',(?:\s*,)+')


def spoken(text: str, at_line_start: bool = True, units: bool = True) -> str:
    """Return what to say for a piece of one line; '' when there is nothing to say.

    Args:
        text: no line break in it, other than at its end.
        at_line_start: the piece begins its line, so a list or heading mark may stand there.
        units: say units, currencies and signs in English words; else symbols are left as they are,
            but for those of markdown.
    """
    if at_line_start:
        if _RULE.match(text):
            return ''
        text = _QUOTE.sub('', text)
        text = _HEADING.sub('', text)
        text = _BULLET.sub('', text)
        if text.lstrip().startswith('|'):
            text = text.strip().strip('|')
    text = _without_markup(text)
    if units:
        text = _in_words(text)
    else:
        text = _TIMES.sub('×', _POWER.sub('^', text))
    text = _APART.sub(' ', text)
    text = ''.join(_said(c, units) for c in text)
    text = _SPACES.sub(' ', text).strip()
    text = _REPEATED.sub(',', _BEFORE_MARK.sub(r'\1', text)).strip()
    return text if any(c.isalnum() for c in text) else ''


def _without_markup(text: str) -> str:
    text = _IMAGE.sub(r'\1', text)
    text = _LINK.sub(r'\1', text)
    text = _LINK_REST.sub('', text)
    text = _ADDRESS.sub(' a link ', text)
    text = _TAG.sub(' ', text)
    text = _ENTITY.sub(lambda m: html.unescape(m[0]), text)
    return _VARIABLE.sub('', text)


def _in_words(text: str) -> str:
    text = _MONEY_BEFORE.sub(lambda m: _amount(m[2], CURRENCIES[m[1]]), text)
    text = _MONEY_BEHIND.sub(lambda m: _amount(m[1], CURRENCIES[m[2]]), text)
    text = _SCIENTIFIC.sub(_scientific, text)
    text = _RANGE.sub(r'\1 to ', text)
    text = _MINUS.sub('minus ', text)
    text = _PLUS.sub('plus ', text)
    text = _WITH_UNIT.sub(_quantity, text)
    text = _POWER.sub(' to the power of ', text)
    text = _MINUS.sub('minus ', text)
    text = _UNTIL.sub(' to ', text)
    text = _SPAN.sub(' to ', text)
    text = _TIMES.sub(' times ', text)
    text = _ADDED.sub(' plus ', text)
    text = _LESS.sub(' less than ', text)
    text = _MORE.sub(' more than ', text)
    text = _NUMBERED.sub('number ', text)
    return _ABOUT.sub('about ', text)


def _scientific(match: re.Match[str]) -> str:
    sign = 'minus ' if match[2] in ('-', '−') and match[2] else ''
    return f'{match[1]} times 10 to the power of {sign}{match[3]}'


def _quantity(match: re.Match[str]) -> str:
    per = f' per {UNITS[match[3]][0]}' if match[3] else ''
    return _amount(match[1], UNITS[match[2]]) + per


def _amount(number: str, words: tuple[str, str]) -> str:
    return f'{number} {words[0] if number == "1" else words[1]}'


def _said(character: str, units: bool) -> str:
    """Return what a character that is left over becomes."""
    if character == '^':
        return ' ' if units else character
    if character in _SILENT:
        return ''
    if character in '_|\\' or (units and character in SYMBOLS):
        return SYMBOLS[character]
    category = unicodedata.category(character)
    # Pictures, their joiners and selectors, control and private characters have no sound.
    if category in ('So', 'Sk', 'Cc', 'Cf', 'Co', 'Cs', 'Cn') or '\ufe00' <= character <= '\ufe0f':
        return ' ' if category in ('So', 'Cc') else ''
    return character


def tables() -> str:
    """Return the tables of docs/speech.md."""
    lines = ['| written | said |', '|---|---|']
    seen: dict[tuple[str, str], list[str]] = {}
    for unit, words in UNITS.items():
        seen.setdefault(words, []).append(unit)
    for words, written in seen.items():
        ways = ', '.join(f'`{unit}`' for unit in written)
        lines.append(f'| {ways} | {words[0]}, {words[1]} |')
    lines += [f'| `{sign}` | {one}, {many} |' for sign, (one, many) in CURRENCIES.items()]
    return '\n'.join(lines) + '\n'
