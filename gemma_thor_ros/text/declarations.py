# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""One tool of the OpenAI form as a Gemma 4 declaration, byte for byte as the template writes it.

The template's defects are kept here (a union type printed as a Python list, a brace left open
when a type is missing); normalize_tools.py brings schemas into a form that doesn't meet them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.controls import TOOL, TOOL_END
from gemma_thor_ros.text.writer import MAX_DEPTH, Writer, sorted_items

_MISSING = object()
_EMPTY: Mapping[str, Any] = {}
# Keys of a schema that are not taken for properties in an object schema without `properties`.
_SCHEMA_KEYS = frozenset(('description', 'type', 'properties', 'required', 'nullable'))


def write_declaration(out: Writer, index: int, tool: Any) -> None:
    """Write one tool with its frame. Raises RequestError naming the tool."""
    function = tool.get('function') if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        raise _bad(f'tools[{index}] has no function', f'tools[{index}]')
    name = _printed(function.get('name', _MISSING))
    where = f'tools[{index}] ({name})'
    out.control(TOOL)
    out.text(f'declaration:{name}{{description:')
    out.quoted(_printed(function.get('description', _MISSING)))
    parameters = function.get('parameters')
    if parameters:
        _parameters(out, _mapping(parameters, f'{where} parameters'), where)
    if 'response' in function:
        response = function['response']
        response = response if isinstance(response, Mapping) else _EMPTY
        out.text(',response:{')
        if response.get('description'):
            out.text('description:')
            out.quoted(_printed(response['description']))
            out.text(',')
        if _upper(response) == 'OBJECT':
            out.text('type:')
            out.quoted('OBJECT')
            out.text('}')
    out.text('}')
    out.control(TOOL_END)


def _parameters(out: Writer, parameters: Mapping[str, Any], where: str) -> None:
    out.text(',parameters:{')
    properties = parameters.get('properties')
    if properties:
        out.text('properties:{')
        _properties(out, _mapping(properties, f'{where} properties'), where, 1)
        out.text('},')
    if parameters.get('required'):
        _required(out, parameters['required'], where)
        out.text(',')
    if parameters.get('type'):
        out.text('type:')
        out.quoted(_upper(parameters))
        out.text('}')


def _properties(out: Writer, properties: Mapping[str, Any], where: str, depth: int,
                without: frozenset[str] = frozenset()) -> None:
    if depth > MAX_DEPTH:
        raise _bad(f'{where} is nested deeper than {MAX_DEPTH} levels', where)
    first = True
    for key, schema in sorted_items(properties):
        if key in without:
            continue
        out.text(key + ':{' if first else f',{key}:{{')
        first = False
        _property(out, schema if isinstance(schema, Mapping) else _EMPTY, where, depth)


def _property(out: Writer, schema: Mapping[str, Any], where: str, depth: int) -> None:
    kind = _upper(schema)
    if schema.get('description'):
        out.text('description:')
        out.quoted(_printed(schema['description']))
        out.text(',')
    if kind == 'STRING' and schema.get('enum'):
        out.text('enum:')
        out.value(schema['enum'], True, where, depth)
        out.text(',')
    elif kind == 'ARRAY' and schema.get('items') and isinstance(schema['items'], Mapping):
        out.text('items:{')
        _items(out, schema['items'], where, depth)
        out.text('},')
    if schema.get('nullable'):
        out.text('nullable:true,')
    if kind == 'OBJECT':
        out.text('properties:{')
        if isinstance(schema.get('properties'), Mapping):
            _properties(out, schema['properties'], where, depth + 1)
        else:
            _properties(out, schema, where, depth + 1, _SCHEMA_KEYS)
        out.text('},')
        if schema.get('required'):
            _required(out, schema['required'], where)
            out.text(',')
    out.text('type:')
    out.quoted(kind)
    out.text('}')


def _items(out: Writer, items: Mapping[str, Any], where: str, depth: int) -> None:
    """The element schema of an array: keys sorted, unknown ones written as values."""
    first = True
    for key, item in sorted_items(items):
        if item is None:
            continue
        if not first:
            out.text(',')
        first = False
        if key == 'properties':
            out.text('properties:{')
            if isinstance(item, Mapping):
                _properties(out, item, where, depth + 1)
            out.text('}')
        elif key == 'required':
            _required(out, item, where)
        elif key == 'type':
            out.text('type:')
            if isinstance(item, str):
                out.quoted(item.upper())
            else:
                names = item if isinstance(item, list | tuple) else [item]
                out.value([str(name).upper() for name in names], True, where)
        else:
            out.text(key + ':')
            out.value(item, True, where, depth)


def _required(out: Writer, required: Any, where: str) -> None:
    if not isinstance(required, list | tuple):
        raise _bad(f'{where}: required must be a list of names', where)
    out.text('required:[')
    for index, name in enumerate(required):
        if index:
            out.text(',')
        out.quoted(_printed(name))
    out.text(']')


def _printed(value: Any) -> str:
    """A value as the template language prints it: nothing when missing, else Python's text."""
    return '' if value is _MISSING else str(value)


def _upper(schema: Mapping[str, Any]) -> str:
    return _printed(schema.get('type', _MISSING)).upper()


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _bad(f'{what} must be an object, found {type(value).__name__}', 'tools')
    return value


def _bad(sentence: str, param: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, sentence, param)
