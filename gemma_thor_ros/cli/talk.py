# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A conversation with any OpenAI-compatible endpoint over httpx, for the verb `chat`.

Sends nothing that only our server knows unless it was asked for; reads reasoning under both of its
usual names. Prints nothing.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from gemma_thor_ros.schema import ConfigError

Message = dict[str, Any]
# How image files begin.
_IMAGE_STARTS = {'png': b'\x89PNG', 'jpeg': b'\xff\xd8', 'webp': b'RIFF'}


class ChatError(Exception):
    """The server answered with an error."""


@dataclass
class Piece:
    """A piece of a streamed answer."""

    text: str = ''
    reasoning: str = ''


@dataclass
class Answer:
    """A whole answer."""

    text: str = ''
    reasoning: str = ''
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)  # our server's
    finish_reason: str = ''
    first_token_s: float = 0.0
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Rate after the first token: the server's own where it tells it."""
        if rate := self.timings.get('tokens_per_s'):
            return float(rate)
        tokens = self.usage.get('completion_tokens', 0)
        decode = self.seconds - self.first_token_s
        return (tokens - 1) / decode if tokens > 1 and decode > 0 else 0.0

    @property
    def accepted_share(self) -> float | None:
        """Share of drafted tokens that were kept; None without drafts."""
        details = self.usage.get('completion_tokens_details') or {}
        accepted = details.get('accepted_prediction_tokens') or 0
        drafted = accepted + (details.get('rejected_prediction_tokens') or 0)
        return accepted / drafted if drafted else None

    def as_dict(self) -> dict[str, Any]:
        """Return what scripts want to know."""
        return {
            'text': self.text,
            'reasoning': self.reasoning,
            'tool_calls': self.tool_calls,
            'finish_reason': self.finish_reason,
            'usage': self.usage,
        }


class Conversation:
    """History and settings of one conversation. `thinking` None leaves it to the server."""

    def __init__(self, http: httpx.Client, model: str, system: str = '') -> None:
        self._http = http
        self.model = model
        self.thinking: bool | None = None
        self.settings: dict[str, Any] = {}  # temperature and the like, sent as they are
        self.tools: list[dict[str, Any]] = []
        self.messages: list[Message] = []
        self.reset(system)

    def find_model(self) -> str:
        """Return the first model that is served, and use it.

        Raises:
            ChatError: the server lists none.
        """
        response = self._http.get('models')
        if response.status_code != 200:
            raise ChatError(error_text(response))
        try:
            self.model = response.json()['data'][0]['id']
        except (ValueError, KeyError, IndexError, TypeError):
            raise ChatError('the server lists no model: name one with --model') from None
        return self.model

    def reset(self, system: str | None = None) -> None:
        """Forget the conversation; None keeps the system message."""
        first = self.messages[:1] if _is_system(self.messages) else []
        if system is not None:
            first = [{'role': 'system', 'content': system}] if system else []
        self.messages = first

    def undo(self) -> Any:
        """Take back the last user message and all that followed; return its content, or ''."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index]['role'] == 'user':
                content = self.messages[index]['content']
                del self.messages[index:]
                return content
        return ''

    def turn(self, new: list[Message], answer: Answer) -> Iterator[Piece]:
        """Send new messages; yield the pieces of the answer and fill `answer`. What was said is
        kept when the answer has ended or is stopped, and not when the server failed.

        Raises:
            ChatError: the server's own words. httpx.HTTPError: no connection.
        """
        body: dict[str, Any] = {
            'model': self.model,
            'messages': [*self.messages, *new],
            'stream': True,
            'stream_options': {'include_usage': True},
            **self.settings,
        }
        if self.tools:
            body['tools'] = self.tools
        if self.thinking is not None:
            body['chat_template_kwargs'] = {'enable_thinking': self.thinking}
        started = time.monotonic()
        try:
            with self._http.stream('POST', 'chat/completions', json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise ChatError(error_text(response))
                for line in response.iter_lines():
                    if not line.startswith('data:') or line[5:].strip() == '[DONE]':
                        continue
                    piece = _take(json.loads(line[5:]), answer)
                    answer.seconds = time.monotonic() - started
                    if (piece.text or piece.reasoning) and not answer.first_token_s:
                        answer.first_token_s = answer.seconds
                    yield piece
        except (KeyboardInterrupt, GeneratorExit):
            answer.finish_reason = 'stopped'
            answer.tool_calls.clear()  # they may be half of what was meant
            self._keep(new, answer)
            raise
        self._keep(new, answer)

    def _keep(self, new: list[Message], answer: Answer) -> None:
        message: Message = {'role': 'assistant', 'content': answer.text}
        if answer.tool_calls:
            message['tool_calls'] = [
                {
                    'id': call['id'],
                    'type': 'function',
                    'function': {'name': call['name'], 'arguments': call['arguments']},
                }
                for call in answer.tool_calls
            ]
            if answer.reasoning:
                message['reasoning_content'] = answer.reasoning
        self.messages += [*new, message]


def image_part(path: Path) -> dict[str, Any]:
    """The content part that shows an image file; ConfigError for what is none by its first bytes.

    The server reads it; here only its kind is told from another.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f'{path}: {error.strerror}') from error
    kind = next((kind for kind, start in _IMAGE_STARTS.items() if data.startswith(start)), None)
    if kind is None:
        raise ConfigError(f'{path} is no PNG, JPEG or WebP file')
    text = base64.b64encode(data).decode('ascii')
    return {'type': 'image_url', 'image_url': {'url': f'data:image/{kind};base64,{text}'}}


def with_images(text: str, images: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a message: its text, or parts with images before it."""
    return [*images, {'type': 'text', 'text': text}] if images else text


def error_text(response: httpx.Response) -> str:
    """Return the words of a server's error."""
    try:
        return str(response.json()['error']['message'])
    except (ValueError, KeyError, TypeError):
        return f'status {response.status_code}: {response.text[:200]}'


def base_url(url: str) -> str:
    """Return the URL that paths are appended to: /v1 where only a server is named."""
    return (url if urlsplit(url).path.strip('/') else f'{url.rstrip("/")}/v1').rstrip('/') + '/'


def reason(error: Exception) -> str:
    """Return why there was no answer."""
    if isinstance(error, httpx.ConnectError):
        return 'no server answers there; `gemma-thor run` starts one'
    return str(error) or type(error).__name__


def _is_system(messages: list[Message]) -> bool:
    return bool(messages) and messages[0]['role'] == 'system'


def _take(event: dict[str, Any], answer: Answer) -> Piece:
    """Add a stream event to the answer and return what it shows."""
    if event.get('error'):
        error = event['error']
        raise ChatError(str(error.get('message', error) if isinstance(error, dict) else error))
    answer.usage = event.get('usage') or answer.usage
    answer.timings = event.get('timings') or answer.timings
    if not event.get('choices'):
        return Piece()
    choice = event['choices'][0]
    answer.finish_reason = choice.get('finish_reason') or answer.finish_reason
    delta = choice.get('delta') or {}
    piece = Piece(
        delta.get('content') or '',
        delta.get('reasoning_content') or delta.get('reasoning') or '',
    )
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
