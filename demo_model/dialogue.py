# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Whole dialogues: tools drawn anew, what is said, what the model must do, what came back."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from demo_model.commands import Command
from demo_model.dialogue_phrases import (
    SYSTEM_PROMPTS,
)
from demo_model.episodes import Episode, draw_episodes
from demo_model.filling import open_text
from demo_model.motion_phrases import (
    THINGS,
)
from demo_model.phrasing import TrainDraws, expand, open_words, pick, random_name
from demo_model.results import answer, draw_outcome
from demo_model.tools import Tool
from demo_model.toolsets import draw_tools

Json = dict[str, Any]
_ALL_OPEN_SHARE = 0.3                    # of training dialogues in which all names are of open words


@dataclass
class Dialogue:
    """Messages in the OpenAI form (the last one is the model's), tools, and how to render them."""

    messages: list[Json]
    tools: list[Json]
    thinking: bool
    variant: str
    category: str


def turn_messages(episode: Episode, results: list[str]) -> list[Json]:
    """What is said, the calls, and what the tools answered (fewer results: it ends at the calls)."""
    calls = [
        {
            'id': f'call_{index}',
            'type': 'function',
            'function': {'name': command.tool.name, 'arguments': command.arguments},
        }
        for index, command in enumerate(episode.commands)
    ]
    return [
        {'role': 'user', 'content': episode.user},
        {'role': 'assistant', 'content': '', 'tool_calls': calls},
        *(
            {'role': 'tool', 'tool_call_id': call['id'], 'content': content}
            for call, content in zip(calls, results, strict=False)
        ),
    ]


def _messages(
    episode: Episode, rng: random.Random, held: bool, cut_at_call: bool, thinking: bool
) -> list[Json]:
    if not episode.commands:
        reply: Json = {'role': 'assistant', 'content': episode.reply}
        if thinking:
            reply['reasoning_content'] = episode.thought
        return [{'role': 'user', 'content': episode.user}, reply]
    good = 0.5 if len(episode.commands) == 1 else 0.75
    outcomes = (
        []
        if cut_at_call
        else [draw_outcome(command, rng, held, good) for command in episode.commands]
    )
    out = turn_messages(episode, [outcome.content for outcome in outcomes])
    if thinking:
        out[1]['reasoning_content'] = episode.thought
    if cut_at_call:
        return out
    out.append({'role': 'assistant', 'content': answer(episode.commands, outcomes)})
    if thinking:
        bad = [
            command.tool.name
            for command, outcome in zip(episode.commands, outcomes, strict=True)
            if outcome.kind != 'done'
        ]
        out[-1]['reasoning_content'] = f'{bad[0]} failed.' if bad else 'It worked.'
    return out


def draw_dialogue(
    rng: random.Random, held: bool = False, tools: list[Tool] | None = None, max_turns: int = 0
) -> Dialogue:
    """One dialogue; its last message is the model's. `max_turns` 0 draws the number of turns."""
    if not held and type(rng) is random.Random:
        rng = TrainDraws(rng.getrandbits(64))
        rng.all_open = rng.random() < _ALL_OPEN_SHARE
    tools = draw_tools(rng) if tools is None else tools
    count = max_turns or rng.choices((1, 2, 3, 4, 6, 9, 16), (38, 22, 20, 12, 5, 2, 1))[0]
    thinking = rng.random() < 0.1
    episodes: list[Episode] = []
    last: Command | None = None
    while len(episodes) < count:
        new = draw_episodes(tools, rng, held, last)
        episodes += new
        last = new[-1].commands[0] if len(new[-1].commands) == 1 else None
    messages: list[Json] = []
    if rng.random() < 0.5:
        messages.append(
            {
                'role': 'system',
                'content': expand(
                    pick(rng, SYSTEM_PROMPTS),
                    rng,
                    lambda slot: random_name(rng) if slot == 'name' else pick(rng, open_words(rng)),
                ),
            }
        )
        if rng.random() < 0.25:
            messages[0]['content'] += ' ' + expand(
                pick(rng, SYSTEM_PROMPTS),
                rng,
                lambda slot: random_name(rng) if slot == 'name' else pick(rng, THINGS),
            )
        if rng.random() < 0.04:
            notes = [open_text(rng) + '.' for _ in range(rng.randint(4, 60))]
            messages[0]['content'] += ' Notes: ' + ' '.join(notes)
    for index, episode in enumerate(episodes):
        final = index == len(episodes) - 1
        messages += _messages(episode, rng, held, final and rng.random() < 0.62, thinking)
    return Dialogue(
        messages,
        [tool.declaration for tool in tools],
        thinking,
        'large' if rng.random() < 0.92 else 'small',
        episodes[-1].category,
    )
