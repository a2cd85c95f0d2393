# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The dialogue generator: a function of its seed, true to the tools, templates split."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from demo_model import (
    dialogue_phrases,
    heldout_phrases,
    intents_held,
    motion_phrases,
    other_commands,
    results,
    smalltalk,
)
from demo_model.cases import MOTION, free_cases, generated_cases
from demo_model.dialogue import draw_dialogue
from demo_model.dialogue_phrases import HELD_JOINS, JOINS
from demo_model.phrasing import (
    HELD_WORDS,
    WORDS,
    HeldDraws,
    expand,
    is_held_name,
    random_name,
    roughen,
)
from demo_model.results import Outcome, answer
from demo_model.sentences import command_for
from demo_model.spoken_numbers import LENGTHS, digits, is_held, quantity, spell, words
from demo_model.tools import DEMO_TOOLS, convert, demo_tools
from demo_model.toolsets import KINDS, draw_tools, other_tool

_LISTS = ('DRIVE', 'DRIVE_WHOLE', 'TURN', 'TURN_WHOLE', 'NAMED_TURN', 'AROUND', 'AROUND_SIDE',
          'DOCK', 'SAY', 'SAY_TEXTS')


def _calls(dialogue: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(call['function']['name'], call['function']['arguments'])
            for message in dialogue.messages for call in message.get('tool_calls', ())]


def test_same_seed_same_dialogue() -> None:
    first = [draw_dialogue(random.Random(seed)) for seed in range(50)]
    second = [draw_dialogue(random.Random(seed)) for seed in range(50)]
    assert first == second
    assert len({json.dumps(one.messages) for one in first}) == 50


@pytest.mark.parametrize('name', _LISTS)
def test_held_out_templates_are_not_trained_on(name: str) -> None:
    assert not set(getattr(heldout_phrases, name)) & set(getattr(motion_phrases, name))


def test_other_held_out_lists_are_not_trained_on() -> None:
    bare = {'{base}'}                       # a command without any wrapper is common to both
    assert set(heldout_phrases.WRAPPERS) & set(motion_phrases.WRAPPERS) == bare
    assert not set(HELD_JOINS) & set(JOINS)
    assert not set(results.HELD_REASONS) & set(results.REASONS)
    for name in ('CORRECTIONS', 'NEGATIONS', 'AMOUNT_CORRECTIONS'):
        lists = vars(dialogue_phrases)
        assert not set(lists['HELD_' + name]) & set(lists[name])
    for said, held, _ in smalltalk.CHAT:
        assert not set(said) & set(held)
    for kind in KINDS:
        assert kind.held
        assert not set(kind.held) & set(kind.commands)


def test_held_out_numbers_are_not_trained_on() -> None:
    rng = random.Random(5)
    trained = {text for _, text in (digits(rng) for _ in range(4000))}
    held = {text for _, text in (digits(rng, held=True) for _ in range(4000)) if len(text) > 1}
    restored = {'0' + text if text.startswith('.') else text for text in trained}
    assert not any(is_held(text) for text in restored)
    assert not {text for text in held if not text.startswith('.')} & trained


def test_calls_keep_to_the_declarations() -> None:
    seen = 0
    for seed in range(400):
        dialogue = draw_dialogue(random.Random(seed))
        schemas = {tool['function']['name']: tool['function']['parameters']
                   for tool in dialogue.tools}
        for name, arguments in _calls(dialogue):
            jsonschema.validate(arguments, {**schemas[name], 'additionalProperties': False})
            seen += 1
    assert seen > 300


def test_numbers_in_digits_reach_the_call() -> None:
    drive = demo_tools()[0]
    checked = 0
    for seed in range(600):
        command = command_for(drive, random.Random(seed), held=False)
        text = command.whole or command.base
        found = re.findall(r'(?<![\d.])\d+\.\d+(?![\d.])', text)
        if len(found) == 1 and 'm/s' not in text and command.category == 'distance':
            number = command.arguments['distance']
            assert float(found[0]) == number or '0.' in found[0], (text, command.arguments)
            checked += 1
    assert checked > 50


@pytest.mark.parametrize(('value', 'said'), [(7, 'seven'), (25, 'twenty five'), (90, 'ninety'),
                                             (17, 'seventeen'), (340, 'three hundred and forty')])
def test_spelling(value: int, said: str) -> None:
    assert said in {spell(value, random.Random(seed)).replace('-', ' ') for seed in range(40)}


def test_words_and_quantities_agree() -> None:
    rng = random.Random(3)
    by_text: dict[str, Any] = {}
    for _ in range(3000):
        value, text = words(rng)
        assert by_text.setdefault(text, value) == value
    units = {quantity(rng, LENGTHS).unit for _ in range(500)}
    assert units == set(LENGTHS)


def test_template_language() -> None:
    assert expand('a (b|c)[ d] {x}', random.Random(1), lambda name: name.upper()) in (
        'a b X', 'a c X', 'a b d X', 'a c d X')
    with pytest.raises(ValueError, match='lacks a closing'):
        expand('a (b', random.Random(1))


def test_typos_spare_numbers() -> None:
    for seed in range(300):
        text = roughen('drive twelve metres', random.Random(seed), frozenset({'twelve'}), 1.0)
        assert 'twelve' in text.lower()


def test_answers_tell_the_truth() -> None:
    command = command_for(demo_tools()[2], random.Random(1), held=False)
    assert answer([command], [Outcome('', 'done')]) == 'I drove to the dock.'
    refused = answer([command], [Outcome('', 'refused', 'the robot is stopped')])
    assert refused == 'I was not allowed to drive to the dock: the robot is stopped.'
    both = answer([command, command], [Outcome('', 'done'), Outcome('', 'failed')])
    assert both == 'I drove to the dock. I could not drive to the dock.'


def test_cases_by_hand_keep_to_the_declarations() -> None:
    cases = free_cases()
    assert len(cases) >= 60
    assert len({str(case.messages) for case in cases}) == len(cases)
    names = {tool['function']['name'] for tool in DEMO_TOOLS}
    for case in cases:
        assert set(re.findall(r'call:(\w+)\{', case.expected)) <= names


def test_a_wrong_answer_is_not_judged_right() -> None:
    case = next(case for case in generated_cases(30, 4) if case.category in MOTION)
    assert case.is_right(case.expected)
    assert not case.is_right(case.expected.replace('call:', 'call:x'))
    assert not case.is_right(case.expected.replace('<tool_call|>', '<tool_call|><|tool_call>', 1))
    question = next(case for case in free_cases() if case.expected == 'question')
    assert question.is_right('How far should I drive?<turn|>')
    assert not question.is_right('Sorry, I have no tool for that.<turn|>')
    assert not question.is_right('<|tool_call>call:dock{}<tool_call|><|tool_response>')


def test_held_out_words_values_and_kinds_do_not_reach_training() -> None:
    """Neither in names, arguments nor sentences; the planted ones show that the search works."""
    assert not set(HELD_WORDS) & set(WORDS)
    names = [kind.names[0] for kind in intents_held.HELD_INTENTS]
    held = set(HELD_WORDS) | {name.replace(' ', '_') for name in names if ' ' in name}

    def words_of(text: str) -> set[str]:
        return set(re.findall(r'[A-Za-z]+', text)) | set(re.findall(r'[a-z_]+', text))

    trained: set[str] = set()
    for seed in range(250):
        dialogue = draw_dialogue(random.Random(seed))
        trained |= words_of(json.dumps([dialogue.messages, dialogue.tools], ensure_ascii=False))
    assert len(trained) > 3000
    assert trained & held == set()
    for kinds in (KINDS, intents_held.HELD_INTENTS):
        planted: set[str] = set()
        for seed in range(20):
            tools = draw_tools(HeldDraws(seed), kinds)
            dialogue = draw_dialogue(HeldDraws(seed), tools=tools)
            planted |= words_of(json.dumps([dialogue.messages, dialogue.tools]))
        assert planted & held


def test_made_up_names_are_split() -> None:
    trained = {random_name(random.Random(seed)) for seed in range(300)}
    held = {random_name(HeldDraws(seed)) for seed in range(300)}
    assert not any(map(is_held_name, trained))
    assert all(map(is_held_name, held))


def test_held_out_places_and_objects_are_not_trained_on() -> None:
    assert not set(intents_held.HELD_PLACES) & set(other_commands.PLACES)
    assert not set(intents_held.HELD_OBJECTS) & set(other_commands.OBJECTS)
    assert not set(intents_held.HELD_COLOURS) & set(other_commands.COLOURS)
    assert not {kind.key for kind in intents_held.HELD_INTENTS} & {kind.key for kind in KINDS}


@pytest.mark.parametrize(('value', 'unit', 'wanted', 'expected'), [
    (2, 'm', 'cm', 200), (35, 'cm', 'm', 0.35), (1.5, 'min', 's', 90), (0.2, 'm', 'mm', 200),
    (7, 'mm', 'm', 0.007), (2.5, 'm', 'm', 2.5)])
def test_units_are_converted_exactly(value: float, unit: str, wanted: str,
                                     expected: float) -> None:
    assert convert(value, unit, wanted) == expected
    assert isinstance(convert(value, unit, wanted), type(expected))


def test_signs_follow_the_declaration() -> None:
    yaw = next(kind for kind in KINDS if kind.key == 'yaw')
    signs = set()
    for seed in range(300):
        rng = random.Random(seed)
        tool = other_tool(rng, yaw)
        command = command_for(tool, rng, held=False)
        text = command.base
        if re.search(r'\b(to the |)left\b', text) and 'right' not in text:
            negated = bool(tool.negated)
            description = json.dumps(tool.declaration)
            assert negated == any(word in description for word in (
                'Positive is right', 'Clockwise is', 'Plus turns right'))
            number = next(iter(command.arguments.values()))
            assert (number < 0) == negated, (text, tool.declaration, command.arguments)
            signs.add(negated)
    assert signs == {True, False}
