# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Soaks the HTTP endpoint on the demo model: 64 clients at once, streamed and whole, three routes.

    python bench/http_soak.py [--seconds 60] [--clients 64] [--json FILE]

Every answer is compared with the one that the same request got when it was alone; every eighth
client leaves in the middle of its stream. Exit code 0 when each request ended right, nothing runs
afterwards and the memory is flat; 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress

from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.server.run import Sidecar

PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')
# The run's second half may add this much: allocators and connections come and go.
FLAT_MB = 8.0
LEAVES_EVERY = 8
DRIVE = {
    'type': 'function',
    'function': {
        'name': 'drive',
        'description': 'Drive straight ahead, or back if negative.',
        'parameters': {
            'type': 'object',
            'properties': {'distance': {'type': 'number', 'description': 'metres'}},
            'required': ['distance'],
        },
    },
}
PROMPTS = (
    'hello', 'drive two metres forward', 'who are you?', 'go back half a metre',
    'what can you do?', 'drive 1.5 m ahead', 'thank you', 'move 40 centimetres',
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One request: its route, and its body without `stream`."""

    path: str
    body: dict[str, Any]


@dataclass
class Report:
    """What came of it."""

    problems: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    seconds: float = 0.0
    rss_mb: list[float] = field(default_factory=list)

    @property
    def growth_mb(self) -> float:
        """Memory that the second half of the run added, MiB."""
        return self.rss_mb[-1] - self.rss_mb[len(self.rss_mb) // 2]


def cases() -> list[Case]:
    """Chats with and without a tool, completions and responses, greedy and drawn."""
    found = []
    for number, prompt in enumerate(PROMPTS):
        settings = {'temperature': (0.0, 0.8)[number % 2], 'seed': number}
        messages = [{'role': 'user', 'content': prompt}]
        own = [{'role': 'user', 'content': f'drive {number}.5 m forward'}]     # like no other
        found += [
            Case('chat/completions', {'messages': messages, 'max_tokens': 32, **settings}),
            Case('chat/completions',
                 {'messages': messages, 'max_tokens': 48, 'tools': [DRIVE], **settings}),
            Case('chat/completions',
                 {'messages': own, 'max_tokens': 48, 'tools': [DRIVE], **settings}),
        ]
        if number % 2:
            found.append(Case('completions', {'prompt': prompt, 'max_tokens': 16, **settings}))
        else:
            found.append(Case('responses', {
                'input': prompt, 'max_output_tokens': 24,
                'temperature': settings['temperature']}))
    return found


def soak(url: str, seconds: float, num_clients: int,
         on_progress: Callable[[float], None] = lambda _: None) -> Report:
    """Let `num_clients` ask the endpoint at `url` (with /v1) for so long, then let them end."""
    return asyncio.run(_soak(url, seconds, num_clients, on_progress))


async def _soak(url: str, seconds: float, num_clients: int,
                on_progress: Callable[[float], None]) -> Report:
    report = Report()
    limits = httpx.Limits(max_connections=num_clients + 1)
    async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits,
                                 trust_env=False) as http:
        asked = cases()
        alone = [await _whole(http, case) for case in asked]
        begin = time.monotonic()

        async def client(number: int) -> None:
            turn = number
            while True:                              # one request at least, however short the run
                case, right = asked[turn % len(asked)], alone[turn % len(asked)]
                await _ask(http, case, right, turn, report)
                turn += 7
                if time.monotonic() - begin >= seconds:
                    return

        async def watch() -> None:
            while True:
                report.rss_mb.append(_rss_mb())
                on_progress(time.monotonic() - begin)
                await asyncio.sleep(seconds / 20)

        watcher = asyncio.create_task(watch())
        await asyncio.gather(*(client(number) for number in range(num_clients)))
        watcher.cancel()
        report.rss_mb.append(_rss_mb())
        report.seconds = time.monotonic() - begin
    return report


async def _ask(http: httpx.AsyncClient, case: Case, right: dict[str, Any], turn: int,
               report: Report) -> None:
    way = 'left' if turn % LEAVES_EVERY == 0 else 'whole' if turn % 3 == 0 else 'streamed'
    try:
        if way == 'whole':
            got = await _whole(http, case)
        else:
            got = await _streamed(http, case, leave=way == 'left')
            if way == 'left':                        # what came until then is the answer's head
                got = {'text': right['text']} if right['text'].startswith(got['text']) else got
                right = {'text': right['text']}
    except (httpx.HTTPError, ValueError, KeyError) as error:
        report.ends['failed'] += 1
        report.problems.append(f'{case.path} {way}: {type(error).__name__}: {error}')
        return
    report.ends[f'{case.path} {way}'] += 1
    report.tokens += got.get('tokens', 0)
    if got != right:
        report.problems.append(f'{case.path} {way}: {case.body}: {got} instead of {right}')


async def _whole(http: httpx.AsyncClient, case: Case) -> dict[str, Any]:
    response = await http.post(case.path, json=case.body)
    if response.status_code != 200:
        raise ValueError(f'{response.status_code}: {response.text[:200]}')
    return _parts(case.path, response.json())


def _parts(path: str, answer: dict[str, Any]) -> dict[str, Any]:
    """What must be the same however the answer comes."""
    usage = answer['usage']
    if path == 'responses':
        text = ''.join(part['text'] for item in answer['output'] if item['type'] == 'message'
                       for part in item['content'])
        return {'text': text, 'end': answer['status'], 'tokens': usage['output_tokens']}
    choice = answer['choices'][0]
    parts = {'end': choice['finish_reason'], 'tokens': usage['completion_tokens']}
    if path == 'completions':
        return {'text': choice['text'], **parts}
    calls = [(call['function']['name'], call['function']['arguments'])
             for call in choice['message'].get('tool_calls') or ()]
    return {'text': choice['message']['content'] or '', 'calls': calls, **parts}


async def _streamed(http: httpx.AsyncClient, case: Case, leave: bool) -> dict[str, Any]:
    body: dict[str, Any] = {**case.body, 'stream': True}
    if case.path != 'responses':
        body['stream_options'] = {'include_usage': True}
    text, calls, end, tokens, events = '', {}, '', 0, 0
    async with http.stream('POST', case.path, json=body) as response:
        if response.status_code != 200:
            await response.aread()
            raise ValueError(f'{response.status_code}: {response.text[:200]}')
        async for line in response.aiter_lines():
            if not line.startswith('data:') or line[5:].strip() == '[DONE]':
                continue
            event = json.loads(line[5:])
            events += 1
            if leave and events == 6:
                return {'text': text}
            if case.path == 'responses':
                text += event['delta'] if event['type'] == 'response.output_text.delta' else ''
                if event['type'] in ('response.completed', 'response.incomplete'):
                    return _parts(case.path, event['response']) | {'text': text}
                continue
            tokens = (event.get('usage') or {}).get('completion_tokens', tokens)
            for choice in event['choices']:
                delta = choice.get('delta') or {}
                text += delta.get('content') or choice.get('text') or ''
                end = choice['finish_reason'] or end
                for call in delta.get('tool_calls') or ():
                    function = call.get('function') or {}
                    name, arguments = calls.get(call['index'], ('', ''))
                    calls[call['index']] = (name + (function.get('name') or ''),
                                            arguments + (function.get('arguments') or ''))
    if leave:                                        # it was over before
        return {'text': text}
    parts = {'text': text, 'end': end, 'tokens': tokens}
    return parts if case.path == 'completions' else parts | {'calls': list(calls.values())}


def _rss_mb() -> float:
    pages = int(Path('/proc/self/statm').read_text(encoding='ascii').split()[1])
    return round(pages * PAGE_BYTES / (1 << 20), 1)


def serve(num_clients: int) -> tuple[Runtime, Sidecar, str]:
    """Start the demo model with an endpoint on a free port; the runtime, the endpoint, its URL."""
    config = EngineConfig.from_mapping({
        'http.port': 0, 'engine.max_waiting': 2 * num_clients, 'request.timeout': 120.0})
    runtime = Runtime(config)
    sidecar = Sidecar(runtime, config)
    runtime.start()
    port = sidecar.start()
    if not runtime.wait_ready(120.0):
        raise SystemExit(f'the demo model does not load: {runtime.error}')
    return runtime, sidecar, f'http://127.0.0.1:{port}/v1/'


def leftovers(runtime: Runtime, seconds: float = 5.0) -> list[str]:
    """What still runs or waits after so long, as problems."""
    stats = runtime.require_chat().stats
    limit = time.monotonic() + seconds
    while stats().running + stats().waiting and time.monotonic() < limit:
        time.sleep(0.02)
    now = stats()
    if now.running + now.waiting:
        return [f'{now.running} requests run and {now.waiting} wait {seconds:g} s after the end']
    return []


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seconds', type=float, default=60.0, help='default %(default)g')
    parser.add_argument('--clients', type=int, default=64, help='default %(default)s')
    parser.add_argument('--json', type=Path, help='write the report to this file too')
    options = parser.parse_args()
    runtime, sidecar, url = serve(options.clients)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task('soak', total=options.seconds)
        report = soak(url, options.seconds, options.clients,
                      lambda done: progress.update(task, completed=done))
    report.problems += leftovers(runtime)
    runtime.stop(5.0)
    sidecar.stop(5.0)
    if report.growth_mb > FLAT_MB:
        report.problems.append(f'{report.growth_mb:.1f} MiB more after the second half')
    entry = {
        'metric': 'http_soak_problems', 'value': len(report.problems), 'unit': 'problems',
        'context': {
            'model': 'demo', 'path': 'http', 'clients': options.clients,
            'seconds': round(report.seconds, 1), 'ends': dict(report.ends),
            'requests': report.ends.total(), 'tokens': report.tokens, 'rss_mb': report.rss_mb,
            'rss_growth_mb': round(report.growth_mb, 1)},
        'problems': report.problems[:20], 'card': 'CPU',
        'processor': platform.processor() or platform.machine(),
        'date': time.strftime('%Y-%m-%d'), 'command': 'python bench/http_soak.py'}
    sys.stdout.write(json.dumps(entry, indent=1) + '\n')
    if options.json:
        options.json.write_text(json.dumps([entry], indent=1) + '\n', encoding='utf-8')
    return 1 if report.problems else 0


if __name__ == '__main__':
    sys.exit(main())
