# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Kinds of tools that are made up for one dialogue: open nouns tell what a tool and its arguments are.

Nothing of them can be learnt by heart, so they teach to match the words of a sentence with those of a
declaration. For training only; knows nothing of the evaluation.
"""

from __future__ import annotations

import random

from demo_model.intents import Intent, Param
from demo_model.phrasing import pick, random_word

KEY = 'made up '                         # how the keys of these kinds begin
_KINDS = ('decimal', 'integer', 'percent', 'signed', 'choice', 'name', 'place', 'object', 'colour', 'words',
          'seconds', 'length', 'angle', 'decimal', 'integer', 'signed')
_VERBS = ('set', 'set', 'adjust', 'change', 'tune', 'configure', 'run', 'start', 'arrange', 'prepare', 'operate', 'use', 'update', 'program', 'control',
          'trigger', 'choose', 'select', 'apply', 'assign', 'define', 'fix', 'launch', 'modify', 'perform', 'regulate', 'specify', 'write')
_TOOL_NAMES = ('{v} {t}', '{v} {t}', '{t} {v}', '{t}', '{t} control', '{t} tool', '{t} command', 'do {t}', 'my {t}')
_TOOL_TEXTS = ('{V} the {t}.', '{V} {t}.', 'Use this to {v} the {t}.', 'The {t} of the robot.', '{T} control.', '{V} a {t}.', 'Robot function: {t}.', '{V} the {t} of the robot.')
_PARAM_NAMES = ('{n}', '{n}', '{n}', '{n} value', 'the {n}', 'new {n}', 'target {n}', 'value', 'arg', 'choice')
_PARAM_TEXTS = ('The {n}', '{N}', '{N} to use', 'Value of the {n}', 'Which {n}', 'New {n}', 'The wanted {n}', 'What the {n} is', 'Setting: {n}', '{N} of the robot', 'How the {n} should be')
# {t} the tool's noun, {v} its verb, {na} and {nb} the arguments' nouns, {a} and {b} their values
_NONE = ('{v} the {t}', '{v} {t}', '{t}', '{t} please', '{t} now', 'do the {t}', 'it is time for the {t}', 'go and {v} the {t}', 'the {t}, please', 'I need the {t}', 'could we have the {t}', 'make use of the {t}',
         '{v} your {t}', 'have the {t} {v}', 'let us {v} the {t}', 'activate the {t}', 'begin with the {t}', 'show me the {t}', 'run {t}', '{v} that {t} of yours')
_SAME = ('{v} the {t} to {a}', '{v} {t} to {a}', '{t} {a}', '{t}: {a}', '{t} = {a}', '{t} to {a}', '{t} at {a}', 'the {t} should be {a}', 'I want the {t} at {a}', 'I would like {a} for the {t}', '{a} for the {t}',
         '{a} as {t}', '{a} {t}', 'make the {t} {a}', 'let the {t} be {a}', 'put the {t} at {a}', 'take {a} as the {t}', '{v} a {t} of {a}', 'give me a {t} of {a}', 'for the {t} use {a}', 'change the {t} to {a}',
         '{v} the {t} with {a}', 'the {t} is {a} from now on', 'the {t} must not differ from {a}', 'bring the {t} to {a}', 'could the {t} be {a}', '{t}, {a}', 'new {t}: {a}', 'we need {t} {a}', 'choose {a} for {t}')
_FRAMES = ('{v} the {t} with {x}', '{v} the {t}, {x}', '{t} with {x}', '{t}: {x}', '{t}, {x}', '{t} {x}', '{v} {t} ({x})', 'I need the {t} with {x}', '{x} for the {t}', 'with {x}, {v} the {t}', '{x}: {v} the {t}',
           '{v} {t}; {x}', 'do the {t}, {x}', 'make the {t} use {x}', '{v} the {t}. {x}', 'use {x} for the {t}', 'please {v} the {t}: {x}')
_PARTS = ('{na} {a}', '{na} {a}', '{na} {a}', '{a} {na}', 'a {na} of {a}', '{na}: {a}', '{na} = {a}', '{a} for the {na}', 'the {na} at {a}', '{a} as the {na}', 'the {na} is {a}', '{na} to {a}', '{na} of {a}', 'the {na} {a}')
_JOINTS = (' and ', ' and ', ', ', ', ', ' with ', '; ', ', and ', ' / ', ' plus ', ' but ')


_FLAG_SHARE = 0.14                       # of made-up tools with one argument
_SWITCH_TEXTS = ('{T} on or off.', 'Turn the {t} on or off.', 'Switch the {t}.', 'Enable or disable the {t}.', 'Control whether the {t} is on.', 'Start or stop the {t}.')
_SWITCH_ON = ('turn the {t} on; turn on the {t}; switch the {t} on; switch on the {t}; {t} on; {t} on please; enable the {t}; activate the {t}; start the {t}; I want the {t} on; the {t} should be on; put the {t} on; make the {t} run; use the {t} from now on; enable {t}; '
              'we need the {t}; bring the {t} up; with {t} please; the {t} has to be active; engage the {t}; on with the {t}; let the {t} run; {t} enabled; go on with the {t} on')
_SWITCH_OFF = ('turn the {t} off; turn off the {t}; switch the {t} off; switch off the {t}; {t} off; {t} off please; disable the {t}; deactivate the {t}; stop the {t}; I want the {t} off; the {t} should be off; shut the {t} down; no more {t}; do without the {t} from now on; disable {t}; '
               'we do not need the {t}; end the {t}; without {t} please; the {t} must not be active; disengage the {t}; off with the {t}; do not use the {t}; {t} disabled; kill the {t}')


def _phrase(rng: random.Random) -> str:
    """A noun of one open word, sometimes two."""
    word = random_word(rng)
    return word if rng.random() < 0.8 else f'{word} {random_word(rng)}'


def _filled(text: str, noun: str, verb: str = '') -> str:
    for slot, word in (('{n}', noun), ('{N}', noun.capitalize()), ('{t}', noun), ('{T}', noun.capitalize()),
                       ('{v}', verb), ('{V}', verb.capitalize())):
        text = text.replace(slot, word)
    return text


def made_up_kind(rng: random.Random) -> Intent:
    """A kind of tool with up to three arguments, and one way to ask for it."""
    theme = _phrase(rng)
    verb = pick(rng, _VERBS) if rng.random() < 0.75 else random_word(rng)
    count = rng.choices((0, 1, 2, 3), (10, 45, 35, 10))[0]
    nouns = [_phrase(rng) for _ in range(count)]
    same = count == 1 and rng.random() < 0.65
    if same and rng.random() < _FLAG_SHARE:
        return _switch(theme, verb, rng)
    if same:
        nouns = [theme]
    params = tuple(_param(noun, key, rng) for noun, key in zip(nouns, 'abc', strict=False))
    spoken = verb if rng.random() < 0.6 else pick(rng, _VERBS)
    words = {'t': theme, 'v': spoken} | {f'n{key}': noun for noun, key in zip(nouns, 'abc', strict=False)}
    if not count:
        command = pick(rng, _NONE)
    elif same:
        command = pick(rng, _SAME)
    else:
        command = pick(rng, _FRAMES).replace('{x}', _parts(count, rng))
    return Intent(
        KEY + theme,
        (_filled(pick(rng, _TOOL_NAMES), theme, verb),),
        (_filled(pick(rng, _TOOL_TEXTS), theme, verb),),
        params,
        (command,),
        'use the {t}',
        'used the {t}',
        (),
        words=tuple(words.items()),
    )


def _switch(theme: str, verb: str, rng: random.Random) -> Intent:
    """A made-up thing that is on or off: its argument is true or false."""
    said = (_SWITCH_ON.replace('{t}', theme), _SWITCH_OFF.replace('{t}', theme))
    flag = Param(
        'a',
        'idiom',
        ('enabled', 'on', 'active', 'state', 'value', f'{theme} on'),
        (f'Whether the {theme} is on', f'true turns the {theme} on', 'true is on, false is off', f'{theme.capitalize()} on or off'),
        f'Should the {theme} be on or off?',
        (f'true: {said[0]}', f'false: {said[1]}'),
    )
    return Intent(
        KEY + theme,
        (_filled(pick(rng, _TOOL_NAMES), theme, verb),),
        (_filled(pick(rng, _SWITCH_TEXTS), theme, verb),),
        (flag,),
        ('{a}',),
        'use the {t}',
        'used the {t}',
        (),
        words=(('t', theme), ('v', verb), ('na', theme)),
    )


def _param(noun: str, key: str, rng: random.Random) -> Param:
    kind = pick(rng, _KINDS)
    choices = tuple(dict.fromkeys(random_word(rng) for _ in range(rng.randint(3, 6))))
    return Param(
        key,
        kind,
        (_filled(pick(rng, _PARAM_NAMES), noun),),
        (_filled(pick(rng, _PARAM_TEXTS), noun),),
        f'Which {noun}?',
        choices if kind == 'choice' else (),
    )


def _parts(count: int, rng: random.Random) -> str:
    """'{na} {a} and {b} as the {nb}', in any order."""
    keys = list('abc'[:count])
    rng.shuffle(keys)
    form = pick(rng, _PARTS)
    parts = []
    for key in keys:
        if rng.random() < 0.4:
            form = pick(rng, _PARTS)
        parts.append(form.replace('{na}', '{n' + key + '}').replace('{a}', '{' + key + '}'))
    return pick(rng, _JOINTS).join(parts)
