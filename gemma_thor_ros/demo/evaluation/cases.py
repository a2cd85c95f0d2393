# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the demo model is asked, and the figures that it must reach.

Rows are written by demo_model/heldout_set.py and by hand; nobody trains on them. Needs nothing but
Python, for the training machine reads it too.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FOLDER = Path(__file__).parent

# Row -> least per cent right; None: shown, but without a figure to reach.
LIMITS: dict[str, float | None] = {
    'plain': 97.0,
    'motion': 90.0,
    'known': 97.0,
    'unseen_names': 92.0,
    'unseen_names_and_values': 88.0,
    'unseen_kinds': None,
    'two_calls': 90.0,
    'missing': 93.0,
    'no_tool': 92.0,
    'after_failure': 92.0,
    'after_success': None,
    'correction': None,
    'thinking': None,
    'long': None,
    'by_hand': 85.0,
    'by_hand_more': None,
}


@dataclass(frozen=True)
class Case:
    """One dialogue that ends where the model must answer, and what it must answer.

    `expect` holds one of: calls (a list of [name, arguments]; empty: any text without a call),
    text (exactly), question (any), reason with claim (the reason repeated, the claim not made).
    """

    row: str
    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    expect: Json
    thinking: bool = False


def load_cases(folder: Path = FOLDER) -> dict[str, list[Case]]:
    """All cases by row, in the order of LIMITS."""
    found: dict[str, list[Case]] = {name: [] for name in LIMITS}
    text = lzma.decompress((folder / 'heldout.jsonl.xz').read_bytes()).decode('utf-8')
    for line in text.splitlines():
        row = json.loads(line)
        found[row['row']].append(Case(
            row['row'], tuple(row['messages']), tuple(row['tools']), row['expect'],
            row.get('thinking', False)))
    tools = found['motion'][0].tools     # those of the demo robot
    for line in (folder / 'by_hand.jsonl').read_text(encoding='utf-8').splitlines():
        row = json.loads(line)
        message = {'role': 'user', 'content': row['user']}
        found[row['row']].append(Case(row['row'], (message,), tools, row['expect']))
    return found
