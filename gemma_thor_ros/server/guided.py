# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What an answer has to be, in OpenAI's words: tool_choice, parallel_tool_calls, the text's form.

Gives the fields of a ChatRequest. What the names and schemas may be is validate.py's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemma_thor_ros.server.words import invalid, unsupported

_ALLOWED = 'auto, none, required, a function and allowed_tools'
ANY_OBJECT = {'type': 'object'}


def calls_of(choice: str | Mapping[str, Any] | None, parallel: bool | None) -> dict[str, Any]:
    """Return which tools are to be called.

    Raises:
        RequestError: no such choice.
    """
    fields: dict[str, Any] = {'tool_choice': 'auto', 'parallel_tool_calls': parallel is not False}
    if choice is None:
        return fields
    if isinstance(choice, str):
        return {**fields, 'tool_choice': choice}
    kind = choice.get('type')
    if kind == 'function':
        name = _name(choice, 'tool_choice')
        return {**fields, 'tool_choice': 'required', 'tool_names': (name,)}
    if kind == 'allowed_tools':
        inner = choice.get('allowed_tools', choice)  # /v1/responses has it one level up
        tools = inner.get('tools') if isinstance(inner, Mapping) else None
        if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
            raise invalid('tool_choice.allowed_tools.tools must be a list of tools', 'tool_choice')
        names = tuple(_name(tool, f'tool_choice.tools[{i}]') for i, tool in enumerate(tools))
        return {**fields, 'tool_choice': inner.get('mode', 'auto'), 'tool_names': names}
    raise invalid(f'tool_choice is of type {kind!r}, served are {_ALLOWED}', 'tool_choice')


def text_of(form: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Return what the text has to be; `where` names `form` in errors.

    Raises:
        RequestError: no such form.
    """
    kind = form.get('type') if form else 'text'
    if form is None or kind == 'text':
        return {}
    if kind == 'json_object':
        if form.get('schema') is not None:  # llama.cpp's words for a JSON text of a schema
            return {
                'response_schema': form['schema'],
                'response_schema_at': f'{where}.schema',
            }
        return {'response_schema': ANY_OBJECT, 'response_schema_at': where}
    if kind != 'json_schema':
        raise unsupported(
            f'{where}.type is {kind!r}, served are text, json_object and json_schema', where
        )
    if 'json_schema' in form:  # /v1/responses has its fields one level up
        form, where = form['json_schema'], f'{where}.json_schema'
    if not isinstance(form, Mapping):
        raise invalid(f'{where} must be an object', where)
    schema = form.get('schema')
    if schema is None and 'name' not in form:  # a schema where its wrapper belongs binds nothing
        raise invalid(f'{where}.schema is missing', f'{where}.schema')
    return {
        'response_schema': ANY_OBJECT if schema is None else schema,
        'response_schema_at': f'{where}.schema',
    }


def _name(tool: Any, where: str) -> str:
    """Return the name in a reference to a function tool, in either API's form."""
    inner = tool.get('function', tool) if isinstance(tool, Mapping) else None
    name = inner.get('name') if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise invalid(f'{where} names no function', 'tool_choice')
    return name
