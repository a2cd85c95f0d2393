# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which tools a dialogue has: the demo robot's, variants of them, others; names drawn anew each time.

With HeldDraws every name is of words that training never sees.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace

from demo_model.held_apart import apart
from demo_model.intents import INTENTS, Intent, Param
from demo_model.intents_further import FURTHER_INTENTS
from demo_model.intents_more import MORE_INTENTS
from demo_model.intents_wider import WIDER_INTENTS
from demo_model.made_up import made_up_kind
from demo_model.phrasing import (
    TrainDraws,
    expand,
    identifier,
    open_words,
    pick,
    random_name,
    random_word,
)
from demo_model.tools import (
    Json,
    Tool,
    demo_tools,
    fresh_name,
    function,
    motion_variant,
    plain_variant,
    shuffled,
)
from demo_model.wordings_fifth import FIFTH_WORDINGS
from demo_model.wordings_first import FIRST_WORDINGS
from demo_model.wordings_fourth import FOURTH_WORDINGS
from demo_model.wordings_second import SECOND_WORDINGS
from demo_model.wordings_sixth import (
    DECOYS,
    NUMBER_TAILS,
    SIXTH_WORDINGS,
    TOOL_TAILS,
    VALUE_TAILS,
    WORD_TAILS,
)
from demo_model.wordings_third import THIRD_WORDINGS

_LISTS = (FIRST_WORDINGS, SECOND_WORDINGS, THIRD_WORDINGS, FOURTH_WORDINGS, FIFTH_WORDINGS, SIXTH_WORDINGS)
_WORDINGS = {
    key: tuple(template for words in _LISTS for template in words.get(key, ()))
    for key in dict.fromkeys(key for words in _LISTS for key in words)
}
KINDS: tuple[Intent, ...] = tuple(
    replace(kind, commands=(*kind.commands, *apart(_WORDINGS.get(kind.key, ()), kind.held)))
    for kind in (*INTENTS, *MORE_INTENTS)
)
TRAIN_KINDS: tuple[Intent, ...] = (*KINDS, *FURTHER_INTENTS, *WIDER_INTENTS)
# What answers to words that are small talk where it is not.
_ANSWERING = tuple(kind for kind in WIDER_INTENTS if kind.key in ('halt', 'status'))
_HALT_SHARE = 0.05                       # of training's sets: have one of them
_TYPES = {
    'decimal': 'number',
    'integer': 'integer',
    'percent': 'integer',
    'length': 'number',
    'seconds': 'number',
    'angle': 'number',
    'signed': 'number',
    'repeats': 'integer',
    'ordinal': 'integer',
    'signed length': 'number',
    'signed angle': 'number',
}
# kind -> units that a description may tell, with their names there
_UNITS = {
    'length': {
        'm': ('metres', 'meters', 'm'),
        'cm': ('centimetres', 'centimeters', 'cm'),
        'mm': ('millimetres', 'millimeters', 'mm'),
    },
    'seconds': {'s': ('seconds', 's', 'sec'), 'min': ('minutes', 'min')},
    'angle': {'deg': ('degrees', 'deg', '°'), 'rad': ('radians', 'rad')},
}
_NEGATED = {
    'signed length': ('Positive is backward', 'Negative is forward, positive is backward', 'Plus is back'),
    'signed angle': ('Positive is right, negative is left', 'Clockwise is positive', 'Plus turns right'),
}
_OPEN_SHARE = 0.35
# Kinds whose arguments change places, or whose words are rare.
HARD = ('circle', 'head', 'xy', 'shift', 'deliver', 'guide', 'note', 'load')
_HARD_SHARE = 0.35                       # of training's sets of other tools that have one of these
_TAIL_SHARE = 0.2                        # of training's descriptions: with words behind them that change nothing
_DECOY_SHARE = 0.12                      # of training's other tools: with arguments that are left out
_FURTHER_SHARE = 0.3                     # of training's sets: may have the kinds of intents_further.py and intents_wider.py
_MADE_UP_SHARE = 0.3                     # of training's sets of other tools


_TOOL_TAILS = apart(TOOL_TAILS, ())

# Kinds that one command may mean both; no tool set has two of a class.
_ALIKE = (
    {'wait', 'rest'},
    {'say', 'announce'},
    {'drive', 'shift'},
    {'turn', 'yaw'},
    {'head', 'look'},
    {'goto', 'xy', 'patrol'},
    {'find', 'count'},
    {'timer', 'wait'},
    {'message', 'ring'},
    {'grasp', 'deliver', 'order'},
)
# The same for the kinds that training alone has: each with those that it may be taken for.
_FURTHER_ALIKE: dict[str, set[str]] = {
    'claw': {'release', 'close', 'lid', 'valve', 'door', 'grasp', 'handover'},
    'lid': {'door', 'release', 'valve'},
    'valve': {'door'},
    'headlamp': {'roomlight', 'light', 'beam'},
    'mute': {'volume'},
    'camera': {'record', 'photo', 'look'},
    'shopping': {'order', 'note', 'remindme', 'calendar'},
    'serve': {'deliver', 'pallet', 'handover'},
    'handover': {'grasp', 'deliver', 'pallet'},
    'pallet': {'goto', 'deliver'},
    'nurse': {'ring', 'message'},
    'visit': {'find', 'goto', 'follow', 'pulse'},
    'weather': {'temperature', 'search', 'find'},
    'search': {'find', 'news', 'book'},
    'game': {'music', 'tv'},
    'news': {'book'},
    'book': {'music'},
    'stock': {'count', 'order'},
    'fork': {'lift', 'hook', 'bed'},
    'hook': {'lift', 'bed'},
    'bed': {'lift'},
    'turntable': {'turn', 'yaw'},
    'remindme': {'timer', 'message', 'note', 'calendar'},
    'calendar': {'note'},
    'translate': {'say', 'language', 'announce', 'wave', 'joke'},
    'language': {'say', 'announce'},
    'wave': {'say', 'joke'},
    'joke': {'say'},
    'line': {'follow', 'goto'},
    'oven': {'heat'},
    'laundry': {'clean', 'bin'},
    'bin': {'clean'},
    'posture': {'pose'},
    'alarm': {'timer', 'wake'},
    'safety': {'mode'},
    'autopilot': {'mode'},
    'louder': {'volume', 'mute', 'say'},
    'brighter': {'beam', 'headlamp', 'roomlight', 'light'},
    'warmer': {'heat', 'oven', 'weather', 'temperature', 'roomtemp'},
    'pace': {'speed', 'mode', 'halt', 'shift'},
    'player': {'music', 'book', 'tv', 'louder'},
    'phone': {'ring', 'message'},
    'jog': {'lift', 'fork', 'hook', 'bed', 'halt', 'look'},
    'wide': {'zoom'},
    'halt': {'brakes', 'wait', 'rest', 'camera'},
    'status': {'diagnose', 'visit', 'battery'},
    'sound': {'beep', 'music'},
    'blink': {'light'},
    'slot': {'deliver', 'handover', 'grasp', 'place'},
    'wake': {'timer'},
    'departure': {'goto', 'patrol', 'calendar'},
    'hand': {'xy', 'pose', 'arm'},
    'rgb': {'light'},
    'tour': {'xy'},
    'log': {'note', 'logging'},
    'label': {'tag'},
    'detect': {'find', 'count', 'lookat', 'search', 'stock'},
    'place': {'deliver', 'grasp', 'handover', 'serve', 'pallet', 'order', 'claw'},
    'lookat': {'look', 'head', 'find', 'photo', 'tracking'},
    'roomtemp': {'temperature', 'heat', 'weather'},
    'escortat': {'follow', 'guide', 'dist', 'line'},
    'photoof': {'photo', 'camera'},
    'dispense': {'order', 'deliver', 'cutting'},
    'force': {'claw', 'close', 'torque'},
    'parcel': {'deliver', 'handover', 'pallet'},
    'tray': {'table', 'lift'},
    'page': {'book'},
}


def alike(intents: set[str]) -> set[str]:
    """The intents and all that a command for one of them may mean."""
    found = intents.union(*(group for group in _ALIKE if group & intents))
    for kind, others in _FURTHER_ALIKE.items():
        if kind in intents:
            found |= others
        elif others & intents:
            found.add(kind)
    return found


def _described(tool: Tool, param: Param, rng: random.Random, several: bool) -> Json:
    """The schema of one argument; what it tells of units, signs and choices is noted in the tool."""
    schema: Json = {'type': _TYPES.get(param.kind, 'string')}
    text = pick(rng, param.descriptions) if rng.random() < 0.8 or several else ''
    if param.kind in _NEGATED:
        text = pick(rng, param.descriptions)
        if rng.random() < 0.3:
            text = pick(rng, _NEGATED[param.kind])
            tool.negated = tool.negated | {param.key}
    family = param.kind.removeprefix('signed ')
    if family in _UNITS:
        unit = rng.choice(list(_UNITS[family]))
        tool.units[param.key] = unit
        word = pick(rng, _UNITS[family][unit])
        text = text or pick(rng, param.descriptions)
        text = pick(rng, [f'{text}, in {word}', f'{text} ({word})', f'In {word}. {text}', f'{text}; {word}'])
    if param.kind == 'open':
        schema['enum'] = ['open', 'close']
    if param.kind == 'choice':
        said = list(param.choices)
        if len(said) > 2:
            said = shuffled(rng, said)[: rng.randint(2, 6)]
            if rng.random() < 0.3:
                said[0] = random_word(rng)
            if isinstance(rng, TrainDraws) and rng.random() < 0.3:
                said = list(dict.fromkeys([*said[:2], random_word(rng), random_word(rng)]))
                rng.shuffle(said)
        elif rng.random() < 0.5:
            said.reverse()
        written = {word: word for word in said}
        if rng.random() < 0.6:
            written = {word: identifier(rng, word.split()) for word in said}
        elif rng.random() < 0.3:
            written = {word: word.upper() for word in said}
        tool.choices[param.key] = said
        tool.values[param.key] = written
        schema['enum'] = [written[word] for word in said]
    if param.kind == 'idiom':
        said = shuffled(rng, [state.partition(': ')[0] for state in param.choices])
        written = {word: word for word in said}
        if rng.random() < 0.25:
            written = {word: word.upper() for word in said}
        tool.choices[param.key] = said
        tool.values[param.key] = written
        if set(said) == {'true', 'false'}:
            schema['type'] = 'boolean'
            tool.values[param.key] = {'true': True, 'false': False}
        else:
            schema['enum'] = [written[word] for word in said]
    if text and isinstance(rng, TrainDraws) and rng.random() < _TAIL_SHARE:
        numeric = schema['type'] in ('number', 'integer')
        free = numeric or (schema['type'] == 'string' and 'enum' not in schema)
        tails = NUMBER_TAILS if numeric else WORD_TAILS
        tail = expand(pick(rng, tails if free and rng.random() < 0.6 else VALUE_TAILS), rng, _tail_words(rng))
        text += tail if tail[0] in ',.;' else ' ' + tail
    if text:
        schema['description'] = text
    return schema


def _tail_words(rng: random.Random) -> Callable[[str], str]:
    fillers = {'n': lambda: str(rng.randint(1, 9)), 'name': lambda: random_name(rng)}
    return lambda slot: fillers.get(slot, lambda: random_word(rng))()


def _with_decoys(properties: Json, rng: random.Random) -> Json:
    """The arguments with one or two beside them that are never said and so left out."""
    items = list(properties.items())
    for name, text, kind in rng.sample(DECOYS, rng.choice((1, 1, 2))):
        if name not in properties:
            items.insert(rng.randint(0, len(items)), (name, {'type': kind, 'description': text}))
    return dict(items)


def other_tool(rng: random.Random, kind: Intent) -> Tool:
    """A tool of an intent with names, argument names, units and descriptions drawn anew."""
    tool = Tool(kind.key, {}, kind=kind)
    properties: Json = {}
    required = []
    params = list(kind.params)
    if rng.random() < 0.5:
        rng.shuffle(params)
    for param in params:
        if param.optional and rng.random() < 0.4:
            continue
        name = fresh_name(rng, param.names, _OPEN_SHARE)
        while name in properties:
            name = random_word(rng)
        properties[name] = _described(tool, param, rng, len(kind.params) > 1)
        tool.names[param.key] = name
        if not param.optional:
            required.append(name)
    name = fresh_name(rng, kind.names, _OPEN_SHARE)
    text = pick(rng, kind.descriptions)
    if isinstance(rng, TrainDraws):
        if rng.random() < _TAIL_SHARE:
            text += ' ' + expand(pick(rng, _TOOL_TAILS), rng, _tail_words(rng))
        if rng.random() < _DECOY_SHARE:
            properties = _with_decoys(properties, rng)
    tool.declaration = function(name, text, properties, required)
    return tool


def draw_tools(rng: random.Random, kinds: tuple[Intent, ...] = KINDS) -> list[Tool]:
    """A tool set: the demo robot's exactly, near it, of other kinds, or none at all."""
    if isinstance(rng, TrainDraws) and kinds is KINDS and rng.random() < _FURTHER_SHARE:
        kinds = TRAIN_KINDS
    draw = rng.random()
    if draw < 0.31:
        tools = demo_tools()
        if draw > 0.27:
            for _ in range(rng.randint(1, 2)):
                tools.append(other_tool(rng, kinds[int(rng.random() * len(kinds))]))
            rng.shuffle(tools)
        elif draw > 0.25:
            tools = shuffled(rng, tools)[: rng.randint(1, 4)]
    elif draw < 0.45:
        makers = [
            lambda: motion_variant(rng, False),
            lambda: motion_variant(rng, True),
            lambda: plain_variant(rng, 'dock'),
            lambda: plain_variant(rng, 'say'),
        ]
        tools = [make() for make in shuffled(rng, makers)[: rng.randint(1, 4)]]
        if rng.random() < 0.5:
            tools += [other_tool(rng, kind) for kind in rng.sample(kinds, rng.randint(1, 2))]
        rng.shuffle(tools)
    elif draw < 0.97:
        tools = other_tools(rng, kinds)
    else:
        return []
    if isinstance(rng, TrainDraws) and rng.random() < _HALT_SHARE:
        kind = _ANSWERING[int(rng.random() * len(_ANSWERING))]
        tools.insert(rng.randint(0, len(tools)), other_tool(rng, kind))
    return unique(tools, rng)


def other_tools(rng: random.Random, kinds: tuple[Intent, ...] = KINDS) -> list[Tool]:
    """One to eight tools of different kinds."""
    count = min(len(kinds), rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8)))
    chosen = rng.sample(kinds, count)
    if isinstance(rng, TrainDraws) and kinds in (KINDS, TRAIN_KINDS) and rng.random() < _HARD_SHARE:
        hard = pick(rng, HARD)
        chosen = [kind for kind in KINDS if kind.key == hard] + [
            kind for kind in chosen[1:] if kind.key != hard
        ]
        rng.shuffle(chosen)
    if isinstance(rng, TrainDraws) and rng.random() < _MADE_UP_SHARE:
        number = rng.randint(1, len(chosen))
        chosen = [made_up_kind(rng) if i < number else kind for i, kind in enumerate(chosen)]
        rng.shuffle(chosen)
    return unique([other_tool(rng, kind) for kind in chosen], rng)


def unique(tools: list[Tool], rng: random.Random) -> list[Tool]:
    """The tools without those that another is like; one whose name is taken gets another."""
    seen: set[str] = set()
    present: set[str] = set()
    kept = []
    for tool in tools:
        if tool.intent in alike(present):
            continue
        present.add(tool.intent)
        kept.append(tool)
        if tool.name in seen:
            tool.declaration = copy.deepcopy(tool.declaration)
            tool.declaration['function']['name'] = tool.name + '_' + pick(rng, open_words(rng))
        seen.add(tool.name)
    return kept
