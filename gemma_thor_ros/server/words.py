# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""What the routes of the OpenAI API have in common: fields that mean the same in all of them, and
the pieces of their answers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from gemma_thor_ros.chat import MAX_REQUEST_ID, Chat
from gemma_thor_ros.engine.admission import MAX_LOGPROBS
from gemma_thor_ros.schema import (
    ChatResult,
    ErrorCode,
    FinishReason,
    Priority,
    RequestError,
    Usage,
)
from gemma_thor_ros.server.errors import error_body
from gemma_thor_ros.server.openai_types import (
    ChatTemplateKwargs,
    CompletionTokensDetails,
    OtherGuides,
    PromptTokensDetails,
    StreamOptions,
    TimingsOut,
    UsageOut,
)

DONE = 'data: [DONE]\n\n'
_SAMPLING = (
    'temperature',
    'top_p',
    'top_k',
    'min_p',
    'repetition_penalty',
    'presence_penalty',
    'frequency_penalty',
    'min_tokens',
    'seed',
    'ignore_eos',
    'logit_bias',
)
_EFFORTS = ('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max')
_LOWEST = -9999.0  # stands for a probability of zero, which JSON can't write as a logarithm


def invalid(message: str, param: str) -> RequestError:
    """Return the error of a wrong field."""
    return RequestError(ErrorCode.INVALID_REQUEST, message, param)


def unsupported(message: str, param: str) -> RequestError:
    """Return the error of a field that we can't serve."""
    return RequestError(ErrorCode.UNSUPPORTED, message, param)


def sampling_of(body: OtherGuides) -> dict[str, Any]:
    """Return the sampling settings that a body brings; absent ones are None.

    Raises:
        RequestError: it would guide the answer in words that are not served.
    """
    for name in OtherGuides.model_fields:
        if getattr(body, name) is not None:
            raise unsupported(
                f'{name} is not served; response_format and tool_choice guide an answer', name
            )
    sampling = {name: getattr(body, name, None) for name in _SAMPLING}
    if stop_ids := getattr(body, 'stop_token_ids', None):
        sampling['stop_ids'] = stop_ids
    return sampling


def logprobs_of(alternatives: int | None, param: str) -> int:
    """Return how many alternatives a token is given with, where log probabilities are wanted."""
    count = alternatives or 0
    if not 0 <= count <= MAX_LOGPROBS:
        raise invalid(f'{param} is {count}, allowed are 0 to {MAX_LOGPROBS}', param)
    return count


def stop_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return stop strings."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def priority_of(name: str | None) -> Priority | None:
    """Return the scheduling class."""
    return None if name is None else Priority[name.upper()]


def deadline_of(deadline_ms: float | None) -> float:
    """Return the deadline in seconds; 0 = none."""
    if deadline_ms is not None and deadline_ms < 0:
        raise invalid(f'deadline_ms is {deadline_ms:g}, it must not be negative', 'deadline_ms')
    return (deadline_ms or 0.0) / 1000.0


def check_count(n: int | None, num_prompts: int, limit: int) -> int:
    """Return how many answers each prompt gets, or refuse too many in all."""
    count = 1 if n is None else n
    if count < 1:
        raise invalid(f'n is {count}, at least 1 is needed', 'n')
    if count * num_prompts > limit:
        raise invalid(
            f'{count * num_prompts} answers are asked for, at most {limit} are allowed', 'n'
        )
    return count


def choice_id(request_id: str, choice: int) -> str:
    """Return the engine's id of one answer of a call."""
    if choice == 0:
        return request_id
    ending = f'.{choice}'
    if len(request_id) + len(ending) <= MAX_REQUEST_ID:
        return request_id + ending
    return hashlib.sha256(request_id.encode()).hexdigest()[:32] + ending


def thinking_of(
    kwargs: ChatTemplateKwargs | None,
    enable_thinking: bool | None,
    effort: str | None,
    param: str = 'reasoning_effort',
) -> bool | None:
    """Return whether to think; chat_template_kwargs wins over the two other spellings."""
    if kwargs is not None and kwargs.enable_thinking is not None:
        return kwargs.enable_thinking
    if enable_thinking is not None:
        return enable_thinking
    if effort is None:
        return None
    if effort not in _EFFORTS:
        raise invalid(
            f'{param} is {effort[:100]!r}, allowed are {", ".join(_EFFORTS)}', param
        )
    return effort != 'none'


def wants_usage(options: StreamOptions | None) -> bool:
    """Tell whether a stream ends with the token counts."""
    return options is not None and bool(options.include_usage)


def finish_reason(result: ChatResult) -> str:
    """Return how an answer ended, in OpenAI's words."""
    # OpenAI knows no 'cancelled': what a cancelled answer holds ends like a full one.
    return 'stop' if result.finish_reason is FinishReason.CANCELLED else str(result.finish_reason)


def usage_out(results: Sequence[ChatResult], n: int = 0) -> UsageOut:
    """Add up token counts; a prompt counts once for its n answers (0: all have the same one)."""
    usages = [result.usage for result in results]
    firsts = usages[:: n or len(usages)]
    total = sum(usages, Usage())
    prompt, completion = sum(usage.prompt_tokens for usage in firsts), total.completion_tokens
    return UsageOut(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(usage.cached_tokens for usage in firsts)
        ),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=total.reasoning_tokens,
            accepted_prediction_tokens=total.accepted_tokens,
            rejected_prediction_tokens=total.drafted_tokens - total.accepted_tokens,
            draft_rounds=total.rounds,
            accepted_by_position=list(total.accepted_by_position),
        ),
    )


def timings_out(results: Sequence[ChatResult]) -> TimingsOut:
    """Return the timings of the answer that took longest."""
    slowest = max((result.timings for result in results), key=lambda timings: timings.total_ms)
    return TimingsOut(**{name: round(v, 3) for name, v in dataclasses.asdict(slowest).items()})


quote = json.encoder.encode_basestring  # a text as JSON, in C; what json.dumps itself uses


def dumps(value: Any) -> str:
    """Return compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(',', ':'))


def chunk_head(kind: str, request_id: str, created: int, model: str) -> str:
    """Return the beginning of every chunk of a stream, up to its choices."""
    head = {'id': request_id, 'object': kind, 'created': created, 'model': model}
    return f'data: {dumps(head)[:-1]},"choices":'


def usage_event(head: str, results: Sequence[ChatResult], n: int = 0) -> str:
    """Return the chunk with the token counts, as usage_out adds them up."""
    usage = dumps(usage_out(results, n).model_dump())
    return f'{head}[],"usage":{usage},"timings":{dumps(timings_out(results).model_dump())}}}\n\n'


def error_event(code: ErrorCode, message: str) -> str:
    """Return the event of a stream that breaks off."""
    return f'data: {error_body(code, message).model_dump_json()}\n\n'


def finite(logprob: float) -> float:
    """Return a logarithm that JSON can write."""
    return max(logprob, _LOWEST)


class TokenNames:
    """What single tokens are called in log probabilities."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def raw(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text; none for control tokens."""
        return self._chat.token_bytes(token_id)

    def of(self, token_id: int) -> str:
        """Return a token's text; the marker of a control token, U+FFFD for parts of characters."""
        raw = self.raw(token_id)
        if raw:
            return raw.decode('utf-8', 'replace')
        try:
            return self._chat.detokenize((token_id,))
        except RequestError:  # ids beyond the tokenizer's, which some models' tables have
            return ''
