# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Stop strings: nothing leaks, nothing is lost, however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_thor_ros.stops import StopFilter


def run(pieces: list[str], stops: list[str]) -> tuple[str, list[str], str]:
    stop_filter = StopFilter(stops)
    shown = [stop_filter.push(piece) for piece in pieces]
    shown.append(stop_filter.flush())
    return ''.join(shown), shown, stop_filter.hit


def test_reported_case_of_a_stop_string_over_two_pieces() -> None:
    text, shown, hit = run(['All done E', 'ND extra'], ['END'])
    assert (text, hit) == ('All done', 'END')
    assert shown == ['All done', '', '']


@pytest.mark.parametrize(('pieces', 'stops', 'expected', 'hit'), [
    (['a', 'b', 'c'], [], 'abc', ''),
    (['nearly EN', 'ough'], ['END'], 'nearly ENough', ''),
    (['EN'], ['END'], 'EN', ''),
    (['x ENDEND'], ['END'], 'x', 'END'),
    (['aab'], ['ab', 'b'], 'a', 'ab'),
    (['DDN', 'D'], ['N', 'DND'], 'DD', 'N'),
    (['DDND'], ['N', 'DND'], 'DD', 'N'),
    (['xEND'], ['END', 'EN'], 'x', 'EN'),
    (['aaab'], ['aab'], 'a', 'aab'),
    (['\n\n', 'A\n', '\nB'], ['\n\n'], '', '\n\n'),
    (['wait  ', ' more'], ['STOP'], 'wait   more', ''),
    (['END'], ['END'], '', 'END'),
])
def test_cuts(pieces: list[str], stops: list[str], expected: str, hit: str) -> None:
    text, _, found = run(pieces, stops)
    assert (text, found) == (expected, hit)


@settings(max_examples=300, deadline=None)
@given(st.text('abE ND', max_size=40), st.lists(st.text('abEND', min_size=1, max_size=4),
                                                min_size=1, max_size=3),
       st.lists(st.integers(0, 40), max_size=6))
def test_cutting_the_text_does_not_change_the_answer(text: str, stops: list[str],
                                                     cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in zip(borders, borders[1:], strict=False)]
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[:min(ends)[1]].rstrip() if ends else text
    shown, parts, hit = run(pieces, stops)
    assert shown == expected
    assert bool(hit) == bool(ends)
    joined = ''
    for part in parts:
        joined += part
        assert expected.startswith(joined)


def test_planted_error_is_caught() -> None:
    """A filter that holds nothing back lets the beginning of a stop string out."""
    class Leaky(StopFilter):
        def _held_back(self, text: str) -> int:
            return 0

    leaky = Leaky(['END'])
    assert leaky.push('All done E') + leaky.push('ND extra') != 'All done'
