# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Whole dialogues: tools drawn anew, what the user says, what the model must do, what came back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from demo_model import smalltalk
from demo_model.commands import Command, command_for, fill, motion_command, sentence
from demo_model.intents import INTENTS
from demo_model.motion_phrases import (
    BACKWARD_WORDS,
    CLAUSES,
    FORWARD_WORDS,
    LEFT_WORDS,
    RIGHT_WORDS,
    THINGS,
    TURN_VERBS,
    WRAPPERS,
)
from demo_model.phrasing import WORDS, expand, pick, random_name, roughen
from demo_model.results import answer, draw_outcome
from demo_model.spoken_numbers import (
    ANGLES,
    LENGTHS,
    NUMBER_WORDS,
    Quantity,
    bare_number,
    quantity,
)
from demo_model.tools import Tool, draw_tools, other_tool

Json = dict[str, Any]

SYSTEM_PROMPTS = (
    'You are a helpful robot.', 'You are a robot assistant.', 'You control a small mobile robot.', 'You are {name}, a friendly robot.', 'You are the voice of a robot.', 'Be brief.',
    'You are a helpful assistant on a robot. Use the tools to act.', 'Answer in one short sentence.', 'You drive a robot by calling tools.', 'You are a robot. Call a tool when one fits, else answer briefly.',
    'You are an assistant. Use the given tools when they help.', 'Help the user.', 'You live on a robot in the {w} building.', 'You are a service robot of {name}.', 'Be polite and short.',
    'You are the assistant of a mobile robot. Use tools to move, and say in one sentence what was done.', 'Never invent results.', 'Answer in English.', 'Be careful: people are near.', '{w} {w} {w}.',
    'You are a robot in a warehouse. Follow the commands of the operator.', 'You are Gemma, running on a robot.', 'You are a home robot. Keep answers short.', 'Your name is {name}.',
    'You are an embodied assistant. The tools below move the robot. Speak plainly.', 'Today the {w} is {w}. You are a robot.', 'If information is missing, ask for it.',
    'You are a helpful robot. Call tools for motion. Afterwards tell briefly what happened. Ask when a number is missing.', 'The robot has wheels and a speaker.', 'Do what the user asks with the tools.',
)
JOINS = ('{a} and {b}', '{a} and {b}', '{a} and then {b}', '{a} and then {b}', '{a}, then {b}', '{a}, then {b}', '{a} then {b}', 'first {a}, then {b}', 'first {a} and then {b}', '{a}, and {b}', '{a}. Then {b}', '{a}. {b}',
         '{a}, after that {b}', '{a} and after that {b}', '{a}; {b}', '{a}, next {b}', '{a} and finally {b}', 'please {a} and {b}', 'please {a}, then {b}', 'can you {a} and then {b}?', '{a}, afterwards {b}', '{a}, and then please {b}',
         '{a} before you {b}', 'robot, {a} and {b}', 'could you {a} and {b}?', '{a}, {b}', 'I want you to {a} and {b}', '{a} and also {b}', 'at first {a}, next {b}', '{a}. After that, {b}', '{a} plus {b}', 'once you {a}, {b}', '{a}, {w} {b}', '{a} {w} {b}', '{a} and, {w}, {b}', '1. {a} 2. {b}', '1) {a}, 2) {b}', 'a: {a}; b: {b}', 'two tasks: {a}, {b}', 'step 1: {a}. step 2: {b}', 'do this: {a}, then this: {b}', '{a}. when finished, {b}',
         'after you {a}, {b}', '{a} / {b}', '{a}. now {b}', '{a}. {w}, {b}', '{a}; then {b}', '{a}... then {b}', '{a}. And then {b}', '{w}, {a} and {b}', '{a}, {b}, {w}', '{a}, {b} {clause}', '{a} and {b}, {clause}', '{clause}, {a} and {b}', '{a}, and once done, {b}', '{a} as well as {b}')
HELD_JOINS = ('{a} followed by this: {b}', 'start: {a}, second: {b}', '{a}, when that is done {b}', '{a} & {b}', 'do two things: {a} and {b}', '{a} - then {b}', 'you should {a} and subsequently {b}', '{a}. When ready, {b}')
THREE = ('{a}, {b} and {c}', '{a}, then {b}, then {c}', 'first {a}, then {b} and then {c}', '{a} and {b} and {c}', '{a}. {b}. {c}', '{a}, then {b} and finally {c}')
AGAIN = ('again', 'once more', 'do it again', 'do that again', 'repeat that', 'one more time', 'same again', 'try again', 'try it again', 'retry', 'please repeat', 'and again', 'again please', 'the same once more', 'repeat', 'do the same again', 'another time')
BACK = {'drive': ('and back', 'now back', 'now the same way back', 'go back the same distance', 'and now the other way', 'the other way now', 'undo that', 'the opposite direction please', 'now in the opposite direction'),
        'turn': ('and back', 'now back', 'turn back', 'and now the other way', 'the other way now', 'undo that', 'the opposite direction please', 'now in the opposite direction', 'now the other side')}


# Distances that are none.
VAGUE = ('for {n} seconds', 'until I say stop', 'until you reach the {thing}', 'as far as you can', 'a few metres', 'some metres', 'several feet', 'a certain distance', 'for a while', 'a number of metres', 'some distance', 'to the {thing}',
         'toward the {thing}', 'until the {thing}', 'a few centimetres', 'many metres', 'far', 'very far', 'as long as possible', 'a couple of times', 'some more', 'for a minute', 'until {name} comes', 'please', 'now', 'at {n} percent speed')


@dataclass
class Episode:
    """One user turn and what follows. `outcomes` is empty where no tool is called."""

    user: str
    commands: list[Command] = field(default_factory=list)
    reply: str = ''
    thought: str = ''
    category: str = ''


@dataclass
class Dialogue:
    """Messages in the OpenAI form (the last one is the model's), tools, and how to render them."""

    messages: list[Json]
    tools: list[Json]
    thinking: bool
    variant: str
    category: str


def _joined(commands: list[Command], rng: random.Random, held: bool) -> str:
    names = ('a', 'b', 'c')
    template = pick(rng, THREE if len(commands) == 3 else HELD_JOINS if held else JOINS)
    if any(command.open_end for command in commands[:-1]) and template in ('{a}, {b}', '{a} plus {b}', '{a} {w} {b}', '{a}, {b}, {w}', '{a}, {w} {b}', '{a} / {b}', '{a} as well as {b}', '{a}, {b} and {c}', '{a} and {b} and {c}'):
        template = '{a} and then {b} and then {c}' if len(commands) == 3 else '{a} and then {b}'
    texts = {name: command.base or command.whole for name, command in zip(names, commands, strict=False)}
    for name, command in zip(names, commands, strict=False):
        if not command.open_end and rng.random() < 0.08:
            texts[name] += ' ' + fill(pick(rng, CLAUSES), rng, {})
    return fill(template, rng, texts)


def _flipped(values: Json) -> Json:
    flip = {'forward': 'backward', 'backward': 'forward', 'left': 'right', 'right': 'left'}
    return {**values, 'direction': flip[values['direction']]}


def _call_episode(tools: list[Tool], rng: random.Random, held: bool, count: int) -> Episode:
    motion = [tool for tool in tools if tool.kind is None]
    pool = motion if motion and rng.random() < 0.85 else tools
    weights = [4 if tool.intent in ('drive', 'turn') else 1 if tool.intent == 'dock' else 2 for tool in pool]
    commands = [command_for(rng.choices(pool, weights)[0], rng, held) for _ in range(count)]
    text = sentence(commands[0], rng, held) if count == 1 else _joined(commands, rng, held)
    if count == 2 and commands[0].values and commands[0].tool.kind is None and rng.random() < 0.08:
        text = commands[0].base or commands[0].whole
        commands[1] = motion_command(commands[0].tool, _flipped(commands[0].values))
        text += pick(rng, [' and back', ' and then back', ' and back again', ', then back', ' and come back', ' and then come back', ' and return', ', then return', ' and then go back', ' and then the same way back',
                           ' and then the other way', ' and then the opposite', ' and after that the same back'])
    if any(command.open_end or command.tool.kind for command in commands):
        text = text if rng.random() < 0.5 or commands[0].tool.intent == 'say' else text[:1].upper() + text[1:]
        last = commands[-1]
        if not (last.open_end and text[-1:] in '.!?') and rng.random() < 0.3:
            text += '.'
    else:
        text = roughen(text, rng, NUMBER_WORDS)
    name = commands[0].tool.name
    return Episode(text, commands, thought=f'The user wants me to {" and ".join(command.todo for command in commands)}. I call {name}.',
                   category=commands[0].category if count == 1 else 'two calls' if count == 2 else 'three calls')


def _question_episode(tools: list[Tool], rng: random.Random, held: bool) -> tuple[Episode, Episode | None]:
    """A command that lacks something, the question back, and perhaps what the user answers."""
    tool = rng.choice([tool for tool in tools if tool.names] or tools)
    if tool.intent == 'drive':
        forward = rng.random() < 0.5
        direction = 'forward' if forward else 'backward'
        words = pick(rng, (FORWARD_WORDS if forward else BACKWARD_WORDS))
        while 'further' in words or words in ('on', 'away'):
            words = pick(rng, FORWARD_WORDS if forward else BACKWARD_WORDS)
        if rng.random() < 0.2 and not held:
            user = pick(rng, ['drive', 'move', 'drive please', 'please drive', 'can you move', 'go', 'start driving', 'drive a distance', 'move the robot', 'I want you to drive', 'please move', 'go for a drive'])
            reply = 'How far should I drive, and in which direction?'
        else:
            user = _incomplete(pick(rng, ['drive', 'go', 'move', 'roll', 'head', 'drive', 'come']) + ' ' + words if forward or rng.random() < 0.6 else pick(rng, ['reverse', 'back up', 'back off']), rng, held)
            reply = f'How far should I drive {direction}?'
            if rng.random() < 0.25:
                user = user.rstrip('.!?') + ' ' + fill(pick(rng, VAGUE), rng, {})
        amount = quantity(rng, tuple(unit for unit in LENGTHS if 'unit' not in tool.values or unit in tool.values['unit']), held)
        if reply.endswith('direction?'):
            direction = 'forward' if rng.random() < 0.5 else 'backward'
            amount_text = f'{amount.text} {pick(rng, FORWARD_WORDS[:6] if direction == "forward" else BACKWARD_WORDS[:6])}'
        else:
            amount_text = amount.text
        if 'unit' in tool.names and 'm' in tool.values.get('unit', {'m': ''}) and rng.random() < 0.2 and not reply.endswith('direction?'):
            value, amount_text = bare_number(rng, held)
            amount = Quantity(value, 'm', amount_text)
        command = motion_command(tool, {'distance': amount.value, 'unit': amount.unit, 'direction': direction})
    elif tool.intent == 'turn':
        side = 'left' if rng.random() < 0.5 else 'right'
        words = pick(rng, LEFT_WORDS if side == 'left' else RIGHT_WORDS)
        amount = quantity(rng, tuple(unit for unit in ANGLES if 'unit' not in tool.values or unit in tool.values['unit']), held)
        verb = pick(rng, ['turn', 'rotate', 'turn']) if rng.random() < 0.6 else TURN_VERBS[int(rng.random() * 17)][0]
        draw = rng.random()
        if draw < 0.15 and not held:
            user = _incomplete(verb, rng, held)
            reply, amount_text = 'How far should I turn, and in which direction?', f'{amount.text} {words}'
        elif draw < 0.4 and amount.value not in (180, 360):
            user = _incomplete(f'{verb} {pick(rng, ["by ", "", ""])}{amount.text}', rng, held)
            reply, amount_text = 'Should I turn left or right?', words
        else:
            user = _incomplete(f'{verb} {words}', rng, held) if rng.random() < 0.9 else pick(rng, ['make', 'take', 'do']) + f' a {side} turn'
            if 'unit' in tool.names and 'deg' in tool.values.get('unit', {'deg': ''}) and rng.random() < 0.25:
                value, text = bare_number(rng, held)
                amount = Quantity(value, 'deg', text)
            reply, amount_text = f'How far should I turn {side}?', amount.text
        command = motion_command(tool, {'angle': amount.value, 'unit': amount.unit, 'direction': side})
    elif tool.intent == 'say':
        user = _incomplete(pick(rng, ['say something', 'speak', 'talk', 'say a sentence', 'make an announcement', 'announce something', 'speak up', 'use your voice', 'tell them something']), rng, held)
        words = pick(rng, [' '.join(pick(rng, WORDS) for _ in range(rng.randint(1, 4))), 'hello ' + random_name(rng), 'good morning'])
        reply, amount_text = 'What should I say?', words
        command = Command(tool, tool.arguments({'text': words}), f'say: {words}', f'said: {words}')
    elif tool.kind is not None and tool.kind.params:
        param = tool.kind.params[0]
        user = _incomplete(pick(rng, tool.kind.names), rng, held) if rng.random() < 0.7 else _incomplete(f'use the tool {tool.name}', rng, held)
        command = command_for(tool, rng, held)
        reply = param.question
        value = (command.values or {})[param.key]
        amount_text = f'{value}'
        if len(tool.kind.params) > 1:
            return Episode(user, reply=reply, thought=f'The tool {tool.name} fits, but something is missing.', category='missing'), None
    else:
        return _call_episode(tools, rng, held, 1), None
    complete = [other for other in tools if other.kind is None and other is not tool]
    if complete and tool.intent in ('drive', 'turn') and user[-1:] not in '.!?' and rng.random() < 0.15:
        partner = command_for(rng.choice(complete), rng, held)
        pair = (user, partner.base or partner.whole) if rng.random() < 0.6 or partner.open_end else (partner.base or partner.whole, user)
        text = f'{pair[0]}{pick(rng, [" and ", " and then ", ", then ", " then ", ". Then "])}{pair[1]}'
        return Episode(text, reply=reply, thought=f'The tool {tool.name} lacks a number.', category='missing'), None
    first = Episode(user, reply=reply, thought=f'The tool {tool.name} fits, but something is missing.', category='missing')
    if rng.random() < 0.4:
        return first, None
    frame = pick(rng, ['{x}', '{x}', '{x}', '{x} please', '{x}, please', 'by {x}', 'make it {x}', 'oh, {x}', 'sorry, {x}', 'let us say {x}']) if tool.intent in ('drive', 'turn') else '{x}'
    return first, Episode(frame.replace('{x}', amount_text), [command], thought=f'Now I know what was missing. I call {tool.name}.', category='follow-up')


def _incomplete(phrase: str, rng: random.Random, held: bool) -> str:
    if not held and rng.random() < 0.4:
        wrapper = pick(rng, WRAPPERS)
        if '{ing}' not in wrapper and '{n}' not in wrapper and '{clause}' not in wrapper:
            return roughen(fill(wrapper, rng, {'base': phrase}), rng, NUMBER_WORDS, typo_rate=0.06)
    wrapped = pick(rng, ['{x}', '{x}', '{x}', 'please {x}', '{x} please', 'can you {x}?', 'could you {x}?', 'robot, {x}', 'I want you to {x}', '{x} now', 'now {x}', 'ok {x}', 'would you please {x}', "let's {x}", 'start to {x}',
                         'hey, {x}', '{x} for me', 'you should {x}', '{x} a certain amount', 'I need you to {x}', '{x}, robot', 'try to {x}'] if not held else ['{x} if you can', 'go on, {x}', 'might you {x}?', 'time to {x}'])
    return roughen(wrapped.replace('{x}', phrase), rng, NUMBER_WORDS, typo_rate=0.06)


def _no_tool_episode(tools: list[Tool], rng: random.Random, held: bool) -> Episode:
    present = {tool.intent for tool in tools}
    draw = rng.random()
    drives = 'drive' in present
    if tools and drives and draw < 0.12:
        amount = quantity(rng, ('m', 'ft', 'cm'), held)
        side = pick(rng, ['left', 'right', 'to the left', 'to the right', 'sideways', 'sideways to the left'])
        text = pick(rng, ['{v} {q} {s}', '{v} {s} {q}', '{v} {s} by {q}']).replace('{v}', pick(rng, ['drive', 'move', 'go', 'shift', 'slide', 'strafe', 'step']))
        return Episode(roughen(text.replace('{q}', amount.text).replace('{s}', side), rng, NUMBER_WORDS), reply=smalltalk.SIDEWAYS, thought='I can not drive sideways.', category='no tool')
    if tools and drives and draw < 0.22:
        tool = next(tool for tool in tools if tool.intent == 'drive')
        if 'unit' in tool.names:
            number = quantity(rng, ('m',), held).text.rsplit(' ', 1)[0]
            text = f'{pick(rng, ["drive", "go", "move", "travel", "drive"])} {number} {pick(rng, smalltalk.ODD_UNITS)} {pick(rng, ["", "forward", "back", "ahead", "backwards"])}'.strip()
            units = list(tool.declaration['function']['parameters']['properties'][tool.names['unit']]['enum'])
            reply = smalltalk.UNIT_UNKNOWN.replace('{units}', ', '.join(units[:-1]) + f' and {units[-1]}')
            return Episode(roughen(text, rng), reply=reply, thought='The unit is not known.', category='odd unit')
    others = [kind for kind in INTENTS if kind.key not in present]
    alien = any(tool.kind for tool in tools)
    if alien or (not tools and rng.random() < 0.5) or rng.random() < 0.3:
        kind = rng.choice(others)
        draw = rng.random()
        if draw < 0.25 and not drives and not present & {'turn', 'goto', 'head'}:
            command = command_for(rng.choice(draw_motion(rng)), rng, held)
        else:
            command = command_for(other_tool(rng, kind), rng, held)
        text = roughen(sentence(command, rng, held), rng)
    else:
        text = roughen(smalltalk.question(rng, held), rng)
    return Episode(text, reply=smalltalk.NO_TOOL, thought='No tool fits.', category='no tool')


def draw_motion(rng: random.Random) -> list[Tool]:
    """The demo robot's drive and turn, for commands that find no such tool in their set."""
    from demo_model.tools import demo_tools
    return demo_tools()[:2]


def _episodes(tools: list[Tool], rng: random.Random, held: bool, last: Command | None) -> list[Episode]:
    draw = rng.random()
    if not tools:
        draw = 0.8 + draw * 0.2
    if last is not None and last.values and last.tool.kind is None and draw < 0.12:
        values = dict(last.values)
        texts: tuple[str, ...] = AGAIN
        if rng.random() < 0.5:
            values = _flipped(values)
            texts = BACK[last.tool.intent]
        command = motion_command(last.tool, values)
        return [Episode(roughen(pick(rng, texts), rng, typo_rate=0.03), [command], thought=f'The user wants me to {command.todo}.', category='again')]
    if draw < 0.62:
        return [_call_episode(tools, rng, held, 1)]
    if draw < 0.75:
        return [_call_episode(tools, rng, held, 2 if rng.random() < 0.88 else 3)]
    if draw < 0.83:
        first, second = _question_episode(tools, rng, held) if tools else (_no_tool_episode(tools, rng, held), None)
        return [first] + ([second] if second else [])
    if draw < 0.88:
        user, reply = smalltalk.chat(rng, held)
        return [Episode(roughen(user, rng), reply=reply, thought='This is small talk.', category='chat')]
    if draw < 0.895:
        user, reply = smalltalk.abilities(tools, rng, held)
        return [Episode(roughen(user, rng), reply=reply, thought='The user asks what I can do.', category='chat')]
    return [_no_tool_episode(tools, rng, held)]


def _messages(episode: Episode, rng: random.Random, held: bool, cut_at_call: bool, thinking: bool) -> list[Json]:
    out: list[Json] = [{'role': 'user', 'content': episode.user}]
    if not episode.commands:
        out.append({'role': 'assistant', 'content': episode.reply})
        if thinking:
            out[-1]['reasoning_content'] = episode.thought
        return out
    calls = [{'id': f'call_{index}', 'type': 'function', 'function': {'name': command.tool.name, 'arguments': command.arguments}}
             for index, command in enumerate(episode.commands)]
    out.append({'role': 'assistant', 'content': '', 'tool_calls': calls})
    if thinking:
        out[-1]['reasoning_content'] = episode.thought
    if cut_at_call:
        return out
    good = 0.5 if len(calls) == 1 else 0.75
    outcomes = [draw_outcome(command, rng, held, good) for command in episode.commands]
    for call, outcome in zip(calls, outcomes, strict=True):
        out.append({'role': 'tool', 'tool_call_id': call['id'], 'content': outcome.content})
    out.append({'role': 'assistant', 'content': answer(episode.commands, outcomes)})
    if thinking:
        bad = [command.tool.name for command, outcome in zip(episode.commands, outcomes, strict=True) if outcome.kind != 'done']
        out[-1]['reasoning_content'] = f'{bad[0]} failed.' if bad else 'It worked.'
    return out


def draw_dialogue(rng: random.Random, held: bool = False, tools: list[Tool] | None = None, max_turns: int = 0) -> Dialogue:
    """One dialogue; its last message is the model's. `max_turns` 0 draws the number of turns."""
    tools = draw_tools(rng) if tools is None else tools
    count = max_turns or rng.choices((1, 2, 3, 4, 6, 9), (38, 22, 20, 13, 5, 2))[0]
    thinking = rng.random() < 0.08
    episodes: list[Episode] = []
    last: Command | None = None
    while len(episodes) < count:
        new = _episodes(tools, rng, held, last)
        episodes += new
        last = new[-1].commands[0] if len(new[-1].commands) == 1 else None
    messages: list[Json] = []
    if rng.random() < 0.5:
        messages.append({'role': 'system', 'content': expand(pick(rng, SYSTEM_PROMPTS), rng, lambda slot: random_name(rng) if slot == 'name' else pick(rng, WORDS))})
        if rng.random() < 0.25:
            messages[0]['content'] += ' ' + expand(pick(rng, SYSTEM_PROMPTS), rng, lambda slot: random_name(rng) if slot == 'name' else pick(rng, THINGS))
    for index, episode in enumerate(episodes):
        final = index == len(episodes) - 1
        messages += _messages(episode, rng, held, final and rng.random() < 0.62, thinking)
    return Dialogue(messages, [tool.declaration for tool in tools], thinking, 'large' if rng.random() < 0.92 else 'small', episodes[-1].category)
