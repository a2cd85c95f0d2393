# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""Which requests the engine takes: every check that needs no model, before any device work.

Raises RequestError with a sentence that has the numbers. Knows the engine's limits, not its state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gemma_thor_ros.engine.page_pool import PageManager
from gemma_thor_ros.schema import ErrorCode, Request, RequestError, SamplingParams

MAX_LOGPROBS = 20


@dataclass(frozen=True)
class Limits:
    """What the model and the settings allow."""

    vocab_size: int
    context_length: int
    stop_ids: tuple[int, ...]
    suppress_tokens: tuple[int, ...]
    max_image_tokens: int = 0            # soft tokens of one image; 0: the model sees none

    @cached_property
    def suppressed(self) -> npt.NDArray[np.int64]:
        """Ids that are never chosen, ascending."""
        return id_array(set(self.suppress_tokens))


def check_request(request: Request, limits: Limits, pages: PageManager) -> None:
    """Raise RequestError unless this request can run on an empty engine."""
    _check_prompt(request, limits)
    _check_images(request, limits)
    _check_sampling(request.sampling, limits)
    _range('choice', request.choice, 0, 2 ** 32 - 1)
    for name in ('deadline_s', 'first_token_s', 'token_gap_s'):
        seconds = getattr(request, name)
        if not (math.isfinite(seconds) and seconds >= 0.0):
            raise _invalid(name, f'{name} is {seconds}; it must be a finite number of seconds, '
                                 '0 for none.')
    for mark in request.checkpoints:
        _range('checkpoints', mark, 0, len(request.prompt_ids))
    num_prompt, max_tokens = len(request.prompt_ids), request.sampling.max_tokens
    if num_prompt + max_tokens > limits.context_length:
        raise RequestError(
            ErrorCode.CONTEXT_LENGTH,
            f'The prompt has {num_prompt} tokens and max_tokens is {max_tokens}, together '
            f'{num_prompt + max_tokens}; the context is {limits.context_length} tokens.',
            'max_tokens')
    need = pages.need(num_prompt + max_tokens - 1)
    if not pages.can_ever_fit(need):
        raise RequestError(
            ErrorCode.MEMORY,
            f'The prompt of {num_prompt} tokens with max_tokens {max_tokens} needs {need.full} '
            f'full-attention and {need.sliding} sliding-window pages of {pages.page_size} tokens; '
            f'the engine has {pages.full.num_pages} and {pages.sliding.num_pages}.', 'max_tokens')


def suppressed_ids(limits: Limits, sampling: SamplingParams, num_generated: int) -> set[int]:
    """Ids that may not be chosen as the next token after num_generated ones."""
    ids = set(limits.suppress_tokens)
    if num_generated < sampling.min_tokens:
        ids.update(limits.stop_ids, sampling.stop_ids)
    return ids


def id_array(ids: set[int]) -> npt.NDArray[np.int64]:
    """Sorted int64 array of a set of ids."""
    return np.array(sorted(ids), np.int64)


def _check_prompt(request: Request, limits: Limits) -> None:
    num_prompt = len(request.prompt_ids)
    if num_prompt == 0:
        raise _invalid('prompt_ids', 'The prompt is empty; it needs at least 1 token.')
    if num_prompt >= limits.context_length:
        raise RequestError(
            ErrorCode.CONTEXT_LENGTH,
            f'The prompt has {num_prompt} tokens; the context is {limits.context_length} tokens '
            'and must hold at least 1 generated token as well.', 'prompt_ids')
    low, high = min(request.prompt_ids), max(request.prompt_ids)
    if low < 0 or high >= limits.vocab_size:
        raise _invalid('prompt_ids', f'Prompt token id {low if low < 0 else high} is outside the '
                                     f'vocabulary 0 to {limits.vocab_size - 1}.')


def _check_images(request: Request, limits: Limits) -> None:
    if request.images and not limits.max_image_tokens:
        raise RequestError(ErrorCode.UNSUPPORTED, 'The model takes no images.', 'images')
    end, num_prompt = 0, len(request.prompt_ids)
    for image in request.images:
        _range('images', image.num_tokens, 1, limits.max_image_tokens)
        if not end <= image.start <= image.stop <= num_prompt:
            raise _invalid('images', f'An image has the positions {image.start} to '
                                     f'{image.stop - 1}; it must begin at {end} or later, and the '
                                     f'prompt has {num_prompt} tokens.')
        end = image.stop


def _check_sampling(sampling: SamplingParams, limits: Limits) -> None:
    _range('temperature', sampling.temperature, 0.0, math.inf)
    _range('top_k', sampling.top_k, 0, math.inf)
    _range('top_p', sampling.top_p, 0.0, 1.0)
    _range('min_p', sampling.min_p, 0.0, 1.0)
    _range('repetition_penalty', sampling.repetition_penalty, 1e-3, 1e3)
    _range('presence_penalty', sampling.presence_penalty, -100.0, 100.0)
    _range('frequency_penalty', sampling.frequency_penalty, -100.0, 100.0)
    _range('max_tokens', sampling.max_tokens, 1, math.inf)
    _range('min_tokens', sampling.min_tokens, 0, sampling.max_tokens)
    _range('seed', sampling.seed, 0, 2 ** 64 - 1)
    _range('logprobs', sampling.logprobs, -1, MAX_LOGPROBS)
    for token_id, bias in sampling.logit_bias:
        _id('logit_bias', token_id, limits)
        _range('logit_bias', bias, -100.0, 100.0)
    for token_id in sampling.stop_ids:
        _id('stop_ids', token_id, limits)
    num_suppressed = len(suppressed_ids(limits, sampling, 0))
    if num_suppressed >= limits.vocab_size:
        raise _invalid('min_tokens', f'All {limits.vocab_size} token ids are suppressed for the '
                                     'first token; at least 1 must be allowed.')


def _range(name: str, value: float, low: float, high: float) -> None:
    """Also refuses NaN, which compares as false; infinity only passes where it is a bound's."""
    if not low <= value <= high or value == math.inf:
        upper = 'and finite' if high == math.inf else f'and at most {high:g}'
        if isinstance(value, int) and isinstance(high, int):
            upper = f'and at most {high}'
        raise _invalid(name, f'{name} is {value}; it must be at least {low:g} {upper}.')


def _id(name: str, token_id: int, limits: Limits) -> None:
    if not 0 <= token_id < limits.vocab_size:
        raise _invalid(name, f'{name} has token id {token_id}, outside the vocabulary 0 to '
                             f'{limits.vocab_size - 1}.')


def _invalid(param: str, message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, message, param)
