# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A client of the HTTP endpoint in a process of its own, so that it shares no lock with it.

    python bench/serving_client.py PORT

Reads jobs from standard input, a line each: a JSON list of chat completion bodies, which are sent
together. Answers with a line: a JSON list of what came, times in seconds on the steady clock of
this machine. Needs the standard library alone.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PART = 1 << 16


@dataclass(frozen=True)
class Streamed:
    """One answer: when it was asked for, when each event with text came, and the last figures."""

    sent: float
    times: tuple[float, ...]
    text: str
    usage: dict[str, Any]
    timings: dict[str, Any]

    @property
    def rate(self) -> float:
        """Tokens a second after the first event."""
        return self.tokens_per_event * (len(self.times) - 1) / (self.times[-1] - self.times[0])

    @property
    def tokens_per_event(self) -> float:
        """More than 1 where a token shows nothing yet, such as a blank at the end of a text."""
        tokens: int = self.usage['completion_tokens']
        return (tokens - 1) / (len(self.times) - 1)

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first text."""
        return self.times[0] - self.sent


class Client:
    """The process, for as long as a with block lasts."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(port)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10.0)

    def ask(self, bodies: Sequence[dict[str, Any]]) -> list[Streamed]:
        """Stream the answers to some bodies at once; RuntimeError when one fails."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(bodies)) + '\n')
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError('the client process has ended')
        return [read_answer(*each) for each in json.loads(line)]


def read_answer(sent: float, parts: Sequence[tuple[float, str]]) -> Streamed:
    """What the parts of a response say: (time, bytes as Latin-1) each.

    An event counts at the time of the part that completes it. RuntimeError for anything but a
    whole stream with usage.
    """
    times, texts = [], []
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    status, held, whole = '', b'', False
    for at, part in parts:
        held += part.encode('latin-1')
        if not status and b'\r\n\r\n' in held:
            head, _, held = held.partition(b'\r\n\r\n')
            status = head.split(b'\r\n', 1)[0].decode()
        *lines, held = held.split(b'\n')
        for line in lines:
            if not line.startswith(b'data: '):
                continue
            if line.startswith(b'data: [DONE]'):
                whole = True
                continue
            event = json.loads(line[6:])
            if 'error' in event:
                raise RuntimeError(f'the answer broke off: {event["error"]}')
            usage = event.get('usage') or usage
            timings = event.get('timings') or timings
            text = ''.join(choice['delta'].get(name) or '' for choice in event['choices']
                           for name in ('content', 'reasoning_content'))
            if text:
                times.append(at)
                texts.append(text)
    if ' 200 ' not in f'{status} ' or not whole or not usage or not times:
        raise RuntimeError(f'no whole stream came: {status} {held[:500]!r}')
    return Streamed(sent, tuple(times), ''.join(texts), usage, timings)


async def _one(port: int, body: dict[str, Any]) -> tuple[float, list[tuple[float, str]]]:
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    data = json.dumps({**body, 'stream': True, 'stream_options': {'include_usage': True}}).encode()
    sent = time.monotonic()
    writer.write(b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n'
                 b'Content-Type: application/json\r\nContent-Length: %d\r\n\r\n' % len(data))
    writer.write(data)
    parts = []
    while part := await reader.read(_PART):
        parts.append((time.monotonic(), part.decode('latin-1')))
    writer.close()
    return sent, parts


async def _all(port: int, bodies: list[dict[str, Any]]) -> list[Any]:
    return list(await asyncio.gather(*(_one(port, body) for body in bodies)))


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(asyncio.run(_all(int(sys.argv[1]), json.loads(line)))), flush=True)


if __name__ == '__main__':
    main()
