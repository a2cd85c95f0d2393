# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What tools answer, and the one sentence that tells a listener the truth about it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from demo_model.commands import Command
from demo_model.filling import open_text
from demo_model.phrasing import expand, open_words, pick, random_name

Json = dict[str, Any]

REASONS = (
    'path blocked',
    'obstacle ahead',
    'the way is blocked by {thing}',
    'blocked by {thing}',
    'wheel slip',
    'motor fault',
    'motor overheated',
    'battery too low',
    'the battery is at {n} percent',
    'no map',
    'localization lost',
    'goal not reachable',
    'no path found',
    'bumper pressed',
    'the {w} is {w}',
    'the {w} failed',
    'distance {n} m is above the limit of {n} m',
    'angle {n} deg is above the limit of {n} deg',
    'distance {d} m is below the minimum of {d} m',
    'speed limit exceeded',
    'outside the geofence',
    'x {d} is outside of {d} to {d}',
    'emergency stop is active',
    'stop topic is active',
    'motion is inhibited',
    'not allowed while docked',
    'the policy does not allow {w}',
    'needs confirmation',
    'confirmation was not given',
    'operator said no',
    'server not available',
    'action server did not answer',
    'no answer within {n} s',
    'goal rejected',
    'rate limit: {n} calls per minute',
    'another goal is active',
    'dock not found',
    'not a number',
    'unknown unit {w}',
    'sensor {n} is offline',
    'camera not ready',
    'robot is tilted',
    'cliff detected',
    'arm not folded',
    'charger not detected',
    '{w} {w}',
    '{w} {w} {w}',
    '{w}',
    'error {n}',
    'E{n}: {w} {w}',
    'tool {w} is not in the policy',
    'timeout of {n} s exceeded',
    'door closed',
    'person in the way',
    'distance {n} {u} is above the limit of {n} m',
    'angle {n} deg is above the limit of {n} deg',
    'angle {d} rad is above the limit of {d} rad',
    'distance {d} m is above the limit of 5 m',
    'distance {n} m is above the limit of 5 m',
    'distance 0 m must be above 0; direction says which way',
    'the call was not written exactly; write it again',
    'the same {w} call stands in this turn twice',
    "there is no tool '{w}'; the tools are {w}, {w}, {w}",
    '{w} needs the argument {w}',
    "{w} has no argument '{w}'; the arguments are {w}, {w}",
    'text has {n} characters, the limit is {n}',
    'busy: {w} is running',
    'the stop topic {w} is true',
    'the robot was stopped',
    'a motion needs confirmation',
    'nobody confirmed within {n} s',
    'the action server {w}/{w} is not there',
    'wall ahead',
    'the goal is outside of the room',
    'no answer to the confirmation',
    'canceled',
    'stopped',
    'Goal was rejected by the server',
    'The robot is stopped',
    'Too close to {thing}',
    'Controller is {w}',
)
HELD_REASONS = (
    'stuck on a {w}',
    'the {w} is jammed',
    '{n} {w} detected near {thing}',
    'limit {d} reached',
    'lost contact to {w}',
    'hardware stop pressed',
    'no grip on {thing}',
    'distance {n} m exceeds {n} m',
    'rejected: {w} {w} {w}',
)
_THINGS = ('a chair', 'a person', 'a box', 'the wall', 'a cable', 'the door', 'a {w}', 'the {w}')
_REASON_KEYS = (
    'reason',
    'reason',
    'reason',
    'message',
    'error',
    'error_msg',
    'detail',
    'details',
    'why',
    'info',
    'cause',
)
_STATUS_KEYS = ('status', 'status', 'status', 'status', 'state', 'result', 'outcome')
_GOOD = (
    'succeeded',
    'succeeded',
    'succeeded',
    'success',
    'ok',
    'done',
    'completed',
    'finished',
    'SUCCEEDED',
)
_BAD = (
    'aborted',
    'aborted',
    'failed',
    'error',
    'failure',
    'unavailable',
    'ABORTED',
    'invalid',
    'not_executed',
)
_REFUSED = (
    'refused',
    'refused',
    'refused',
    'rejected',
    'denied',
    'forbidden',
    'not_allowed',
    'REFUSED',
)


@dataclass
class Outcome:
    """A tool message's text and what it means: kind is done, failed, refused, cancelled or late."""

    content: str
    kind: str
    reason: str = ''
    value: str = ''


def _reason(rng: random.Random, held: bool) -> str:
    def slot(name: str) -> str:
        if name == 'thing':
            return pick(rng, _THINGS).replace('{w}', pick(rng, open_words(rng)))
        if name == 'n':
            return str(rng.choice((rng.randint(1, 9), rng.randint(10, 99), rng.randint(100, 999))))
        if name == 'u':
            return pick(rng, ['m', 'ft', 'cm', 'in', 'mm', 'deg'])
        if name == 'd':
            return f'{rng.randint(0, 20)}.{rng.randint(1, 9)}'
        return pick(rng, open_words(rng))

    if rng.random() < 0.35:
        text = open_text(rng)
        if rng.random() < 0.3:
            text = f'{pick(rng, open_words(rng))}{pick(rng, [": ", "; ", " - ", " (", ", "])}{text}'
        return text
    return expand(pick(rng, HELD_REASONS if held else REASONS), rng, slot)


def _decimal(rng: random.Random) -> float:
    return round(rng.uniform(-9, 9), rng.choice((1, 2, 3)))


def _extras(rng: random.Random, command: Command) -> Json:
    """Fields that may stand beside the status."""
    fields: Json = {}
    if command.tool.intent == 'drive' and rng.random() < 0.7:
        fields['distance_m'] = abs(_decimal(rng))
    if command.tool.intent == 'turn' and rng.random() < 0.6:
        fields[pick(rng, ['angle_deg', 'angle_deg', 'angle_rad', 'yaw_change'])] = abs(
            _decimal(rng)
        )
    if rng.random() < 0.6:
        fields['x'], fields['y'] = _decimal(rng), _decimal(rng)
    for key in ('yaw', 'duration_s', 'frame', 'goal_id', 'error_code', pick(rng, open_words(rng))):
        if rng.random() < 0.12:
            fields[key] = {'frame': 'map', 'goal_id': random_name(rng), 'error_code': 0}.get(
                key, _decimal(rng)
            )
    return fields


def _dump(fields: Json, rng: random.Random) -> str:
    items = list(fields.items())
    if rng.random() < 0.25:
        rng.shuffle(items)
    separators = (',', ':') if rng.random() < 0.7 else (', ', ': ')
    return json.dumps(dict(items), separators=separators)


def _good_value(command: Command, rng: random.Random) -> tuple[Any, str]:
    kind = command.tool.kind.value_kind if command.tool.kind else ''
    if kind == 'place':
        text = pick(rng, ['the {w}', '{w}', 'the {w} room']).replace('{w}', pick(rng, open_words(rng)))
        return text, text
    number: Any = (
        rng.randint(0, 100)
        if kind == 'percent' or rng.random() < 0.5
        else round(rng.uniform(-20, 40), 1)
    )
    return number, str(number)


def draw_outcome(
    command: Command, rng: random.Random, held: bool, good_share: float = 0.55
) -> Outcome:
    """A result for one call, in one of the forms in which tools answer."""
    draw = rng.random()
    status_key = pick(rng, _STATUS_KEYS)
    if draw < good_share:
        value = ''
        if command.tool.kind is not None and command.tool.kind.answer:
            raw, value = _good_value(command, rng)
            if rng.random() < 0.35:
                return Outcome(value, 'done', value=value)
            fields: Json = {status_key: pick(rng, _GOOD)} if rng.random() < 0.5 else {}
            fields[
                pick(
                    rng,
                    ['value', 'level', 'result', 'reading', command.tool.name, pick(rng, open_words(rng))],
                )
            ] = raw
            return Outcome(_dump(fields, rng), 'done', value=value)
        if rng.random() < 0.08:
            return Outcome(
                pick(rng, ['ok', 'done', 'OK', 'true', 'success', 'finished', 'Done.']), 'done'
            )
        if rng.random() < 0.1:
            return Outcome(
                _dump({pick(rng, ['success', 'ok', 'done']): True, **_extras(rng, command)}, rng),
                'done',
            )
        fields = {status_key: pick(rng, _GOOD), **_extras(rng, command)}
        if rng.random() < 0.08:
            fields['message'] = pick(rng, ['goal reached', 'ok', 'done', '', 'finished'])
        return Outcome(_dump(fields, rng), 'done')
    reason = _reason(rng, held)
    with_reason = rng.random() < 0.85
    draw = rng.random()
    if draw < 0.42:
        kind, status = 'failed', pick(rng, _BAD)
    elif draw < 0.76:
        kind, status = 'refused', pick(rng, _REFUSED)
    elif draw < 0.89:
        kind, status = (
            'cancelled',
            pick(
                rng,
                [
                    'canceled',
                    'canceled',
                    'cancelled',
                    'CANCELED',
                    'stopped',
                    'interrupted',
                    'preempted',
                ],
            ),
        )
        with_reason = rng.random() < 0.4
    else:
        kind, status = (
            'late',
            pick(
                rng,
                [
                    'timeout_canceled',
                    'timeout_canceled',
                    'timeout',
                    'timed_out',
                    'timeout_cancelled',
                ],
            ),
        )
        with_reason = rng.random() < 0.3
    if kind == 'failed' and rng.random() < 0.2:
        if rng.random() < 0.4:
            return Outcome(
                pick(rng, ['error: ', 'failed: ', 'Error: ', 'aborted: ']) + reason,
                'failed',
                reason,
            )
        fields = {pick(rng, ['success', 'ok']): False} if rng.random() < 0.5 else {}
        fields[pick(rng, ['error', 'error', 'message', 'reason']) if fields else 'error'] = reason
        return Outcome(_dump(fields, rng), 'failed', reason)
    fields = {status_key: status}
    if with_reason:
        fields[pick(rng, _REASON_KEYS)] = reason
    if rng.random() < 0.4:
        fields.update(_extras(rng, command))
    return Outcome(_dump(fields, rng), kind, reason if with_reason else '')


def _failure(command: Command, outcome: Outcome) -> str:
    tail = f': {outcome.reason}.' if outcome.reason else '.'
    todo = command.todo
    if command.tool.intent == 'say':
        todo = 'say it'
    if outcome.kind == 'refused':
        return f'I was not allowed to {todo}{tail}'
    if outcome.kind == 'cancelled':
        return f'I was stopped before I could {todo}{tail}'
    if outcome.kind == 'late':
        return f'I ran out of time to {todo}{tail}'
    return f'I could not {todo}{tail}'


def answer(commands: list[Command], outcomes: list[Outcome]) -> str:
    """The spoken-style sentence after the results: what was done, what was not and why."""
    parts: list[str] = []
    if all(outcome.kind == 'done' for outcome in outcomes):
        readings = [
            command.tool.kind.answer.replace('{value}', outcome.value)
            for command, outcome in zip(commands, outcomes, strict=True)
            if command.tool.kind is not None and command.tool.kind.answer
        ]
        deeds = [
            command.done
            for command in commands
            if not (command.tool.kind is not None and command.tool.kind.answer)
        ]
        if deeds:
            head = ', '.join(deeds[:-1])
            parts.append('I ' + (f'{head} and {deeds[-1]}' if head else deeds[-1]) + '.')
        return ' '.join(parts + readings)
    for command, outcome in zip(commands, outcomes, strict=True):
        if outcome.kind != 'done':
            parts.append(_failure(command, outcome))
        elif command.tool.kind is not None and command.tool.kind.answer:
            parts.append(command.tool.kind.answer.replace('{value}', outcome.value))
        else:
            parts.append(f'I {command.done}.')
    return ' '.join(parts)
