# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What is no command moves nothing in the training data, its neighbours do, nothing is made up."""

from __future__ import annotations

import re

import jsonschema
import pytest

from demo_model import motion_phrases, not_commands
from demo_model.asked_again import asked_again, several
from demo_model.commands import _MARKED, say
from demo_model.episode import Episode
from demo_model.held_apart import key, readings
from demo_model.not_commands import ASKED, CAN_NOT_WAIT, WHETHER, WHICH, _towards, not_command
from demo_model.phrasing import TrainDraws
from demo_model.spoken_numbers import LENGTHS, NUMBER_WORDS, _odd
from demo_model.tools import demo_tools

_SAYS_HOW_MUCH = re.compile(
    r'\d|½|\b(an?|pi|single|bit|little|' + '|'.join(sorted(NUMBER_WORDS)) + r')\b', re.IGNORECASE)
_NEVER = re.compile(r'(did|have|has|were|should I|wait until|wait till)\b', re.IGNORECASE)
_ALWAYS = re.compile(r"(can|could|would) you |don'?t forget|if you can\b", re.IGNORECASE)
_UNLESS = re.compile(r'\b(if|when|or|soon) ')  # behind a polite beginning: none again
# 'six metres 20', '7 m 96 cm', '1½ feet': more or fewer numbers in digits than amounts
_UNEVEN = re.compile(
    r'½|[,/]\d|\d ?(m|ft|feet|foot|metres?|meters?|mtrs?)\.?( and)? ?\d|\b('
    + '|'.join(sorted({*NUMBER_WORDS, 'an?', 'single'})) + r')\b', re.IGNORECASE)


def _valid(episode: Episode) -> None:
    for command in episode.commands:
        schema = command.tool.declaration['function']['parameters']
        jsonschema.validate(command.arguments, {**schema, 'additionalProperties': False})


def _told_before_called(episodes: list[Episode]) -> bool:
    """Whether an amount was said by the time that a motion with one is called."""
    said = ''
    for episode in episodes:
        said += ' ' + episode.user
        moves = any(command.arguments for command in episode.commands)
        if moves and not _SAYS_HOW_MUCH.search(said):
            return False
    return True


def test_every_kind_comes_and_none_of_them_moves_but_those_that_should() -> None:
    replies: dict[str, int] = {}
    commands = 0
    for seed in range(900):
        for episode in not_command(demo_tools(), TrainDraws(seed)):
            assert bool(episode.commands) != bool(episode.reply), episode
            assert '{' not in episode.user, episode.user
            _valid(episode)
            replies[episode.reply] = replies.get(episode.reply, 0) + 1
            commands += len(episode.commands)
            if _NEVER.match(episode.user):
                assert not episode.commands, episode.user
            if _ALWAYS.match(episode.user) and not _UNLESS.search(episode.user[8:]):
                assert episode.reply not in (ASKED, CAN_NOT_WAIT, WHETHER, 'Okay.'), episode.user
    for reply in (ASKED, CAN_NOT_WAIT, WHETHER, WHICH, 'Okay.', 'Should I turn left or right?'):
        assert replies[reply] > 3, (reply, replies)
    assert 300 < commands < 600


def test_no_phrasing_is_a_command_and_none() -> None:
    def keys(*lists: tuple[str, ...]) -> set[str]:
        return {key(text) for texts in lists for template in texts for text in readings(template)}

    none = keys(*not_commands._QUESTIONS, *not_commands._TOLD, not_commands._NEGATED,
                not_commands._HEARSAY, not_commands._FRONT, not_commands._END)
    still = keys(*not_commands._STILL) | keys(motion_phrases.WRAPPERS)
    assert len(none) > 800
    assert none & still == set()
    assert none & (still | keys(('did you {base}',)))     # the search finds what is planted


def test_amounts_are_asked_for_until_they_are_said() -> None:
    lengths = set()
    for seed in range(600):
        rng = TrainDraws(seed)
        motions = demo_tools()[:2]
        episodes = asked_again(motions[seed % 2], rng) if seed % 3 else several(motions, rng)
        for episode in episodes:
            _valid(episode)
            assert bool(episode.commands) != bool(episode.reply)
        assert all(not episode.commands for episode in episodes[:-1])
        assert _told_before_called(episodes), [episode.user for episode in episodes]
        lengths.add(len(episodes))
    assert lengths >= {1, 2, 3, 4}
    turn = _towards(demo_tools()[0], TrainDraws(1))[1]
    planted = Episode('to the left', [turn])
    assert not _told_before_called([Episode('turn', reply='How far?'), planted])


def test_of_several_motions_each_keeps_its_own_amount() -> None:
    checked = 0
    for seed in range(400):
        episodes = several(demo_tools()[:2], TrainDraws(seed))
        calls = episodes[-1].commands
        amounts = [next(iter(command.arguments.values())) for command in calls]
        if len(episodes) == 1 and calls and not _UNEVEN.search(episodes[0].user):
            found = re.findall(r'\d+(?:\.\d+)?(?:e\d)?|\.\d+', episodes[0].user)
            assert [float(number) for number in found] == amounts, episodes[0].user
            checked += 1
        elif not episodes[-1].reply:
            assert len(calls) >= 2
    assert checked > 10


def test_a_text_goes_on_behind_an_apostrophe_and_has_its_own_marks() -> None:
    kinds = {"'": 0, '?': 0, '"': 0}
    for seed in range(1500):
        command = say(demo_tools()[3], TrainDraws(seed), False)
        text = str(command.arguments['text'])
        assert text in command.base
        for sign in kinds:
            kinds[sign] += sign in text
        if "'" in text and command.base.startswith('say ') and command.base[4] not in '"\'(':
            assert command.base.rstrip('"').endswith(text.rstrip('"')), command.base
    assert min(kinds.values()) > 10, kinds
    assert sum(share for share, _, _ in _MARKED) == pytest.approx(1)


def test_an_in_of_the_next_word_is_no_inch_and_powers_are_numbers() -> None:
    for seed in range(60):
        slots, command = _towards(demo_tools()[0], TrainDraws(seed))
        assert command.arguments['unit'] == 'm'
        assert re.search(r'\d (in|back) |\d back', slots['base']), slots
        assert ('reverse' in slots['base']) <= (command.arguments['direction'] == 'backward')
    powers = 0
    for seed in range(900):
        said = _odd(TrainDraws(seed), LENGTHS[5])
        number = re.match(r'[\d.]+e\d', said.text)
        if number:
            assert said.value == float(number[0])
            powers += 1
    assert powers > 10
