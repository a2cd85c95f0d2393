# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Greedy answers in torch, many dialogues at once, and the rows of the evaluation on the training machine.

The figures that count are those of `gemma-thor eval-demo`; these tell at once whether a run was good.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from demo_model.batches import LENGTHS, NUM_TOKENS
from demo_model.cases import expected_text
from demo_model.encode import Encoder
from demo_model.network import DemoModel
from gemma_thor_ros.demo.evaluation.cases import Case, load_cases

_STOPS = (1, 106, 50)
_MAX_NEW = 96
Json = dict[str, Any]


def text_is_right(case: Case, text: str) -> bool:
    """As the judge of the engine's answers, on text with the control tokens' markers."""
    expect = case.expect
    called = '<|tool_call>' in text
    ended = text.endswith('<turn|>')
    if expect.get('calls'):
        calls = [
            {'id': f'c{index}', 'type': 'function', 'function': {'name': name, 'arguments': given}}
            for index, (name, given) in enumerate(expect['calls'])
        ]
        return text == expected_text({'role': 'assistant', 'content': '', 'tool_calls': calls})
    if 'reason' in expect:
        return not called and ended and expect['reason'] in text and expect['claim'] not in text
    if 'text' in expect:
        return bool(text == expect['text'] + '<turn|>')
    if 'question' in expect:
        return not called and text.removesuffix('<turn|>').rstrip().endswith('?')
    return not called and ended


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def greedy(
    model: DemoModel,
    encoder: Encoder,
    cases: list[Case],
    device: torch.device,
    deadline: float,
    num_tokens: int = NUM_TOKENS,
) -> dict[int, str]:
    """Greedy answers by the case's index; those that the deadline cut off are not there."""
    prompts = [encoder.prompt(list(case.messages), list(case.tools)) for case in cases]
    texts: dict[int, str] = {}
    order = sorted(range(len(cases)), key=lambda index: len(prompts[index]))
    while order and time.monotonic() < deadline:
        need = len(prompts[order[0]]) + _MAX_NEW
        length = next((size for size in LENGTHS if size >= need), 0)
        if not length:
            break
        rows = max(1, num_tokens // length)
        batch = [index for index in order[:rows] if len(prompts[index]) + _MAX_NEW <= length]
        order = order[len(batch) :]
        ids = torch.zeros((rows, length), dtype=torch.long, device=device)
        ends = torch.ones(rows, dtype=torch.long, device=device)
        for row, index in enumerate(batch):
            ids[row, : len(prompts[index])] = torch.tensor(prompts[index])
            ends[row] = len(prompts[index])
        done = torch.zeros(rows, dtype=torch.bool, device=device)
        done[len(batch) :] = True
        at = torch.arange(rows, device=device)
        begins = ends.clone()
        for _ in range(_MAX_NEW):
            hidden, _ = model(ids)
            token = model.logits(hidden[at * length + ends - 1]).argmax(-1)
            ids[at[~done], ends[~done]] = token[~done]
            ends = ends + (~done).long()
            done = done | torch.isin(token, torch.tensor(_STOPS, device=device))
            if bool(done.all()):
                break
        for row, index in enumerate(batch):
            texts[index] = encoder.tokenizer.decode(ids[row, begins[row] : ends[row]].tolist())
    return texts


def evaluate(
    model: DemoModel,
    device: torch.device,
    count: int,
    deadline: float,
    num_tokens: int = NUM_TOKENS,
) -> tuple[dict[str, Json], list[dict[str, str]]]:
    """Cases and per cent right by row, `count` a row at most, and some wrong answers."""
    encoder = Encoder()
    by_row = load_cases()
    chosen = [
        case
        for name, cases in by_row.items()
        for case in cases[:count]
        if not case.thinking and name != 'long'
    ]
    texts = greedy(model, encoder, chosen, device, deadline, num_tokens)
    results: dict[str, Json] = {}
    wrong: list[dict[str, str]] = []
    for index, text in texts.items():
        case = chosen[index]
        row = results.setdefault(case.row, {'cases': 0, 'right': 0, 'withheld': 0})
        right = text_is_right(case, text)
        row['cases'] += 1
        row['right'] += right
        row['withheld'] += bool(case.expect.get('calls')) and '<|tool_call>' not in text
        if not right:
            asked = str(case.messages[-1]['content'])
            wrong.append({'row': case.row, 'asked': asked, 'expected': str(case.expect), 'got': text})
    for row in results.values():
        row['right_percent'] = round(100 * row['right'] / row['cases'], 1)
    return results, wrong[:400]
