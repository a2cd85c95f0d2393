# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Questions for the evaluation and how an answer is judged: by its text in Gemma's own grammar.

Held-out cases have phrasings, wrappers, joins and numbers that training never sees.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_model.dialogue import draw_dialogue
from demo_model.tools import DEMO_TOOLS, demo_tools
from gemma_thor_ros.text.prompt import render
from gemma_thor_ros.text.segments import segments_text

Json = dict[str, Any]
FREE_WORDING = Path(__file__).parent / 'free_wording.jsonl'
# The rows that count as simple motion commands: one call of drive, turn or dock.
MOTION = (
    'distance',
    'angle',
    'named angle',
    'turn around',
    'a bit',
    'no unit',
    'no direction',
    'dock',
)


@dataclass(frozen=True)
class Case:
    """A prompt and the text that the model must give; 'question' and 'answer' stand for any such."""

    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    expected: str
    category: str

    def is_right(self, text: str) -> bool:
        """Judge generated text with its control tokens' markers, the stop token included."""
        if self.expected == 'question':
            return '<|tool_call>' not in text and text.removesuffix('<turn|>').rstrip().endswith(
                '?'
            )
        if self.expected == 'answer':
            return '<|tool_call>' not in text and text.endswith('<turn|>')
        return text == self.expected


def expected_text(message: Json) -> str:
    """What the model must write for an assistant message, up to and with the stop token."""
    rendered = segments_text(
        render([{'role': 'user', 'content': 'x'}, message], [], add_generation_prompt=False)
    )
    return rendered.split('<|turn>model\n', 1)[1].removesuffix('\n')


def generated_cases(count: int, seed: int, held: bool = True, demo: bool = True) -> list[Case]:
    """Single-turn cases with the demo robot's tools, or dialogues with tools of all kinds."""
    cases: list[Case] = []
    seen: set[str] = set()
    index = 0
    while len(cases) < count:
        rng = random.Random(f'{seed} {index}')
        index += 1
        dialogue = draw_dialogue(rng, held, demo_tools() if demo else None, 1 if demo else 0)
        last = dialogue.messages[-1]
        users = [message for message in dialogue.messages if message['role'] == 'user']
        key = json.dumps(dialogue.messages[-2])
        if (
            dialogue.thinking
            or key in seen
            or (demo and len(users) > 1)
            or len(json.dumps(dialogue.messages)) > 4000
        ):
            continue
        seen.add(key)
        category = dialogue.category
        if dialogue.messages[-2]['role'] == 'tool':
            category = 'after a result'
        elif not demo:
            category = 'all tools: ' + category
        cases.append(
            Case(
                tuple(dialogue.messages[:-1]), tuple(dialogue.tools), expected_text(last), category
            )
        )
    return cases


def free_cases(path: Path = FREE_WORDING) -> list[Case]:
    """The commands written by hand, with the demo robot's tools."""
    cases = []
    for line in path.read_text(encoding='utf-8').splitlines():
        row = json.loads(line)
        expected = row.get('reply', '')
        if row['calls']:
            expected = expected_text(
                {
                    'role': 'assistant',
                    'content': '',
                    'tool_calls': [
                        {'id': f'call_{index}', 'type': 'function', 'function': call}
                        for index, call in enumerate(row['calls'])
                    ],
                }
            )
        cases.append(
            Case(({'role': 'user', 'content': row['user']},), DEMO_TOOLS, expected, 'by hand')
        )
    return cases


def table(cases: list[Case], texts: list[str]) -> dict[str, Json]:
    """Per category: number of cases and per cent right; 'simple motion' sums the MOTION rows."""
    rows: dict[str, list[int]] = {}
    for case, text in zip(cases, texts, strict=True):
        right = case.is_right(text)
        for name in (case.category, 'simple motion' if case.category in MOTION else ''):
            if name:
                row = rows.setdefault(name, [0, 0])
                row[0] += 1
                row[1] += right
    return {
        name: {'cases': count, 'right_percent': round(100 * right / count, 1)}
        for name, (count, right) in sorted(rows.items())
    }
