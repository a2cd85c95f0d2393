# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Regular expressions for the strings of guided decoding: schema patterns and formats.

A schema's pattern is an ECMA expression that may match anywhere; a grammar wants one for the whole
string, in the syntax of the grammar's library. Knows no schema and no notation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import llguidance

ANY_TEXT = '(?s:.*)'

_LABEL = '[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?'
_HOST = rf'{_LABEL}(\.{_LABEL}){{0,4}}'
_ATOM = r'[A-Za-z0-9_+\-]{1,32}'
_BYTE = '(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
_IPV4 = rf'{_BYTE}(\.{_BYTE}){{3}}'
# Months at their length; 29 February only exists in some years and is left out.
_DATE = ('[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])'
         '|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))')
_CLOCK = '([01][0-9]|2[0-3]):[0-5][0-9]'
_TIME = rf'{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+\-]{_CLOCK})'
_AMOUNT = '[1-9][0-9]{0,3}'

# Formats that are kept; the standard takes all others for remarks.
FORMATS: Mapping[str, str] = MappingProxyType({
    'date': _DATE,
    'time': _TIME,
    'date-time': f'{_DATE}T{_TIME}',
    'duration': f'P({_AMOUNT}W|T{_AMOUNT}[HMS]|{_AMOUNT}[YMD](T{_AMOUNT}[HMS])?)',
    'email': rf'{_ATOM}(\.{_ATOM}){{0,3}}@{_LABEL}(\.{_LABEL}){{1,4}}',
    'hostname': _HOST,
    'ipv4': _IPV4,
    'ipv6': '([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}',
    'uuid': '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}',
    'uri': rf'[a-z][a-z0-9]{{1,15}}:\/\/{_HOST}(:[1-9][0-9]{{0,3}})?'
           r'(\/[A-Za-z0-9._~\-]{1,64}){0,16}\/?',
})


class UnfitPattern(ValueError):
    """A pattern that can't be turned into one for whole strings; the message says why."""


def whole_match(pattern: str) -> str:
    """The expression, ready for a grammar, of all strings in which a schema's pattern is found.

    Raises UnfitPattern for anchors inside the pattern; other faults show when it is compiled.
    """
    branches = [_anchored(branch) for branch in _branches(pattern)]
    return str(llguidance.regex_to_lark('|'.join(branches), 'dw'))


def regex_literal(text: str) -> str:
    """A text as a regular expression, in ASCII."""
    return ''.join(char if char.isalnum() and char.isascii() else rf'\u{{{ord(char):x}}}'
                   for char in text)


def _anchored(branch: str) -> str:
    start = branch.startswith('^')
    body = branch[1:] if start else branch
    end = body.endswith('$') and not _escaped_at(body, len(body) - 1)
    body = body[:-1] if end else body
    if any(True for _ in _free_signs(body, '^$')):
        raise UnfitPattern('^ and $ may only stand at the ends of the pattern')
    return f'{"" if start else ANY_TEXT}({body}){"" if end else ANY_TEXT}'


def _branches(pattern: str) -> list[str]:
    """The alternatives on the top level."""
    branches, begin, depth = [], 0, 0
    for index, sign in _free_signs(pattern, '()|'):
        if sign == '|':
            if depth == 0:
                branches.append(pattern[begin:index])
                begin = index + 1
        else:
            depth += 1 if sign == '(' else -1
    return [*branches, pattern[begin:]]


def _free_signs(pattern: str, signs: str) -> list[tuple[int, str]]:
    """Where some signs stand with their special meaning: not escaped, not in a class."""
    found, in_class, index = [], False, 0
    while index < len(pattern):
        sign = pattern[index]
        if sign == '\\':
            index += 1
        elif in_class:
            in_class = sign != ']'
        elif sign == '[':
            in_class = True
        elif sign in signs:
            found.append((index, sign))
        index += 1
    return found


def _escaped_at(text: str, index: int) -> bool:
    before = text[:index]
    return (len(before) - len(before.rstrip('\\'))) % 2 == 1
