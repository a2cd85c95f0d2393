# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Tool schemas: what the declaration shows after normalisation, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_thor_ros.schema import RequestError
from gemma_thor_ros.text.normalize_tools import tool_schemas
from gemma_thor_ros.text.prompt import render
from gemma_thor_ros.text.segments import segments_text

USER = [{'role': 'user', 'content': 'x'}]


def declared(parameters: Any = None, normalize: bool = True, **function: Any) -> str:
    function = {'name': 'f', 'description': 'D.', **function}
    if parameters is not None:
        function['parameters'] = parameters
    text = segments_text(render(USER, [{'type': 'function', 'function': function}],
                                normalize=normalize))
    start = text.index('<|tool>') + len('<|tool>')
    return text[start:text.index('<tool|>')].replace('<|"|>', "'")


def prop(schema: Any, normalize: bool = True, **root: Any) -> str:
    text = declared({'type': 'object', 'properties': {'p': schema}, **root}, normalize)
    start = text.index('properties:{p:') + len('properties:{p:')
    return text[start:text.rindex("},type:'OBJECT'}}")]


@pytest.mark.parametrize(('schema', 'shown'), [
    ({'type': ['string', 'null']}, "{nullable:true,type:'STRING'}"),
    ({'type': ['null', 'integer']}, "{nullable:true,type:'INTEGER'}"),
    ({'type': ['integer', 'string']}, "{type:'INTEGER'}"),
    ({'anyOf': [{'type': 'string'}, {'type': 'null'}], 'default': None},
     "{nullable:true,type:'STRING'}"),
    ({'oneOf': [{'type': 'null'}, {'type': 'array', 'items': {'type': 'number'}}],
      'description': 'Way'},
     "{description:'Way',items:{type:'NUMBER'},nullable:true,type:'ARRAY'}"),
    ({'anyOf': [{'type': 'object', 'properties': {'x': {'type': 'number'}},
                 'required': ['x']}, {'type': 'null'}]},
     "{nullable:true,properties:{x:{type:'NUMBER'}},required:['x'],type:'OBJECT'}"),
    ({'anyOf': [{'const': 'a'}, {'const': 'b'}]}, "{enum:['a','b'],type:'STRING'}"),
    ({'const': 'only'}, "{enum:['only'],type:'STRING'}"),
    ({'enum': ['a', 'b']}, "{enum:['a','b'],type:'STRING'}"),
    ({'enum': [1, 2]}, "{type:'INTEGER'}"),
    ({'type': 'STRING', 'description': None}, "{type:'STRING'}"),
    ({'type': 'object'}, "{properties:{},type:'OBJECT'}"),
    ({'type': 'object', 'additionalProperties': False, 'title': 'T'},
     "{properties:{},type:'OBJECT'}"),
    ({'properties': {'q': True}}, "{properties:{q:{type:''}},type:'OBJECT'}"),
    ({'items': {'type': ['string', 'null']}}, "{items:{type:['STRING','NULL']},type:'ARRAY'}"),
    ({'type': 'array', 'items': {'anyOf': [{'type': 'integer'}, {'type': 'null'}]}},
     "{items:{nullable:true,type:'INTEGER'},type:'ARRAY'}"),
    ({'allOf': [{'type': 'boolean'}], 'description': 'On'}, "{description:'On',type:'BOOLEAN'}"),
    (True, "{type:''}"),
])
def test_property(schema: Any, shown: str) -> None:
    assert prop(schema) == shown


def test_references_are_resolved() -> None:
    pose = {'type': 'object', 'properties': {'x': {'type': 'number'}}, 'title': 'Pose'}
    shown = "{description:'Goal',properties:{x:{type:'NUMBER'}},type:'OBJECT'}"
    schema = {'$ref': '#/$defs/Pose', 'description': 'Goal'}
    assert prop(schema, **{'$defs': {'Pose': pose}}) == shown
    assert prop({'allOf': [{'$ref': '#/$defs/Pose'}], 'description': 'Goal'},
                **{'$defs': {'Pose': pose}}) == shown
    assert prop({'type': 'array', 'items': {'$ref': '#/definitions/a~1b'}},
                definitions={'a/b': {'type': 'string'}}) \
        == "{items:{type:'STRING'},type:'ARRAY'}"


def test_a_schema_that_contains_itself_ends() -> None:
    node = {'type': 'object', 'properties': {'next': {'$ref': '#/$defs/Node'},
                                             'value': {'type': 'integer'}}}
    shown = prop({'$ref': '#/$defs/Node'}, **{'$defs': {'Node': node}})
    assert shown == ("{properties:{next:{properties:{},type:'OBJECT'},value:{type:'INTEGER'}},"
                     "type:'OBJECT'}")


def test_references_that_grow_without_end_are_refused() -> None:
    defs = {f'd{n}': {'type': 'object', 'properties': {
        'a': {'$ref': f'#/$defs/d{n + 1}'}, 'b': {'$ref': f'#/$defs/d{n + 1}'}}}
        for n in range(30)}
    defs['d30'] = {'type': 'string'}
    with pytest.raises(RequestError, match='4096 parts'):
        prop({'$ref': '#/$defs/d0'}, **{'$defs': defs})
    chain = {f'd{n}': {'$ref': f'#/$defs/d{n + 1}'} for n in range(70)}
    with pytest.raises(RequestError, match='never end'):
        prop({'$ref': '#/$defs/d0'}, **{'$defs': {**chain, 'd70': {'type': 'string'}}})
    assert prop({'$ref': '#/$defs/a'}, **{'$defs': {'a': {'$ref': '#/$defs/a'}}}) \
        == "{properties:{},type:'OBJECT'}"


def test_function_forms() -> None:
    assert declared() == "declaration:f{description:'D.'}"
    assert declared({}) == "declaration:f{description:'D.'}"
    assert declared({'properties': {}}) \
        == "declaration:f{description:'D.',parameters:{type:'OBJECT'}}"
    assert declared({'type': 'object', 'properties': {}}, description=None) \
        == "declaration:f{description:'',parameters:{type:'OBJECT'}}"
    assert declared(response={'type': 'string', 'description': 'R'}) \
        == "declaration:f{description:'D.',response:{description:'R',type:'OBJECT'}}"
    flat = [{'type': 'function', 'name': 'f', 'description': 'D.'}, {'name': 'g'}]
    text = segments_text(render(USER, flat))
    assert 'declaration:f{' in text and 'declaration:g{' in text


def test_defects_of_the_template_are_kept_on_request() -> None:
    assert prop({'type': ['string', 'null']}, False) == "{type:'['STRING', 'NULL']'}"
    assert declared({'properties': {'a': {'type': 'string'}}}, False) \
        == "declaration:f{description:'D.',parameters:{properties:{a:{type:'STRING'}},}"
    assert declared(None, False, description=None) == "declaration:f{description:'None'}"
    assert declared(None, False, response={'type': 'string'}) \
        == "declaration:f{description:'D.',response:{}"
    assert prop({'type': 'object', 'additionalProperties': False, 'title': 'T',
                 'description': 'd'}, False) \
        == ("{description:'d',properties:{additionalProperties:{type:''},title:{type:''}},"
            "type:'OBJECT'}")


@pytest.mark.parametrize(('tools', 'names'), [
    ('f', 'tools'), (['f'], r'tools\[0\]'), ([{}], r'tools\[0\]'), ([{'function': 3}], 'tools'),
    ([{'function': {'name': 'get battery'}}], 'get battery'),
    ([{'function': {'name': ''}}], r'tools\[0\]'),
    ([{'function': {'name': 'f{'}}], r'f\{'),
    ([{'function': {'name': 'f:'}}], 'f:'),
    ([{'name': 'f'}, {'name': 'f'}], r"tools\[1\].*'f' a second time"),
    ([{'type': 'web_search', 'name': 'f'}], 'web_search'),
    ([{'name': 'f', 'description': 3}], r'tools\[0\] \(f\)'),
    ([{'name': 'f', 'parameters': [1]}], r'tools\[0\] \(f\)'),
    ([{'name': 'f', 'parameters': {'type': 'string'}}], 'string'),
    ([{'name': 'f', 'parameters': {'type': 5}}], r'tools\[0\] \(f\)'),
    ([{'name': 'f', 'parameters': {'properties': [1], 'type': 'object'}}], 'properties'),
    ([{'name': 'f', 'parameters': {'properties': {'a': 3}}}], r'tools\[0\] \(f\)\.a'),
    ([{'name': 'f', 'parameters': {'type': 'object', 'required': 'a'}}], 'required'),
    ([{'name': 'f', 'parameters': {'properties': {'a': {'enum': 'x'}}}}], 'enum'),
    ([{'name': 'f', 'parameters': {'properties': {'a': {'$ref': '#/x'}}}}], '#/x'),
    ([{'name': 'f', 'parameters': {'properties': {'a': {'$ref': 'other.json'}}}}], 'other'),
    ([{'name': 'f', 'parameters': {'properties': {'a': {'items': 'x', 'type': 'array'}}}}],
     'items'),
])
def test_bad_tool_is_named(tools: Any, names: str) -> None:
    with pytest.raises(RequestError, match=names) as caught:
        render(USER, tools)
    assert caught.value.param == 'tools'


def test_schema_nested_too_deeply() -> None:
    schema: dict[str, Any] = {'type': 'string'}
    for _ in range(70):
        schema = {'type': 'object', 'properties': {'a': schema}}
    for normalize in (True, False):
        with pytest.raises(RequestError, match='64 levels'):
            declared(schema, normalize)


def test_tool_list_forms_for_the_parser() -> None:
    schema = {'type': 'object', 'properties': {'a': {'type': 'integer'}}}
    function = {'name': 'f', 'description': 'd', 'parameters': schema}
    assert tool_schemas(None) == {}
    assert tool_schemas(['f', 'g']) == {'f': {}, 'g': {}}
    assert tool_schemas({'f': schema, 'g': None}) == {'f': schema, 'g': {}}
    assert tool_schemas([{'type': 'function', 'function': function}, function]) == {'f': schema}
    assert tool_schemas({'f': {'description': 'd', 'parameters': schema}}) == {'f': schema}
    for wrong in ('f', 3, [3], [{'function': {}}], {'f': 3}, [{'name': 'f', 'parameters': [1]}]):
        with pytest.raises(RequestError):
            tool_schemas(wrong)
