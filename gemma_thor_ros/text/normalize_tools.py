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
from typing import Any

from gemma_thor_ros.schema import ErrorCode, RequestError
from gemma_thor_ros.text.writer import MAX_DEPTH

Schema = dict[str, Any]
_MAX_PARTS = 4096                  # schemas within one tool, references written out
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
                raise _bad(f'tools.{name}',
                           f'must be a JSON schema, found {type(schema).__name__}')
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
        parameters = _SchemaReader(parameters, where).schema(parameters, where)
        if parameters.get('type', 'object') != 'object':
            raise _bad(where, f"has parameters of type {parameters['type']!r}, expected 'object'")
        parameters['type'] = 'object'
        out['parameters'] = parameters
    response = function.get('response')
    if isinstance(response, Mapping):
        # A result that isn't an object reaches the model as {value: ...}, which is one.
        out['response'] = {**response, 'type': 'object'}
    return out


class _SchemaReader:
    """Rewrites the schemas of one tool; references are into its whole parameters."""

    def __init__(self, root: Mapping[str, Any], where: str) -> None:
        self.root = root
        self.tool = where
        self.left = _MAX_PARTS

    def schema(self, schema: Any, where: str, refs: frozenset[str] = frozenset(),
               depth: int = 0) -> Schema:
        """One schema without references and unions, children included.

        `refs` are the references being followed: a schema that contains itself ends there.
        """
        self.left -= 1
        if depth > MAX_DEPTH or self.left < 0:
            raise _bad(self.tool, f'has a schema nested deeper than {MAX_DEPTH} levels or of more '
                       f'than {_MAX_PARTS} parts')
        if isinstance(schema, bool):
            return {}
        if not isinstance(schema, Mapping):
            raise _bad(where, f'has a schema that is no object but {type(schema).__name__}')
        out, refs = self.flat(schema, where, refs)
        _set_type(out, where)
        if out.get('description') is not None:
            out['description'] = str(out['description'])
        if out.get('type') == 'object':
            properties = out.get('properties') or {}
            if not isinstance(properties, Mapping):
                raise _bad(where, 'has properties that are no object')
            out['properties'] = {str(key): self.schema(item, f'{where}.{key}', refs, depth + 1)
                                 for key, item in properties.items()}
        if out.get('type') == 'array':
            items = out.get('items')
            if isinstance(items, Mapping):
                out['items'] = self.items(items, where, refs, depth + 1)
            elif items is not None and not isinstance(items, bool | list | tuple):
                raise _bad(where, 'has items that are no schema')
        _check_lists(out, where)
        return out

    def items(self, items: Mapping[str, Any], where: str, refs: frozenset[str],
              depth: int) -> Schema:
        """An element schema: here the template itself knows lists of types."""
        kinds = items.get('type')
        out = self.schema(items, f'{where}[]', refs, depth)
        if isinstance(kinds, list | tuple):
            out['type'] = [str(kind) for kind in kinds]
            out.pop('nullable', None)
        if out.get('properties') == {} and 'properties' not in items:
            del out['properties']
        return out

    def flat(self, schema: Mapping[str, Any], where: str,
             refs: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """A copy of one schema with $ref, allOf of one and unions folded into it."""
        out = dict(schema)
        for _ in range(MAX_DEPTH):
            reference = out.get('$ref')
            if isinstance(reference, str):
                del out['$ref']
                target = self.referred(reference, where)
                if reference in refs:
                    target = {'type': target.get('type', 'object')}
                out = {**target, **out}
                refs |= {reference}
                continue
            members = out.get('allOf')
            if isinstance(members, list | tuple) and len(members) == 1 \
                    and isinstance(members[0], Mapping):
                del out['allOf']
                out = {**members[0], **out}
                continue
            union = next((key for key in ('anyOf', 'oneOf')
                          if isinstance(out.get(key), list | tuple) and out[key]), None)
            if union is None:
                for key in ('$defs', 'definitions'):
                    out.pop(key, None)
                return out, refs
            out = _first_member(out, union)
        raise _bad(where, 'has references that never end')

    def referred(self, reference: str, where: str) -> Mapping[str, Any]:
        """The schema that a local reference names."""
        if not reference.startswith('#'):
            raise _bad(where, f'refers to {reference!r}; only references into the same schema '
                       'work')
        target: Any = self.root
        for step in reference[1:].split('/')[1:]:
            step = step.replace('~1', '/').replace('~0', '~')
            target = target.get(step) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            raise _bad(where, f'refers to {reference!r}, which its schema does not hold')
        return target


def _first_member(schema: Schema, union: str) -> Schema:
    """Fold a union into its schema: null makes it nullable, of the rest the first one counts."""
    options = [option for option in schema.pop(union) if isinstance(option, Mapping)]
    real = [option for option in options if option.get('type') != 'null']
    if len(real) < len(options):
        schema['nullable'] = True
    consts = [option['const'] for option in real if 'const' in option]
    if real and len(consts) == len(real):
        schema.setdefault('enum', consts)
        return schema
    return {**real[0], **schema} if real else schema


def _set_type(schema: Schema, where: str) -> None:
    """One lower-case type: null beside others becomes `nullable`, a missing one is inferred."""
    kinds = schema.get('type')
    if isinstance(kinds, list | tuple):
        names = [str(kind).lower() for kind in kinds]
        if 'null' in names and len(names) > 1:
            schema['nullable'] = True
            names.remove('null')
        schema['type'] = names[0] if names else ''
    elif isinstance(kinds, str):
        schema['type'] = kinds.lower()
    elif kinds is not None:
        raise _bad(where, f'has a type that is no string: {kinds!r}')
    if 'const' in schema:
        schema.setdefault('enum', [schema.pop('const')])
    if schema.get('type') is None:
        _infer_type(schema)


def _check_lists(schema: Schema, where: str) -> None:
    required = schema.get('required')
    if required is not None and not (isinstance(required, list | tuple)
                                     and all(isinstance(name, str) for name in required)):
        raise _bad(where, 'has a required that is no list of names')
    enum = schema.get('enum')
    if enum is not None and not isinstance(enum, list | tuple):
        raise _bad(where, 'has an enum that is no list')


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
