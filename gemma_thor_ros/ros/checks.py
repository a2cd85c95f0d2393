# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Holds a call of the model against the policy; what is not clearly allowed is refused.

Pure functions of (policy, call, turn). Knows no ROS; the width of ROS fields is held by
interfaces.py, stops and the guard by bridge.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gemma_thor_ros.ros import units
from gemma_thor_ros.ros.policy_types import Argument, Policy, Scalar, ToolPolicy, Value
from gemma_thor_ros.ros.provenance import NOTHING_READ, Reads
from gemma_thor_ros.ros.verdict import CallRefusedError, Outcome
from gemma_thor_ros.schema import FinishReason, ToolCall


@dataclass
class TurnContext:
    """The model's turn that the calls stand in; one object for all calls of a turn.

    `session_id` and `front_end` are those of the request; `reads` is what the model has read since
    the user's last words; `failed` is the motion of this turn that did not succeed, if any.

    Only a turn that the model itself ended after its calls (finish_reason TOOL_CALLS) may act; one
    that was cut by length, stop string, cancel or error acts on none of them.
    """

    finish_reason: FinishReason
    session_id: str = ''
    front_end: str = 'ros'
    reads: Reads = NOTHING_READ
    failed: str = ''
    _seen: set[str] = field(default_factory=set, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def first_time(self, key: str) -> bool:
        """Remember `key`; False when it has been seen in this turn."""
        with self._lock:
            if key in self._seen:
                return False
            self._seen.add(key)
            return True


@dataclass(frozen=True)
class CheckedCall:
    """A call that the policy allows: message fields by path, in SI, constants not included."""

    call: ToolCall
    tool: ToolPolicy
    fields: dict[str, Value]
    duration_s: float = 0.0          # of a publish that goes on


def check_turn(call: ToolCall, turn: TurnContext) -> None:
    """Refuse the calls of a turn that was cut, and calls that the parser had to mend."""
    if turn.finish_reason is not FinishReason.TOOL_CALLS:
        raise CallRefusedError(Outcome.REFUSED_REPAIRED,
                               f'the turn was cut ({turn.finish_reason}), so its calls do not act')
    if call.repaired:
        raise CallRefusedError(Outcome.REFUSED_REPAIRED,
                               'the call was not written exactly; write it again')


def check_call(policy: Policy, call: ToolCall, turn: TurnContext) -> CheckedCall:
    """Return the goal fields of an allowed call.

    Raises:
        CallRefusedError: outcome and a sentence with the numbers, fit for the model.
    """
    tool = policy.tools.get(call.name)
    if tool is None:
        raise CallRefusedError(
            Outcome.REFUSED_UNKNOWN_TOOL,
            f'there is no tool {call.name[:64]!r}; the tools are {", ".join(policy.tools)}')
    check_turn(call, turn)
    check_failed(policy, tool, turn)
    check_reads(tool, turn)
    return CheckedCall(call, tool, goal_fields(tool, call.arguments),
                       _duration_s(tool, call.arguments))


def check_failed(policy: Policy, tool: ToolPolicy, turn: TurnContext) -> None:
    """Refuse a motion that was meant to begin where one that failed should have ended."""
    if tool.motion and turn.failed and policy.after_failure == 'refuse':
        raise CallRefusedError(
            Outcome.REFUSED_PRECONDITION,
            f'{turn.failed} before it in this turn did not succeed')


def check_reads(tool: ToolPolicy, turn: TurnContext) -> None:
    """Refuse a motion after untrusted text, where the policy wants that."""
    read = turn.reads.untrusted(tool.trusts) if tool.motion else ''
    if read and tool.after_reading == 'refuse':
        raise CallRefusedError(
            Outcome.REFUSED_PROVENANCE,
            f'{tool.name} moves the robot, which is not done after reading {read}: the user has '
            'to ask for it')


def check_duplicate(checked: CheckedCall, turn: TurnContext) -> None:
    """Refuse the second of two calls of one turn that would do the same."""
    key = json.dumps([checked.tool.name, checked.fields, checked.duration_s], sort_keys=True)
    if not turn.first_time(key):
        raise CallRefusedError(Outcome.REFUSED_DUPLICATE,
                               f'the same {checked.tool.name} call stands in this turn twice')


def goal_fields(tool: ToolPolicy, arguments: Any) -> dict[str, Value]:
    """Check all arguments and convert them to message fields by path, quantities in SI."""
    values = argument_values(tool, arguments)
    fields: dict[str, Value] = {}
    for arg in tool.args:
        if arg.field and arg.name in values:
            value = values[arg.name]
            fields[arg.field] = [
                _field_value(tool, _element(arg, index), item, values)
                for index, item in enumerate(value)
            ] if isinstance(value, list) else _field_value(tool, arg, value, values)
    return fields


def _duration_s(tool: ToolPolicy, arguments: Any) -> float:
    """Return how long a publish goes on: an argument within its limits, or the policy's limit."""
    arg = tool.argument(tool.target.duration_arg)
    if arg is None:
        return tool.target.max_duration_s
    value = argument_values(tool, arguments)[arg.name]
    assert isinstance(value, (int, float)), 'a duration was checked to be a number'
    _check_range(arg, value, '', 1)
    return float(value)


def _element(arg: Argument, index: int) -> Argument:
    return dataclasses.replace(arg.element, name=f'{arg.name}[{index}]')


def argument_values(tool: ToolPolicy, arguments: Any) -> dict[str, Value]:
    """Return the values by argument: names, types and enums checked, defaults filled in."""
    if not isinstance(arguments, dict):
        _refuse_schema('the arguments are no object')
    for name in arguments:
        if tool.argument(name) is None:
            known = ', '.join(arg.name for arg in tool.args) or 'none'
            _refuse_schema(f'{tool.name} has no argument {str(name)[:64]!r}; the arguments are '
                           f'{known}')
    values: dict[str, Value] = {}
    for arg in tool.args:
        if arg.name in arguments:
            value = arguments[arg.name]
            values[arg.name] = (_checked_array(arg, value) if arg.items
                                else _checked_value(arg, value))
        elif arg.required:
            _refuse_schema(f'{tool.name} needs the argument {arg.name}')
        elif arg.default is not None:
            values[arg.name] = arg.default
    return values


def _checked_array(arg: Argument, value: Any) -> list[Scalar]:
    if not isinstance(value, list):
        _refuse_schema(f'{arg.name} must be a list, not {_shown(value)}')
    if not arg.min_items <= len(value) <= arg.max_items:
        raise CallRefusedError(
            Outcome.REFUSED_RANGE, f'{arg.name} has {len(value)} elements, it takes '
                                   f'{arg.min_items} to {arg.max_items}')
    return [_checked_value(_element(arg, index), item) for index, item in enumerate(value)]


def _checked_value(arg: Argument, value: Any) -> Scalar:
    if arg.type == 'string':
        if type(value) is not str:
            _refuse_schema(f'{arg.name} must be a string, not {_shown(value)}')
        _check_text(arg, value)
    elif arg.type == 'boolean':
        if type(value) is not bool:
            _refuse_schema(f'{arg.name} must be true or false, not {_shown(value)}')
    elif arg.type == 'integer':
        if type(value) is not int:
            _refuse_schema(f'{arg.name} must be a whole number, not {_shown(value)}')
    else:
        value = _finite_number(arg, value)
    if arg.enum and value not in arg.enum:
        choices = ', '.join(str(item) for item in arg.enum)
        _refuse_schema(f'{arg.name} must be one of {choices}, not {_shown(value)}')
    return value  # type: ignore[no-any-return]


def _finite_number(arg: Argument, value: Any) -> float:
    if type(value) not in (int, float):
        _refuse_schema(f'{arg.name} must be a number, not {_shown(value)}')
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _refuse_schema(f'{arg.name} must be a finite number')
    return number


def _check_text(arg: Argument, text: str) -> None:
    if '\0' in text or any('\ud800' <= char <= '\udfff' for char in text):
        _refuse_schema(f'{arg.name} holds a character that cannot be sent')
    if len(text) > arg.max_length:
        raise CallRefusedError(
            Outcome.REFUSED_RANGE,
            f'{arg.name} has {len(text)} characters, the limit is {arg.max_length}')


def _field_value(tool: ToolPolicy, arg: Argument, value: Scalar,
                 values: dict[str, Value]) -> Scalar:
    """Convert the checked value of an argument to what its field takes."""
    if arg.values:
        return arg.values[str(value)]
    if isinstance(value, (str, bool)):
        return value
    unit = str(values[arg.unit_arg]) if arg.unit_arg else arg.unit
    sign = 1
    if arg.sign_arg:
        if value <= 0:
            raise CallRefusedError(
                Outcome.REFUSED_RANGE,
                f'{arg.name} {_quantity(value, unit)} must be above 0; '
                f'{arg.sign_arg} says which way')
        sign = _sign(tool, arg, values)
    _check_range(arg, value, unit, sign)
    return sign * (units.to_si(value, unit) if unit else value)


def _sign(tool: ToolPolicy, arg: Argument, values: dict[str, Value]) -> int:
    linked = tool.argument(arg.sign_arg)
    assert linked is not None, f'{arg.sign_arg} was checked when the policy was read'
    return linked.sign[str(values[linked.name])]


def _check_range(arg: Argument, value: float, unit: str, sign: int) -> None:
    """Hold the converted value against the limits; the reason speaks of the value as given."""
    size = units.to_si(value, unit) if unit else value
    low, high = arg.minimum, arg.maximum
    if sign < 0:
        low, high = (None if high is None else -high), (None if low is None else -low)
    if high is not None and size > high:
        limit, side = high, 'above'
    elif low is not None and size < low:
        limit, side = low, 'below'
    elif math.isfinite(size):
        return
    else:
        _refuse_schema(f'{arg.name} {_quantity(value, unit)} is too large a number')
    raise CallRefusedError(
        Outcome.REFUSED_RANGE,
        f'{arg.name} {_quantity(value, unit)} is {side} the limit of {_limit_text(limit, unit)}')


def _limit_text(limit: float, unit: str) -> str:
    if not unit:
        return units.number_text(limit)
    si = units.SI_UNITS[units.dimension(unit)]
    text = f'{units.number_text(limit)} {si}'
    if unit == si:
        return text
    return f'{text} ({units.number_text(units.from_si(limit, unit))} {unit})'


def _quantity(value: float, unit: str) -> str:
    return units.quantity_text(value, unit) if unit else units.number_text(value)


def _shown(value: Any) -> str:
    """Show a wrong value in a reason, cut to a length that can't flood the model."""
    if isinstance(value, (dict, list)):
        return 'an object' if isinstance(value, dict) else 'a list'
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else f'{text[:60]}…'


def _refuse_schema(reason: str) -> NoReturn:
    raise CallRefusedError(Outcome.REFUSED_SCHEMA, reason)
