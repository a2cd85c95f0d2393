# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""`gemma-thor replay FILE`: run recorded requests again and say where the answers differ.

Takes the audit's JSON lines, or a bag with ~/requests where rosbag2_py is importable. Prompts are
rendered anew from the recorded messages and compared; a raw prompt runs by its token ids.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gemma_thor_ros.audit import contradictions, read_records, sampling_of
from gemma_thor_ros.cli.set_option import read_settings
from gemma_thor_ros.config import EngineConfig, check
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import ChatRequest, ConfigError, Request, RequestError, TokenEvent

LOAD_TIMEOUT_S = 3600.0
ANSWER_TIMEOUT_S = 3600.0
_WHOLE = ('stop', 'length', 'tool_calls')  # ways to end by itself


@dataclass
class Outcome:
    """What became of one record; `differences` is empty when it came out the same."""

    request_id: str
    skipped: str = ''
    num_tokens: int = 0
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Answer:
    """What came out now; a raw prompt's has neither reasoning nor an end that is compared."""

    token_ids: tuple[int, ...]
    text: str
    reasoning: str = ''
    finish_reason: str = ''
    num_calls: int = 0


def add_parser(subparsers: Any) -> None:
    """Declare the verb on an argparse sub-parser collection."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'replay',
        help='run recorded requests again and report differences',
        description='Run the requests of an audit file or bag again. Ends with 0 when all answers '
        'come out the same, 1 when one differs or a line is no record, 2 when nothing could be '
        'replayed.',
    )
    parser.add_argument('file', type=Path, metavar='FILE', help='JSON lines, or a bag')
    parser.add_argument('--model', default='demo', help='checkpoint folder (default: demo)')
    parser.add_argument(
        '--set', action='append', default=[], metavar='NAME=VALUE', help='a setting of the engine'
    )
    parser.add_argument('--request', default='', metavar='ID', help='only this request')
    parser.add_argument('--json', action='store_true', help='print as JSON')


def run(options: argparse.Namespace) -> int:
    """Gives 0: all the same, 1: a difference or a bad line; ConfigError: none to replay."""
    faults: list[str] = []
    records = [
        record
        for record in open_records(options.file, faults.append)
        if options.request in ('', record['request_id'], record.get('parent_id'))
    ]
    if not records:
        bad = f'; {len(faults)} lines are no records, the first: {faults[0]}' if faults else ''
        raise ConfigError(f'{options.file} has no record to replay{bad}')
    runtime = Runtime(_config(options, records))
    console = Console(stderr=True)
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task('loading', total=len(records))
        runtime.start()
        try:
            if not runtime.wait_ready(LOAD_TIMEOUT_S):
                raise ConfigError(runtime.error or 'the model did not load in time')
            outcomes = []
            for record in records:
                bar.update(task, description=record['request_id'])
                outcomes.append(replay(runtime, record))
                bar.advance(task)
        finally:
            runtime.stop()
    if all(outcome.skipped for outcome in outcomes):
        raise ConfigError(f'nothing could be replayed: {outcomes[0].skipped}')
    _print(outcomes, faults, options.json)
    return int(bool(faults) or any(outcome.differences for outcome in outcomes))


def replay(runtime: Runtime, record: dict[str, Any]) -> Outcome:
    """Run one record again on a ready runtime."""
    outcome = Outcome(record['request_id'])
    expected = list(record['completion_ids'])
    if record.get('redacted'):
        outcome.skipped = 'redacted: its token ids were not kept'
    elif not expected:
        outcome.skipped = 'it produced no tokens'
    if outcome.skipped:
        return outcome
    _compare_model(runtime, record, outcome)
    try:
        if record.get('messages'):
            _compare_prompt(runtime, record, outcome)
        answer = _generate(runtime, record)
    except (RequestError, ConfigError) as error:
        outcome.differences.append(f'refused: {error}')
        outcome.differences += contradictions(record)
        return outcome
    outcome.num_tokens = len(answer.token_ids)
    if list(answer.token_ids) != expected:
        outcome.differences.append(
            _first_difference('token', expected, list(answer.token_ids)))
    else:
        outcome.differences += _other_words(record, answer)
    outcome.differences += contradictions(record)
    return outcome


def open_records(
    path: Path, on_fault: Callable[[str], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Return the records of a JSON-lines file or of a bag (a folder, .mcap or .db3).

    Args:
        path: of the file or bag.
        on_fault: is told of each line that is no record, instead of an error at the first.

    Raises:
        ConfigError: neither, or a bag where rosbag2_py can't be imported.
    """
    if path.is_dir() or path.suffix in ('.mcap', '.db3'):
        # Only here is ROS needed.
        bag = importlib.import_module('gemma_thor_ros.ros.bag')
        records: Iterator[dict[str, Any]] = bag.bag_records(path)
        return records
    return read_records(path, on_fault)


def _config(options: argparse.Namespace, records: Sequence[dict[str, Any]]) -> EngineConfig:
    settings: dict[str, Any] = {'model.path': check('model.path', options.model)}
    kv_dtypes = {record.get('kv_dtype', '') for record in records}
    if len(kv_dtypes) == 1 and kv_dtypes <= {'float32', 'bf16', 'fp8'}:
        settings['engine.kv_dtype'] = kv_dtypes.pop()
    settings.update(read_settings(options.set))
    return EngineConfig.from_mapping(settings)


def _generate(runtime: Runtime, record: dict[str, Any]) -> _Answer:
    """Generate as many tokens as were recorded; an answer that was cancelled is a beginning."""
    engine, chat = runtime.engine, runtime.chat
    assert engine is not None and chat is not None, 'the runtime is ready'
    count = len(record['completion_ids'])
    sampling = sampling_of(record)
    sampling = replace(sampling, max_tokens=count, min_tokens=min(sampling.min_tokens, count))
    if record.get('messages'):
        # A guide comes with tools, a schema or a budget, and only chat can make it.
        request = replace(_chat_request(record), sampling=asdict(sampling))
        result = chat.submit(request).result(ANSWER_TIMEOUT_S)
        if result.code:
            raise RequestError(result.code, result.message)
        return _Answer(result.token_ids, result.text, result.reasoning, result.finish_reason,
                       len(result.tool_calls))
    raw = Request(
        record['request_id'],
        tuple(record['prompt_ids']),
        sampling,
        choice=int(record.get('choice', 0)),
        front_end='cli',
    )
    tokens: list[int] = []
    for event in engine.submit(raw).events(ANSWER_TIMEOUT_S):
        if isinstance(event, TokenEvent):
            tokens.extend(event.token_ids)
        elif event.code:
            raise RequestError(event.code, event.message)
    return _Answer(tuple(tokens), _raw_text(runtime, tokens))


def _raw_text(runtime: Runtime, token_ids: Sequence[int]) -> str:
    """Return the text of a raw prompt's answer: control tokens and bytes of no character left out.

    A control token ends a run of bytes, also in the middle of a character.
    """
    assert runtime.chat is not None, 'the runtime is ready'
    runs = [b'']
    for token_id in token_ids:
        piece = runtime.chat.token_bytes(token_id)
        runs = [*runs[:-1], runs[-1] + piece] if piece else [*runs, b'']
    return ''.join(run.decode('utf-8', 'ignore') for run in runs)


def _compare_model(runtime: Runtime, record: dict[str, Any], outcome: Outcome) -> None:
    assert runtime.chat is not None, 'the runtime is ready'
    info = runtime.chat.model_info()
    present = {**info.facts, 'model': info.name, 'kv_dtype': info.kv_dtype, 'device': info.device}
    for name in ('weights_hash', 'template_hash', 'kv_dtype', 'engine_version'):
        recorded = record.get(name, '')
        if recorded and recorded != str(present.get(name, '')):
            outcome.notes.append(f'{name} was {recorded}, it is {present.get(name, "")}')


def _compare_prompt(runtime: Runtime, record: dict[str, Any], outcome: Outcome) -> None:
    """Render the recorded messages and compare with the recorded prompt."""
    assert runtime.chat is not None, 'the runtime is ready'
    request = _chat_request(record)
    goes_on = request.continue_final_message
    rendered = list(runtime.chat.render_prompt(request, not goes_on).token_ids)
    if rendered != record['prompt_ids']:
        outcome.differences.append(
            _first_difference('prompt token', record['prompt_ids'], rendered)
        )


def _chat_request(record: dict[str, Any]) -> ChatRequest:
    """Return the request of a record that has messages; its sampling is the caller's to add."""
    return ChatRequest(
        messages=tuple(record['messages']),
        tools=tuple(record.get('tools') or ()),
        enable_thinking=bool(record.get('thinking', False)),
        thinking_budget=record.get('thinking_budget'),
        request_id=record['request_id'],
        timeout_s=ANSWER_TIMEOUT_S,
        front_end='cli',
        choice=int(record.get('choice', 0)),
        continue_final_message=bool(record.get('continue_final_message', False)),
        tool_choice=record.get('tool_choice', 'auto'),
        tool_names=tuple(record.get('tool_names') or ()),
        parallel_tool_calls=bool(record.get('parallel_tool_calls', True)),
        response_schema=record.get('response_schema'),
    )


def _other_words(record: dict[str, Any], answer: _Answer) -> list[str]:
    """Say where a record's words are not what its own tokens spell, which came out the same."""
    found = []
    # Of an answer that was cut, by a cancel or a stop text, the record has the beginning alone.
    whole = record.get('finish_reason') in _WHOLE and not record.get('stop')
    for name, now in (('text', answer.text), ('reasoning', answer.reasoning)):
        recorded = record.get(name, '')
        if recorded != now if whole else not now.startswith(recorded):
            found.append(f'{name} was {_short(recorded)}, its tokens spell {_short(now)}')
    if whole and answer.finish_reason:
        if record['finish_reason'] != answer.finish_reason:
            found.append(f'finish_reason was {record["finish_reason"]}, it is '
                         f'{answer.finish_reason}')
        if len(record.get('call_ids', ())) != answer.num_calls:
            found.append(f'it had {len(record.get("call_ids", ()))} tool calls, it has '
                         f'{answer.num_calls}')
    return found


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f'{text[:60]}...')


def _first_difference(what: str, expected: Sequence[int], got: Sequence[int]) -> str:
    pairs = zip(expected, got, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(got)))
    before, after = ([*ids, 'none'][at] for ids in (list(expected)[: at + 1], list(got)[: at + 1]))
    return (
        f'{what} {at} was {before}, it is {after} ({len(expected)} recorded, {len(got)} now)'
    )


def _print(outcomes: Sequence[Outcome], faults: Sequence[str], as_json: bool) -> None:
    different = sum(bool(outcome.differences) for outcome in outcomes)
    skipped = sum(bool(outcome.skipped) for outcome in outcomes)
    if as_json:
        report = {
            'records': len(outcomes),
            'different': different,
            'skipped': skipped,
            'bad_lines': list(faults),
            'outcomes': [asdict(outcome) for outcome in outcomes],
        }
        print(json.dumps(report))
        return
    for outcome in outcomes:
        lines = [outcome.skipped and f'skipped: {outcome.skipped}', *outcome.differences]
        for line in [line for line in lines if line] or [f'same {outcome.num_tokens} tokens']:
            print(f'{outcome.request_id}: {line}')
        for note in outcome.notes:
            print(f'{outcome.request_id}: note: {note}')
    for fault in faults:
        print(f'bad line: {fault}')
    bad = f', {len(faults)} lines are no records' if faults else ''
    print(f'{len(outcomes)} records: {different} differ, {skipped} skipped{bad}')
