# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Adversarial answers take time in proportion to their length."""

from __future__ import annotations

import time

import pytest

from gemma_thor_ros.text.parser import OutputParser
from gemma_thor_ros.text.tokenizer import Tokenizer

Q = 52
SHORT, LONG = 5_000, 40_000


def ids_of(tokenizer: Tokenizer, head: str, body: str | list[int], tail: list[int],
           count: int) -> list[int]:
    repeated = tokenizer.encode(body) if isinstance(body, str) else body
    return [48, *tokenizer.encode(head), *repeated * (count // len(repeated)), *tail]


def duration(tokenizer: Tokenizer, ids: list[int]) -> float:
    best = float('inf')
    for _ in range(3):
        start = time.process_time()
        parser = OutputParser(tokenizer, {'say': {}})
        for token_id in ids:
            parser.push((token_id,))
        parser.finish()
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize(('head', 'body', 'tail'), [
    ('call:f{a:', '[', [49]), ('call:f{a:', '{', [49]), ('call:f{a:', '{b:', [49]),
    ('call:f', '{', [49]), ('call:f{a:', '"', [49]), ('call:f{a:x', ',', [49]),
    ('call:f{a:x', ',b', [49]), ('call:f{', ' ', [49]), ('call:f{a', ' ', [49]),
    ('call:f{a:1', ' ', [49]), ('call:', 'f', [49]), ('call:', 'f:', [49]),
    ('call:f{a:', [Q], [49]), ('call:f{a:', [Q, 107], [49]), ('call:f{a:"x', '",', [49]),
    ('call:f{a:"', '\\"', [49]), ('call:f{a:"', "',", [49]), ("call:f{a:'x", "', ", [49]),
    ('call:f{a:[', '[],', [49]), ('call:f{', 'a:1,', [49]), ('call:f{a:', '9', [49]),
    ('call:f{a:-', '1e', [49]), ('call:f(a:', '(', [49]), ('call:f{a:1', '}', [49]),
    ('', [48], []), ('', [49], []), ('', [101], []), ('', [100], []), ('', [48, 49], []),
], ids=str)
def test_time_is_linear(tiny: Tokenizer, head: str, body: str | list[int],
                        tail: list[int]) -> None:
    short = duration(tiny, ids_of(tiny, head, body, tail, SHORT))
    long = duration(tiny, ids_of(tiny, head, body, tail, LONG))
    # Eight times the input; a quadratic reader would take 64 times as long.
    assert long < 24 * short + 0.05


@pytest.mark.parametrize('text', ['call:say{', 'call:', 'c', ' ', 'thought\n', 'call:say{}x', '{',
                                  '<', 'call:say{}', '\n', 'call:s', 'th'])
@pytest.mark.parametrize('opener', [[], [100], [101]])
def test_time_is_linear_in_text(tiny: Tokenizer, text: str, opener: list[int]) -> None:
    piece = tiny.encode(text)
    short = duration(tiny, opener + piece * (SHORT // len(piece)))
    long = duration(tiny, opener + piece * (LONG // len(piece)))
    assert long < 24 * short + 0.05


def test_the_check_catches_a_quadratic_reader(tiny: Tokenizer) -> None:
    """The planted error: a reader that reads the whole text again at every token."""
    def read(count: int) -> float:
        text, start = '', time.process_time()
        for _ in range(count):
            text += '['
            text.replace('[', '(')
        return time.process_time() - start
    short, long = read(SHORT), read(LONG)
    assert long > 24 * short + 0.05
