# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Write the evaluation's held-out dialogues: templates, names, values and numbers training never sees.

    python -m demo_model.heldout_set

The file travels in the package, so that everybody evaluates the same dialogues without the generator.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from demo_model.cases import MOTION
from demo_model.commands import Command
from demo_model.dialogue import draw_dialogue, turn_messages
from demo_model.encode import Encoder
from demo_model.episode import Episode
from demo_model.episodes import call_episode, corrected_episode, no_tool_episode
from demo_model.intents_held import HELD_INTENTS
from demo_model.phrasing import HeldDraws
from demo_model.questions import question_episode
from demo_model.results import answer, draw_outcome
from demo_model.tools import Tool, demo_tools
from demo_model.toolsets import draw_tools, other_tool, other_tools, unique

Json = dict[str, Any]
FILE = Path(__file__).parent.parent / 'gemma_thor_ros' / 'demo' / 'evaluation' / 'heldout.jsonl.xz'
SEED = 20261130
LONG_TOKENS = (700, 2000)                # prompt lengths of the row 'long'


def _row(name: str, messages: list[Json], tools: list[Tool], expect: Json, **more: Any) -> Json:
    return {
        'row': name,
        'messages': messages,
        'tools': [tool.declaration for tool in tools],
        'expect': expect,
        **more,
    }


def _user(episode: Episode) -> list[Json]:
    return [{'role': 'user', 'content': episode.user}]


def _calls(commands: list[Command]) -> Json:
    return {'calls': [[command.tool.name, command.arguments] for command in commands]}


def _called(
    name: str, tools: list[Tool], rng: random.Random, count: int = 1, **more: Any
) -> Json | None:
    if not tools:
        return None
    episode = call_episode(tools, rng, True, count)
    return _row(name, _user(episode), tools, _calls(episode.commands), **more)


def _motion(seed: str) -> Json | None:
    tools = demo_tools()
    dialogue = draw_dialogue(random.Random(seed), True, tools, 1)
    last = dialogue.messages[-1]
    if dialogue.thinking or dialogue.category not in MOTION or 'tool_calls' not in last:
        return None
    if sum(message['role'] == 'user' for message in dialogue.messages) > 1:
        return None
    calls = [[c['function']['name'], c['function']['arguments']] for c in last['tool_calls']]
    return _row('motion', dialogue.messages[:-1], tools, {'calls': calls})


def _known(seed: str) -> Json | None:
    rng = random.Random(seed)
    return _called('known', draw_tools(rng), rng)


def _unseen_names(seed: str) -> Json | None:
    return _called('unseen_names', draw_tools(HeldDraws(seed)), random.Random(seed))


def _unseen_both(seed: str) -> Json | None:
    rng = HeldDraws(seed)
    return _called('unseen_names_and_values', draw_tools(rng), rng)


def _unseen_kinds(seed: str) -> Json | None:
    rng = HeldDraws(seed)
    tool = other_tool(rng, rng.choice(HELD_INTENTS))
    row = _called('unseen_kinds', [tool], rng)
    tools = unique([tool, *other_tools(rng)[:3]], rng)
    rng.shuffle(tools)
    assert row is not None
    return {**row, 'tools': [one.declaration for one in tools]}


def _two_calls(seed: str) -> Json | None:
    rng = random.Random(seed)
    return _called('two_calls', draw_tools(rng), rng, 2)


def _thinking(seed: str) -> Json | None:
    rng = random.Random(seed)
    return _called('thinking', draw_tools(rng), rng, thinking=True)


def _correction(seed: str) -> Json | None:
    rng = random.Random(seed)
    tools = draw_tools(rng)
    episode = corrected_episode(tools, rng, True) if tools else None
    if episode is None or episode.category != 'correction':
        return None
    return _row('correction', _user(episode), tools, _calls(episode.commands))


def _missing(seed: str) -> Json | None:
    rng = random.Random(seed)
    tools = draw_tools(rng)
    episode = question_episode(tools, rng, True)[0] if tools else None
    if episode is None or episode.category != 'missing':
        return None
    return _row('missing', _user(episode), tools, {'text': episode.reply})


def _no_tool(seed: str) -> Json | None:
    rng = random.Random(seed)
    tools = draw_tools(rng)
    return _row('no_tool', _user(no_tool_episode(tools, rng, True)), tools, {'calls': []})


def _result(name: str, seed: str, failed: bool) -> Json | None:
    rng = random.Random(seed)
    tools = draw_tools(rng)
    if not tools:
        return None
    episode = call_episode(tools, rng, True, 1)
    command = episode.commands[0]
    outcome = draw_outcome(command, rng, True, 0.0 if failed else 1.0)
    if failed and not outcome.reason:
        return None
    messages = turn_messages(episode, [outcome.content])
    expect: Json = {'text': answer([command], [outcome])}
    if failed:
        expect = {'reason': outcome.reason, 'claim': f'I {command.done}'}
    return _row(name, messages, tools, expect)


def _after_failure(seed: str) -> Json | None:
    return _result('after_failure', seed, True)


def _after_success(seed: str) -> Json | None:
    return _result('after_success', seed, False)


def _long(seed: str, encoder: Encoder) -> Json | None:
    rng = random.Random(seed)
    dialogue = draw_dialogue(rng, True, None, rng.randint(6, 14))
    last = dialogue.messages[-1]
    if dialogue.thinking or 'tool_calls' not in last:
        return None
    length = len(encoder.prompt(dialogue.messages[:-1], dialogue.tools))
    if not LONG_TOKENS[0] <= length <= LONG_TOKENS[1]:
        return None
    calls = [[c['function']['name'], c['function']['arguments']] for c in last['tool_calls']]
    row = _row('long', dialogue.messages[:-1], [], {'calls': calls})
    return {**row, 'tools': dialogue.tools}


def rows(counts: dict[str, int]) -> Iterator[Json]:
    """The dialogues of every row, `counts` each; nothing of one is in another."""
    encoder = Encoder()
    makers: dict[str, Callable[[str], Json | None]] = {
        'motion': _motion,
        'known': _known,
        'unseen_names': _unseen_names,
        'unseen_names_and_values': _unseen_both,
        'unseen_kinds': _unseen_kinds,
        'two_calls': _two_calls,
        'missing': _missing,
        'no_tool': _no_tool,
        'after_failure': _after_failure,
        'after_success': _after_success,
        'correction': _correction,
        'thinking': _thinking,
        'long': lambda seed: _long(seed, encoder),
    }
    for name, make in makers.items():
        seen: set[str] = set()
        index = 0
        while len(seen) < counts.get(name, 0):
            row = make(f'{SEED} {name} {index}')
            index += 1
            key = json.dumps(row and row['messages'])
            if row is None or key in seen or len(json.dumps(row)) > 12000:
                continue
            seen.add(key)
            yield row


COUNTS = dict.fromkeys(
    (
        'motion',
        'known',
        'unseen_names',
        'unseen_names_and_values',
        'unseen_kinds',
        'two_calls',
        'missing',
        'no_tool',
        'after_failure',
    ),
    500,
) | {'after_success': 200, 'correction': 200, 'thinking': 200, 'long': 100}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=Path, default=FILE)
    args = parser.parse_args()
    lines = [
        json.dumps(row, ensure_ascii=False, separators=(',', ':')) + '\n' for row in rows(COUNTS)
    ]
    args.out.write_bytes(lzma.compress(''.join(lines).encode(), preset=9))
    print(f'{len(lines)} dialogues, {args.out.stat().st_size} bytes')


if __name__ == '__main__':
    main()
