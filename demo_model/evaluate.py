# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Evaluate a checkpoint folder in the package's own engine on the CPU, greedily.

    python -m demo_model.evaluate --cases 600 [--folder FOLDER] [--constrained] [--json]

Unconstrained, the model's calls are its own; with --constrained they are held to the declared
tools, as the engine does it by default. Exit code 1 when fewer than 90 % of the held-out simple motion commands are right.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.progress import track

from demo_model.cases import MOTION, Case, free_cases, generated_cases, table
from gemma_thor_ros.chat import Chat
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ChatRequest
from gemma_thor_ros.text.tokenizer import Tokenizer

LIMIT_PERCENT = 90.0
_AT_ONCE = 4


def answers(chat: Chat, tokenizer: Tokenizer, cases: list[Case]) -> Iterator[str]:
    """Greedy answers as text with the control tokens' markers, in the order of the cases."""
    waiting: list[Any] = []
    for case in cases:
        if len(waiting) == _AT_ONCE:
            yield tokenizer.decode(waiting.pop(0).result(600.0).token_ids)
        waiting.append(
            chat.submit(
                ChatRequest(
                    case.messages,
                    case.tools,
                    sampling={'temperature': 0.0, 'max_tokens': 160},
                    enable_thinking=False,
                )
            )
        )
    for stream in waiting:
        yield tokenizer.decode(stream.result(600.0).token_ids)


def start(folder: str = 'demo', constrained: bool = False) -> tuple[Runtime, Tokenizer]:
    """The engine with a checkpoint, ready; 'demo' is the one in the package."""
    config = {'model.path': folder, 'tools.constrain_calls': constrained}
    runtime = Runtime(EngineConfig.from_mapping(config))
    runtime.start()
    if not runtime.wait_ready(300.0):
        raise SystemExit(f'{folder}: {runtime.error or runtime.state.value}')
    path = (
        Path(folder)
        if folder != 'demo'
        else Path(__file__).parent.parent / 'gemma_thor_ros' / 'demo' / 'model'
    )
    return runtime, Tokenizer.from_folder(path)


def case_sets(count: int, only: str = '') -> dict[str, list[Case]]:
    """The sets of the table in docs/demo_model.md; `count` is that of the held-out motion commands."""
    held = generated_cases(3 * count, 21)
    sets = {
        'motion commands, held out': [case for case in held if case.category in MOTION][:count],
        'by hand': free_cases(),
        'other turns, held out': [case for case in held if case.category not in MOTION][
            : count // 2
        ],
        'training phrasings, fresh draws': generated_cases(count // 3, 22, held=False),
        'tools of all kinds, held out': generated_cases(count // 2, 23, demo=False),
    }
    return {name: cases for name, cases in sets.items() if name.startswith(only)}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--folder', default='demo')
    parser.add_argument(
        '--cases',
        type=int,
        default=600,
        help='held-out motion commands; the other sets are smaller',
    )
    parser.add_argument('--only', default='', help='only the sets whose names begin so')
    parser.add_argument('--constrained', action='store_true', help='calls of declared tools only')
    parser.add_argument('--json', action='store_true')
    parser.add_argument('--wrong', type=Path, help='write the wrong answers there')
    args = parser.parse_args()
    runtime, tokenizer = start(args.folder, args.constrained)
    results: dict[str, Any] = {}
    wrong: list[dict[str, str]] = []
    begin = time.monotonic()
    try:
        for name, cases in case_sets(args.cases, args.only).items():
            texts = list(
                track(
                    answers(runtime.require_chat(), tokenizer, cases),
                    name,
                    len(cases),
                    disable=args.json,
                )
            )
            results[name] = table(cases, texts)
            wrong += [
                {
                    'set': name,
                    'category': case.category,
                    'user': str(case.messages[-1]['content']),
                    'expected': case.expected,
                    'got': text,
                }
                for case, text in zip(cases, texts, strict=True)
                if not case.is_right(text)
            ]
    finally:
        runtime.stop()
    motion = (
        results.get('motion commands, held out', {}).get('simple motion', {}).get('right_percent')
    )
    if args.wrong:
        args.wrong.write_text(json.dumps(wrong, indent=1, ensure_ascii=False), encoding='utf-8')
    if args.json:
        sys.stdout.write(
            json.dumps({'results': results, 'seconds': round(time.monotonic() - begin, 1)}) + '\n'
        )
    else:
        for name, rows in results.items():
            sys.stdout.write(f'\n{name}\n')
            for category, row in rows.items():
                sys.stdout.write(
                    f'  {category:28} {row["cases"]:5} {row["right_percent"]:6.1f} %\n'
                )
    sys.exit(1 if motion is not None and motion < LIMIT_PERCENT else 0)


if __name__ == '__main__':
    main()
