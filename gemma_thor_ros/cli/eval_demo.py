# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor eval-demo`: the demo model's figures, measured in the package's own engine.

Greedy and unconstrained, but for the row `constrained`. Which answer is right is said in
demo/evaluation/judge.py.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gemma_thor_ros.cli.set_option import read_settings
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.demo.evaluation.cases import LIMITS, Case, load_cases
from gemma_thor_ros.demo.evaluation.judge import (
    MOST_WITHHELD,
    SINGLE_CALL,
    RowResult,
    count,
    missed,
    total_percent,
    withheld_percent,
)
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ChatRequest, ChatResult, ConfigError, Usage

LOAD_TIMEOUT_S = 600.0
ANSWER_TIMEOUT_S = 600.0
MAX_TOKENS = 160
_AT_ONCE = 4
_CONSTRAINED_ROWS = ('unseen_names', 'unseen_names_and_values', 'unseen_kinds', 'two_calls')


@dataclass
class Evaluation:
    """Everything that was measured."""

    rows: dict[str, RowResult] = field(default_factory=dict)
    constrained: RowResult | None = None
    lost_to_nvfp4: float | None = None
    wrong: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def missed(self) -> list[str]:
        """The figures that were not reached."""
        return missed(self.rows, self.constrained, self.lost_to_nvfp4)


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'eval-demo',
        help='measure the demo model on dialogues that it never saw',
        description='Runs held-out dialogues through the engine on the CPU and compares with the '
        'figures that the demo model must reach. Ends with 1 when one is missed. '
        f'Rows: {", ".join(LIMITS)}, constrained.',
    )
    parser.add_argument('--model', default='demo', help='checkpoint folder (default: demo)')
    parser.add_argument(
        '--count', type=int, default=500, metavar='N',
        help='dialogues a row at most (default: 500)')
    parser.add_argument(
        '--rows', default='', metavar='A,B', help='only these rows (default: all)')
    parser.add_argument(
        '--reference', default='', metavar='FOLDER',
        help='the bf16 checkpoint; adds what NVFP4 loses against it, over the same rows')
    parser.add_argument(
        '--set', action='append', default=[], metavar='NAME=VALUE',
        help='a setting of the engine; may be repeated')
    parser.add_argument('--wrong', type=Path, metavar='FILE', help='write wrong answers there')
    parser.add_argument('--json', action='store_true', help='print as JSON')


def run(options: argparse.Namespace) -> int:
    """Gives 0: every figure reached, 1: one missed; ConfigError: an unknown row, or no model."""
    names = [name for name in options.rows.split(',') if name]
    if options.rows and not names:
        raise ConfigError(f'--rows is {options.rows!r}, which names no row')
    names = names or [*LIMITS, 'constrained']
    unknown = [name for name in names if name not in LIMITS and name != 'constrained']
    if unknown:
        known = ', '.join([*LIMITS, 'constrained'])
        raise ConfigError(f'there is no row {unknown[0]!r}; the rows are {known}')
    if options.count < 1:
        raise ConfigError(f'--count is {options.count}, at least 1 is needed')
    if options.wrong:                    # before the minutes that a lost file would cost
        try:
            options.wrong.open('a', encoding='utf-8').close()       # keeps what is there
        except OSError as error:
            raise ConfigError(f'--wrong {options.wrong}: {error.strerror}') from error
    begin = time.monotonic()
    cases = {name: found[:options.count] for name, found in load_cases().items()}
    chosen = {name: cases[name] for name in names if name in cases}
    settings = read_settings(options.set)
    evaluation = Evaluation()
    evaluation.rows, evaluation.wrong = measure(options.model, chosen, settings)
    if 'constrained' in names:
        share = max(1, options.count // len(_CONSTRAINED_ROWS))
        held = [case for name in _CONSTRAINED_ROWS for case in cases[name][:share]]
        rows, _ = measure(options.model, {'constrained': held}, settings, constrained=True)
        evaluation.constrained = rows['constrained']
    if options.reference and chosen:
        rows, _ = measure(options.reference, chosen, settings)
        evaluation.lost_to_nvfp4 = total_percent([*rows.values()]) - total_percent(
            [*evaluation.rows.values()])
    evaluation.seconds = time.monotonic() - begin
    if options.wrong:
        options.wrong.write_text(
            json.dumps(evaluation.wrong, indent=1, ensure_ascii=False), encoding='utf-8')
    if options.json:
        print(json.dumps(as_json(evaluation)))
    else:
        _print(evaluation)
    return int(bool(evaluation.missed))


def measure(
    model: str,
    cases: dict[str, list[Case]],
    settings: dict[str, Any],
    constrained: bool = False,
) -> tuple[dict[str, RowResult], list[dict[str, Any]]]:
    """Counts by row, and the wrong answers; starts and stops an engine of its own."""
    config = {'model.path': model, **settings, 'tools.constrain_calls': constrained}
    runtime = Runtime(EngineConfig.from_mapping(config))
    console = Console(stderr=True)
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())
    results: dict[str, RowResult] = {}
    wrong: list[dict[str, Any]] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task('loading', total=sum(map(len, cases.values())))
        runtime.start()
        try:
            if not runtime.wait_ready(LOAD_TIMEOUT_S):
                raise ConfigError(runtime.error or 'the model did not load in time')
            for name, found in cases.items():
                bar.update(task, description=name)
                results[name] = RowResult()
                for case, answer in zip(found, _answers(runtime, found), strict=True):
                    if not count(results[name], case, answer):
                        wrong.append(_wrong(case, answer))
                    bar.advance(task)
        finally:
            runtime.stop()
    return results, wrong


def _answers(runtime: Runtime, cases: list[Case]) -> Iterator[ChatResult]:
    """Greedy answers in the order of the cases; a few run beside each other."""
    chat = runtime.require_chat()
    waiting: list[Any] = []
    for case in cases:
        if len(waiting) == _AT_ONCE:
            yield waiting.pop(0).result(ANSWER_TIMEOUT_S)
        waiting.append(chat.submit(ChatRequest(
            case.messages, case.tools, enable_thinking=case.thinking,
            sampling={'temperature': 0.0, 'max_tokens': MAX_TOKENS})))
    for stream in waiting:
        yield stream.result(ANSWER_TIMEOUT_S)


def _wrong(case: Case, answer: ChatResult) -> dict[str, Any]:
    return {
        'row': case.row,
        'asked': case.messages[-1]['content'],
        'expected': case.expect,
        'calls': [[call.name, call.arguments] for call in answer.tool_calls],
        'text': answer.text,
    }


def acceptance(usage: Usage) -> dict[str, Any] | None:
    """Tokens a round (bonus included), and the share kept at each position; None: no drafts."""
    if not usage.rounds:
        return None
    return {
        'rounds': usage.rounds,
        'tokens_per_round': round(usage.accepted_tokens / usage.rounds + 1, 2),
        'kept_by_position': [round(kept / usage.rounds, 3) for kept in usage.accepted_by_position],
    }


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Every figure of the evaluation, for machines."""
    rows = {
        name: {
            'cases': row.cases,
            'right_percent': round(row.percent, 1),
            'asked_percent': LIMITS[name],
            'withheld': row.withheld,
            'invalid': row.invalid,
            'drafts': acceptance(row.usage),
        }
        for name, row in evaluation.rows.items()
    }
    single = any(name in evaluation.rows for name in SINGLE_CALL)
    held = evaluation.constrained
    return {
        'rows': rows,
        'withheld_percent': round(withheld_percent(evaluation.rows), 1) if single else None,
        'constrained': held and {'cases': held.cases, 'invalid': held.invalid,
                                 'right_percent': round(held.percent, 1)},
        'lost_to_nvfp4_points': evaluation.lost_to_nvfp4,
        'missed': evaluation.missed,
        'seconds': round(evaluation.seconds, 1),
    }


def _print(evaluation: Evaluation) -> None:
    console = Console()
    table = Table('row', 'cases', 'right', 'asked', 'broken calls', 'tokens a round')
    for name, row in evaluation.rows.items():
        limit = LIMITS[name]
        drafts = acceptance(row.usage)
        table.add_row(
            name, str(row.cases), f'{row.percent:.1f} %', '' if limit is None else f'{limit:g} %',
            str(row.invalid), '' if drafts is None else str(drafts['tokens_per_round']))
    held = evaluation.constrained
    if held is not None:
        valid = 100.0 * (held.cases - held.invalid) / max(1, held.cases)
        table.add_row('constrained: valid', str(held.cases), f'{valid:.1f} %', '100 %', '', '')
        table.add_row('constrained: right', str(held.cases), f'{held.percent:.1f} %', '', '', '')
    console.print(table)
    if any(name in evaluation.rows for name in SINGLE_CALL):
        withheld = withheld_percent(evaluation.rows)
        console.print(f'due calls withheld: {withheld:.1f} % (at most {MOST_WITHHELD:g} %)')
    if evaluation.lost_to_nvfp4 is not None:
        console.print(f'lost to NVFP4: {evaluation.lost_to_nvfp4:.1f} points')
    for sentence in evaluation.missed:
        console.print(f'missed: {sentence}')
