# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""How many drafts of a drafter are kept: rounds over the base model's greedy answers, by set.

What the engine does in its rounds, in torch and for many dialogues at once. Knows no training.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from multiprocessing.pool import AsyncResult, Pool
from typing import Any

import torch
from torch import Tensor

from demo_model.dialogue import draw_dialogue
from demo_model.drafters_data import Base
from demo_model.encode import MAX_TOKENS, Encoder
from demo_model.phrasing import HeldDraws
from demo_model.tools import Tool, demo_tools
from demo_model.toolsets import draw_tools

# set -> (tools: the demo robot's, drawn anew, or of held-out words; the last answer is a call)
SETS = {
    'calls of known tools': ('demo', True),
    'calls of unseen tools': ('drawn', True),
    'calls of held-out names': ('held', True),
    'words, known tools': ('demo', False),
    'words, unseen tools': ('drawn', False),
}
Case = tuple[list[int], int]             # ids, and where the last answer begins
Drafting = Callable[[Tensor, Tensor, Tensor], Tensor]
_STOPS = (1, 106, 50)
_PART = 20                               # dialogues of one draw
_MAX_NEW = 96


def held_out(kind: str, calls: bool, seed: str, count: int) -> list[Case]:
    """Dialogues in held-out words; an answer of them is a call (or words)."""
    rng = random.Random(f'drafts {seed}')
    names = HeldDraws(f'drafts {seed}')
    demo = [tool.name for tool in demo_tools()]
    encoder = Encoder()
    out: list[Case] = []
    while len(out) < count:
        tools: list[Tool] | None = None
        if kind == 'demo':
            tools = demo_tools()
        elif kind == 'held':
            tools = draw_tools(names)
            if not tools or [tool.name for tool in tools] == demo:
                continue
        dialogue = draw_dialogue(rng, True, tools, 1 if kind == 'demo' else 0)
        if dialogue.thinking or bool(dialogue.messages[-1].get('tool_calls')) is not calls:
            continue
        encoded = encoder.dialogue(dialogue)
        if len(encoded.ids) <= MAX_TOKENS - _MAX_NEW:
            out.append((encoded.ids.tolist(), encoded.answer_start))
    return out


def begin_cases(pool: Pool, seed: int, count: int) -> dict[str, AsyncResult[list[list[Case]]]]:
    """Have the held-out dialogues drawn while other things run."""
    return {
        name: pool.starmap_async(
            held_out,
            [
                (*what, f'{seed} {start}', min(_PART, count - start))
                for start in range(0, count, _PART)
            ],
        )
        for name, what in SETS.items()
    }


def _padded(rows: Sequence[list[int]], device: torch.device) -> Tensor:
    """Ids (G, L) of rows; L is a multiple of 64, so that few shapes occur."""
    length = -(-max(map(len, rows)) // 64) * 64
    return torch.tensor([row + [0] * (length - len(row)) for row in rows], device=device)


def _groups(cases: Sequence[Case], order: Sequence[int], num_tokens: int) -> list[list[int]]:
    """Indices of cases of like length, `num_tokens` together."""
    groups: list[list[int]] = []
    for index in order:
        room = num_tokens // (len(cases[index][0]) + 64)
        if not groups or len(groups[-1]) >= max(1, room):
            groups.append([])
        groups[-1].append(index)
    return groups


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def greedy_answers(base: Base, cases: Sequence[Case], num_tokens: int) -> list[Case]:
    """The greedy answers after the prompts, from a guess at them: the dialogues' own answers.

    The rest of a wrong guess is replaced by what the model would say at every place, which is
    mostly right at once, and looked at again.
    """
    found = [(ids[: start + _MAX_NEW], start) for ids, start in cases]
    right = [start for _, start in cases]
    waiting = sorted(range(len(cases)), key=lambda index: len(cases[index][0]))
    while waiting:
        left: list[int] = []
        for group in _groups(found, waiting, num_tokens):
            _, chosen = base.run(_padded([found[index][0] for index in group], base.device))
            for index, told in zip(group, chosen.tolist(), strict=True):
                ids, start = found[index]
                limit = start + _MAX_NEW
                wrong = next((n for n in range(right[index], len(ids)) if told[n - 1] != ids[n]),
                             len(ids))  # fmt: skip
                if wrong == len(ids) and (ids[-1] in _STOPS or len(ids) >= limit):
                    continue
                ids = (ids[:wrong] + told[wrong - 1 : len(ids)])[:limit]
                right[index] = wrong + 1
                stop = next((n for n in range(wrong, len(ids)) if ids[n] in _STOPS), len(ids))
                found[index] = ids[: stop + 1], start
                left.append(index)
        waiting = sorted(left, key=lambda index: len(found[index][0]))
    return found


def rounds_of(ids: list[int], start: int, drafted: list[list[int]]) -> list[int]:
    """Accepted drafts of each round when the greedy answer ids[start:] is written with drafts.

    drafted[n] are the drafts behind the token at start + n.
    """
    accepted = []
    at = start
    while at < len(ids) - 1:
        count = 0
        for guess in drafted[at - start]:
            if at + count + 1 >= len(ids) or guess != ids[at + count + 1]:
                break
            count += 1
        accepted.append(min(count, len(ids) - 2 - at))   # the last token is the target's own
        at += accepted[-1] + 1
    return accepted


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def _rounds(base: Base, draft: Drafting, answers: Sequence[Case], num_tokens: int) -> list[int]:
    accepted: list[int] = []
    order = sorted(range(len(answers)), key=lambda index: len(answers[index][0]))
    for group in _groups(answers, order, num_tokens):
        ids = _padded([answers[index][0] for index in group], base.device)
        hidden, _ = base.run(ids)
        starts = torch.tensor([answers[index][1] for index in group], device=base.device)
        anchors = starts[:, None] + torch.arange(_MAX_NEW, device=base.device)
        told = draft(hidden, ids, anchors.clamp(max=ids.shape[1] - 1)).tolist()
        for index, rows in zip(group, told, strict=True):
            accepted += rounds_of(*answers[index], rows)
    return accepted


def evaluate(
    base: Base, draft: Drafting, answers: dict[str, list[Case]], steps: int, num_tokens: int
) -> dict[str, Any]:
    """tokens_per_round (bonus included) and acceptance by draft position, by set.

    draft: (hidden rows, ids (G, L), anchors (G, A)) -> drafts (G, A, steps).
    """
    results: dict[str, Any] = {}
    for name, cases in answers.items():
        accepted = _rounds(base, draft, cases, num_tokens)
        reached = [sum(count >= n for count in accepted) for n in range(steps + 1)]
        results[name] = {
            'dialogues': len(cases),
            'rounds': len(accepted),
            'tokens_per_round': round(1 + sum(accepted) / max(1, len(accepted)), 3),
            'kept_by_position': [
                round(reached[n + 1] / reached[n], 3) if reached[n] else 0.0 for n in range(steps)
            ],
        }
    return results


def show(results: dict[str, Any]) -> str:
    """The results as a table."""
    lines = [f'{"set":24} {"rounds":>7} {"tokens/round":>13}  kept by position, given those before']
    for name, row in results.items():
        shares = ' '.join(f'{share:.2f}' for share in row['kept_by_position'])
        lines.append(f'{name:24} {row["rounds"]:7} {row["tokens_per_round"]:13.2f}  {shares}')
    return '\n'.join(lines)
