# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions: raw prompts, continued without a template.

Text that looks like a control token stays text; who wants control tokens in a prompt sends token
ids, which /render-prompt makes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any

from gemma_thor_ros.chat import Chat
from gemma_thor_ros.schema import ChatDelta, ChatRequest, ChatResult, ErrorCode, TokenLogprob
from gemma_thor_ros.server.openai_types import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from gemma_thor_ros.server.words import (
    DONE,
    TokenNames,
    check_count,
    choice_id,
    chunk_head,
    deadline_of,
    dumps,
    error_event,
    finish_reason,
    finite,
    invalid,
    logprobs_of,
    priority_of,
    sampling_of,
    stop_of,
    timings_out,
    unsupported,
    usage_event,
    usage_out,
    wants_usage,
)

Prompt = str | tuple[int, ...]


def prompts_of(body: CompletionRequest) -> list[Prompt]:
    """Return the prompts of a request, one or several.

    Raises:
        RequestError: there is none.
    """
    given = body.prompt
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid('prompt is empty: text or at least 1 token id is needed', 'prompt')
    if isinstance(given[0], int):
        return [_ids(given)]
    return [item if isinstance(item, str) else _ids(item) for item in given]


def to_chat_requests(
    body: CompletionRequest, request_id: str, max_choices: int
) -> list[ChatRequest]:
    """Convert a request: n ChatRequests for each prompt, prompt by prompt.

    Raises:
        RequestError: a field that would change the answer and that we don't serve, or that
            contradicts another one.
    """
    prompts = prompts_of(body)
    n = check_count(body.n, len(prompts), max_choices)
    if body.best_of not in (None, n):
        raise unsupported(f'best_of is {body.best_of}, only n, {n}, is served', 'best_of')
    if body.suffix:
        raise unsupported('suffix is not served', 'suffix')
    if body.echo and body.logprobs is not None:
        raise unsupported('echo with logprobs is not served: a prompt has none', 'echo')
    if body.max_tokens == 0:
        raise invalid('max_tokens is 0, at least 1 is needed', 'max_tokens')
    sampling = sampling_of(body)
    sampling['max_tokens'] = body.max_tokens
    if body.logprobs is not None:
        sampling['logprobs'] = logprobs_of(body.logprobs, 'logprobs')
    request = ChatRequest(
        messages=(),
        sampling=sampling,
        stop=stop_of(body.stop),
        priority=priority_of(body.priority),
        deadline_s=deadline_of(body.deadline_ms),
        front_end='http',
    )
    return [
        dataclasses.replace(
            request, prompt=prompt, choice=index % n, request_id=choice_id(request_id, index)
        )
        for index, prompt in _repeated(prompts, n)
    ]


class CompletionForm:
    """Writes answers as text completions: at most one chunk a step and choice, then [DONE]."""

    def __init__(
        self,
        request_id: str,
        model: str,
        body: CompletionRequest,
        chat: Chat,
    ) -> None:
        self._id = request_id
        self._model = model
        self._created = int(time.time())
        self._n = body.n or 1
        prompts = prompts_of(body)
        self._count = self._n * len(prompts)
        self._echo: list[str] = []
        if body.echo:
            self._echo = [p if isinstance(p, str) else chat.detokenize(p) for p in prompts]
        self._gathered: list[list[TokenLogprob]] = [[] for _ in range(self._count)]
        self._logprobs: list[LegacyLogprobs] = []
        if body.logprobs is not None:
            self._logprobs = [LegacyLogprobs(chat) for _ in range(self._count)]
        self._include_usage = wants_usage(body.stream_options)
        self._head = chunk_head('text_completion', request_id, self._created, model)
        self._tail = ',"usage":null}\n\n' if self._include_usage else '}\n\n'

    def begin(self) -> str:
        choices = range(self._count)
        return ''.join(self._chunk(choice, self._prefix(choice)) for choice in choices)

    def delta(self, choice: int, delta: ChatDelta) -> str:
        if self._logprobs and delta.logprobs:
            logprobs = self._logprobs[choice].of(delta.logprobs).model_dump()
            return self._chunk(choice, delta.text, logprobs=logprobs)
        return self._chunk(choice, delta.text) if delta.text else ''

    def finished(self, choice: int, result: ChatResult) -> str:
        return self._chunk(choice, '', finish_reason(result))

    def end(self, results: Sequence[ChatResult]) -> str:
        return usage_event(self._head, results, self._n) * self._include_usage + DONE

    def failed(self, code: ErrorCode, message: str) -> str:
        return error_event(code, message) + DONE

    def collect(self, choice: int, delta: ChatDelta) -> None:
        if self._logprobs:
            self._gathered[choice].extend(delta.logprobs)

    def whole(self, results: Sequence[ChatResult]) -> dict[str, Any]:
        choices = [
            CompletionChoice(
                index=index,
                text=self._prefix(index) + result.text,
                logprobs=self._whole_logprobs(index),
                finish_reason=finish_reason(result),
            )
            for index, result in enumerate(results)
        ]
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage_out(results, self._n),
            timings=timings_out(results),
        ).model_dump()

    def _whole_logprobs(self, choice: int) -> CompletionLogprobs | None:
        return self._logprobs[choice].of(self._gathered[choice]) if self._logprobs else None

    def _prefix(self, choice: int) -> str:
        return self._echo[choice // self._n] if self._echo else ''

    def _chunk(
        self,
        choice: int,
        text: str,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> str:
        body = {'index': choice, 'text': text, 'logprobs': logprobs, 'finish_reason': finish}
        return f'{self._head}{dumps([body])}{self._tail}'


class LegacyLogprobs:
    """Writes token log probabilities in the completions API's form, as the tokens come."""

    def __init__(self, chat: Chat) -> None:
        self._names = TokenNames(chat)
        self._offset = 0
        self._pending = b''  # of a character that is not complete yet

    def of(self, entries: Iterable[TokenLogprob]) -> CompletionLogprobs:
        """Return the object of the next tokens."""
        out = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for entry in entries:
            token = self._token(entry.token_id)
            out.tokens.append(token)
            out.token_logprobs.append(finite(entry.logprob))
            top = {self._token(token_id): finite(logprob) for token_id, logprob in entry.top}
            out.top_logprobs.append({token: finite(entry.logprob), **top})
            out.text_offset.append(self._offset)
            self._pending += self._names.raw(entry.token_id)
            text = self._pending.decode('utf-8', 'ignore')
            if text or not self._pending:
                self._offset += len(text)
                self._pending = b''
        return out

    def _token(self, token_id: int) -> str:
        raw = self._names.raw(token_id)
        try:
            return raw.decode('utf-8') or self._names.of(token_id)
        except UnicodeDecodeError:  # a part of a character: OpenAI's spelling of it
            return 'bytes:' + ''.join(f'\\x{byte:02x}' for byte in raw)


def _repeated(prompts: Sequence[Prompt], n: int) -> Iterable[tuple[int, Prompt]]:
    return ((index * n + choice, p) for index, p in enumerate(prompts) for choice in range(n))


def _ids(values: Any) -> tuple[int, ...]:
    if not values:
        raise invalid('prompt is empty: text or at least 1 token id is needed', 'prompt')
    return tuple(values)
