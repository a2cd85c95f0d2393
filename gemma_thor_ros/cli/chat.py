# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Verb `chat`: a conversation in the terminal with any OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.text import Text

from gemma_thor_ros.schema import ConfigError

HELP = """/help          this list
/reset         forget the conversation
/think on|off  let the model think
/system TEXT   set the system message and start anew
/quit          leave (also Ctrl-D)"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the verb."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        'chat',
        help='talk to an endpoint in the terminal',
        description='Talk to an OpenAI-compatible endpoint. Without a terminal, or with '
        '--prompt, one turn is run.',
    )
    parser.add_argument('--url', default='http://127.0.0.1:8000/v1', help='base URL (%(default)s)')
    parser.add_argument('--model', default='', help='model name (default: the first one served)')
    parser.add_argument('--api-key-file', type=Path, help='file with the API key')
    parser.add_argument('--system', default='', help='system message')
    parser.add_argument('--prompt', help='run one turn with this user message and end')
    parser.add_argument('--temperature', type=float, help="default: the server's")
    parser.add_argument('--max-tokens', type=int, help="default: the server's")
    parser.add_argument('--seed', type=int, help='the same seed gives the same answer')
    parser.add_argument('--think', action='store_true', help='let the model think')
    parser.add_argument('--timeout', type=float, default=300.0, help='seconds (%(default)s)')
    parser.add_argument('--json', action='store_true', help='one JSON object instead of a stream')
    return parser


def run(options: argparse.Namespace) -> int:
    """Chat; 0 = done, 1 = the server refused or failed, 2 = bad usage."""
    headers = {}
    if options.api_key_file:
        try:
            headers['Authorization'] = f'Bearer {options.api_key_file.read_text().strip()}'
        except OSError as error:
            raise ConfigError(f'--api-key-file: {error}') from error
    console = Console(highlight=False, soft_wrap=True)
    limits = httpx.Timeout(options.timeout, connect=5.0)
    with httpx.Client(base_url=options.url.rstrip('/'), headers=headers, timeout=limits) as http:
        talk = Conversation(http, options)
        try:
            if not talk.model:
                talk.model = http.get('/models').raise_for_status().json()['data'][0]['id']
            prompt = options.prompt
            if prompt is None and not sys.stdin.isatty():
                prompt = sys.stdin.read()
            if prompt is not None:
                return _one_turn(talk, prompt, console, options.json)
            return _loop(talk, console)
        except (httpx.HTTPError, ChatError) as error:
            print(f'gemma-thor chat: {options.url}: {_reason(error)}', file=sys.stderr)
            return 1


class ChatError(Exception):
    """The server answered with an error."""


@dataclass
class Piece:
    """A piece of a streamed answer."""

    text: str = ''
    reasoning: str = ''
    usage: dict[str, Any] | None = None


@dataclass
class Answer:
    """A whole answer."""

    text: str = ''
    reasoning: str = ''
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = ''
    first_token_s: float = 0.0
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Rate after the first token."""
        tokens = self.usage.get('completion_tokens', 0)
        decode = self.seconds - self.first_token_s
        return (tokens - 1) / decode if tokens > 1 and decode > 0 else 0.0


class Conversation:
    """History and settings of one conversation over HTTP."""

    def __init__(self, http: httpx.Client, options: argparse.Namespace) -> None:
        self._http = http
        self._options = options
        self.model: str = options.model
        self.thinking: bool = options.think
        self.messages: list[dict[str, Any]] = []
        self.reset(options.system)

    def reset(self, system: str | None = None) -> None:
        """Forget the conversation; None keeps the system message."""
        first = (
            self.messages[:1] if self.messages[:1] and self.messages[0]['role'] == 'system' else []
        )
        if system is not None:
            first = [{'role': 'system', 'content': system}] if system else []
        self.messages = first

    def turn(self, prompt: str, answer: Answer) -> Iterator[Piece]:
        """Send a user message; yield the pieces and fill `answer`.

        Raises:
            ChatError: the server's own words. httpx.HTTPError: no connection.
        """
        body: dict[str, Any] = {
            'model': self.model,
            'messages': [*self.messages, {'role': 'user', 'content': prompt}],
            'stream': True,
            'stream_options': {'include_usage': True},
            'chat_template_kwargs': {'enable_thinking': self.thinking},
        }
        for name in ('temperature', 'max_tokens', 'seed'):
            if getattr(self._options, name) is not None:
                body[name] = getattr(self._options, name)
        started = time.monotonic()
        with self._http.stream('POST', '/chat/completions', json=body) as response:
            if response.status_code != 200:
                response.read()
                raise ChatError(_error_text(response))
            for line in response.iter_lines():
                if not line.startswith('data: ') or line == 'data: [DONE]':
                    continue
                piece = _take(json.loads(line[6:]), answer)
                if (piece.text or piece.reasoning) and not answer.first_token_s:
                    answer.first_token_s = time.monotonic() - started
                yield piece
        answer.seconds = time.monotonic() - started
        self.messages += [
            {'role': 'user', 'content': prompt},
            {'role': 'assistant', 'content': answer.text},
        ]


def _take(event: dict[str, Any], answer: Answer) -> Piece:
    """Add a stream event to the answer and return what it shows."""
    if 'error' in event:
        raise ChatError(str(event['error'].get('message', event['error'])))
    answer.usage = event.get('usage') or answer.usage
    if not event.get('choices'):
        return Piece(usage=answer.usage)
    choice = event['choices'][0]
    answer.finish_reason = choice.get('finish_reason') or answer.finish_reason
    delta = choice.get('delta') or {}
    piece = Piece(delta.get('content') or '', delta.get('reasoning_content') or '')
    answer.text += piece.text
    answer.reasoning += piece.reasoning
    for call in delta.get('tool_calls') or []:
        while len(answer.tool_calls) <= call['index']:
            answer.tool_calls.append({'id': '', 'name': '', 'arguments': ''})
        entry, function = answer.tool_calls[call['index']], call.get('function') or {}
        entry['id'] = call.get('id') or entry['id']
        entry['name'] = function.get('name') or entry['name']
        entry['arguments'] += function.get('arguments') or ''
    return piece


def _one_turn(talk: Conversation, prompt: str, console: Console, as_json: bool) -> int:
    answer = Answer()
    if as_json:
        for _ in talk.turn(prompt, answer):
            pass
        print(
            json.dumps(
                {
                    'text': answer.text,
                    'reasoning': answer.reasoning,
                    'tool_calls': answer.tool_calls,
                    'finish_reason': answer.finish_reason,
                    'usage': answer.usage,
                },
                ensure_ascii=False,
            )
        )
        return 0
    _show(talk.turn(prompt, answer), answer, console)
    return 0


def _loop(talk: Conversation, console: Console) -> int:
    console.print(f'{talk.model}. /help lists the commands.', style='dim')
    while True:
        try:
            line = console.input('[bold]> [/bold]').strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return 0
        if not line:
            continue
        if line.startswith('/'):
            if _command(talk, line, console):
                return 0
            continue
        answer = Answer()
        try:
            _show(talk.turn(line, answer), answer, console)
        except KeyboardInterrupt:  # closes the connection, and so ends the request
            console.print('\n(stopped)', style='dim')
        except (httpx.HTTPError, ChatError) as error:
            console.print(Text(_reason(error), style='red'))


def _command(talk: Conversation, line: str, console: Console) -> bool:
    """Run a /command; True = leave."""
    word, _, rest = line.partition(' ')
    if word == '/quit':
        return True
    if word == '/reset':
        talk.reset()
    elif word == '/system':
        talk.reset(rest)
    elif word == '/think' and rest in ('on', 'off'):
        talk.thinking = rest == 'on'
    else:
        console.print(HELP, style='dim', markup=False)
    return False


def _show(pieces: Iterator[Piece], answer: Answer, console: Console) -> None:
    for piece in pieces:
        if piece.reasoning:
            console.print(Text(piece.reasoning, style='dim italic'), end='')
        if piece.text:
            if answer.reasoning and answer.text == piece.text:
                console.print()
            console.print(Text(piece.text), end='')
    console.print()
    for call in answer.tool_calls:
        console.print(Text(f'  {call["name"]}({call["arguments"]})', style='cyan'))
    tokens = answer.usage.get('completion_tokens', 0)
    console.print(
        Text(
            f'{tokens} tokens, {answer.tokens_per_s:.0f} tok/s, first after '
            f'{answer.first_token_s * 1000:.0f} ms',
            style='dim',
        )
    )


def _error_text(response: httpx.Response) -> str:
    try:
        return str(response.json()['error']['message'])
    except (ValueError, KeyError, TypeError):
        return f'status {response.status_code}: {response.text[:200]}'


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return _error_text(error.response)
    if isinstance(error, httpx.ConnectError):
        return 'no server answers there; `gemma-thor run` starts one'
    return str(error) or type(error).__name__
