# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Verb `chat`: a conversation in the terminal with any OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.text import Text

from gemma_thor_ros.cli.talk import (
    Answer,
    ChatError,
    Conversation,
    Message,
    Piece,
    base_url,
    image_part,
    reason,
    with_images,
)
from gemma_thor_ros.schema import ConfigError

HELP = """/help            this list
/reset           forget the conversation
/system TEXT     set the system message and start anew
/think on|off    let the model think
/set NAME VALUE  a setting of the request, as temperature 0.2; without VALUE: the server's own
/settings        what is set
/tools FILE      tools for the model, a JSON list; without FILE: none
/image FILE      show an image (PNG, JPEG, WebP) with the next message
/undo            take back the last message and its answer
/retry           answer the last message again
/save FILE       write the conversation as JSON messages; /load FILE reads it back
/quit            leave (also Ctrl-D)
A line that ends with \\ goes on in the next one. Ctrl-C stops an answer."""
NO_RESULT = 'no result'
MAX_ROUNDS = 20


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
    parser.add_argument('--tools', type=Path, help='file with tools, a JSON list as OpenAI has it')
    parser.add_argument('--prompt', help='run one turn with this user message and end')
    parser.add_argument('--image', type=Path, action='append', default=[], metavar='FILE',
                        help='show an image with the first message; may be repeated')
    parser.add_argument('--temperature', type=float, help="default: the server's")
    parser.add_argument('--max-tokens', type=int, help="default: the server's")
    parser.add_argument('--seed', type=int, help='the same seed gives the same answer')
    parser.add_argument('--think', action='store_true', help='let the model think')
    parser.add_argument('--timeout', type=float, default=300.0, help='seconds (%(default)s)')
    parser.add_argument('--json', action='store_true', help='one JSON object instead of a stream')
    return parser


def run(options: argparse.Namespace) -> int:
    """Chat; 0 = done, 1 = the server refused or failed, 2 = bad usage."""
    if options.temperature is not None and not math.isfinite(options.temperature):
        raise ConfigError(f'--temperature is {options.temperature:g}, which is no finite number')
    if not 0 < options.timeout < math.inf:
        raise ConfigError(f'--timeout is {options.timeout:g} s, a number above 0 is needed')
    if options.prompt is not None and not options.prompt.strip():
        raise ConfigError('--prompt is empty')
    console = Console(highlight=False, soft_wrap=True)
    headers = {}
    if options.api_key_file:
        headers['Authorization'] = f'Bearer {_read(options.api_key_file, "--api-key-file")}'
    limits = httpx.Timeout(options.timeout, connect=5.0)
    with httpx.Client(base_url=base_url(options.url), headers=headers, timeout=limits) as http:
        talk = Conversation(http, options.model, options.system)
        talk.thinking = True if options.think else None
        for name in ('temperature', 'max_tokens', 'seed'):
            if getattr(options, name) is not None:
                talk.settings[name] = getattr(options, name)
        if options.tools:
            talk.tools = _read_list(options.tools, '--tools')
        images = [image_part(path) for path in options.image]
        try:
            if not talk.model:
                talk.find_model()
            prompt = options.prompt
            if prompt is None and not sys.stdin.isatty():
                prompt = sys.stdin.read()
            if prompt is not None:
                return _one_turn(talk, with_images(prompt, images), console, options.json)
            return Session(talk, console, images).run()
        except (httpx.HTTPError, ChatError) as error:
            print(f'gemma-thor chat: {options.url}: {reason(error)}', file=sys.stderr)
            return 1


def _one_turn(talk: Conversation, content: Any, console: Console, as_json: bool) -> int:
    answer = Answer()
    pieces = talk.turn([{'role': 'user', 'content': content}], answer)
    if as_json:
        for _ in pieces:
            pass
        print(json.dumps(answer.as_dict(), ensure_ascii=False))
    else:
        _show(pieces, answer, console)
    return 0


class Session:
    """The loop at a terminal: lines become turns or commands."""

    def __init__(
        self, talk: Conversation, console: Console, images: list[dict[str, Any]]
    ) -> None:
        self._talk = talk
        self._console = console
        self._images = images  # for the next message

    def run(self) -> int:
        """Talk until the user leaves."""
        with contextlib.suppress(ImportError):  # line editing and history, where there is one
            import readline  # noqa: F401
        self._say(f'{self._talk.model}. /help lists the commands.')
        while True:
            try:
                line = self._line()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return 0
            if line.startswith('/'):
                if line.split()[0] in ('/quit', '/exit'):
                    return 0
                try:
                    self._command(line)
                except (ConfigError, OSError) as error:
                    self._complain(str(error))
            elif line:
                content = with_images(line, self._images)
                self._images = []
                self._user_turn(content)

    def _line(self) -> str:
        """Read a line; one that ends with a backslash goes on."""
        line = self._console.input('[bold]> [/bold]')
        while line.endswith('\\'):
            line = line[:-1] + '\n' + self._console.input('[bold]… [/bold]')
        return line.strip()

    def _user_turn(self, content: str | list[dict[str, Any]]) -> None:
        """Answer a message; while the model calls tools, ask for their results."""
        new: list[Message] = [{'role': 'user', 'content': content}]
        for _ in range(MAX_ROUNDS):
            answer = Answer()
            try:
                _show(self._talk.turn(new, answer), answer, self._console)
            except KeyboardInterrupt:  # closes the connection, and so ends the request
                self._say('\n(stopped)')
                return
            except (httpx.HTTPError, ChatError) as error:
                self._complain(reason(error))
                return
            if answer.finish_reason != 'tool_calls' or not answer.tool_calls:
                return
            try:
                new = [self._result_of(call) for call in answer.tool_calls]
            except (EOFError, KeyboardInterrupt):
                self._say('\n(no results given)')
                return

    def _result_of(self, call: dict[str, Any]) -> Message:
        result = self._console.input(f'[cyan]result of {call["name"]}: [/cyan]').strip()
        return {'role': 'tool', 'tool_call_id': call['id'], 'content': result or NO_RESULT}

    def _command(self, line: str) -> None:
        word, _, rest = line.partition(' ')
        rest = rest.strip()
        talk = self._talk
        if word == '/reset':
            talk.reset()
        elif word == '/system':
            talk.reset(rest)
        elif word == '/think' and rest in ('on', 'off'):
            talk.thinking = rest == 'on'
        elif word == '/set' and rest:
            self._set(rest)
        elif word == '/settings':
            shown = {'model': talk.model, 'thinking': talk.thinking, **talk.settings}
            names = [tool['function']['name'] for tool in talk.tools if 'function' in tool]
            self._say(json.dumps({**shown, 'tools': names}, ensure_ascii=False))
        elif word == '/tools':
            talk.tools = _read_list(Path(rest), '/tools') if rest else []
            self._say(f'{len(talk.tools)} tools')
        elif word == '/undo':
            self._say('taken back' if talk.undo() else 'there is nothing to take back')
        elif word == '/retry':
            if content := talk.undo():
                self._user_turn(content)
        elif word == '/image' and rest:
            self._images.append(image_part(Path(rest)))
            self._say(f'{len(self._images)} images go with the next message')
        elif word == '/save' and rest:
            text = json.dumps(talk.messages, ensure_ascii=False, indent=1)
            Path(rest).write_text(text + '\n', encoding='utf-8')
            self._say(f'{len(talk.messages)} messages written')
        elif word == '/load' and rest:
            talk.messages = _read_list(Path(rest), '/load')
            self._say(f'{len(talk.messages)} messages read')
        else:
            self._say(HELP)

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(' ')
        if not value:
            self._talk.settings.pop(name, None)
            return
        try:
            self._talk.settings[name] = json.loads(value)
        except ValueError:
            self._talk.settings[name] = value

    def _say(self, text: str) -> None:
        self._console.print(text, style='dim', markup=False)

    def _complain(self, text: str) -> None:
        self._console.print(Text(text, style='red'))


def _show(pieces: Iterator[Piece], answer: Answer, console: Console) -> None:
    thinking = False
    for piece in pieces:
        if piece.reasoning:
            thinking = True
            console.print(Text(piece.reasoning, style='dim italic'), end='')
        if piece.text:
            if thinking:
                thinking = False
                console.print()
            console.print(Text(piece.text), end='')
    console.print()
    for call in answer.tool_calls:
        console.print(Text(f'  {call["name"]}({call["arguments"]})', style='cyan'))
    console.print(Text(', '.join(_facts(answer)), style='dim'))


def _facts(answer: Answer) -> list[str]:
    facts = [f'{answer.usage.get("completion_tokens", 0)} tokens']
    if answer.tokens_per_s:
        facts.append(f'{answer.tokens_per_s:.0f} tok/s')
    if answer.first_token_s:
        facts.append(f'first after {answer.first_token_s * 1000:.0f} ms')
    if answer.accepted_share is not None:
        facts.append(f'{answer.accepted_share:.0%} of drafts kept')
    if answer.finish_reason == 'length':
        facts.append('cut at the token limit')
    return facts


def _read(path: Path, what: str) -> str:
    try:
        return path.expanduser().read_text(encoding='utf-8').strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'{what}: {error}') from error


def _read_list(path: Path, what: str) -> list[Any]:
    try:
        value = json.loads(_read(path, what))
    except ValueError as error:
        raise ConfigError(f'{what} {path}: not JSON: {error}') from error
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ConfigError(f'{what} {path}: a JSON list of objects is wanted')
    return value
