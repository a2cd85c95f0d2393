# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What is read of schemas: keywords kept, keywords refused by pointer, given values, limits."""

from __future__ import annotations

import time
from typing import Any

import jsonschema
import pytest

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.grammar import Grammars, Tool
from gemma_thor_ros.text.grammar_schema import SchemaReader
from gemma_thor_ros.text.tokenizer import Tokenizer

from .walks import encode, follow


def accepts(grammars: Grammars, tokenizer: Tokenizer, schema: Any, text: str) -> bool:
    """Whether a guide lets this JSON text through."""
    return follow(grammars, grammars.answer(schema, 'schema'), tokenizer.encode(text))


@pytest.mark.parametrize(('schema', 'good', 'bad'), [
    ({'type': 'object', 'properties': {'a': {'type': 'integer'}}},
     ['{}', '{"a":1}', '{ "a": -7 }'],
     ['{"b":1}', '{"a":1.5}', '{"a":1,"a":2}', '[]', '{"a":1,}', '{"a" :1}']),
    ({'type': 'object', 'properties': {'b': True, 'a': True}, 'required': ['b']},
     ['{"b":1,"a":[]}', '{"b":{"c":null}}'], ['{"a":1,"b":1}', '{"a":1}', '{}']),
    ({'type': 'array', 'items': {'type': 'boolean'}, 'minItems': 1, 'maxItems': 2},
     ['[true]', '[true, false]'], ['[]', '[true,true,true]', '[null]']),
    ({'prefixItems': [{'const': 1}, {'type': 'string'}], 'items': False},
     ['[]', '[1]', '[1,"x"]'], ['[2]', '["x"]', '[1,"x",1]']),
    ({'type': 'string', 'minLength': 2, 'maxLength': 3}, ['"ab"', '"a\\n"', '"日本é"'],
     ['"a"', '"abcd"', '"\\ud800a"', 'ab']),
    ({'type': 'string', 'pattern': '^a+$'}, ['"a"', '"aaa"'], ['""', '"ba"', '"\\u0061"']),
    ({'type': 'string', 'pattern': 'b|^c'}, ['"abc"', '"cx"'], ['"ac"', '"dac"']),
    ({'enum': ['on', 2, None, [1, {'a': True}]]}, ['"on"', '2', 'null', '[1,{"a":true}]'],
     ['"off"', '2.0', 'true', '[1]']),
    ({'enum': [1, 'a', 'ab', 5], 'type': 'string', 'minLength': 2}, ['"ab"'], ['"a"', '1', '5']),
    ({'enum': ['ab', 'ba', 'c'], 'pattern': '^a', 'type': 'string'}, ['"ab"'], ['"ba"', '"c"']),
    ({'const': {'a': [1, 'z']}}, ['{"a":[1,"z"]}'], ['{"a":[1]}', '{}']),
    ({'anyOf': [{'type': 'integer'}, {'type': 'null'}]}, ['5', 'null'], ['"5"', '5.5', 'true']),
    ({'type': ['string', 'null']}, ['"x"', 'null'], ['1']),
    ({'type': 'integer', 'nullable': True}, ['1', 'null'], ['"x"']),
    ({'type': 'number', 'minimum': 1, 'maximum': 3, 'allOf': [{'exclusiveMaximum': 2}]},
     ['1', '1.99'], ['2', '0.9', '3']),
    ({'type': 'integer', 'multipleOf': 15, 'minimum': 0, 'maximum': 90}, ['0', '45', '90'],
     ['40', '105', '-15']),
    ({'type': 'integer', 'multipleOf': 5, 'minimum': 0}, ['0', '5', '123455'], ['7', '-5']),
    ({'type': 'number', 'multipleOf': 0.01}, ['1.25', '3', '-0.5'], ['1.255', '1e5']),
    ({'allOf': [{'properties': {'a': {'type': 'string'}}, 'required': ['a']},
                {'properties': {'b': {'type': 'integer'}}}]},
     ['{"a":"x","b":1}', '{"a":"x"}'], ['{"b":1}', '{"a":1}']),
    ({'allOf': [{'additionalProperties': False, 'properties': {'a': True}},
                {'properties': {'b': True}}]}, ['{"a":1}', '{}'], ['{"b":1}']),
    ({'type': 'object', 'additionalProperties': {'type': 'integer'}, 'maxProperties': 2},
     ['{}', '{"x":1}', '{"x":1,"y":2}'], ['{"x":"1"}', '{"x":1,"y":2,"z":3}']),
    ({'type': 'object', 'properties': {'a': {'type': 'string'}},
      'additionalProperties': {'type': 'integer'}},
     ['{"a":"s","b":1}', '{"b":1}', '{"a":"s"}', '{"ab":1}'], ['{"a":1}', '{"b":1,"a":"s"}']),
    ({'type': 'object', 'properties': {'a': True, 'b': True}, 'minProperties': 1},
     ['{"a":1}', '{"b":1}'], ['{}']),
    ({'type': 'object', 'required': ['q']}, ['{"q":[1]}'], ['{}', '{"r":1}']),
    ({'oneOf': [{'properties': {'k': {'const': 'a'}, 'x': {'type': 'integer'}}, 'required': ['k']},
                {'properties': {'k': {'const': 'b'}, 'y': {'type': 'string'}},
                 'required': ['k']}]},
     ['{"k":"a","x":1}', '{"k":"b","y":"s"}'], ['{"k":"b","x":1}', '{"k":"c"}']),
    ({'$defs': {'p': {'type': 'object', 'properties': {'n': {'$ref': '#/$defs/p'}}}},
      '$ref': '#/$defs/p'}, ['{}', '{"n":{"n":{"n":{}}}}'], ['{"n":1}']),
    ({'type': 'object', 'properties': {'d': {'type': 'string', 'format': 'date'}}},
     ['{"d":"2026-02-28"}'], ['{"d":"2026-02-30"}', '{"d":"26-1-1"}']),
    ({'type': 'string', 'format': 'of-our-own'}, ['"x"'], ['1']),
    ({'anyOf': [{'const': {'a': 1}}, {'type': 'object', 'properties': {'b': True}},
                {'enum': [[1, 2], 'ab']}, {'type': 'string', 'pattern': '^a?c$'},
                {'type': 'array', 'items': {'type': 'string'}}]},
     ['{"a":1}', '{"b":2}', '{}', '[1,2]', '["x"]', '"ab"', '"ac"', '"c"', '[]'],
     ['{"a":2}', '{"a":1,"b":2}', '[1]', '"abc"']),
    ({}, ['1', '"x"', '{"a":[{"b":null}]}', '[[[1]]]', ' 1'.strip()], ['', 'nul', '{a:1}'])])
def test_what_a_schema_lets_through(grammars: Grammars, tokenizer: Tokenizer, schema: Any,
                                    good: list[str], bad: list[str]) -> None:
    for text in good:
        assert accepts(grammars, tokenizer, schema, text), text
    for text in bad:
        assert not accepts(grammars, tokenizer, schema, text), text


REFUSED: list[tuple[Any, str]] = [
    ({'not': {'type': 'null'}}, '/not'),
    ({'properties': {'a/b~c': {'not': {}}}}, '/properties/a~1b~0c/not'),
    ({'if': {'type': 'string'}, 'then': {'minLength': 1}}, '/if'),
    ({'anyOf': [{'type': 'null'}, {'dependentRequired': {'a': ['b']}}]},
     '/anyOf/1/dependentRequired'),
    ({'allOf': [{'dependentSchemas': {'a': {}}}]}, '/allOf/0/dependentSchemas'),
    ({'patternProperties': {'^a': {}}}, '/patternProperties'),
    ({'propertyNames': {'pattern': 'a'}}, '/propertyNames'),
    ({'items': {'contains': {}}}, '/items/contains'),
    ({'prefixItems': [{'uniqueItems': True}]}, '/prefixItems/0/uniqueItems'),
    ({'type': 'array', 'unevaluatedItems': False}, '/unevaluatedItems'),
    ({'$defs': {'x': {'not': {}}}, 'additionalProperties': {'$ref': '#/$defs/x'}}, '/$defs/x/not'),
    ({'$ref': 'https://example.org/x'}, '/$ref'), ({'$ref': '#anchor'}, '/$ref'),
    ({'$defs': {'a': {'$ref': '#/$defs/a'}}, '$ref': '#/$defs/a'}, '/$defs/a/$ref'),
    ({'$dynamicRef': '#x'}, '/$dynamicRef'),
    ({'oneOf': [{'type': 'integer'}, {'type': 'number'}]}, '/oneOf'),
    ({'oneOf': [{'properties': {'a': {}}}, {'properties': {'b': {}}}]}, '/oneOf'),
    ({'type': 'number', 'multipleOf': 0.3}, '/multipleOf'),
    ({'type': 'integer', 'multipleOf': 7}, '/multipleOf'),
    ({'type': 'string', 'pattern': '(?=a)b'}, '/pattern'),
    ({'type': 'string', 'pattern': '(^a)'}, '/pattern'),
    ({'type': 'string', 'pattern': 'a('}, '/pattern'),
    ({'properties': {'a': {}, 'b': {}}, 'minProperties': 2}, '/minProperties'),
    ({'properties': {'a': {}, 'b': {}}, 'maxProperties': 1}, '/maxProperties'),
    ({'type': 'object', 'minProperties': 2}, '/minProperties')]


@pytest.mark.parametrize(('schema', 'pointer'), REFUSED)
def test_what_can_not_be_kept_is_refused_by_its_pointer(grammars: Grammars, schema: Any,
                                                        pointer: str) -> None:
    with pytest.raises(RequestError) as caught:
        grammars.answer(schema, 'the schema')
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert f' at {pointer} is not supported' in caught.value.message
    assert caught.value.message.startswith('the schema: ')
    assert caught.value.param == 'the schema'


@pytest.mark.parametrize('schema', [
    {'type': 'string', 'title': 'T', 'description': 'd', 'default': 'x', 'examples': ['y'],
     'deprecated': True, '$comment': 'c', 'x-own': 1, 'contentEncoding': 'base64'},
    {'type': 'array', 'uniqueItems': False, 'items': {}}, {'not': False}, {'if': {'type': 'null'}},
    {'type': 'object', 'patternProperties': {}, 'propertyNames': True, 'properties': {},
     'unevaluatedProperties': False}])
def test_keywords_that_ask_for_nothing_are_no_fault(grammars: Grammars, schema: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    grammars.answer(schema, 'schema')


@pytest.mark.parametrize('schema', [
    False, {'enum': []}, {'enum': [1], 'type': 'string'}, {'const': 'ab', 'maxLength': 1},
    {'type': 'string', 'minLength': 3, 'maxLength': 2}, {'type': 'integer', 'minimum': 0.2,
                                                         'maximum': 0.8},
    {'allOf': [{'type': 'string'}, {'type': 'integer'}]},
    {'type': 'object', 'properties': {'a': False}, 'required': ['a']},
    {'type': 'array', 'items': False, 'minItems': 1},
    {'type': 'string', 'pattern': '^a$', 'minLength': 2},
    {'type': 'object', 'additionalProperties': False, 'required': ['a']},
    {'$defs': {'p': {'type': 'object', 'properties': {'n': {'$ref': '#/$defs/p'}},
                     'required': ['n']}}, '$ref': '#/$defs/p'}])
def test_schemas_that_nothing_fits_are_refused(grammars: Grammars, schema: Any) -> None:
    with pytest.raises(RequestError) as caught:
        grammars.answer(schema, 'schema')
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert 'no value' in caught.value.message


def chain(keyword: str, length: int) -> Any:
    """Each definition needs the next one twice."""
    defs: Any = {f'd{i}': {keyword: [{'$ref': f'#/$defs/d{i + 1}'}] * 2} for i in range(length)}
    return {'$defs': {**defs, f'd{length}': {'type': 'object'}}, '$ref': '#/$defs/d0'}


@pytest.mark.parametrize('schema', [
    chain('allOf', 40), chain('anyOf', 40), {'anyOf': [{'const': i} for i in range(1000)]},
    {'allOf': [{'anyOf': [{'type': 'string'}, {'type': 'null'}]}] * 12},
    {'type': 'string', 'pattern': '^(a+)+$', 'enum': ['a' * 40 + '!', 'a' * 40]},
    {'type': 'string', 'pattern': '((((a{1,50}){1,50}){1,50}){1,50})', 'maxLength': 50},
    {'type': 'string', 'pattern': '(?:' * 3000 + 'a' + ')' * 3000},
    {'type': 'string', 'pattern': '[^a]*' * 500}, {'type': 'string', 'pattern': 'a' * 100_000},
    {'type': 'string', 'maxLength': 100_000}, {'type': 'array', 'maxItems': 100_000},
    {'type': 'array', 'minItems': 5000, 'items': {'type': 'null'}},
    {'type': 'object', 'properties': {f'p{i}': {'type': 'string'} for i in range(1500)}},
    {'$defs': {'a': {'type': 'object', 'properties': {
        'x': {'$ref': '#/$defs/a'}, 'y': {'type': 'array', 'items': {'$ref': '#/$defs/a'}}}}},
     '$ref': '#/$defs/a'}])
def test_no_schema_takes_long(grammars: Grammars, schema: Any) -> None:
    """Compiled or refused, in seconds at most; a first mask included."""
    begin = time.monotonic()
    try:
        grammars.answer(schema, 'schema').matcher().mask()
    except RequestError as error:
        assert error.code is ErrorCode.UNSUPPORTED
    assert time.monotonic() - begin < 8.0


@pytest.mark.parametrize(('schema', 'good', 'bad'), [
    ({'type': 'integer'}, [1, 2.0, -0.0], [1.5, True, '1', None]),
    ({'type': 'number', 'exclusiveMinimum': 0}, [0.1, 5], [0, -1, float('nan'), float('inf')]),
    ({'const': 1}, [1, 1.0], [True, '1']), ({'enum': [[1, {'a': True}]]}, [[1, {'a': True}]],
                                            [[1, {'a': 1}], [1]]),
    ({'type': 'string', 'maxLength': 2}, ['ab', '日本'], ['abc', 1]),
    ({'type': 'array', 'prefixItems': [{'type': 'string'}], 'items': {'type': 'integer'}},
     [['a', 1], [], ['a']], [[1], ['a', 'b']]),
    ({'type': 'object', 'properties': {'a': {'type': 'null'}}, 'required': ['b'],
      'additionalProperties': {'type': 'integer'}}, [{'b': 1}, {'a': None, 'b': 2}],
     [{}, {'b': 'x'}, {'a': 1, 'b': 1}]),
    ({'anyOf': [{'type': 'string'}, {}]}, [True, 'x', {}], []),
    ({'type': 'number', 'multipleOf': 0.1}, [0.3, 0.7, 2], [0.35])])
def test_values_are_judged_as_jsonschema_does(schema: Any, good: list[Any],
                                              bad: list[Any]) -> None:
    reader = SchemaReader(schema, 'schema')
    assert [reader.accepts(value) for value in good] == [True] * len(good)
    assert [reader.accepts(value) for value in bad] == [False] * len(bad)


def test_judging_is_linear_whatever_the_schema() -> None:
    """Two members that both contain the schema itself, thirty levels deep."""
    schema = {'anyOf': [{'properties': {'c': {'$ref': '#'}}, 'required': ['x']},
                        {'properties': {'c': {'$ref': '#'}}, 'required': ['y']},
                        {'maxProperties': 0}]}
    value: Any = {'z': 1}
    for _ in range(30):
        value = {'c': value, 'y': 1}
    begin = time.monotonic()
    assert not SchemaReader(schema, 'schema').accepts(value)
    assert time.monotonic() - begin < 1.0


def test_a_property_that_a_call_can_not_write_is_refused(grammars: Grammars) -> None:
    for name in ('a:b', ' a', 'a,', '', 'a"', "it's", 'x{', 'a\nb'):
        with pytest.raises(RequestError) as caught:
            grammars.calls([Tool('t', {'properties': {name: {}}}, strict=True)])
        assert 'a property name' in caught.value.message
        grammars.answer({'properties': {name: {}}}, 'schema')


def test_a_call_of_sorted_keys(grammars: Grammars, tokenizer: Tokenizer) -> None:
    schema = {'properties': {'b': {'type': 'integer'}, 'A': {'type': 'integer'},
                             'c': {'type': 'integer'}}}
    grammar = grammars.calls([Tool('t', schema)])
    for text, fits in (('call:t{A:1,b:2,c:3}<end>', True), ('call:t{b:2}<end>', True),
                       ('call:t{}<end>', True), ('call:t{b:2,A:1}<end>', False),
                       ('call:t{c:1,b:1}<end>', False), ('call:t{A:1,}<end>', False),
                       ('call:t{ A:1}<end>', False), ('call:u{}<end>', False)):
        assert follow(grammars, grammar, encode(tokenizer, text)) == fits, text
