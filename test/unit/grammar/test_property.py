# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The property: whatever the masks let through is read to the letter and fits its schema, from
everywhere there is a way to the end, and a text is let through in the tokenizer's own tokens too.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.grammar import Grammar, Grammars, Tool
from gemma_thor_ros.text.tokenizer import Tokenizer

from .walks import SchemaMaker, canonical, encode, follow, read_call, walk, with_nulls

FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
SETTINGS = settings(deadline=None, max_examples=120,
                    suppress_health_check=[HealthCheck.function_scoped_fixture])
SEEDS = st.integers(0, 2 ** 32 - 1)


def validator(schema: Any) -> Any:
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(with_nulls(schema), format_checker=FORMATS)


@SETTINGS
@given(seed=SEEDS)
def test_every_call_is_read_to_the_letter_and_fits(tokenizer: Tokenizer, grammars: Grammars,
                                                   seed: int) -> None:
    schema = SchemaMaker(random.Random(seed)).root(arguments=True)
    check = validator(schema)
    tools = {'go': schema, 'go_on': {}}
    try:
        grammar = grammars.calls([Tool('go', schema, strict=True), Tool('go_on', None)])
    except RequestError as error:
        assert error.code is ErrorCode.UNSUPPORTED
        return
    for number in range(4):
        body = walk(tokenizer, grammar, seed + number)
        assert follow(grammars, grammar, canonical(tokenizer, body)), tokenizer.decode(body)
        call = read_call(tokenizer, tools, body)
        if call.name == 'go':
            check.validate(call.arguments)
        else:
            assert (call.name, call.arguments) == ('go_on', {})
        assert json.loads(call.arguments_json) == call.arguments


@SETTINGS
@given(seed=SEEDS)
def test_every_answer_is_json_that_fits(tokenizer: Tokenizer, grammars: Grammars,
                                        seed: int) -> None:
    schema = SchemaMaker(random.Random(seed)).root(arguments=False)
    check = validator(schema)
    try:
        grammar = grammars.answer(schema, 'schema')
    except RequestError as error:
        assert error.code is ErrorCode.UNSUPPORTED
        return
    for number in range(4):
        tokens = walk(tokenizer, grammar, seed + number)
        text = tokenizer.decode(tokens)
        assert follow(grammars, grammar, canonical(tokenizer, tokens)), text
        check.validate(json.loads(text))
        assert text == text.strip()


@settings(SETTINGS, max_examples=8)
@given(seed=SEEDS)
@example(seed=1519)                      # `:{}}` is `:{`, `}}`, where `:{}` alone is `:`, `{}`
@example(seed=1300556176)
@example(seed=3628045)
def test_with_the_real_vocabulary(real_tokenizer: Tokenizer, real_grammars: Grammars,
                                  seed: int) -> None:
    schema = SchemaMaker(random.Random(seed)).root(arguments=True)
    grammar = real_grammars.calls([Tool('go', schema), Tool('go_on', None)])
    for number in range(2):
        body = walk(real_tokenizer, grammar, seed + number, patience=25)
        assert follow(real_grammars, grammar, canonical(real_tokenizer, body))
        read_call(real_tokenizer, {'go': schema, 'go_on': {}}, body)


def test_what_may_follow_moves_the_cut_of_a_certain_text(real_tokenizer: Tokenizer,
                                                         real_grammars: Grammars) -> None:
    """Without the longer tokens the library forces `:` where the tokenizer has `:{`."""
    schema = {'properties': {'a.b': {'type': 'object', 'properties': {}}, 'n': {}},
              'required': ['a.b'], 'additionalProperties': False}
    grammar = real_grammars.calls([Tool('go', schema)])
    body = canonical(real_tokenizer, encode(real_tokenizer, 'call:go{a.b:{}}<end>'))
    forced = Grammar(grammar._prototype, grammar._keys, grammar._stop_ids, {})
    assert follow(real_grammars, grammar, body)
    assert not follow(real_grammars, forced, body)


POSE = {'type': 'object', 'required': ['x', 'frame'], 'properties': {
    'x': {'type': 'number', 'minimum': 0, 'exclusiveMaximum': 2},
    'frame': {'enum': ['map', 'odom']},
    'tags': {'type': 'array', 'items': {'type': 'string', 'maxLength': 3}, 'maxItems': 2}}}


def loosened(change: str) -> Any:
    """The schema with one keyword taken out: a planted error."""
    schema = copy.deepcopy(POSE)
    properties: Any = schema['properties']
    if change == 'required':
        del schema['required']
    elif change == 'bounds':
        del properties['x']['exclusiveMaximum'], properties['x']['minimum']
    elif change == 'enum':
        properties['frame'] = {'type': 'string'}
    elif change == 'length':
        del properties['tags']['items']['maxLength']
    elif change == 'type':
        properties['x'] = {'type': ['number', 'boolean']}
    elif change == 'extra':
        schema['additionalProperties'] = True
    return schema


@pytest.mark.parametrize('change', ['none', 'required', 'bounds', 'enum', 'length', 'type'])
def test_the_property_catches_a_grammar_of_a_wrong_schema(
        tokenizer: Tokenizer, grammars: Grammars, change: str) -> None:
    check = validator(POSE)
    for grammar, is_call in ((grammars.calls([Tool('go', loosened(change))]), True),
                             (grammars.answer(loosened(change), 'schema'), False)):
        faults = 0
        for seed in range(40):
            tokens = walk(tokenizer, grammar, seed)
            value = read_call(tokenizer, {}, tokens).arguments if is_call \
                else json.loads(tokenizer.decode(tokens))
            faults += not check.is_valid(value)
        assert (faults > 0) == (change != 'none')
