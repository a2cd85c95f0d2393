# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the HTTP layer costs: CPU time a token at several streams, and the speed of one stream
against the engine's own.

    python bench/http_overhead.py [--streams 16] [--tokens 600] [--json] [--receipt FILE]

The first figure is the CPU time of the endpoint's thread (parsing of the answer, server-sent
events, HTTP and system calls) on the scripted model, whose steps take 10 ms; the client is a
process of its own. The second runs the demo model's tokens over HTTP and straight from the engine,
by turns, and gives the share of the best of each.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from gemma_thor_ros.cli.bench_records import Records
from gemma_thor_ros.config import EngineConfig
from gemma_thor_ros.load import Runtime
from gemma_thor_ros.schema import Request, SamplingParams
from gemma_thor_ros.server.run import Sidecar

CLIENT = """
import asyncio, json, sys, time
port, streams, tokens = map(int, sys.argv[1:])
async def one(number):
    times = []
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    body = json.dumps({'messages': [{'role': 'user', 'content': f'client {number}'}],
                       'stream': True, 'max_tokens': tokens, 'temperature': 0.0,
                       'ignore_eos': True}).encode()
    writer.write(b'POST /v1/chat/completions HTTP/1.1\\r\\nHost: localhost\\r\\n'
                 b'Content-Type: application/json\\r\\nConnection: close\\r\\n'
                 b'Content-Length: %d\\r\\n\\r\\n' % len(body) + body)
    while part := await reader.read(65536):
        times += [time.perf_counter()] * part.count(b'data: ')
    return times
async def main():
    times = (await asyncio.gather(*(one(number) for number in range(streams))))[0]
    print(times[-1] - times[1])       # the first one is the role's, the last one [DONE]
asyncio.run(main())
"""


def client(port: int, streams: int, tokens: int) -> float:
    """Run a client in a process of its own; seconds from first to last token of one stream."""
    command = [sys.executable, '-c', CLIENT, str(port), str(streams), str(tokens)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class Serving:
    """A sidecar for as long as a with block lasts."""

    def __init__(self, **settings: Any) -> None:
        config = EngineConfig.from_mapping({'http.port': 0, **settings})
        self.runtime = Runtime(config)
        self.sidecar = Sidecar(self.runtime, config)

    def __enter__(self) -> Serving:
        self.runtime.start()
        self.port = self.sidecar.start()
        assert self.runtime.wait_ready(120.0), self.runtime.error
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.stop(5.0)
        self.sidecar.stop(5.0)


def cpu_per_token_us(streams: int, tokens: int) -> float:
    """CPU microseconds of the endpoint's thread for each token of so many streams."""
    with Serving(**{'model.path': 'scripted', 'model.script': ['word ' * tokens + '<turn|>'],
                    'model.script_delay': 0.01, 'engine.max_sequences': streams}) as serving:
        client(serving.port, 1, 8)             # what only the first request does
        before = serving.sidecar.cpu_seconds()
        count = serving.runtime.require_chat().stats().decode_tokens
        client(serving.port, streams, tokens)
        seconds = serving.sidecar.cpu_seconds() - before
        count = serving.runtime.require_chat().stats().decode_tokens - count
    return seconds / count * 1e6


def stream_share(tokens: int, rounds: int = 5) -> tuple[float, float]:
    """(tok/s of one HTTP stream, tok/s of the engine alone) on the demo model, best of rounds."""
    best_http = best_engine = 0.0
    with Serving() as serving:
        chat = serving.runtime.require_chat()
        messages = [{'role': 'user', 'content': 'client 0'}]
        url = f'http://127.0.0.1:{serving.port}'
        rendered = httpx.post(f'{url}/render-prompt', json={'messages': messages}).json()
        for number in range(rounds):
            prompt = tuple(rendered['token_ids'])
            sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            outbox = chat._engine.submit(Request(f'bench-{number}', prompt, sampling))
            _, end = outbox.collect(300.0)
            best_engine = max(best_engine, end.timings.tokens_per_s)
            best_http = max(best_http, (tokens - 1) / client(serving.port, 1, tokens))
    return best_http, best_engine


def write_receipt(options: argparse.Namespace) -> None:
    """Record the cost of a token."""
    records = Records(options.receipt, card='CPU', commit=options.commit,
                      processor=platform.processor() or platform.machine(),
                      command='python bench/http_overhead.py ' + ' '.join(sys.argv[1:]))
    costs = [cpu_per_token_us(options.streams, options.tokens) for _ in range(5)]
    value = records.add('http_us_per_token', costs, 'us', model='scripted', path='http',
                        sequences=options.streams, tokens=options.tokens,
                        clock="of the endpoint's thread")
    sys.stdout.write(f'{value:.1f} us a token, {min(costs):.1f} to {max(costs):.1f}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--streams', type=int, default=16)
    parser.add_argument('--tokens', type=int, default=600)
    parser.add_argument('--json', action='store_true')
    parser.add_argument('--receipt', type=Path, help='write the cost of a token here, of 5 runs')
    parser.add_argument('--commit', default='unknown', help='for the receipt')
    options = parser.parse_args()
    if options.receipt:
        write_receipt(options)
        return
    cost = cpu_per_token_us(options.streams, options.tokens)
    http, engine = stream_share(options.tokens)
    figures = {'http_us_per_token': round(cost, 1), 'http_tok_s': round(http, 1),
               'engine_tok_s': round(engine, 1), 'share': round(http / engine, 3)}
    sys.stdout.write(f'{json.dumps(figures)}\n' if options.json else '\n'.join(
        f'{name:20} {value}' for name, value in figures.items()) + '\n')


if __name__ == '__main__':
    main()
