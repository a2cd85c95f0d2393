# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Tool schemas as clients send them, brought into what a Gemma 4 declaration can express.

Resolves local $ref, turns null unions into `nullable`, other unions into their first member, and
gives every object its type. Input is never changed in place. Errors are RequestErrors that name
the tool. Also reads the short forms of a tool list that the parser of answers accepts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.writer import MAX_DEPTH

Schema = dict[str, Any]
_UNIONS = ('anyOf', 'oneOf')
# What a call can be made of: no blank, quote, bracket, comma or equals sign, no colon at an end.
_NAME_CHAR = r'[^\s"\'\[\]{}()<>,=\ud800-\udfff'
NAME = re.compile(rf'{_NAME_CHAR}:](?:{_NAME_CHAR}]*{_NAME_CHAR}:])?')


def normalize_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Schema]:
    """Check and rewrite a list of tools in OpenAI form; flat and bare function forms pass too."""
    if tools is None:
        return []
    if not isinstance(tools, list | tuple):
        raise _bad('tools', f'must be a list, found {type(tools).__name__}')
    out = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        function = _function(index, tool)
        name = function['name']
        if name in names:
            raise _bad(f'tools[{index}]', f"declares '{name}' a second time")
        names.add(name)
        out.append({'type': 'function', 'function': function})
    return out


def tool_schemas(tools: Any) -> dict[str, Mapping[str, Any]]:
    """Names and parameter schemas of the tools of a request, for the parser of its answer.

    Takes a list of names, a map name -> schema, or tools in OpenAI form; an unknown schema is {}.
    """
    if tools is None:
        return {}
    if isinstance(tools, Mapping):
        for name, schema in tools.items():
            if not isinstance(schema, Mapping) and schema is not None:
                raise _bad(f'tools.{name}', f'must be a JSON schema, found {type(schema).__name__}')
        return {str(name): _unwrapped(schema or {}) for name, schema in tools.items()}
    if not isinstance(tools, list | tuple):
        raise _bad('tools', f'must be a list or an object, found {type(tools).__name__}')
    out: dict[str, Mapping[str, Any]] = {}
    for index, tool in enumerate(tools):
        if isinstance(tool, str):
            out[tool] = {}
            continue
        function = tool.get('function', tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get('name'), str):
            raise _bad(f'tools[{index}]', 'has no function name')
        parameters = function.get('parameters') or {}
        if not isinstance(parameters, Mapping):
            raise _bad(f'tools[{index}]', 'has parameters that are no JSON schema')
        out[function['name']] = parameters
    return out


def _unwrapped(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A whole function description given in place of its parameters."""
    inner = schema.get('parameters')
    if isinstance(inner, Mapping) and 'type' not in schema and 'properties' not in schema:
        return inner
    return schema


def _function(index: int, tool: Any) -> Schema:
    where = f'tools[{index}]'
    if not isinstance(tool, Mapping):
        raise _bad(where, f'must be an object, found {type(tool).__name__}')
    if tool.get('type', 'function') != 'function':
        raise _bad(where, f"has type {tool['type']!r}; only 'function' is supported")
    function = tool.get('function', tool)
    if not isinstance(function, Mapping):
        raise _bad(where, 'has a function that is no object')
    name = function.get('name')
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _bad(where, f'has the name {name!r}; a name has no blanks, quotes, brackets, '
              "commas or '='")
    where = f'{where} ({name})'
    description = function.get('description')
    if description is not None and not isinstance(description, str):
        raise _bad(where, 'has a description that is no string')
    out: Schema = {'name': name, 'description': description or ''}
    parameters = function.get('parameters')
    if parameters is not None and not isinstance(parameters, Mapping):
        raise _bad(where, 'has parameters that are no JSON schema (an object)')
    if parameters:
        root = parameters
        parameters = _schema(root, root, where, 0)
        if parameters.get('type', 'object') != 'object':
            raise _bad(where, f"has parameters of type {parameters['type']!r}, expected 'object'")
        parameters['type'] = 'object'
        out['parameters'] = parameters
    response = function.get('response')
    if isinstance(response, Mapping):
        # A result that isn't an object reaches the model as {value: ...}, which is one.
        out['response'] = {**response, 'type': 'object'}
    return out


def _schema(schema: Any, root: Mapping[str, Any], where: str, depth: int) -> Schema:
    """One schema without references and unions, children included."""
    if depth > MAX_DEPTH:
        raise _bad(where, f'has a schema nested deeper than {MAX_DEPTH} levels')
    if isinstance(schema, bool):
        return {}
    if not isinstance(schema, Mapping):
        raise _bad(where, f'has a schema that is no object but {type(schema).__name__}')
    out = _flat(schema, root, where)
    kinds = out.get('type')
    if isinstance(kinds, list | tuple):
        names = [str(kind).lower() for kind in kinds]
        if 'null' in names:
            out['nullable'] = True
            names.remove('null')
        if names:
            out['type'] = names[0]
        else:
            out['type'] = 'null'
    elif isinstance(kinds, str):
        out['type'] = kinds.lower()
    elif kinds is not None:
        raise _bad(where, f'has a type that is no string: {kinds!r}')
    if 'const' in out and 'enum' not in out:
        out['enum'] = [out.pop('const')]
    if 'type' not in out:
        _infer_type(out)
    if out.get('description') is not None:
        out['description'] = str(out['description'])
    if out.get('type') == 'object':
        properties = out.get('properties') or {}
        if not isinstance(properties, Mapping):
            raise _bad(where, 'has properties that are no object')
        out['properties'] = {str(key): _schema(item, root, f'{where}.{key}', depth + 1)
                             for key, item in properties.items()}
        required = out.get('required')
        if required is not None and not (isinstance(required, list | tuple)
                                         and all(isinstance(name, str) for name in required)):
            raise _bad(where, 'has a required that is no list of names')
    if out.get('type') == 'array':
        items = out.get('items')
        if isinstance(items, Mapping):
            out['items'] = _items(items, root, where, depth + 1)
        elif items is not None and not isinstance(items, bool | list | tuple):
            raise _bad(where, 'has items that are no schema')
    enum = out.get('enum')
    if enum is not None and not isinstance(enum, list | tuple):
        raise _bad(where, 'has an enum that is no list')
    return out


def _items(items: Mapping[str, Any], root: Mapping[str, Any], where: str, depth: int) -> Schema:
    """An element schema: here the template itself knows lists of types."""
    kinds = items.get('type')
    out = _schema(items, root, f'{where}[]', depth)
    if isinstance(kinds, list | tuple):
        out['type'] = [str(kind) for kind in kinds]
        out.pop('nullable', None)
    for key in ('$defs', 'definitions'):
        out.pop(key, None)
    if out.get('type') == 'object' and not out['properties'] and 'properties' not in items:
        del out['properties']
    return out


def _flat(schema: Mapping[str, Any], root: Mapping[str, Any], where: str) -> Schema:
    """A copy of one schema with $ref, allOf of one and unions folded into it."""
    out = dict(schema)
    for _ in range(MAX_DEPTH):
        if isinstance(out.get('$ref'), str):
            target = _referred(root, out.pop('$ref'), where)
            out = {**target, **out}
            continue
        members = out.get('allOf')
        if isinstance(members, list | tuple) and len(members) == 1 \
                and isinstance(members[0], Mapping):
            del out['allOf']
            out = {**members[0], **out}
            continue
        union = next((key for key in _UNIONS if isinstance(out.get(key), list | tuple)
                      and out[key]), None)
        if union is None:
            return out
        options = [option for option in out.pop(union) if isinstance(option, Mapping)]
        real = [option for option in options if option.get('type') != 'null']
        if len(real) < len(options):
            out['nullable'] = True
        consts = [option['const'] for option in real if 'const' in option]
        if real and len(consts) == len(real):
            out.setdefault('enum', consts)
        elif real:
            out = {**real[0], **out}
    raise _bad(where, 'has references that never end')


def _referred(root: Mapping[str, Any], reference: str, where: str) -> Mapping[str, Any]:
    target: Any = root
    if not reference.startswith('#'):
        raise _bad(where, f'refers to {reference!r}; only references into the same schema work')
    for step in reference[1:].split('/')[1:]:
        step = step.replace('~1', '/').replace('~0', '~')
        target = target.get(step) if isinstance(target, Mapping) else None
    if not isinstance(target, Mapping):
        raise _bad(where, f'refers to {reference!r}, which its schema does not hold')
    return target


def _infer_type(schema: Schema) -> None:
    """Give a schema without a type the one that its other keys imply, where they do."""
    enum = schema.get('enum')
    if isinstance(schema.get('properties'), Mapping):
        schema['type'] = 'object'
    elif 'items' in schema:
        schema['type'] = 'array'
    elif isinstance(enum, list | tuple) and enum:
        kinds = {'boolean' if isinstance(item, bool) else 'integer' if isinstance(item, int)
                 else 'number' if isinstance(item, float) else 'string'
                 for item in enum if item is not None}
        if len(kinds) == 1:
            schema['type'] = kinds.pop()


def _bad(where: str, sentence: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f'{where} {sentence}', 'tools')
