# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Verb `bench-http`: how fast an OpenAI-compatible endpoint streams, at several concurrencies.

Each request streams one answer of a fixed length. Times are the client's, from sending a request;
tokens are the server's own count. Works against any server; ours is told to ignore stop ids.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gemma_thor_ros.cli.talk import ChatError, base_url, error_text, reason
from gemma_thor_ros.schema import ConfigError

WORDS = ('robot', 'dock', 'wall', 'battery', 'camera', 'door', 'wheel', 'lidar', 'floor', 'hall')


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the verb."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'bench-http',
        help='measure an endpoint',
        description='Measure time to first token, time between tokens and throughput of an '
        'OpenAI-compatible endpoint.',
    )
    parser.add_argument('--url', default='http://127.0.0.1:8000/v1', help='base URL (%(default)s)')
    parser.add_argument('--model', default='', help='model name (default: the first one served)')
    parser.add_argument('--api-key-file', type=Path, help='file with the API key')
    parser.add_argument(
        '--concurrency', default='1,4,16', help='requests at once, a sweep (%(default)s)'
    )
    parser.add_argument(
        '--requests', type=int, default=0, help='requests a level (default: 3 times its number)'
    )
    parser.add_argument('--prompt-words', type=int, default=64, help='default: %(default)s')
    parser.add_argument(
        '--max-tokens', type=int, default=128, help='of an answer (default: %(default)s)'
    )
    parser.add_argument(
        '--stop-ids',
        action='store_true',
        help='let answers end early; for servers that do not know ignore_eos',
    )
    parser.add_argument('--timeout', type=float, default=300.0, help='seconds (%(default)s)')
    parser.add_argument('--json', action='store_true', help='one JSON object instead of a table')
    return parser


def run(options: argparse.Namespace) -> int:
    """Measure; 0 = done, 1 = some request failed, 2 = bad usage."""
    levels = _levels(options.concurrency)
    if options.max_tokens < 2 or options.prompt_words < 1 or options.requests < 0:
        raise ConfigError('--max-tokens is at least 2, --prompt-words 1 and --requests 0')
    headers = {}
    if options.api_key_file:
        try:
            headers['Authorization'] = f'Bearer {options.api_key_file.read_text().strip()}'
        except OSError as error:
            raise ConfigError(f'--api-key-file: {error}') from error
    console = Console(stderr=True)
    try:
        model, results = asyncio.run(_sweep(options, levels, headers, console))
    except (httpx.HTTPError, ChatError) as error:
        console.print(f'gemma-thor bench-http: {options.url}: {reason(error)}', markup=False)
        return 1
    rows = [result.as_dict() for result in results]
    if options.json:
        print(json.dumps({'url': options.url, 'model': model, 'levels': rows}))
    else:
        Console().print(_table(model, rows))
    return 1 if any(row['failed'] for row in rows) else 0


@dataclass
class Level:
    """What was seen at one concurrency; times in seconds."""

    concurrency: int
    requests: int = 0
    failed: int = 0
    error: str = ''  # of the first that failed
    seconds: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)  # each token's share of its event's gap
    ends: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures: milliseconds and tokens a second."""
        return {
            'concurrency': self.concurrency,
            'requests': self.requests,
            'failed': self.failed,
            'error': self.error,
            'ttft_ms_p50': _ms(self.first, 50),
            'ttft_ms_p99': _ms(self.first, 99),
            'between_ms_p50': _ms(self.between, 50),
            'between_ms_p99': _ms(self.between, 99),
            'request_ms_p50': _ms(self.ends, 50),
            'tokens': self.tokens,
            'prompt_tokens': self.prompt_tokens,
            'tok_s': round(self.tokens / self.seconds, 2) if self.seconds else 0.0,
        }


async def _sweep(
    options: argparse.Namespace, levels: Sequence[int], headers: dict[str, str], console: Console
) -> tuple[str, list[Level]]:
    limits = httpx.Limits(max_connections=max(levels), max_keepalive_connections=max(levels))
    timeout = httpx.Timeout(options.timeout, connect=10.0)
    async with httpx.AsyncClient(
        base_url=base_url(options.url), headers=headers, timeout=timeout, limits=limits
    ) as http:
        model = options.model or await _first_model(http)
        counts = [options.requests or 3 * level for level in levels]
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task('warming up', total=sum(counts) + 1)
            warm = Level(1)
            await _one(http, _body(options, model, -1), warm)
            if warm.failed:
                raise ChatError(warm.error)
            progress.advance(task)
            results = []
            for level, count in zip(levels, counts, strict=True):
                progress.update(task, description=f'{level} at once')
                result = Level(level)
                await _level(http, options, model, result, count, lambda: progress.advance(task))
                results.append(result)
    return model, results


async def _level(
    http: httpx.AsyncClient,
    options: argparse.Namespace,
    model: str,
    level: Level,
    count: int,
    done: Any,
) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await _one(http, _body(options, model, 1000 * level.concurrency + number), level)
            done()

    begin = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(level.concurrency)))
    level.seconds = time.perf_counter() - begin


async def _one(http: httpx.AsyncClient, body: dict[str, Any], level: Level) -> None:
    level.requests += 1
    begin = time.perf_counter()
    times: list[float] = []
    usage: dict[str, Any] = {}
    try:
        async with http.stream('POST', 'chat/completions', json=body) as response:
            if response.status_code != 200:
                await response.aread()
                raise ChatError(error_text(response))
            async for line in response.aiter_lines():
                if not line.startswith('data:') or line[5:].strip() == '[DONE]':
                    continue
                event = json.loads(line[5:])
                if event.get('error'):
                    raise ChatError(str(event['error']))
                usage = event.get('usage') or usage
                if any(_shows(choice.get('delta') or {}) for choice in event.get('choices', ())):
                    times.append(time.perf_counter())
    except (httpx.HTTPError, ChatError, ValueError) as error:
        level.failed += 1
        level.error = level.error or reason(error)
        return
    tokens = usage.get('completion_tokens') or len(times)
    level.tokens += tokens
    level.prompt_tokens += usage.get('prompt_tokens') or 0
    level.ends.append(time.perf_counter() - begin)
    if times:
        level.first.append(times[0] - begin)
        # An event may carry several tokens: the gaps are stretched to the tokens' number.
        share = (len(times) - 1) / max(1, tokens - 1)
        level.between.extend((b - a) * share for a, b in zip(times, times[1:], strict=False))


def _shows(delta: dict[str, Any]) -> bool:
    return any(
        delta.get(name) for name in ('content', 'reasoning_content', 'reasoning', 'tool_calls')
    )


def _body(options: argparse.Namespace, model: str, number: int) -> dict[str, Any]:
    """Return a request whose prompt differs from all others from its first word on."""
    words = [f'{number}', *(WORDS[(number + i) % len(WORDS)] for i in range(options.prompt_words))]
    body = {
        'model': model,
        'messages': [{'role': 'user', 'content': ' '.join(words)}],
        'max_tokens': options.max_tokens,
        'temperature': 0.0,
        'stream': True,
        'stream_options': {'include_usage': True},
    }
    if not options.stop_ids:
        body['ignore_eos'] = True
    return body


async def _first_model(http: httpx.AsyncClient) -> str:
    response = await http.get('models')
    if response.status_code != 200:
        raise ChatError(error_text(response))
    try:
        return str(response.json()['data'][0]['id'])
    except (ValueError, KeyError, IndexError, TypeError):
        raise ChatError('the server lists no model: name one with --model') from None


def _levels(text: str) -> list[int]:
    try:
        levels = [int(part) for part in text.split(',')]
    except ValueError:
        raise ConfigError(f'--concurrency {text!r}: numbers with commas are wanted') from None
    if not all(1 <= level <= 1024 for level in levels):
        raise ConfigError(f'--concurrency {text!r}: allowed are 1 to 1024')
    return levels


def _ms(values: list[float], percentile: int) -> float | None:
    if not values:
        return None
    if len(values) == 1:
        return round(values[0] * 1e3, 3)
    cuts = statistics.quantiles(values, n=100, method='inclusive')
    return round(cuts[percentile - 1] * 1e3, 3)


def _table(model: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f'{model}: times in ms')
    columns = {
        'at once': 'concurrency',
        'sent': 'requests',
        'failed': 'failed',
        'first p50': 'ttft_ms_p50',
        'first p99': 'ttft_ms_p99',
        'between p50': 'between_ms_p50',
        'between p99': 'between_ms_p99',
        'whole p50': 'request_ms_p50',
        'tok/s': 'tok_s',
    }
    for heading in columns:
        table.add_column(heading.replace(' ', '\n'), justify='right')
    for row in rows:
        table.add_row(*(_shown(row[name]) for name in columns.values()))
    return table


def _shown(value: float | None) -> str:
    """Return a figure short enough for nine of them on a narrow terminal."""
    if isinstance(value, float):
        return f'{value:.1f}' if value < 100.0 else f'{value:.0f}'
    return '-' if value is None else str(value)
