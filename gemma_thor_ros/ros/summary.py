# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""The sentence in which a person is asked whether a call may act.

It says what the model said and what would be sent, with units, on one line. Texts of the model
are quoted, escaped and cut, so that they can't pose as words of ours. Knows no ROS.
"""

from __future__ import annotations

from gemma_thor_ros.ros import units
from gemma_thor_ros.ros.checks import CheckedCall, argument_values
from gemma_thor_ros.ros.policy_types import Argument, Scalar, Value
from gemma_thor_ros.ros.verdict import cut

MAX_QUOTED = 120                 # characters of a text of the model
MAX_ELEMENTS = 8                 # of an array
MAX_SUMMARY = 4000               # characters of it all


def summary(checked: CheckedCall, target: str) -> str:
    """Return the question, in one sentence; `target` is the resolved name."""
    tool = checked.tool
    values = argument_values(tool, checked.call.arguments)
    helpers = {name for arg in tool.args for name in (arg.unit_arg, arg.sign_arg) if name}
    said = [_argument(arg, values, checked) for arg in tool.args
            if arg.name in values and arg.name != tool.target.duration_arg
            and (arg.field or arg.name not in helpers)]
    what = 'Move the robot' if tool.motion else 'Act'
    duration = f' for {checked.duration_s:g} s' if checked.duration_s else ''
    return cut(f'{what}: {tool.name} on {target}{" with " * bool(said)}{", ".join(said)}'
               f'{duration}?', MAX_SUMMARY)


def quoted(text: str, limit: int = MAX_QUOTED) -> str:
    """Return a text of others in quotes, its control and direction marks escaped, cut with '...'.

    The length that is told of a cut text is that of the whole, in characters.
    """
    shown = ''.join(_escaped(char) for char in text[:limit])
    return f'"{shown}"' if len(text) <= limit else f'"{shown}"... ({len(text)} characters)'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f'\\{char}'
    if char.isprintable():               # no control, format, line or paragraph mark, no odd space
        return char
    return {'\n': '\\n', '\r': '\\r', '\t': '\\t'}.get(char) or (
        f'\\u{ord(char):04x}' if ord(char) < 0x10000 else f'\\U{ord(char):08x}')


def _argument(arg: Argument, values: dict[str, Value], checked: CheckedCall) -> str:
    """Return 'name = what was said (what is sent)'."""
    value = values[arg.name]
    unit = str(values[arg.unit_arg]) if arg.unit_arg else arg.unit
    way = f' {values[arg.sign_arg]}' if arg.sign_arg else ''
    sent = checked.fields.get(arg.field, value)
    text = f'{arg.name} = {_value(value)}{f" {unit}" * bool(unit)}{way}'
    si = units.SI_UNITS[units.dimension(unit)] if unit else ''
    if sent != value or unit != si:
        text += f' ({_value(sent, si, 4)}{f" {si}" * bool(si)})'
    return text


def _value(value: Value, si: str = '', digits: int = 6) -> str:
    if isinstance(value, list):
        shown = ', '.join(_value(item, si, digits) for item in value[:MAX_ELEMENTS])
        more = f', ... ({len(value)} elements)' if len(value) > MAX_ELEMENTS else ''
        return f'[{shown}{more}]'
    return _scalar(value, digits)


def _scalar(value: Scalar, digits: int) -> str:
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, str):
        return quoted(value)
    return str(value) if isinstance(value, int) else f'{value:.{digits}g}'
