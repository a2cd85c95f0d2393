# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Commands for tools of any kind, and whole sentences around them."""

from __future__ import annotations

import random
import re

from demo_model.commands import Command, dock, drive, say, turn
from demo_model.filling import clause, fill, source_of
from demo_model.other_commands import other
from demo_model.phrasing import TrainDraws, pick
from demo_model.tools import Tool
from demo_model.widening import (
    ADDRESS_SHARE,
    CLAUSE_SHARE,
    FRAME_SHARE,
    REASON_SHARE,
    addressed,
    framed,
    reasoned,
)

# A phrase that begins so is a question or a sentence of its own, none that 'please' may stand before.
_WHOLE = re.compile(
    r"(what|where|which|who|whom|why|when|how|is|are|am|do you|does|did|was|were|has|have you|can you|could you|would"
    r"|will|may|might|any|what's|where's|who's|i|we|you|your|my|our|the|there|this|that|it|everybody|everyone|somebody"
    r"|someone|from now on|here)\b(?! about)", re.IGNORECASE)
QUOTES = '"\''
_BARE_TEXT_ENDS = ('{base}', '{base}?')
_TEXT_ENDS = (*_BARE_TEXT_ENDS, '{base} please', '{base}, please', '{base}, robot')


def stands_alone(phrase: str) -> bool:
    """Whether a phrase is a question or a sentence, none that 'I want you to' may stand before."""
    return bool(_WHOLE.match(phrase))


def command_for(
    tool: Tool, rng: random.Random, held: bool, plain: bool = False
) -> Command:
    """A command for any tool; `plain`: a drive or a turn in the plainest words."""
    if tool.intent == 'drive':
        return drive(tool, rng, held, plain)
    if tool.intent == 'turn':
        return turn(tool, rng, held, plain)
    maker = {'dock': dock, 'say': say}.get(tool.intent)
    return maker(tool, rng, held) if maker else other(tool, rng, held)


def sentence(command: Command, rng: random.Random, held: bool) -> str:
    """The command as a sentence, wrapped in the ways in which people ask."""
    if isinstance(rng, TrainDraws) and rng.random() < REASON_SHARE:
        phrase = command.base or command.whole
        alone = not command.base or stands_alone(phrase)
        return reasoned(phrase, rng, not command.open_end, alone)
    if command.whole:
        return command.whole
    wrappers = source_of(held).WRAPPERS
    # questions and statements of other tools ('where is my cup') stand alone most of the time
    if command.category == 'other' and rng.random() < 0.5:
        return command.base
    if stands_alone(command.base):       # 'I want you to how heavy is the load' says nobody
        if isinstance(rng, TrainDraws) and rng.random() < 0.5:
            return addressed(command.base, rng, False)
        return command.base
    if isinstance(rng, TrainDraws) and command.base:
        draw = rng.random()
        if draw < ADDRESS_SHARE:
            return addressed(command.base, rng, not command.open_end)
        if draw < ADDRESS_SHARE + FRAME_SHARE:
            return framed(command.base, rng, command.base[-1] not in '!?')
        if draw > 1 - CLAUSE_SHARE and command.tool.intent in ('drive', 'turn', 'dock'):
            return f'{command.base}{pick(rng, (" ", " ", ", "))}{fill(clause(rng), rng, {})}'
    wrapper = pick(rng, wrappers)
    while (
        ('{ing}' in wrapper and not command.ing)
        or (command.open_end and command.base[-1] in '!?' and wrapper.endswith(('?', 'please')))
        or (
            command.open_end
            # nobody can tell whether what follows a text without quotes is part of it
            and not wrapper.endswith(_TEXT_ENDS if command.base[-1] in QUOTES else _BARE_TEXT_ENDS)
        )
    ):
        wrapper = pick(rng, wrappers)
    return fill(wrapper, rng, {'base': command.base, 'ing': command.ing})
